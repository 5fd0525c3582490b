package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A trial is one way on which something goes wrong.
type trial struct {
	way    way
	b      programs
	notes  string // the file in which the server tells what happens to it
	tgt    target
	s      *session
	server []string // what starts it, but for its address
}

// try has f see what becomes of a way to a server, which may be stubborn. Nothing is left
// when it returns.
func (b programs) try(w way, stubborn bool, f func(*trial) error) (err error) {
	dir, err := os.MkdirTemp(b.dir, "trial-")
	if err != nil {
		return err
	}
	t := &trial{way: w, b: b, notes: filepath.Join(dir, "notes")}
	t.server = []string{b.mortal}
	if stubborn {
		t.server = append(t.server, "-stubborn")
	}
	t.tgt = w.target(t.at("127.0.0.1:0"))
	t.tgt.whole, t.tgt.env = true, []string{"MCP_REMOTE_CONFIG_DIR=" + dir}
	if t.s, err = t.tgt.begin(probe{}); err != nil {
		return errors.Join(err, t.bury())
	}
	err = t.s.explain(f(t))
	return errors.Join(err, t.bury(), t.s.end())
}

// at returns the command of the server; a remote one listens at address.
func (t *trial) at(address string) []string {
	argv := t.server
	if t.way.remote() {
		argv = append(argv[:len(argv):len(argv)], "-http", address)
	}
	return append(argv[:len(argv):len(argv)], t.notes)
}

// An event is what one server wrote of itself.
type event struct {
	pid       int
	what, tag string
}

// events returns all that servers have written.
func (t *trial) events() (all []event) {
	text, err := os.ReadFile(t.notes)
	if err != nil {
		return nil // no server has started
	}
	for line := range strings.Lines(string(text)) {
		fields := append(strings.Fields(line), "", "")
		pid, _ := strconv.Atoi(fields[0])
		all = append(all, event{pid, fields[1], fields[2]})
	}
	return all
}

// find returns the first event that happens with tag, within limit.
func (t *trial) find(limit time.Duration, tag string, what ...string) (found event, ok bool) {
	within(limit, func() bool {
		for _, e := range t.events() {
			for _, w := range what {
				if e.what == w && e.tag == tag {
					found, ok = e, true
				}
			}
		}
		return ok
	})
	return found, ok
}

// running returns the servers that run.
func (t *trial) running() (pids []int) {
	for _, e := range t.events() {
		if e.what == "started" && runs(e.pid, t.b.mortal) {
			pids = append(pids, e.pid)
		}
	}
	return pids
}

// bury kills all servers that run.
func (t *trial) bury() error {
	for _, pid := range t.running() {
		if err := kill(pid); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}

func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// runs reports whether the process of pid runs program, and is not only unburied.
func runs(pid int, program string) bool {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasPrefix(string(command), program+"\x00")
}

// within waits until ready, and reports whether that was within limit.
func within(limit time.Duration, ready func() bool) bool {
	for end := time.Now().Add(limit); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// A call is a request in flight.
type call struct {
	id     int
	begun  time.Time
	answer chan answer // has room for one; never closed
}

// call calls tool on c.
func (t *trial) call(c *conn, tool, arguments string) call {
	return t.callAs(t.s.nextID(), c, tool, arguments)
}

func (t *trial) callAs(id int, c *conn, tool, arguments string) call {
	k := call{id: id, begun: time.Now(), answer: make(chan answer, 1)}
	msg := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, c.prefix+tool, arguments)
	if err := c.send(msg, id, k.answer); err != nil {
		select {
		case k.answer <- answer{err: err}:
		default: // the end of the connection was told already
		}
	}
	return k
}

// hold calls wait, and returns when a server has heard of it. It says which.
func (t *trial) hold(c *conn, tag string, ms int) (call, int, error) {
	k := t.call(c, "wait", fmt.Sprintf(`{"tag":%q,"ms":%d}`, tag, ms))
	e, ok := t.find(20*time.Second, tag, "called")
	if !ok {
		return k, 0, fmt.Errorf("%s, %s: no server heard of the call: %+v", t.way.program, t.way.route, k.wait(0))
	}
	return k, e.pid, nil
}

// A reply is what a caller was told.
type reply struct {
	text   string // of the result or the error
	result bool
	none   bool
	at     time.Time
}

const bearable = 5 * time.Second

// wait returns the reply to k, none if there is none within limit.
func (k call) wait(limit time.Duration) reply {
	select {
	case a := <-k.answer:
		r := a.read()
		r.at = time.Now()
		return r
	case <-time.After(limit):
		return reply{text: "no answer", none: true, at: time.Now()}
	}
}

// read returns what a says to people.
func (a answer) read() reply {
	var m struct {
		Result *struct {
			IsError bool
			Content []struct{ Text string }
		}
		Error *struct {
			Code    int
			Message string
		}
	}
	var refusal statusError
	switch {
	case a.message != nil && json.Unmarshal(a.message, &m) != nil:
		return reply{text: "not JSON"}
	case m.Error != nil:
		return reply{text: fmt.Sprintf("%d %q", m.Error.Code, ports.ReplaceAllString(m.Error.Message, "127.0.0.1:PORT"))}
	case m.Result != nil && len(m.Result.Content) > 0:
		text := m.Result.Content[0].Text
		if m.Result.IsError {
			return reply{text: fmt.Sprintf("a result with isError: %q", text)}
		}
		return reply{text: text, result: true}
	case errors.As(a.err, &refusal):
		return reply{text: fmt.Sprintf("HTTP %d %q", refusal.status, refusal.message())}
	case errors.Is(a.err, errNoAnswer):
		return reply{text: "the response ends without an answer"}
	}
	return reply{text: "the connection ends"}
}

// told returns what err, of a client that could not connect, says to people.
func told(err error) string {
	if r := (refused{}); errors.As(err, &r) {
		return r.read().text
	}
	return answer{err: err}.read().text
}

// message returns the error in a refusal's body, or the body.
func (e statusError) message() string {
	var m struct{ Error struct{ Message string } }
	if json.Unmarshal([]byte(e.body), &m) == nil && m.Error.Message != "" {
		return m.Error.Message
	}
	return e.body
}

// proxy is the process that the client started or reached.
func (t *trial) proxy() *process { return t.s.procs[0] }

// ended reports whether p has ended, although nobody has waited for it.
func (p *process) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return true
	}
	return strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z")
}

// leave has the client go away as a good one does: over HTTP with a DELETE.
func (t *trial) leave(conns ...*conn) error {
	if w, ok := conns[0].wire.(*httpWire); ok {
		req, err := http.NewRequest(http.MethodDelete, "http://"+w.host+w.path(), nil)
		if err != nil {
			return err
		}
		req.Header.Set("Mcp-Session-Id", w.session)
		req.Header.Set("MCP-Protocol-Version", revision)
		client := http.Client{Timeout: bearable}
		if resp, err := client.Do(req); err == nil { // that it fails shows in what becomes of the server
			resp.Body.Close()
		}
	}
	for _, c := range conns {
		c.w.Close()
	}
	return nil
}

// ports are what differs from run to run in the name of a server that has no other one.
var ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)
