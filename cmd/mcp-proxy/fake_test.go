//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// fakeServer is an MCP server whose tools do what tests need:
//
//	echo       answers with its arguments
//	hang       reports progress, and never answers
//	late       answers when it is cancelled
//	slow       answers when release is called
//	nap        answers after the number of milliseconds in its argument "ms"
//	twice      answers twice
//	garbage    writes a line that is no message before its answer
//	wrong      answers with an invalid response
//	ask        asks the client for an elicitation, whose message is its argument
//	           "about", and answers with its answer
//	notify     reports progress and logs before it answers
//	grow       adds a tool, and notifies clients
//	update     notifies that fake://thing has changed
//	mute       answers no lists from now on
//	plug       stops reading
//	close      closes stdout and keeps running
//	exit       exits with status 3; leave, with 0
//	crash      kills the server
//	grandchild starts a process that ignores everything, and answers with its pid
//
// It appends every message that it receives to the file in FAKE_LOG, and "end" when its client
// has left. With FAKE_STUBBORN it ignores the end of its client, and SIGTERM; with FAKE_MUTE it
// ignores initialize and server/discover, and FAKE_UNLISTED is its error for tools/list.
// FAKE_CLEARS is how long it clears up after its client has left, before it appends "cleared".
// It is on stdio, or at the address in FAKE_HTTP.
//
// FAKE_ERA is "modern" or "both"; else the server speaks only the legacy era. Then FAKE_PROBED
// says what it does at server/discover: "exit", or "silent".
func fakeServer() {
	if os.Getenv("FAKE_STUBBORN") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	if address := os.Getenv("FAKE_HTTP"); address != "" {
		fakeHTTP(address)
		return
	}
	serveFake(&stdioEnd{jsonrpc.NewLineReader(os.Stdin, jsonrpc.Limits{}), jsonrpc.NewLineWriter(os.Stdout)})
	for os.Getenv("FAKE_STUBBORN") != "" {
		time.Sleep(time.Hour) // the runtime may take a bare select for a deadlock
	}
}

// fakeHTTP serves every session of any transport until it is killed.
func fakeHTTP(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	serve := func(c jsonrpc.Conn) error {
		defer c.Close()
		return serveFake(c)
	}
	http.Serve(listener, &frontend.HTTP{
		Serve:          func(_ context.Context, _ *identity.Identity, _ string, c jsonrpc.Conn) error { return serve(c) },
		ServePrincipal: func(_ context.Context, _ identity.Principal, _ string, c jsonrpc.Conn) error { return serve(c) },
	})
}

// A stdioEnd is the server's end of a pair of pipes.
type stdioEnd struct {
	in  *jsonrpc.LineReader
	out *jsonrpc.LineWriter
}

func (s *stdioEnd) Recv() (*jsonrpc.Message, error) { return s.in.Read() }
func (s *stdioEnd) Send(m *jsonrpc.Message) error   { return s.out.Write(m) }
func (s *stdioEnd) Close() error                    { return nil }

// A fake is the session of one client; in the modern era, of all clients that share a Conn.
type fake struct {
	jsonrpc.Conn
	fakeModern
	log   *os.File
	asked int64
	open  map[jsonrpc.ID]*jsonrpc.Message // calls that asked, by the id of the question
	late  map[jsonrpc.ID]*jsonrpc.Message // calls of late, by their own ids
	slow  []*jsonrpc.Message
	grown int
	mute  bool
}

func serveFake(c jsonrpc.Conn) error {
	f := &fake{Conn: c, fakeModern: newFakeModern(), open: map[jsonrpc.ID]*jsonrpc.Message{}, late: map[jsonrpc.ID]*jsonrpc.Message{}}
	if name := os.Getenv("FAKE_LOG"); name != "" {
		f.log, _ = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		defer f.log.Close()
	}
	for {
		m, err := c.Recv()
		if err != nil {
			f.note("end")
			if d, err := time.ParseDuration(os.Getenv("FAKE_CLEARS")); err == nil {
				time.Sleep(d)
				f.note("cleared")
			}
			return err
		}
		f.note(string(m.Append(nil)))
		f.handle(m)
	}
}

func (f *fake) note(line string) {
	if f.log != nil {
		fmt.Fprintf(f.log, "%d %s\n", os.Getpid(), line)
	}
}

func (f *fake) handle(m *jsonrpc.Message) {
	switch {
	case m.IsRequest() && !f.speaks(m):
		f.refuse(m)
	case m.Method == "":
		f.answered(m)
	case m.Method == "notifications/cancelled":
		f.cancelled(m)
	default:
		f.request(m)
	}
}

// answered answers the call for which a client has answered a question.
func (f *fake) answered(m *jsonrpc.Message) {
	if call := f.open[m.ID]; call != nil {
		delete(f.open, m.ID)
		f.Send(&jsonrpc.Message{ID: call.ID, Result: m.Result, Error: m.Error, Related: call.ID})
	}
}

func (f *fake) cancelled(m *jsonrpc.Message) {
	id, _ := jsonrpc.Member(m.Params, "requestId")
	of, _ := jsonrpc.ParseID(id)
	delete(f.listens, of)
	if late := f.late[of]; late != nil {
		f.progress(late)
		f.answer(late, `{"content":[],"late":true}`)
	}
}

const fakeCapabilities = `{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"logging":{}}`

