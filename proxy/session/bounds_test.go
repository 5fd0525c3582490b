package session

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A slowConn delays each Send.
type slowConn struct {
	*jsonrpc.PipeConn
	each time.Duration
}

func (c *slowConn) Send(m *jsonrpc.Message) error {
	time.Sleep(c.each)
	return c.PipeConn.Send(m)
}

// A drain lasts until the last answer is written, not only queued.
func TestD02_SlowReaderGetsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Router{Upstreams: []Upstream{{Name: "files"}}, Dial: DialFunc(func(context.Context, string, string, mcp.Era) (jsonrpc.Conn, error) {
			ours, theirs := jsonrpc.Pipe()
			newPeer(t, ours, echo("files"))
			return theirs, nil
		})}
		conn, theirs := jsonrpc.Pipe()
		client := newPeer(t, conn, nil)
		done := make(chan error, 1)
		go func() { done <- p.Serve(t.Context(), identity.Nobody, "", &slowConn{theirs, time.Second}) }()
		client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		for id := 1; id <= 3; id++ {
			client.say(strings.Replace(call1, `"id":1`, fmt.Sprint(`"id":`, id), 1))
		}
		conn.CloseWrite()
		<-done
		if got := client.take(); len(got) != 4 {
			t.Errorf("got %q", got)
		}
	})
}

// A client that asks faster than answers are written, but reads them, is served.
func TestBurst(t *testing.T) {
	inWorld(t, &Router{}, nil, func(w *world) {
		for range 20 * clientSpare * clientMessages {
			w.client.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "ping", nil))
		}
		if got := w.client.take(); len(got) != 20*clientSpare*clientMessages {
			t.Error("answers:", len(got))
		}
	})
}

func TestD03_MoreInFlightThanTheOutboxHolds(t *testing.T) {
	const n = 3 * clientSpare * clientMessages
	inEras(t, &Router{Limits: Limits{InFlight: n}}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, n)
		w.cancel()
		<-w.ended
		once(w, n, w.closing("ID", "in_flight"))
	})
}

func TestQuestionsHeldAreBounded(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		u := w.upstream("files")
		u.take()
		for id := range int64(maxHeld + 1) {
			u.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(id), "roots/list", nil))
		}
		u.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, maxHeld, jsonrpc.Overloaded("files").Raw()))
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if got := w.client.take(); len(got) != maxHeld {
			t.Error("questions:", len(got))
		}
	})
}

// If there are too many streams, an upstream gets one attempt for each need, and no more.
func TestOverloadedStream(t *testing.T) {
	inEras(t, &Router{}, []string{"full", "good"}, func(w *world) {
		w.dial["full"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseOverloaded}
		dials := 0
		w.proxy.Dial = DialFunc(func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
			w.mu.Lock()
			if upstream == "full" {
				dials++
			}
			w.mu.Unlock()
			return w.open(ctx, upstream, key, era)
		})
		w.initialize()
		time.Sleep(time.Hour)
		before := dials
		for id := range 3 {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"full__x"}}`, id))
			w.client.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, id, jsonrpc.Overloaded("full").Raw()))
		}
		if before > 2 || dials > before+2*3 { // to list its tools, and to call one
			t.Errorf("%d streams were tried for initialize, %d for 3 calls", before, dials-before)
		}
		w.reach("full", nil)
		w.client.say(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"full__echo"}}`)
		w.client.take()
		w.upstream("full")
	})
}

// Server requests that were held back for a stream that ended are not sent to the client.
func TestQuestionsHeldDieWithTheirStream(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		w.upstream("files").say(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
		w.die("files", "exit status 1", true)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		w.client.want()
	})
}

// An oddConn is a stream to an upstream that misbehaves as a Conn.
type oddConn struct {
	*jsonrpc.PipeConn
	sendFails bool
}

func (c *oddConn) Send(m *jsonrpc.Message) error {
	if c.sendFails && m.Method == "tools/call" {
		return jsonrpc.ErrClosed
	}
	return c.PipeConn.Send(m)
}

