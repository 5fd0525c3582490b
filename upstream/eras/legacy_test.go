package eras

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// inTalk runs a test in a bubble, with a client that supports all questions.
func inTalk(t *testing.T, fn func(t *testing.T, k *talk)) {
	synctest.Test(t, func(t *testing.T) {
		k := newTalk(t)
		k.hello(`{"elicitation":{},"roots":{},"sampling":{}}`, `{}`, "2025-11-25")
		fn(t, k)
	})
}

// call sends a tools/call and returns the server's id for it.
func (k *talk) call(id int) jsonrpc.ID {
	k.t.Helper()
	k.say(k.client, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a"}}`, id))
	return k.recv(k.server).ID
}

// needs makes the server ask for the roots several times.
func (k *talk) needs(id jsonrpc.ID, questions int) {
	k.t.Helper()
	var requests []string
	for i := range questions {
		requests = append(requests, fmt.Sprintf(`"k%d":{"method":"roots/list"}`, i))
	}
	k.say(k.server, `{"jsonrpc":"2.0","id":`+id.String()+`,"result":{"resultType":"input_required","inputRequests":{`+strings.Join(requests, ",")+`}}}`)
}

// failure returns the text of a failed tool's result, which the client must receive next.
func (k *talk) failure() string {
	k.t.Helper()
	m := k.recv(k.client)
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	if err := json.Unmarshal(m.Result, &result); err != nil || !result.IsError || len(result.Content) != 1 {
		k.t.Fatalf("no failure: %s", k.text(m))
	}
	return result.Content[0].Text
}

func TestLegacyRoundsAreBounded(t *testing.T) {
	inTalk(t, func(t *testing.T, k *talk) {
		n := k.call(1)
		for range 8 {
			k.needs(n, 1)
			k.say(k.client, `{"jsonrpc":"2.0","id":`+k.recv(k.client).ID.String()+`,"result":{"roots":[]}}`)
			n = k.recv(k.server).ID
		}
		k.needs(n, 1)
		if text := k.failure(); !strings.Contains(text, "too many times") {
			t.Error(text)
		}
		k.quiet()
	})
}

func TestLegacyQuestionsAreBounded(t *testing.T) {
	inTalk(t, func(t *testing.T, k *talk) {
		k.needs(k.call(1), 65)
		if text := k.failure(); !strings.Contains(text, "too much") {
			t.Error(text)
		}
		for i := range 16 {
			k.needs(k.call(100+i), 64)
			for range 64 {
				if m := k.recv(k.client); m.Method != "roots/list" || m.Related != jsonrpc.IntID(int64(100+i)) {
					t.Fatal(k.text(m))
				}
			}
		}
		k.needs(k.call(2), 1)
		if text := k.failure(); !strings.Contains(text, "too much") {
			t.Error(text)
		}
		k.say(k.client, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":100}}`)
		for range 64 {
			if m := k.recv(k.client); m.Method != "notifications/cancelled" {
				t.Fatal(k.text(m))
			}
		}
		k.needs(k.call(3), 1)
		if m := k.recv(k.client); m.Method != "roots/list" {
			t.Error(k.text(m))
		}
	})
}

// A state is kept until the client has answered, so it is bounded.
func TestLegacyStateIsBounded(t *testing.T) {
	inTalk(t, func(t *testing.T, k *talk) {
		asks := func(id jsonrpc.ID, bytes int) {
			k.say(k.server, `{"jsonrpc":"2.0","id":`+id.String()+`,"result":{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"`+
				strings.Repeat("x", bytes-2)+`"}}`)
		}
		asks(k.call(1), maxState+1)
		if text := k.failure(); !strings.Contains(text, "too much") {
			t.Error(text)
		}
		asks(k.call(2), maxState)
		if m := k.recv(k.client); m.Method != "roots/list" {
			t.Error(k.text(m))
		}
	})
}

func TestLegacyCallsAreBounded(t *testing.T) {
	inTalk(t, func(t *testing.T, k *talk) {
		for i := range maxLegacyCalls {
			k.call(10 + i)
		}
		k.say(k.client, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if m := k.recv(k.client); !strings.Contains(string(m.Error), `"overloaded"`) {
			t.Error(k.text(m))
		}
		k.say(k.client, `{"jsonrpc":"2.0","id":10,"method":"tools/list"}`)
		if m := k.recv(k.client); !m.ID.IsZero() || !strings.Contains(string(m.Error), "in use") {
			t.Error(k.text(m))
		}
		k.say(k.client, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		if m := k.recv(k.client); m.Result == nil {
			t.Error(k.text(m))
		}
	})
}

func TestLegacyRefusesWhatComesBeforeInitialize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTalk(t)
		for _, method := range []string{"tools/list", "logging/setLevel", "resources/subscribe"} {
			k.say(k.client, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"uri":"a:b","level":"debug"}}`)
			if m := k.recv(k.client); !strings.Contains(string(m.Error), "-32600") {
				t.Error(k.text(m))
			}
		}
		k.say(k.client, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		for _, params := range []string{`{}`, `{"protocolVersion":7}`, `{"protocolVersion":"2025-11-25","ProtocolVersion":"x"}`} {
			k.say(k.client, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":`+params+`}`)
			if m := k.recv(k.client); !strings.Contains(string(m.Error), "-32602") {
				t.Errorf("%s: %s", params, k.text(m))
			}
		}
		k.quiet()
	})
}

