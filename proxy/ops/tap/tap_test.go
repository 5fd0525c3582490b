package tap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A Conn at a Point is a Conn, with and without taps.
func TestConn(t *testing.T) {
	for name, look := range map[string]bool{"off": false, "on": true} {
		t.Run(name, func(t *testing.T) {
			taps := new(Taps)
			defer taps.Close()
			if look {
				open(t, taps, Options{Payloads: true})
			}
			conntest.Run(t, func(*testing.T) (a, b jsonrpc.Conn) {
				near, far := jsonrpc.Pipe()
				return taps.Conn(observe.Point{Side: observe.SideClient}, near), far
			})
		})
	}
	if c, _ := jsonrpc.Pipe(); (*Taps)(nil).Conn(observe.Point{}, c) != c {
		t.Error("a Conn is wrapped where nobody ever looks")
	}
}

// Without taps, before the first and after the last, a message passes unread and costs no memory.
func TestNobodyLooks(t *testing.T) {
	call := jsonrpc.NewRequest(jsonrpc.IntID(1), "tools/call", []byte(`{"name":"t","arguments":{}}`))
	inner, taps := &still{batch: []*jsonrpc.Message{call}}, new(Taps)
	read := 0
	c := taps.Conn(observe.Point{Side: observe.SideClient, Session: "s1", Who: func(*jsonrpc.Message) (client, principal string) {
		read++
		return "", ""
	}}, inner)
	batch := make([]*jsonrpc.Message, 0, 1)
	pass := func() {
		one, err := c.Recv()
		all, errs := jsonrpc.RecvAll(c, batch)
		if err != nil || errs != nil || one != call || len(all) != 1 || all[0] != call {
			t.Fatal(one, all, err, errs)
		}
		if err, errs := c.Send(one), jsonrpc.SendAll(c, all); err != nil || errs != nil {
			t.Fatal(err, errs)
		}
	}
	for _, when := range []string{"before", "after"} {
		if n := testing.AllocsPerRun(100, pass); n != 0 || read != 0 || call.Notes != nil {
			t.Errorf("%s: %v allocations, and it was read %d times", when, n, read)
		}
		tap := open(t, taps, Options{})
		if pass(); read == 0 {
			t.Error("nobody looks though somebody does")
		}
		tap.Close()
		read, call.Notes = 0, nil
	}
}

// A half-close and the cause of an end pass.
func TestConnPassesEnds(t *testing.T) {
	inner := &endings{}
	c := new(Taps).Conn(observe.Point{}, inner)
	c.(interface{ CloseWrite() }).CloseWrite()
	_ = jsonrpc.CloseWith(c, jsonrpc.LoginNeeded("x", nil))
	if !inner.half || inner.cause == nil {
		t.Errorf("%+v", inner)
	}
}

type endings struct {
	jsonrpc.Conn
	half  bool
	cause error
}

func (e *endings) CloseWrite()                { e.half = true }
func (e *endings) CloseCause(err error) error { e.cause = err; return nil }

func open(t *testing.T, taps *Taps, o Options) *Tap {
	t.Helper()
	tap, err := taps.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	return tap
}

// A scene is a Conn at a Point, its other side, and taps.
type scene struct {
	t         *testing.T
	taps      *Taps
	near, far jsonrpc.Conn
}

func newScene(t *testing.T, p observe.Point) *scene {
	if p.Side == "" {
		p.Side, p.Session = observe.SideClient, "s1"
	}
	near, far := jsonrpc.Pipe()
	taps := new(Taps)
	s := &scene{t, taps, taps.Conn(p, near), far}
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return s
}

