//go:build unix

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The fake server is this test binary, started again with these variables.
const (
	fakeEnv   = "UPSTREAM_FAKE"        // "serve", or another role; unset in the tests' own process
	traitsEnv = "UPSTREAM_FAKE_TRAITS" // comma list, for the whole life
	recordEnv = "UPSTREAM_FAKE_RECORD" // a file that gets every line that was read
	markEnv   = "UPSTREAM_FAKE_RUN"    // marks every process of one test run
)

// runFake plays the role and does not return.
func runFake(role string) {
	switch role {
	case "serve":
		(&fake{traits: strings.Split(os.Getenv(traitsEnv), ",")}).serve()
	case "sleep": // a grandchild
		signal.Ignore(syscall.SIGTERM, syscall.SIGPIPE)
		forever()
	case "chatter": // a grandchild that never falls silent
		for {
			say(jsonrpc.NewNotification("chatter", nil))
			time.Sleep(20 * time.Millisecond)
		}
	case "orphan": // a chatter that has left the group, on both pipes
		signal.Ignore(syscall.SIGPIPE)
		for range 500 {
			say(jsonrpc.NewNotification("orphan", nil))
			fmt.Fprintln(os.Stderr, "orphan")
			time.Sleep(20 * time.Millisecond)
		}
	case "host":
		runHostRole()
	}
	os.Exit(0)
}

// A fake answers requests by their method, one at a time.
type fake struct {
	traits []string
	record *os.File

	listens []jsonrpc.ID
}

func (f *fake) has(trait string) bool {
	for _, t := range f.traits {
		if t == trait {
			return true
		}
	}
	return false
}

func (f *fake) serve() {
	if path := os.Getenv(recordEnv); path != "" {
		f.record, _ = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	}
	switch {
	case f.has("dies"):
		fmt.Fprintln(os.Stderr, "cannot find the license")
		os.Exit(3)
	case f.has("dies-wordy"):
		fmt.Fprintln(os.Stderr, "first line\nno \x1b[31mlicense\x1b[0m in /etc: "+strings.Repeat("\u00e9", 200))
		os.Exit(3)
	case f.has("banner"):
		fmt.Println("Welcome to the server!\n\n{not json\n[]")
	}
	if f.has("ignores-term") {
		signal.Ignore(syscall.SIGTERM)
	}
	if f.has("obeys-term") {
		terms := make(chan os.Signal, 1)
		signal.Notify(terms, syscall.SIGTERM)
		go func() {
			<-terms
			fmt.Fprintln(f.record, "TERM")
			os.Exit(0)
		}()
	}
	if f.has("grandchild") {
		f.grandchild("sleep")
	}
	in := jsonrpc.NewLineReader(os.Stdin, jsonrpc.Limits{})
	for {
		line, err := in.ReadLine()
		if err != nil {
			break
		}
		if f.record != nil {
			f.record.Write(append(line, '\n'))
		}
		m, err := jsonrpc.Decode(line)
		if err == nil && m.IsRequest() {
			f.answer(m)
		}
	}
	if f.has("ignores-eof") {
		forever()
	}
	if f.record != nil {
		fmt.Fprintln(f.record, "EOF")
	}
}

// forever does not return. A bare select would be a deadlock to the runtime, and
// the end of the process, where nothing else is waited for.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func say(m *jsonrpc.Message) { os.Stdout.Write(append(m.Append(nil), '\n')) }

