// Command mortal is an MCP server that dies and suffers in front of witnesses: it
// appends what happens to it to a file, a line for each event, with its process id.
// It is started as
//
//	mortal [-stubborn] [-http ADDRESS] FILE
//
// and speaks MCP of 2025-11-25 over stdio, or over Streamable HTTP with sessions. Its
// tool wait answers after "ms" milliseconds, unless it is cancelled. exit ends the
// process with "status", and pid says which process it is. A stubborn one takes no
// notice of the end of its stdin, nor of SIGTERM.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// lifetime ends even a stubborn server that everybody has forgotten.
const lifetime = time.Minute

func main() {
	stubborn := flag.Bool("stubborn", false, "stay after the end of stdin, and after SIGTERM")
	address := flag.String("http", "", "serve Streamable HTTP at this `address` instead of stdio")
	flag.Parse()
	if err := run(flag.Arg(0), *address, *stubborn); err != nil {
		fmt.Fprintln(os.Stderr, "mortal:", err)
		os.Exit(1)
	}
}

func run(file, address string, stubborn bool) error {
	log, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	s := &server{log: log, calls: map[string]waiting{}}
	s.note("started", "")
	time.AfterFunc(lifetime, func() { os.Exit(1) })
	if stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	if address != "" {
		return s.listen(address)
	}
	err = s.serve(os.Stdin, os.Stdout)
	s.note("stdin", "closed")
	if stubborn {
		select {}
	}
	return err
}

// A server has calls that wait, by the session and the id of their requests.
type server struct {
	log *os.File

	mu    sync.Mutex // guards the field below
	calls map[string]waiting
}

// A waiting call is abandoned when cancelled is closed.
type waiting struct {
	tag       string
	cancelled chan struct{}
}

// note appends one line with one write, so that lines of several processes do not mix.
func (s *server) note(event, tag string) {
	fmt.Fprintf(s.log, "%d %s %s\n", os.Getpid(), event, tag)
}

// A message is a request or a notification.
type message struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name      string
		RequestID json.RawMessage
		Arguments struct {
			Tag        string
			MS, Status int
		}
	}
}

// answer returns the response to m, nil for none. It returns when the call is done,
// cancelled, or when gone is closed.
func (s *server) answer(m message, session string, gone <-chan struct{}) any {
	switch m.Method {
	case "initialize":
		return result(m.ID, map[string]any{
			"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "mortal", "version": "1"},
		})
	case "tools/list":
		var tools []any
		for _, name := range []string{"wait", "exit", "pid"} {
			tools = append(tools, map[string]any{"name": name, "description": name, "inputSchema": map[string]any{"type": "object"}})
		}
		return result(m.ID, map[string]any{"tools": tools})
	case "tools/call":
		return s.call(m, session, gone)
	case "ping":
		return result(m.ID, map[string]any{})
	case "notifications/cancelled":
		s.cancel(session + string(m.Params.RequestID))
		return nil
	}
	if m.ID == nil {
		return nil
	}
	return map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": "no such method"}}
}

func (s *server) call(m message, session string, gone <-chan struct{}) any {
	args := m.Params.Arguments
	switch m.Params.Name {
	case "exit":
		os.Exit(args.Status)
	case "wait":
		if !s.wait(session+string(m.ID), args.Tag, time.Duration(args.MS)*time.Millisecond, gone) {
			return nil
		}
	}
	text := map[string]any{"type": "text", "text": strconv.Itoa(os.Getpid()) + " " + args.Tag}
	return result(m.ID, map[string]any{"content": []any{text}})
}

// wait reports whether the call was neither cancelled nor abandoned.
func (s *server) wait(key, tag string, d time.Duration, gone <-chan struct{}) bool {
	cancelled := make(chan struct{})
	s.mu.Lock()
	s.calls[key] = waiting{tag, cancelled}
	s.mu.Unlock()
	s.note("called", tag)
	select {
	case <-cancelled:
		return false
	case <-gone:
		s.take(key)
		s.note("abandoned", tag)
		return false
	case <-time.After(d):
		s.take(key)
		s.note("answered", tag)
		return true
	}
}

// cancel ends the call of key, if it waits. It is noted before anything else happens.
func (s *server) cancel(key string) {
	if call, ok := s.take(key); ok {
		s.note("cancelled", call.tag)
		close(call.cancelled)
	}
}

// take takes the call of key out.
func (s *server) take(key string) (call waiting, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call, ok = s.calls[key]
	delete(s.calls, key)
	return call, ok
}

func result(id json.RawMessage, what any) any {
	return map[string]any{"jsonrpc": "2.0", "id": id, "result": what}
}