// in has the other side send something.
func (s *scene) in(text string) {
	s.t.Helper()
	m, err := jsonrpc.Decode([]byte(text))
	if err == nil {
		if err = s.far.Send(m); err == nil {
			_, err = s.near.Recv()
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// out sends something to the other side.
func (s *scene) out(text string) {
	s.t.Helper()
	m, err := jsonrpc.Decode([]byte(text))
	if err == nil {
		if err = jsonrpc.SendAll(s.near, []*jsonrpc.Message{m}); err == nil {
			_, err = s.far.Recv()
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// lines returns the next lines of a tap. Each is a Passed or a LeftOut, and nothing else.
func lines(t *testing.T, tap *Tap) (all []observe.Passed, leftOut int) {
	t.Helper()
	text, err := tap.Lines()
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var lost observe.LeftOut
		if json.Unmarshal(line, &lost); lost.LeftOut > 0 {
			leftOut += lost.LeftOut
			continue
		}
		var p observe.Passed
		strict := json.NewDecoder(bytes.NewReader(line))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&p); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		again, _ := json.Marshal(p)
		if !reflect.DeepEqual(membersOf(again), membersOf(line)) {
			t.Errorf("the line is\n%s and the type writes\n%s", line, again)
		}
		all = append(all, p)
	}
	return all, leftOut
}

// membersOf returns the members of a line without its time.
func membersOf(line []byte) (m map[string]any) {
	_ = json.Unmarshal(line, &m)
	delete(m, "time")
	delete(m, "message") // may have numbers that are too big
	return m
}

const call = `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","arguments":{"x":1}}}`

// Responses have the method and tool of their requests, and errors of the proxy their reason and event.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{Who: func(m *jsonrpc.Message) (string, string) { return "bob \"<", "token:ci" }})
		tap := open(t, s.taps, Options{})
		s.in(call)
		time.Sleep(1500 * time.Microsecond)
		s.out(`{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"MARK","data":{"reason":"connection_closed","upstream":"files","event":"k3v9x2ma"}}}`)
		s.in(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"x":"MARK"},"name":"ü\n"}}`)
		s.out(`{"jsonrpc":"2.0","id":2,"result":{"content":[{"text":"MARK"}],"isError":true}}`)
		s.out(`{"jsonrpc":"2.0","id":9,"error":{"code":"x","message":"MARK","data":{"reason":"MARK","upstream":"MARK","event":"MARK"}}}`)
		s.out(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"MARK"}}`)
		got, _ := lines(t, tap)
		var seen []string
		for _, p := range got {
			if p.Session != "s1" || p.Side != "client" || p.Client != "bob \"<" || p.Principal != "token:ci" || p.Bytes == 0 {
				t.Errorf("%+v", p)
			}
			line := fmt.Sprint(p.Way, " ", p.Kind, " ", p.Method, " ", string(p.ID), " ", p.Tool, " ", p.Upstream, " ", p.TookMs)
			if p.Error != nil {
				line += fmt.Sprintf(" %+v", *p.Error)
			}
			seen = append(seen, line)
		}
		want := []string{
			`in request tools/call "a" t  0`,
			`out response tools/call "a" t files 1.5 {Code:-32603 Reason:connection_closed Event:k3v9x2ma}`,
			"in request tools/call 2 ü\n  0",
			"out response tools/call 2 ü\n  0 {Code:0 Reason:tool_error Event:}",
			`out response  9   0 {Code:0 Reason: Event:}`,
			`out notification notifications/message    0`,
		}
		if strings.Join(seen, "|") != strings.Join(want, "|") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
	})
}

// At the other end of a link received messages leave the proxy. An array has a line for each element.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{Side: observe.SideUpstream, Session: "s1", Upstream: "files", Away: true})
		tap := open(t, s.taps, Options{Upstream: "f*"})
		other := open(t, s.taps, Options{Upstream: "g*"})
		s.in(`[` + call + `,{"jsonrpc":"2.0","method":"notifications/progress","params":{}}]`)
		got, _ := lines(t, tap)
		if len(got) != 2 || got[0].Way != "out" || got[0].Upstream != "files" || got[1].Kind != "notification" {
			t.Errorf("%+v", got)
		}
		other.Close()
		if text, err := other.Lines(); err != ErrEnded {
			t.Errorf("%s, %v", text, err)
		}
	})
}

func TestFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{Who: func(*jsonrpc.Message) (string, string) { return "bob", "" }})
		for filter, want := range map[Options]int{
			{}:                                  4,
			{Session: "s1"}:                     4,
			{Session: "s2"}:                     0,
			{Client: "b*"}:                      4,
			{Client: "alice"}:                   0,
			{Method: "tools/*"}:                 2,
			{Method: "ping"}:                    2,
			{Tool: "t"}:                         2,
			{Errors: true}:                      1,
			{Errors: true, Upstream: "files"}:   1,
			{Upstream: "files"}:                 1,
			{Errors: true, Method: "tools/cal"}: 0,
		} {
			if err := filter.Check(); err != nil {
				t.Error(err)
			}
			tap := open(t, s.taps, filter)
			s.in(call)
			s.out(`{"jsonrpc":"2.0","id":"a","error":{"code":1,"message":"","data":{"reason":"timeout","upstream":"files"}}}`)
			s.in(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			s.out(`{"jsonrpc":"2.0","id":1,"result":{}}`)
			tap.Close()
			text, _ := tap.Lines()
			if got := bytes.Count(text, []byte("\n")); got != want {
				t.Errorf("%+v: %d lines, want %d", filter, got, want)
			}
		}
		if (&Options{Tool: "[a"}).Check() == nil {
			t.Error("a glob that is none is taken")
		}
	})
}

// A tap that is not read, or has a rate, leaves out and counts. No message waits.
func TestTapLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{})
		slow, slower := open(t, s.taps, Options{}), open(t, s.taps, Options{Rate: 10})
		const all = 20000
		for range all {
			s.in(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		}
		got, leftOut := lines(t, slow)
		if len(got) != someLines || leftOut != all-someLines {
			t.Errorf("%d lines and %d left out", len(got), leftOut)
		}
		if got, leftOut = lines(t, slower); len(got) != 10 || leftOut != all-10 {
			t.Errorf("at a rate: %d lines and %d left out", len(got), leftOut)
		}
		time.Sleep(time.Second)
		for range 11 {
			s.in(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		}
		if got, leftOut = lines(t, slower); len(got) != 10 || leftOut != 1 {
			t.Errorf("a second later: %d lines and %d left out", len(got), leftOut)
		}
		s.in(`{"jsonrpc":"2.0","method":"notifications/x"}`) // left out, and nothing follows
		if got, leftOut = lines(t, slower); len(got) != 0 || leftOut != 1 {
			t.Errorf("of what was left out: %d lines and %d", len(got), leftOut)
		}
	})
}

// Messages that are kept count by their size.
func TestTapIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{})
		tap := open(t, s.taps, Options{Payloads: true})
		huge := `{"jsonrpc":"2.0","method":"notifications/x","params":{"x":"` + strings.Repeat("x", 5<<20) + `"}}`
		for range 5 {
			s.in(huge)
		}
		got, leftOut := lines(t, tap)
		if len(got) != 3 || leftOut != 2 {
			t.Errorf("%d lines and %d left out", len(got), leftOut)
		}
		for range 3 { // there is room again
			s.in(huge)
		}
		if got, leftOut = lines(t, tap); len(got) != 3 || leftOut != 0 {
			t.Errorf("then %d lines and %d left out", len(got), leftOut)
		}
	})
}

// A recording has everything as it was, and ends rather than miss a message.
func TestRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{})
		tap := open(t, s.taps, Options{Whole: true})
		text := `{"jsonrpc":"2.0","id":12345678901234567890,"method":"x","params":{"password":"MARK", "b":1e400}}`
		s.in(text)
		got, _ := lines(t, tap)
		if len(got) != 1 || string(got[0].Message) != text || tap.Passed() != 1 {
			t.Errorf("%+v", got)
		}
		for range muchLines + 1 {
			s.in(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		}
		read, err := tap.Lines()
		if n := bytes.Count(read, []byte("\n")); n != muchLines || err != nil {
			t.Errorf("%d lines before it ends: %v", n, err)
		}
		if _, err := tap.Lines(); err != ErrMissed {
			t.Errorf("it ended with %v", err)
		}
	})
}