// A client is asked only what it has declared.
func TestLegacyAsksWhatIsDeclared(t *testing.T) {
	const form, url, roots = `"elicitation/create","params":{"message":"x"}`, `"elicitation/create","params":{"mode":"url"}`, `"roots/list"`
	const sampling, tools = `"sampling/createMessage","params":{}`, `"sampling/createMessage","params":{"tools":[]}`
	for capabilities, asked := range map[string][]string{
		`{}`:                               {},
		`{"elicitation":{}}`:               {form},
		`{"elicitation":{"form":{}}}`:      {form},
		`{"elicitation":{"url":{}}}`:       {url},
		`{"sampling":{}}`:                  {sampling},
		`{"sampling":{"tools":{}}}`:        {sampling, tools},
		`{"roots":{"listChanged":false}}`:  {roots},
		`{"roots":{"a":1},"roots":{}}`:     {},
		`{"vendor":{},"completion/x":{}}`:  {},
		`{"elicitation":{},"sampling":{}}`: {form, sampling},
	} {
		for _, ask := range []string{form, url, roots, sampling, tools, `"completion/complete"`} {
			synctest.Test(t, func(t *testing.T) {
				k := newTalk(t)
				k.hello(capabilities, `{}`, "2025-11-25")
				k.say(k.server, `{"jsonrpc":"2.0","id":`+k.call(1).String()+`,"result":{"resultType":"input_required","inputRequests":{"":{"method":`+ask+`}}}}`)
				if m := k.recv(k.client); m.IsRequest() != slices.Contains(asked, ask) {
					t.Errorf("%s, %s: %s", capabilities, ask, k.text(m))
				}
			})
		}
	}
}