func (c *oddConn) Recv() (*jsonrpc.Message, error) {
	m, err := c.PipeConn.Recv()
	if m != nil && m.Method == "odd" {
		return nil, &jsonrpc.InvalidError{Code: jsonrpc.CodeParseError, Reason: "x", ID: jsonrpc.IntID(2), Reply: true}
	}
	return m, err
}

func oddUpstream(w *world, sendFails bool) DialFunc {
	return DialFunc(func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
		c, err := w.open(ctx, upstream, key, era)
		return &oddConn{c.(*jsonrpc.PipeConn), sendFails}, err
	})
}

// A stream on which only writing fails is ended, so that no call waits for ever.
func TestD12_WriteFails(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.proxy.Dial = oddUpstream(w, true)
		w.initialize()
		w.client.say(call1)
		w.client.want()
		time.Sleep(2 * time.Second)
		w.client.want(cc(1, -32603, "files", "link lost", "in_flight"))
	})
}

func TestD43_UnusableReply(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.proxy.Dial = oddUpstream(w, false)
		w.initialize()
		w.calls("files", "echo", 1, 3)
		w.upstream("files").say(`{"jsonrpc":"2.0","method":"odd"}`)
		w.client.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":%s}`, jsonrpc.InvalidResponse("files", "").Raw()))
		w.upstream("files").say(`{"jsonrpc":"2.0","id":3,"result":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.upstream("files").say(`{"jsonrpc":"2.0","id":"4","result":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":3,"result":{}}`)
	})
}

// An unusable answer counts as an answer, so that the upstream does not wait for ever.
func TestUnusableAnswer(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		ours, theirs := jsonrpc.Pipe()
		client, ended := newPeer(w.t, ours, nil), make(chan error, 1)
		go func() { ended <- w.proxy.Serve(context.Background(), identity.Nobody, "", &oddConn{theirs, false}) }()
		client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		u := w.upstream("files")
		u.take()
		u.say(`{"jsonrpc":"2.0","id":"a","method":"roots/list"}`)
		u.say(`{"jsonrpc":"2.0","id":"b","method":"roots/list"}`)
		client.take() // both came
		client.say(`{"jsonrpc":"2.0","method":"odd"}`)
		u.want(`{"jsonrpc":"2.0","id":"b","error":{"code":-32700,"message":"Parse error: x"}}`)
		ours.Close()
		<-ended
	})
}

// An upstream that crashes on being listed is not started over and over.
func TestDiesWhenListed(t *testing.T) {
	inWorld(t, &Router{}, []string{"files", "mad"}, func(w *world) {
		w.initialize()
		for _, method := range []string{"tools/list", "prompts/list", "resources/list"} {
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`)
			w.client.take()
		}
		w.mu.Lock()
		w.hands = map[string]func(*party, *jsonrpc.Message){"mad": func(p *party, m *jsonrpc.Message) {
			if strings.HasSuffix(m.Method, "/list") {
				p.conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true})
				return
			}
			echo("mad")(p, m)
		}}
		w.mu.Unlock()
		w.die("mad", "exit status 1", true)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mad__echo"}}`)
		time.Sleep(time.Minute)
		w.client.take()
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.conns["mad"]); n > 3 {
			t.Error("streams:", n)
		}
	})
}

// An upstream that does not read loses notifications, with one warning for all.
func TestDeafUpstream(t *testing.T) {
	var log warnings
	inWorld(t, &Router{Log: slog.New(&log)}, []string{"files"}, func(w *world) {
		over := make(chan struct{})
		defer close(over)
		w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(p *party, m *jsonrpc.Message) {
			if echo("files")(p, m); m.Method == "vendor/news" {
				<-over
			}
		}}
		w.initialize()
		for range 2 * maxQueue {
			w.client.conn.Send(jsonrpc.NewNotification("vendor/news", nil))
		}
		if told := log.take(); !slices.Equal(told, []string{"message dropped: the upstream does not read"}) {
			t.Errorf("%d warnings: %.3q", len(told), told)
		}
	})
}

