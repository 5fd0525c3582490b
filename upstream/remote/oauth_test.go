package remote

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const oauthChallenge = `Bearer realm="x", resource_metadata="https://secret.invalid/.well-known/oauth-protected-resource"`

// refusals are how servers do not let us in, and what becomes of that.
var refusals = []struct {
	name      string
	status    int
	challenge []string
	body      string
	says, log string
}{
	{"wrong token", 401, []string{`Bearer error="invalid_token"`}, "", "rejected our credentials (HTTP 401)", "upstream rejected the credentials"},
	{"no challenge", 401, nil, "", "rejected our credentials (HTTP 401)", "upstream rejected the credentials"},
	{"OAuth", 401, []string{oauthChallenge}, "", "needs OAuth (HTTP 401)", "upstream needs OAuth"},
	{"OAuth, second challenge", 401, []string{"Basic", "bearer Resource_Metadata = x"}, "", "needs OAuth (HTTP 401)", "upstream needs OAuth"},
	{"OAuth with a body", 401, []string{oauthChallenge}, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}`, "needs OAuth (HTTP 401)", "upstream needs OAuth"},
	{"forbidden", 403, nil, "", "refused the request (HTTP 403)", "upstream refused the request"},
	{"wrong scope", 403, []string{`Bearer error="insufficient_scope"`}, "", "rejected our credentials (HTTP 403)", "upstream rejected the credentials"},
	{"more scopes", 403, []string{`Bearer error="insufficient_scope", resource_metadata="https://secret.invalid/"`}, "", "needs OAuth (HTTP 403)", "upstream needs OAuth"},
	{"another parameter", 401, []string{`Bearer no_resource_metadata="x"`}, "", "rejected our credentials (HTTP 401)", "upstream rejected the credentials"},
}

// An eventError is the one error as a client gets it.
type eventError struct {
	Message string
	Data    jsonrpc.ErrorData
}

func parseError(m *jsonrpc.Message) (e eventError) {
	_ = json.Unmarshal(m.Error, &e)
	return e
}

// Requests that a server does not let in say which kind of refusal it is; they are part
// of one event, of which the log hears once.
func TestRefusedRequestsSayWhy(t *testing.T) {
	t.Parallel()
	for _, modern := range []bool{false, true} {
		for _, tt := range refusals {
			t.Run(fmt.Sprint(tt.name, " modern ", modern), func(t *testing.T) {
				f := newFake(t)
				s, l := server(t, f.URL)
				connect := map[bool]func(*testing.T, *Server) *client{false: shaken, true: dialModern}
				c := connect[modern](t, s)
				f.mu.Lock()
				f.any = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method == http.MethodPost {
						refuseWith(w, tt.status, tt.challenge, tt.body)
					}
					return r.Method == http.MethodPost
				}
				f.mu.Unlock()
				var events []string
				for id := range int64(2) {
					c.request(id+7, "ping", params(""))
					e := parseError(c.recv())
					if e.Message != "Connection closed: up "+tt.says || e.Data.Cause != jsonrpc.HTTPCause(tt.status) || e.Data.Retryable {
						t.Errorf("got %+v", e)
					}
					events = append(events, e.Data.Event)
				}
				if !jsonrpc.IsEvent(events[0]) || events[0] != events[1] {
					t.Errorf("events %q", events)
				}
				c.close()
				if l.sum("level=WARN") != 1 || l.sum(fmt.Sprintf("msg=%q upstream=up status=%d event=%s", tt.log, tt.status, events[0])) != 1 || l.sum("secret") > 0 {
					t.Errorf("the log is %s", l)
				}
			})
		}
	}
}

func refuseWith(w http.ResponseWriter, status int, challenges []string, body string) {
	for _, c := range challenges {
		w.Header().Add("WWW-Authenticate", c)
	}
	if body != "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	io.WriteString(w, body)
}

// A session that a server does not let begin ends with the reason, which the host tells.
func TestRefusedSessionsSayWhy(t *testing.T) {
	for _, tt := range refusals {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			refuseWith(w, tt.status, tt.challenge, tt.body)
		}))
		defer web.Close()
		s, l := server(t, web.URL)
		c := dial(t, s)
		c.request(0, "initialize", initParams)
		ends := map[string]*jsonrpc.ClosedError{"HTTP": c.end()}
		c.close()
		_, err := s.Probe(t.Context())
		ends["probe"] = jsonrpc.EndOf(err, jsonrpc.Cause{})
		socket, _ := server(t, "ws"+strings.TrimPrefix(web.URL, "http"))
		_, err = socket.Dial(t.Context())
		ends["WebSocket"] = jsonrpc.EndOf(err, jsonrpc.Cause{})
		for how, end := range ends {
			if end.Cause != jsonrpc.HTTPCause(tt.status) || end.Says != tt.says || !end.Lasting || end.Delivered {
				t.Errorf("%s, %s: %+v", tt.name, how, end)
			}
		}
		if l.String() != "" { // whose stream it is says it, once
			t.Errorf("the log is %s", l)
		}
	}
}

// Trying again is worth it after some statuses.
func TestLastingStatuses(t *testing.T) {
	for status, want := range map[int]bool{
		302: true, 400: true, 401: true, 403: true, 404: true, 405: true, 410: true,
		408: false, 425: false, 429: false, 500: false, 502: false, 503: false,
	} {
		if got := refused(status).end().Lasting; got != want {
			t.Errorf("HTTP %d: lasting is %v", status, got)
		}
	}
}

// A server that dies under nothing but streams outside of calls is told of once, however
// many there are and however long it is gone.
func TestKilledUnderStreams(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.get = func(w http.ResponseWriter, r *http.Request) { stream(w, ": hello\n\n"); block(r) }
	s, l := server(t, f.URL)
	var all []*client
	for range 3 {
		all = append(all, shaken(t, s))
	}
	f.await("GET", 3)
	f.Listener.Close()
	f.CloseClientConnections()
	for deadline := time.Now().Add(patience); l.sum("WARN") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the log says nothing")
		}
	}
	for _, c := range all {
		c.close()
	}
	if l.sum("level=WARN") != 1 || l.sum(`msg="upstream cannot be reached"`) != 1 || l.sum("event=") != 1 || l.sum(`cause="connection refused"`) != 1 {
		t.Errorf("the log is %s", l)
	}
}

// What is lost beside requests adds no line to theirs, until one has succeeded.
func TestFailureLogTellsAnOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &logs{}
		failures := &failureLog{log: newLog(l)}
		gone := func() *failure { return &failure{cause: jsonrpc.CauseConnectionRefused, phase: jsonrpc.NotSent} }
		lost, failed := gone(), gone()
		failures.count(failed)
		failures.lose(lost)
		if failed.event != lost.event || !jsonrpc.IsEvent(lost.event) {
			t.Errorf("events %q and %q", failed.event, lost.event)
		}
		time.Sleep(2 * gathered)
		for range 3 {
			again := gone()
			failures.lose(again)
			time.Sleep(2 * gathered)
			if again.event != lost.event {
				t.Errorf("event %q, want that of the outage, %q", again.event, lost.event)
			}
		}
		if l.sum("WARN") != 1 || l.sum("streams=1") != 1 || l.sum("requests=1") != 1 {
			t.Errorf("the log is %s", l)
		}
		failures.accepted()
		another := gone()
		failures.lose(another)
		time.Sleep(2 * gathered)
		if l.sum("WARN") != 2 || another.event == lost.event {
			t.Errorf("event %q, the log is %s", another.event, l)
		}
	})
}

// What tries to go on when its server dies fails later than the rest, and is told of with
// it: as long as it tries, for a while.
func TestFailureLogWaitsForWhatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for tries, lines := range map[time.Duration]int{2 * gathered: 1, mostGathered + 2*gathered: 2} {
			l := &logs{}
			failures := &failureLog{log: newLog(l)}
			first, last := &failure{cause: jsonrpc.CauseConnectionLost}, &failure{cause: jsonrpc.HTTPCause(404)}
			tried := failures.try()
			failures.count(first)
			time.Sleep(tries)
			tried()
			time.Sleep(gathered - 1) // a busy machine
			failures.count(last)
			time.Sleep(2 * gathered)
			if l.sum("WARN") != lines || (first.event == last.event) != (lines == 1) {
				t.Errorf("events %q and %q, the log is %s", first.event, last.event, l)
			}
		}
	})
}

// A modern server that dies is told of once, though whoever listens asks it again.
func TestKilledUnderListens(t *testing.T) {
	f := newFake(t)
	f.handle("subscriptions/listen", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		stream(w, ": hello\n\n")
		block(r)
	})
	s, l := server(t, f.URL)
	c := dialModern(t, s)
	for id := range int64(3) {
		c.request(id, "subscriptions/listen", params(`"notifications":{}`))
	}
	f.await("subscriptions/listen", 3)
	f.Listener.Close()
	f.CloseClientConnections()
	for range 3 {
		c.recv()
	}
	for id := range int64(4) {
		c.request(10+id, "subscriptions/listen", params(`"notifications":{}`))
		if e := parseError(c.recv()); e.Data.Cause.String() != "connection refused" || !jsonrpc.IsEvent(e.Data.Event) {
			t.Errorf("got %+v", e)
		}
	}
	c.close()
	if l.sum("level=WARN") != 1 || l.sum(`msg="upstream cannot be reached"`) != 1 {
		t.Errorf("the log is %s", l)
	}
}