// A resultType of the server's own says nothing against its versions.
func TestLegacyInitializeWithADiscoverOfItsOwnKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTalk(t)
		k.say(k.client, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		k.say(k.server, `{"jsonrpc":"2.0","id":`+k.recv(k.server).ID.String()+
			`,"result":{"resultType":"acme","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"x":1}}`)
		const want = `{"jsonrpc":"2.0","id":"i","result":{"capabilities":{"tools":{}},"x":1,"protocolVersion":"2025-11-25","serverInfo":{"name":"up","version":""}}}`
		if got := k.text(k.recv(k.client)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestLegacyInitializeFailsAsDiscoverDoes(t *testing.T) {
	for answer, want := range map[string]string{
		`"error":{"code":-32022,"message":"no","data":{"supported":["2027-01-01"]}}`: `{"code":-32603,"message":"no","data":{"supported":["2027-01-01"]}}`,
		`"error":{"code":-32001,"message":"x"}`:                                      `{"code":-32001,"message":"x"}`,
		`"result":{"supportedVersions":["2025-11-25"],"capabilities":{}}`:            `"cause":"no common version"`,
		`"result":{"resultType":"input_required","requestState":"a"}`:                `"cause":"unknown resultType"`,
		`"result":[]`: `"cause":"not an object"`,
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newTalk(t)
			k.say(k.client, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"1999-01-01","capabilities":{}}}`)
			k.say(k.server, `{"jsonrpc":"2.0","id":`+k.recv(k.server).ID.String()+`,`+answer+`}`)
			if m := k.recv(k.client); m.ID.String() != `"i"` || !strings.Contains(string(m.Error), want) {
				t.Errorf("%s: %s", answer, k.text(m))
			}
		})
	}
}

func TestLegacyAnswersWithTheNewestVersionItKnows(t *testing.T) {
	for said, want := range map[string]string{"2024-11-05": "2024-11-05", "1999-01-01": "2025-11-25", "2026-07-28": "2025-11-25"} {
		synctest.Test(t, func(t *testing.T) {
			k := newTalk(t)
			k.say(k.client, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+said+`","capabilities":{}}}`)
			k.say(k.server, `{"jsonrpc":"2.0","id":`+k.recv(k.server).ID.String()+`,"result":{"capabilities":{}}}`)
			want := `{"capabilities":{},"protocolVersion":"` + want + `","serverInfo":{"name":"up","version":""}}`
			if m := k.recv(k.client); string(m.Result) != want {
				t.Errorf("%s: %s", said, k.text(m))
			}
		})
	}
}

// Invalid messages of a server are dropped.
func TestLegacyDropsStrayMessages(t *testing.T) {
	inTalk(t, func(t *testing.T, k *talk) {
		n := k.call(1)
		for _, stray := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`,
			`{"jsonrpc":"2.0","id":99,"result":{}}`,
			`{"jsonrpc":"2.0","id":"x","result":{}}`,
			`{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}`,
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","_meta":{"io.modelcontextprotocol/subscriptionId":"99"}}}`,
			`@` + n.String() + ` {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`,
			`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + n.String() + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + n.String() + `,"progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`,
			`{"jsonrpc":"2.0","method":"notifications/tasks","params":{}}`,
		} {
			k.say(k.server, stray)
		}
		k.quiet()
		k.say(k.server, `@`+n.String()+` {"jsonrpc":"2.0","method":"vendor/note","params":{"a":1.0}}`)
		if got := k.text(k.recv(k.client)); got != `@1 {"jsonrpc":"2.0","method":"vendor/note","params":{"a":1.0}}` {
			t.Error(got)
		}
	})
}

func TestLegacyHostStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, clientFar := jsonrpc.Pipe()
		server, serverFar := jsonrpc.Pipe()
		b := &Bridge{Open: func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return serverFar }}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- b.Legacy(ctx, "up", "key", clientFar) }()
		synctest.Wait()
		cancel()
		if end, ok := errors.AsType[*jsonrpc.ClosedError](<-done); !ok || end.Cause != jsonrpc.CauseHostStopped {
			t.Error(end)
		}
		if _, err := client.Recv(); !errors.As(err, new(*jsonrpc.ClosedError)) {
			t.Error(err)
		}
		if _, err := server.Recv(); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Error(err)
		}
	})
}

// A client that does not read slows its own server, and delays an end only briefly.
func TestLegacyClientThatDoesNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		notes int // that the server has to say; then it ends
		cause string
	}{
		"server ends": {200, "exit status 1"},
		"host stops":  {1e6, jsonrpc.CauseHostStopped.String()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, clientFar := jsonrpc.Pipe()
				server, serverFar := jsonrpc.Pipe()
				b := &Bridge{Open: func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return serverFar }}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- b.Legacy(ctx, "up", "key", clientFar) }()
				sent, began := 0, time.Now()
				go func() {
					for sent < c.notes && server.Send(jsonrpc.NewNotification("vendor/note", nil)) == nil {
						sent++
					}
					jsonrpc.CloseWith(server, &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(1), Delivered: true})
				}()
				synctest.Wait()
				if sent > 2*maxQueued+1000 || sent < min(c.notes, maxQueued) { // the half of it may be on its way already
					t.Errorf("%d messages were taken", sent)
				}
				if c.cause == jsonrpc.CauseHostStopped.String() {
					cancel()
				}
				if end, _ := errors.AsType[*jsonrpc.ClosedError](<-done); end == nil || end.Cause.String() != c.cause {
					t.Error(end)
				}
				if d := time.Since(began); d != flushTime {
					t.Errorf("ended after %v", d)
				}
				cancel()
				client.Close()
			})
		})
	}
}