// Messages that wait for the start of an upstream take no room from the handshake.
func TestHandshakeNeedsNoRoom(t *testing.T) {
	inWorld(t, &Router{Limits: Limits{MaxMessage: 1000}}, []string{"files"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(*party, *jsonrpc.Message) {}}
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		u := w.upstream("files")
		u.take()
		for id := range 60 {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"x":"0123456789"}}}`, id+1))
		}
		w.client.take()
		echo("files")(u, &jsonrpc.Message{ID: jsonrpc.IntID(1), Method: "initialize"})
		if got := u.take(); len(got) < 2 || got[0] != `{"jsonrpc":"2.0","method":"notifications/initialized"}` {
			t.Errorf("got %.300q", got)
		}
	})
}

// A stalledConn is a client that stops reading while it is stalled.
type stalledConn struct {
	*jsonrpc.PipeConn
	reads chan struct{} // of capacity 1; full while it is stalled
}

func (c *stalledConn) Send(m *jsonrpc.Message) error {
	c.reads <- struct{}{}
	<-c.reads
	return c.PipeConn.Send(m)
}

// stalling replaces a world's client by one that can stall.
func stalling(w *world) *stalledConn {
	w.cancel()
	<-w.ended
	ours, theirs := jsonrpc.Pipe()
	c := &stalledConn{theirs, make(chan struct{}, 1)}
	w.client = newPeer(w.t, ours, nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	w.cancel, w.ended = cancel, ended
	go func() { ended <- w.proxy.Serve(ctx, identity.Nobody, "", c); close(ended) }()
	return c
}

// logs makes an upstream send many log messages.
func (w *world) logs(upstream string, n int) {
	u := w.upstream(upstream)
	for range n {
		u.conn.Send(jsonrpc.NewNotification("notifications/message", json.RawMessage(`{"level":"error"}`)))
		synctest.Wait()
	}
}

// An answer that has come is delivered, however slowly the client reads.
func TestD49_AnswerWaitsForRoom(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "files", RequestTimeout: time.Second}}}
	inWorld(t, p, nil, func(w *world) {
		c := stalling(w)
		w.initialize()
		w.calls("files", "echo", 1, 1)
		c.reads <- struct{}{}
		w.logs("files", 1+clientMessages)
		answer(w, 2)
		time.Sleep(time.Minute)
		<-c.reads
		w.onlyAnswer(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		w.newest("files").want()
	})
}

// The same at a forced end, if the client resumes reading in time.
func TestD04_AnswerWaitsForRoom(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		c := stalling(w)
		w.initialize()
		w.calls("files", "echo", 1, 2)
		c.reads <- struct{}{}
		w.logs("files", 1+clientMessages)
		answer(w, 2)
		synctest.Wait()
		w.cancel()
		time.Sleep(flushTimeout / 2)
		<-c.reads
		<-w.ended
		w.onlyAnswer(`{"jsonrpc":"2.0","id":1,"result":{}}`, cc(2, jsonrpc.CodeConnectionClosed, "", "", "in_flight"))
	})
}

// Progress that was held back until its call was answered is dropped.
func TestD23_HeldProgress(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		c := stalling(w)
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		w.client.take()
		w.logs("files", 2*clientMessages) // which the client is not ready to hear
		c.reads <- struct{}{}
		u := w.upstream("files")
		u.mute()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":"p"}}}`)
		synctest.Wait()
		u.conn.Send(jsonrpc.NewNotification("notifications/progress", json.RawMessage(`{"progressToken":2,"progress":1}`)))
		answer(w, 2)
		synctest.Wait()
		<-c.reads
		if got := w.client.take(); slices.ContainsFunc(got, func(m string) bool { return strings.Contains(m, "progressToken") }) {
			t.Errorf("got %q", got[len(got)-2:])
		}
	})
}

