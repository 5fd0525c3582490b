package frontend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// aRecord has each member of a record.
const aRecord = `{"v":1,"id":"a.1.mac","kind":"jwt","issuer":"i","name":"n","upstream":"files","user":"u","moves":2,"protocol":"2025-11-25","digest":"d",` +
	`"said":{"initialize":{"protocolVersion":"2025-11-25"},"initialized":{},"level":{"level":"info"},"subscribed":{"x:y":{"uri":"x:y","é":"<\ud800>"}}},` +
	`"last":4,"streams":[{"n":0,"first":3,"sent":2},{"n":4,"first":1,"sent":1,"events":["eyJqc29ucnBjIjoiMi4wIiwibWV0aG9kIjoiYSJ9","eyJqc29ucnBjIjoiMi4wIiwiaWQiOjEsInJlc3VsdCI6e319"]}],"later":[1]}`

// FuzzRecord: what a replica of any version sends is a session, or refused; and the record of that
// session has the same content, whatever it may not know of left out.
func FuzzRecord(f *testing.F) {
	for _, text := range []string{
		aRecord, `{}`, `{"v":1,"id":"x"}`, `{"v":1,"id":"a","said":{"initialize":{}},"streams":[{"n":-1},{"n":0,"first":-5,"sent":9000000000,"events":["eA=="]}]}`,
		`{"v":9,"id":"a","said":{"initialize":null}}`, strings.Replace(aRecord, `"n":4`, `"n":0`, 1),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		synctest.Test(t, func(t *testing.T) {
			h := &HTTP{Replicas: &replica{}, SessionIdle: -1}
			h.init()
			defer h.Close()
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, replicaPath, strings.NewReader(text))
			h.serveReplica(w, r)
			var sent record
			err := json.Unmarshal([]byte(text), &sent)
			if w.Code != http.StatusNoContent {
				return
			}
			if err != nil {
				t.Fatalf("%d for %v", w.Code, err)
			}
			s := newHTTPSession("id", caller{who: &identity.Identity{}}, h.open.backlog.join(identity.Principal{}))
			defer h.open.backlog.leave(identity.Principal{})
			s.resume(&sent, caller{who: &identity.Identity{}}, false)
			s.mu.Lock()
			again := s.movingLocked("", sent.Digest)
			s.mu.Unlock()
			if !reflect.DeepEqual(again.Said, sent.Said) || again.Protocol != sent.Protocol {
				t.Errorf("again %+v, sent %+v", again, sent)
			}
			if again.encode() == nil {
				t.Error("it cannot be sent on")
			}
			for _, st := range again.Streams {
				if st.First < 1 || st.Sent < 0 {
					t.Errorf("a stream begins with event %d, and %d were sent", st.First, st.Sent)
				}
			}
			s.out.attach("", nil).take()
			for number := range s.out.numbered {
				s.out.attach(eventID(number, 0), nil).take()
			}
			s.end(errServed, true)
		})
	})
}

// The record of a session that moved here and on has what the first one had.
func TestRecordAgain(t *testing.T) {
	var sent record
	if err := json.Unmarshal([]byte(aRecord), &sent); err != nil {
		t.Fatal(err)
	}
	s := newHTTPSession(sent.ID, caller{who: &identity.Identity{Principal: sent.key().principal}, upstream: "files", user: "u"},
		newBacklog(jsonrpc.Limits{}).join(identity.Principal{}))
	s.resume(&sent, caller{who: &identity.Identity{}}, false)
	s.mu.Lock()
	text := string(s.movingLocked("", "d").encode())
	s.mu.Unlock()
	want := strings.NewReplacer(`,"kind"`, `,"seq":1,"kind"`, `"moves":2`, `"moves":3`, `,"later":[1]`, "").Replace(aRecord) + "\n"
	if text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// What does not hold until the end of a session is not said again.
func TestSaidOnce(t *testing.T) {
	var s saidOnce
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"a":1}}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":7}}`, `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":4,"method":"resources/unsubscribe","params":{"uri":"a"}}`, `{"jsonrpc":"2.0","id":5,"result":{}}`,
	} {
		m, err := jsonrpc.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		m.Notes = mcp.Read(m)
		s.note(m)
	}
	if got, want := fmt.Sprintf("%s %s %s %d", s.Initialize, s.Initialized, s.Level, len(s.Subscribed)), `{"a":1} {}  0`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Of two POSTs at a time, the one that Serve gets last says what holds.
func TestSaidLast(t *testing.T) {
	s := newHTTPSession("s", caller{}, newBacklog(jsonrpc.Limits{}).join(identity.Principal{}))
	s.said = &saidOnce{}
	begun, goOn, done := make(chan bool), make(chan bool), make(chan bool)
	s.OnSend(func(*jsonrpc.Message) bool { begun <- true; <-goOn; return true })
	post := func(id int64, level string) {
		m := []*jsonrpc.Message{jsonrpc.NewRequest(jsonrpc.IntID(id), "logging/setLevel", []byte(`{"level":"`+level+`"}`))}
		rd, err := s.expect(m, false)
		if err == nil {
			err = s.deliver(t.Context(), rd, m)
		}
		if err != nil {
			t.Error(err)
		}
	}
	go func() { post(1, "debug"); close(done) }()
	<-begun
	post(2, "error") // waits for the first
	close(goOn)
	<-done
	if got, want := string(s.said.Level), `{"level":"error"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// FuzzKept: what a replica of any version lets this one keep are sessions that can go on here, or nothing, and the
// bytes that are kept are counted.
func FuzzKept(f *testing.F) {
	for _, text := range []string{
		`{"of":"b","records":[` + aRecord + `,{},7],"forget":["x"]}`, `{"of":"b","forget":["a.1.mac"]}`, `{"records":[null]}`,
		`{"of":"b","records":[{"v":1,"id":"a","moves":9223372036854775807,"said":{"initialize":{}}},{"v":1,"id":"a","moves":-1,"said":{"initialize":{}}}]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		synctest.Test(t, func(t *testing.T) {
			h := &HTTP{Replicas: &replica{}, SessionIdle: -1}
			h.init()
			defer h.Close()
			h.serveReplica(httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, replicaPath, strings.NewReader(text)))
			o, d := h.open, h.open.directory
			for id := range d.kept.byID {
				if !d.adopt(id) {
					t.Errorf("%q does not go on", id)
				}
				m := d.moved.byID[id]
				s := newHTTPSession(id, caller{who: &identity.Identity{}}, o.backlog.join(identity.Principal{}))
				s.resume(m.record, caller{who: &identity.Identity{}}, false)
				s.out.attach("", nil).take()
				s.out.attach("0-17", nil)
				s.end(errServed, true)
				o.backlog.leave(identity.Principal{})
			}
			if d.kept.bytes != 0 || len(d.kept.byID) != 0 {
				t.Errorf("%d bytes of %d records are left", d.kept.bytes, len(d.kept.byID))
			}
		})
	})
}