// Pending timers do not delay the end.
func TestLegacyEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTalk(t)
		k.hello(`{}`, `{"tools":{"listChanged":true}}`, "2025-11-25")
		k.say(k.server, `{"jsonrpc":"2.0","id":`+k.recv(k.server).ID.String()+`,"result":{}}`)
		k.say(k.server, `{"jsonrpc":"2.0","id":`+k.call(1).String()+`,"result":{"resultType":"input_required","requestState":""}}`)
		began := time.Now()
		k.client.c.Close()
		<-k.done
		if d := time.Since(began); d != 0 {
			t.Errorf("ended after %v", d)
		}
	})
}

// A server that ends its listens at once is asked less and less often, until one lasts.
func TestLegacyListensLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTalk(t)
		k.hello(`{}`, `{"tools":{"listChanged":true}}`, "2025-11-25")
		next := func(live time.Duration) time.Duration {
			m := k.recv(k.server)
			k.say(k.server, `@`+m.ID.String()+` {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true}}}`)
			time.Sleep(live)
			k.say(k.server, `{"jsonrpc":"2.0","id":`+m.ID.String()+`,"result":{}}`)
			for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				if synctest.Wait(); len(k.server.in) > 0 {
					return time.Since(began)
				}
			}
		}
		for i := range 10 {
			if d, least := next(0), min(250*time.Millisecond<<i, 15*time.Second); d < least || d > 46*time.Second {
				t.Errorf("attempt %d came after %v", i, d)
			}
		}
		if d := next(time.Minute); d > time.Second {
			t.Errorf("after a minute, it took %v", d)
		}
	})
}

// D24: both sides end at once, which is one end.
func TestD24_BothSidesEndAtOnce(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			k := newTalk(t)
			k.hello(`{"roots":{}}`, `{"tools":{"listChanged":true}}`, "2025-11-25")
			k.recv(k.server)
			k.needs(k.call(1), 3)
			go k.server.c.Close()
			go k.client.c.Close()
			if err := <-k.done; !errors.Is(err, jsonrpc.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// A deafConn is a Conn with one unusable message.
type deafConn struct {
	jsonrpc.Conn
	bad chan *jsonrpc.InvalidError
}

func (c *deafConn) Recv() (*jsonrpc.Message, error) {
	select {
	case bad := <-c.bad:
		return nil, bad
	default:
		return c.Conn.Recv()
	}
}

func TestLegacySettlesWhatIsAnsweredUnusably(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, clientFar := jsonrpc.Pipe()
		server, serverFar := jsonrpc.Pipe()
		far := &deafConn{serverFar, make(chan *jsonrpc.InvalidError, 2)}
		b := &Bridge{Open: func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return far }}
		done := make(chan error, 1)
		go func() { done <- b.Legacy(context.Background(), "up", "key", clientFar) }()
		hello := json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`)
		_ = client.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", hello))
		synctest.Wait()
		far.bad <- &jsonrpc.InvalidError{Code: jsonrpc.CodeParseError, Reason: "x"}
		far.bad <- &jsonrpc.InvalidError{Code: jsonrpc.CodeParseError, Reason: "x", ID: jsonrpc.IntID(1), Reply: true}
		_ = server.Send(jsonrpc.NewNotification("vendor/note", nil))
		_, _ = client.Recv()
		if m, err := client.Recv(); err != nil || !strings.Contains(string(m.Error), "invalid_response") {
			t.Error(m, err)
		}
		client.Close()
		<-done
		server.Close()
	})
}