// onlyAnswer checks the messages to the client except notifications, in any order.
func (w *world) onlyAnswer(want ...string) {
	w.t.Helper()
	got := slices.DeleteFunc(w.client.take(), func(m string) bool { return strings.Contains(m, `"method"`) })
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("got %q", got)
	}
}

// Overlong names are unknown: no upstream gets them, answers do not repeat them, and lists omit
// them.
func TestOverlongNamesAreUnknown(t *testing.T) {
	long := strings.Repeat("a", mcp.MaxRouted)
	const (
		resource = `"code":-32002,"message":"Resource not found"}`
		task     = `"code":-32602,"message":"Invalid params: unknown task"}`
		tool     = `"code":-32602,"message":"Unknown tool: its name is longer than 8 KiB"}`
		prompt   = `"code":-32602,"message":"Unknown prompt: its name is longer than 8 KiB"}`
		cursor   = `"code":-32602,"message":"Invalid params: unknown cursor"}`
		element  = `"code":-32602,"message":"Invalid params: an element of \"resourceSubscriptions\" is longer than 8 KiB"}`
	)
	legacy, modern := []mcp.Era{mcp.Legacy}, []mcp.Era{mcp.Modern}
	both := append(legacy, mcp.Modern)
	for _, c := range []struct {
		method, params, want string
		eras                 []mcp.Era
	}{
		{"tools/call", `{"name":"x%s"}`, tool, both},
		{"prompts/get", `{"name":"x%s"}`, prompt, both},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"x%s"},"argument":{}}`, prompt, both},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"x:%s"},"argument":{}}`, resource, both},
		{"resources/read", `{"uri":"x:%s"}`, resource, both},
		{"resources/subscribe", `{"uri":"x:%s"}`, resource, legacy},
		{"resources/unsubscribe", `{"uri":"x:%s"}`, resource, legacy},
		{"tasks/get", `{"taskId":"x%s"}`, task, both},
		{"tasks/result", `{"taskId":"x%s"}`, task, legacy},
		{"tools/list", `{"cursor":"x%s"}`, cursor, both},
		{"resources/templates/list", `{"cursor":"x%s"}`, cursor, both},
		{"tasks/list", `{"cursor":"x%s"}`, cursor, legacy},
		{"tools/call", `{"name":"echo","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x%s"}}}`, task, both},
		{"subscriptions/listen", `{"notifications":{"resourceSubscriptions":["x:%s"]}}`, element, modern},
	} {
		for _, names := range [][]string{{"files"}, {"files", "docs"}} {
			for _, era := range c.eras {
				inWorldOf(t, era, &Router{}, names, func(w *world) {
					w.initialize()
					w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, c.method, fmt.Sprintf(c.params, long)))
					want := c.want
					if era == mcp.Modern {
						want = strings.Replace(want, "-32002", "-32602", 1)
					}
					w.client.want(`{"jsonrpc":"2.0","id":1,"error":{` + want + `}`)
					for name, streams := range w.conns {
						for _, p := range streams {
							for _, got := range p.take() {
								if strings.Contains(got, long) {
									t.Errorf("%s %s: %s got it", era, c.method, name)
								}
							}
						}
					}
				})
			}
		}
	}
	for _, era := range both {
		inWorldOf(t, era, &Router{}, []string{"files"}, func(w *world) {
			w.hands = map[string]func(*party, *jsonrpc.Message){"files": offering("files", "good", "x"+long)}
			for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
				w.initialize()
				w.client.say(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`)
				if got := strings.Join(w.client.take(), ""); strings.Contains(got, long) || !strings.Contains(got, "good") {
					t.Errorf("%s lists: %.200s", method, got)
				}
			}
		})
	}
}

// The bytes that a session keeps of a request are bounded, whatever else the request has.
func TestKeptIsBounded(t *testing.T) {
	large := strings.Repeat("x", 64<<10)
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"x":"` + large + `"}}`)
		w.client.want(`{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"Invalid params: they are longer than 64 KiB"}}`)
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"` + large[:1<<10] + `"}}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"Invalid request: \"progressToken\" is longer than 1 KiB"}}`)
		for _, method := range []string{`"resources/subscribe","params":{"uri":"x:y"`, `"logging/setLevel","params":{"level":"info"`} {
			w.client.say(`{"jsonrpc":"2.0","id":2,"method":` + method + `,"_meta":{"x":"` + large[:4<<10] + `"}}}`)
			w.client.want(`{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"Invalid params: \"_meta\" is longer than 4 KiB"}}`)
		}
		s := w.proxy.running()[0]
		for i := range 200 { // 8 KiB each
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resources/subscribe","params":{"uri":"x:%d%s","x":%q}}`, 10+i, i, large[:4<<10], large))
		}
		w.client.take()
		if kept := s.kept.Load(); kept > maxKept || kept < maxKept/2 {
			t.Errorf("the session keeps %d bytes", kept)
		}
	})
}