// The end of the process ends all taps behind what they have, and there are only so many.
func TestTapsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, observe.Point{})
		var all []*Tap
		for range maxTaps {
			all = append(all, open(t, s.taps, Options{}))
		}
		if _, err := s.taps.Open(Options{}); !errors.Is(err, ErrMany) {
			t.Errorf("one more: %v", err)
		}
		all[0].Close()
		all[0] = open(t, s.taps, Options{})
		s.in(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		s.taps.Close()
		for _, tap := range all {
			if got, _ := lines(t, tap); len(got) != 1 {
				t.Errorf("%+v", got)
			}
			if _, err := tap.Lines(); err != ErrEnded {
				t.Error(err)
			}
		}
		if _, err := s.taps.Open(Options{}); !errors.Is(err, ErrEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// The memory of open requests is bounded. An answer, a cancellation, and a time without taps remove
// entries.
func TestOpenIsBounded(t *testing.T) {
	s := newScene(t, observe.Point{})
	tap := open(t, s.taps, Options{Rate: 1})
	c := s.near.(*conn)
	for i := range 2 * maxOpen {
		s.in(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"x"}`, i))
	}
	if n := len(c.received.open); n != maxOpen {
		t.Errorf("%d are remembered", n)
	}
	s.out(`{"jsonrpc":"2.0","id":0,"result":{}}`)
	s.in(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if n := len(c.received.open); n != maxOpen-2 {
		t.Errorf("%d are remembered then", n)
	}
	tap.Close()
	open(t, s.taps, Options{Rate: 1})
	s.in(`{"jsonrpc":"2.0","id":1,"method":"x"}`)
	if n := len(c.received.open); n != 1 {
		t.Errorf("%d are remembered after nobody looked", n)
	}
}

// With a message comes the request that it belongs to, where that is known.
func TestOf(t *testing.T) {
	s := newScene(t, observe.Point{})
	tap := open(t, s.taps, Options{Whole: true})
	m := jsonrpc.NewNotification("notifications/message", nil)
	m.Related = jsonrpc.IntID(7)
	if err := s.near.Send(m); err != nil {
		t.Fatal(err)
	}
	s.out(`{"jsonrpc":"2.0","method":"notifications/message"}`)
	if all, _ := lines(t, tap); len(all) != 2 || string(all[0].Of) != "7" || all[1].Of != nil {
		t.Errorf("%+v", all)
	}
}

// What clients make long is not kept, however many of their messages wait to be read.
func TestLinesAreShort(t *testing.T) {
	s := newScene(t, observe.Point{})
	tap := open(t, s.taps, Options{})
	long := strings.Repeat("é", 1<<20)
	id := strings.Repeat("é", 500) // nearly as long as may be
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":"` + id + `","method":"` + id + `"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"` + long + `"}}`,
		`{"jsonrpc":"2.0","method":"` + id + `"}`,
	} {
		s.in(text)
	}
	s.out(`{"jsonrpc":"2.0","id":"` + id + `","result":{}}`)
	s.out(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	for _, l := range tap.queue {
		if n := max(len(l.method), len(l.tool), len(l.id.String())); n > 2*maxName {
			t.Errorf("a line keeps a text of %d bytes", n)
		}
	}
	for id, a := range s.near.(*conn).received.open {
		t.Errorf("still open: %.10s %.10s", id, a.method)
	}
	text, err := tap.Lines()
	if n := len(text); err != nil || n > 5*1000 || !utf8.Valid(text) || !json.Valid(text[:bytes.IndexByte(text, '\n')]) {
		t.Errorf("%d bytes, %v: %.300s", n, err, text)
	}
}