func (f *fake) request(m *jsonrpc.Message) {
	switch m.Method {
	case "initialize":
		if os.Getenv("FAKE_MUTE") == "" {
			f.answer(m, `{"protocolVersion":"2025-11-25","capabilities":`+fakeCapabilities+`,"serverInfo":{"name":"fake","version":"1"}}`)
		}
	case "server/discover":
		if os.Getenv("FAKE_MUTE") == "" {
			f.answer(m, `{"supportedVersions":["2026-07-28"],"capabilities":`+fakeCapabilities+`,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1"}}}`)
		}
	case "subscriptions/listen":
		f.listen(m)
	case "tools/list":
		if why := os.Getenv("FAKE_UNLISTED"); why != "" {
			f.fail(m, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: why})
		} else if !f.mute {
			f.answer(m, `{"tools":[`+f.tools()+`]}`)
		}
	case "resources/list":
		f.answer(m, `{"resources":[{"uri":"fake://thing","name":"thing"}]}`)
	case "resources/templates/list":
		f.answer(m, `{"resourceTemplates":[]}`)
	case "resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping":
		f.answer(m, `{}`)
	case "tools/call":
		f.call(m)
	}
}

// fakeTools are the tools of a fake at the start.
const fakeTools = "echo hang late slow release twice garbage wrong ask notify grow update mute plug close exit leave crash grandchild"

func (f *fake) tools() string {
	names := strings.Fields(fakeTools)
	for i := range f.grown {
		names = append(names, fmt.Sprintf("grown%d", i+1))
	}
	for i, name := range names {
		names[i] = fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name)
	}
	return strings.Join(names, ",")
}

func (f *fake) answer(m *jsonrpc.Message, result string) {
	if isModern(m) {
		result = modernResult(m.Method, result)
	}
	f.Send(&jsonrpc.Message{ID: m.ID, Result: json.RawMessage(result), Related: m.ID})
}

// tell sends a notification about a call, or about none.
func (f *fake) tell(call *jsonrpc.Message, method, params string) {
	m := jsonrpc.NewNotification(method, nil)
	if params != "" {
		m.Params = json.RawMessage(params)
	}
	if call != nil {
		m.Related = call.ID
	}
	f.Send(m)
}

func (f *fake) progress(call *jsonrpc.Message) {
	meta, _ := jsonrpc.Member(call.Params, "_meta")
	if token, _ := jsonrpc.Member(meta, "progressToken"); token != nil {
		f.tell(call, "notifications/progress", `{"progressToken":`+string(token)+`,"progress":1}`)
	}
}

const fakeDone = `{"content":[],"structuredContent":{}}`

func (f *fake) call(m *jsonrpc.Message) {
	text, _ := jsonrpc.Member(m.Params, "name")
	switch name, _ := jsonrpc.Unquote(text); name {
	case "hang":
		f.progress(m)
	case "late":
		f.late[m.ID] = m
	case "nap":
		args, _ := jsonrpc.Member(m.Params, "arguments")
		ms, _ := jsonrpc.Member(args, "ms")
		d, _ := strconv.Atoi(string(ms))
		time.AfterFunc(time.Duration(d)*time.Millisecond, func() { f.answer(m, fakeDone) })
	case "slow":
		f.slow = append(f.slow, m)
	case "release":
		for _, call := range append(f.slow, m) {
			f.answer(call, fakeDone)
		}
		f.slow = nil
	case "twice":
		f.answer(m, fakeDone)
		f.answer(m, `{"content":[],"second":true}`)
	case "garbage":
		fmt.Println("this is no message")
		f.answer(m, fakeDone)
	case "wrong":
		fmt.Printf(`{"jsonrpc":"1.0","result":{},"id":%s}`+"\n", m.ID)
	case "ask":
		f.ask(m)
	case "notify":
		f.progress(m)
		if wantsLog(m) {
			f.tell(m, "notifications/message", `{"level":"error","data":"said"}`)
		}
		f.answer(m, fakeDone)
	case "grow":
		f.grown++
		f.tellAll("toolsListChanged", "notifications/tools/list_changed", "")
		f.answer(m, fakeDone)
	case "update":
		f.tellAll("resourceSubscriptions", "notifications/resources/updated", `{"uri":"fake://thing"}`)
		f.answer(m, fakeDone)
	case "mute":
		f.mute = true
		f.answer(m, fakeDone)
	default:
		f.process(m, name)
	}
}

// ask requests an elicitation; in the modern era, in its answer.
func (f *fake) ask(m *jsonrpc.Message) {
	args, _ := jsonrpc.Member(m.Params, "arguments")
	about, _ := jsonrpc.Member(args, "about")
	if about == nil {
		about = json.RawMessage(`"?"`)
	}
	question := `{"message":` + string(about) + `,"requestedSchema":{"type":"object","properties":{}}}`
	if isModern(m) {
		f.requireInput(m, question)
		return
	}
	f.asked++
	id := jsonrpc.IntID(f.asked)
	f.open[id] = m
	q := jsonrpc.NewRequest(id, "elicitation/create", json.RawMessage(question))
	q.Related = m.ID
	f.Send(q)
}

// process calls a tool that concerns the server process.
func (f *fake) process(m *jsonrpc.Message, name string) {
	switch name {
	case "plug":
		time.Sleep(time.Hour)
	case "close":
		os.Stdout.Close()
	case "exit":
		os.Exit(3)
	case "leave":
		os.Exit(0)
	case "crash":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "grandchild":
		child := exec.Command("sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done")
		child.Stdout = os.Stdout // the pipe stays open when we end
		if err := child.Start(); err != nil {
			panic(err)
		}
		f.answer(m, fmt.Sprintf(`{"content":[],"structuredContent":{"pid":%d}}`, child.Process.Pid))
	default: // echo, and the tools that grow added
		args, _ := jsonrpc.Member(m.Params, "arguments")
		if args == nil {
			args = json.RawMessage(`{}`)
		}
		f.answer(m, `{"content":[],"structuredContent":`+string(args)+`}`)
	}
}