// Values that servers create and clients return are bounded by what a client can return: an
// overlong task is refused, and only overlong elements are left out of a list.
func TestLongNamesOfServers(t *testing.T) {
	fits := strings.Repeat("x", mcp.MaxRouted-len("a__"))
	long := fits + "x"
	refused := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":%s}`, jsonrpc.InvalidResponse("a", `"taskId" is longer than 8 KiB`).Raw())
	for era, created := range map[mcp.Era]string{
		mcp.Legacy: `{"task":{"taskId":%q,"status":"working"}}`,
		mcp.Modern: `{"resultType":"task","taskId":%q,"status":"working","ttlMs":null}`,
	} {
		inWorldOf(t, era, &Router{}, []string{"a", "b"}, func(w *world) {
			log := new(strings.Builder)
			w.configure(func(p *Router) { p.Log = slog.New(slog.NewTextHandler(log, nil)) })
			var id string
			generous := new(thief).generous("a")
			w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
				switch m.Method {
				case "tools/call":
					p.conn.Send(jsonrpc.NewResult(m.ID, fmt.Appendf(nil, created, id)))
				case "tasks/list":
					p.conn.Send(jsonrpc.NewResult(m.ID, fmt.Appendf(nil, `{"tasks":[{"taskId":"t"},{"taskId":%q}],"nextCursor":%q}`, id, long+long)))
				case "resources/list":
					p.conn.Send(jsonrpc.NewResult(m.ID, fmt.Appendf(nil, `{"resultType":"complete","resources":[{"uri":"x:y"}],"nextCursor":%q,"ttlMs":0,"cacheScope":"public"}`, long+long)))
				default:
					generous(p, m)
				}
			}}
			w.initialize()
			call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo","task":{}}}`
			list := `{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`
			if era == mcp.Modern {
				call, list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo",`+modernTasks+`}}}`, `{"jsonrpc":"2.0","id":1,"method":"resources/list","params":{`+modernTasks+`}}}`
				w.client.era = mcp.Legacy // they are dressed already
			}
			id = fits
			w.client.say(call)
			if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], `"taskId":"a__`+fits+`"`) {
				t.Errorf("%s: a task is created: %.200q", era, got)
			}
			id = long
			w.client.say(call)
			w.client.want(refused)
			w.client.say(list)
			if got := strings.Join(w.client.take(), ""); strings.Contains(got, long) || !strings.Contains(got, `"taskId":"a__t"`) && !strings.Contains(got, `"uri":"x:y"`) {
				t.Errorf("%s: it lists %.300s", era, got)
			}
			w.client.say(call)
			w.client.say(list)
			w.client.take()
			if n := strings.Count(log.String(), "overlong"); n > 3 || n < 2 || strings.Contains(log.String(), long) {
				t.Errorf("%d log lines: %.1000s", n, log)
			}
		})
	}
	inWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.initialize()
		u := w.upstream("a")
		u.take()
		u.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "roots/list", fmt.Appendf(nil, `{"_meta":{"progressToken":%q}}`, long+long)))
		u.want(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Invalid params: \"progressToken\" is longer than 8 KiB"}}`)
	})
}
