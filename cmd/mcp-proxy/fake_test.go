//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// fakeServer is an MCP server on stdio whose tools do what tests need:
//
//	echo       answers with its arguments
//	hang       never answers
//	ask        asks the client for an elicitation and answers with its answer
//	crash      kills the server
//	grandchild starts a process that ignores everything, and answers with its pid
//
// It appends every message that it gets to the file that FAKE_LOG names, and "end"
// when stdin ends; FAKE_STUBBORN makes it ignore that, and SIGTERM.
func fakeServer() {
	f := &fake{out: jsonrpc.NewLineWriter(os.Stdout), answers: map[jsonrpc.ID]jsonrpc.ID{}}
	if name := os.Getenv("FAKE_LOG"); name != "" {
		f.log, _ = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	}
	if os.Getenv("FAKE_STUBBORN") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	in := jsonrpc.NewLineReader(os.Stdin, jsonrpc.Limits{})
	for {
		m, err := in.Read()
		if err != nil {
			break
		}
		f.note(string(m.Append(nil)))
		f.handle(m)
	}
	f.note("end")
	for os.Getenv("FAKE_STUBBORN") != "" {
		time.Sleep(time.Hour) // a bare select may be a deadlock to the runtime, and the end
	}
}

type fake struct {
	out     *jsonrpc.LineWriter
	log     *os.File
	asked   int64
	answers map[jsonrpc.ID]jsonrpc.ID // of open questions to the calls that asked
}

func (f *fake) note(line string) {
	if f.log != nil {
		fmt.Fprintf(f.log, "%d %s\n", os.Getpid(), line)
	}
}

func (f *fake) handle(m *jsonrpc.Message) {
	switch {
	case m.IsResponse():
		if call, ok := f.answers[m.ID]; ok {
			f.out.Write(&jsonrpc.Message{ID: call, Result: m.Result, Error: m.Error})
		}
	case m.Method == "initialize":
		f.answer(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`)
	case m.Method == "tools/list":
		var tools []string
		for _, name := range []string{"echo", "hang", "ask", "crash", "grandchild"} {
			tools = append(tools, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
		}
		f.answer(m, `{"tools":[`+strings.Join(tools, ",")+`]}`)
	case m.Method == "tools/call":
		f.call(m)
	}
}

func (f *fake) answer(m *jsonrpc.Message, result string) {
	f.out.Write(jsonrpc.NewResult(m.ID, json.RawMessage(result)))
}

func (f *fake) call(m *jsonrpc.Message) {
	name, _ := jsonrpc.Member(m.Params, "name")
	switch string(name) {
	case `"echo"`:
		args, _ := jsonrpc.Member(m.Params, "arguments")
		if args == nil {
			args = json.RawMessage(`{}`)
		}
		f.answer(m, `{"content":[],"structuredContent":`+string(args)+`}`)
	case `"ask"`:
		f.asked++
		id := jsonrpc.IntID(f.asked)
		f.answers[id] = m.ID
		f.out.Write(jsonrpc.NewRequest(id, "elicitation/create", json.RawMessage(`{"message":"?"}`)))
	case `"crash"`:
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case `"grandchild"`:
		child := exec.Command("sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done")
		child.Stdout = os.Stdout // a pipe that does not end with us
		if err := child.Start(); err != nil {
			panic(err)
		}
		f.answer(m, fmt.Sprintf(`{"content":[],"structuredContent":{"pid":%d}}`, child.Process.Pid))
	}
}

// leakChecked fails the tests if they leave goroutines or processes behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or each process takes a second to end
	code := l.m.Run()
	if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.loop"), goleak.IgnoreTopFunction("os/signal.signal_recv")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if left := children(os.Getpid()); len(left) > 0 && code == 0 {
		fmt.Fprintln(os.Stderr, "processes left behind:", left)
		code = 1
	}
	return code
}

// children returns the processes whose parent is pid, on Linux.
func children(pid int) []string {
	var found []string
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		stat, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == fmt.Sprint(pid) {
			found = append(found, d.Name())
		}
	}
	return found
}

// gone reports whether a process has ended; a zombie has not been reaped.
func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

// ended is gone for a process that is not our child: whoever inherited it reaps
// it when he likes.
func ended(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || gone(pid)
}

// eventually waits until ok holds, for as long as a slow machine may take.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("not in 20 s: ", what)
}

// lines counts the lines of a text that others write to.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}