func (f *fake) answer(m *jsonrpc.Message) {
	var params struct{ N int }
	json.Unmarshal(m.Params, &params)
	n := params.N
	ok := jsonrpc.NewResult(m.ID, json.RawMessage(`{}`))
	switch m.Method {
	case "initialize":
		switch {
		case f.has("mute"):
		case f.has("modern-exits"):
			os.Exit(5)
		case f.has("refuses"), f.has("modern"):
			say(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -1, Message: "no"}))
		case f.has("odd"):
			say(jsonrpc.NewResult(m.ID, json.RawMessage(`"hello"`)))
		default:
			say(ok)
		}
	case "server/discover":
		f.discover(m)
	case "subscriptions/listen":
		f.listens = append(f.listens, m.ID)
		say(jsonrpc.NewNotification("notifications/subscriptions/acknowledged", subscribed(m.ID)))
	case "change": // tells all that listen
		for _, id := range f.listens {
			say(jsonrpc.NewNotification("notifications/tools/list_changed", subscribed(id)))
		}
		say(ok)
	case "echo":
		say(jsonrpc.NewResult(m.ID, m.Params))
	case "hang", "tasks/result":
	case "exit":
		os.Exit(n)
	case "answer-and-exit": // n answers of 1 KiB to what has no answer yet, then the last
		for i := range n {
			say(jsonrpc.NewNotification("x", json.RawMessage(fmt.Sprintf(`{"n":%d,"pad":"%01000d"}`, i, 0))))
		}
		say(ok)
		os.Exit(0)
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "close-stdout":
		os.Stdout.Close()
	case "close-stdin":
		os.Stdin.Close()
		forever()
	case "stop-reading":
		say(ok)
		forever()
	case "read-slowly": // stdin, a little at a time
		say(ok)
		for b := make([]byte, 16<<10); ; time.Sleep(20 * time.Millisecond) {
			if n, _ := os.Stdin.Read(b); n == 0 {
				return
			} else if bytes.Contains(b[:n], []byte(`"last"`)) {
				say(jsonrpc.NewNotification("got-last", nil))
			}
		}
	case "grandchild":
		say(jsonrpc.NewResult(m.ID, json.RawMessage(strconv.Itoa(f.grandchild("sleep")))))
	case "chatter": // the answer goes first, since the grandchild begins at once
		say(ok)
		f.grandchild("chatter")
	case "orphan": // a chatter that leaves the group
		say(jsonrpc.NewResult(m.ID, json.RawMessage(strconv.Itoa(f.grandchild("orphan")))))
	case "grandchild-and-exit":
		f.grandchild("sleep")
		os.Exit(4)
	case "pid":
		say(jsonrpc.NewResult(m.ID, json.RawMessage(strconv.Itoa(os.Getpid()))))
	case "environ":
		text, _ := json.Marshal(os.Environ())
		say(jsonrpc.NewResult(m.ID, text))
	case "ask":
		say(jsonrpc.NewRequest(jsonrpc.IntID(int64(n)), "roots/list", nil))
	case "ask-and-withdraw":
		say(jsonrpc.NewRequest(jsonrpc.IntID(int64(n)), "roots/list", nil))
		say(jsonrpc.NewNotification("notifications/cancelled", json.RawMessage(fmt.Sprintf(`{"requestId":%d}`, n))))
	case "notify":
		say(jsonrpc.NewNotification("notifications/message", json.RawMessage(`{"data":1}`)))
		say(jsonrpc.NewNotification("notifications/progress", json.RawMessage(`{"progressToken":1}`)))
	case "big": // n MiB, the id last, as TypeScript servers write it
		io.WriteString(os.Stdout, `{"jsonrpc":"2.0","result":{"text":"`)
		mib := bytes.Repeat([]byte{'x'}, 1<<20)
		for range n {
			os.Stdout.Write(mib)
		}
		fmt.Printf("\"},\"id\":%s}\n", m.ID)
	case "broken": // an answer that is not JSON
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{]}\n", m.ID)
	case "array": // two elements are no messages, one of them an answer; n is its id
		fmt.Printf("[1,{\"jsonrpc\":\"2.0\",\"id\":%d},{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}]\n", n, m.ID)
	case "cut": // it dies within its answer
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"a", m.ID)
		os.Exit(n)
	case "never":
	case "twice":
		say(ok)
		say(ok)
		say(jsonrpc.NewResult(jsonrpc.IntID(99999), json.RawMessage(`{}`)))
	case "empty": // what JavaScript makes of a result that is undefined
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s}\n", m.ID)
	case "string": // "5" for 5
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":\"%s\",\"result\":{}}\n", m.ID)
	case "float": // 5.0 for 5
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s.0,\"result\":{}}\n", m.ID)
	case "stderr":
		for i := range n {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
		say(ok)
	case "stderr-long":
		fmt.Fprintln(os.Stderr, strings.Repeat("y", 5000)+"\nnext")
		say(ok)
	case "task": // a task-augmented call
		say(jsonrpc.NewResult(m.ID, json.RawMessage(`{"task":{"taskId":"t`+strconv.Itoa(n)+`","status":"working"}}`)))
	case "tasks/get":
		say(jsonrpc.NewResult(m.ID, json.RawMessage(`{"taskId":"x","status":"completed"}`)))
	default:
		say(ok)
	}
}

func subscribed(id jsonrpc.ID) json.RawMessage {
	return mcp.SetMeta(nil, jsonrpc.Value{Key: mcp.KeySubscription, Text: id.Raw()})
}

// discover answers server/discover as servers do.
func (f *fake) discover(m *jsonrpc.Message) {
	answers := map[string]string{
		"modern":       `"result":{"supportedVersions":["2026-07-28"]}`,
		"modern-exits": `"result":{"supportedVersions":["2026-07-28"]}`,
		"dual":         `"result":{"supportedVersions":["2099-01-01","2026-07-28","2025-11-25"]}`,
		"renegotiates": `"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":"x"}}`,
		"legacy-list":  `"result":{"supportedVersions":["2025-11-25","2025-06-18"]}`,
		"legacy-022":   `"error":{"code":-32022,"message":"no","data":{"supported":["2025-11-25"]}}`,
		"legacy-601":   `"error":{"code":-32601,"message":"Method not found"}`,
		"legacy-other": `"error":{"code":-32000,"message":"not initialized","data":{"supported":["2026-07-28"]}}`,
	}
	fmt.Fprintln(os.Stderr, "was asked to discover")
	for _, t := range f.traits {
		switch {
		case t == "silent-on-discover":
			return
		case t == "dies-on-discover":
			os.Exit(6)
		case t == "modern-slow":
			time.Sleep(probeTime + 300*time.Millisecond)
			t = "modern"
			fallthrough
		case answers[t] != "":
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n", m.ID, answers[t])
			return
		}
	}
	say(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
}

// grandchild starts a process that holds our stdout and stderr.
func (f *fake) grandchild(role string) int {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fakeEnv+"="+role)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: role == "orphan"}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd.Process.Pid
}

// runHostRole is a process that hosts an upstream which ignores everything, and
// prints its pid.
func runHostRole() {
	near, far := jsonrpc.Pipe()
	command := fakeCommand("ignores-eof", "ignores-term")
	h := &Host{Upstreams: map[string]Upstream{"fake": {Command: &command}}}
	go attach(context.Background(), h, "fake", "k", mcp.Legacy, far)
	near.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "pid", []byte(`{"n":1}`)))
	m, err := near.Recv()
	if err != nil {
		os.Exit(1)
	}
	fmt.Println(string(m.Result))
	forever()
}
