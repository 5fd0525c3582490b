package replay

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// taped writes a recording of an upstream named files. Each line of the talk is the sender,
// > for the proxy and < for the server, or <2 if it says that it belongs to request 2, and a message without its version. A line that ends
// with a colon names the session of those below.
func taped(t testing.TB, talk string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tape.ndjson")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write := func(v any, message string) { // which is written as it is
		text, err := json.Marshal(v)
		if message != "" {
			text = []byte(strings.TrimSuffix(string(text), "}") + `,"message":` + message + "}")
		}
		if err == nil {
			_, err = file.Write(append(text, '\n'))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(observe.Recording{Recording: 1, Version: "test", Began: time.Now()}, "")
	session, messages := "s1", 0
	for text := range strings.Lines(talk) {
		sender, message, _ := strings.Cut(strings.TrimSpace(text), " ")
		way := observe.Out
		switch {
		case sender == "":
			continue
		case strings.HasSuffix(sender, ":"):
			session = sender
			continue
		case sender != ">":
			way = observe.In
		}
		passed := observe.Passed{Time: time.Now(), Side: observe.SideUpstream, Way: way, Session: session, Upstream: "files"}
		passed.Of = json.RawMessage(strings.TrimLeft(sender, "<>"))
		message = `{"jsonrpc":"2.0",` + strings.TrimPrefix(message, "{")
		write(passed, message)
		passed.Side, passed.Upstream = observe.SideClient, ""
		write(passed, message)
		messages += 2
	}
	write(observe.RecordingEnd{End: true, Messages: messages}, "")
	return path
}

// A rig is one session with a recorded server.
type rig struct {
	*testing.T
	jsonrpc.Conn
}

func dial(t *testing.T, talk string) rig {
	t.Helper()
	return begin(t, opened(t, talk))
}

func opened(t *testing.T, talk string) *Recording {
	t.Helper()
	r, err := Open(taped(t, talk), "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// begin begins a session with a recorded server. It ends with the test.
func begin(t *testing.T, r *Recording) rig {
	near, far := jsonrpc.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Serve(far)
	}()
	t.Cleanup(func() {
		near.Close()
		<-done
	})
	return rig{t, near}
}

func (r rig) send(text string) {
	r.Helper()
	m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0",` + strings.TrimPrefix(text, "{")))
	if err != nil {
		r.Fatal(err)
	}
	if err := r.Send(m); err != nil {
		r.Fatal(err)
	}
}

// hears checks what comes next.
func (r rig) hears(want ...string) {
	r.Helper()
	for _, w := range want {
		m, err := r.Recv()
		if err != nil {
			r.Fatalf("heard %v, want %s", err, w)
		}
		got := string(m.Append(nil))
		got = "{" + strings.TrimPrefix(got, `{"jsonrpc":"2.0",`)
		if got != w {
			r.Fatalf("heard %s\nwant  %s", got, w)
		}
	}
}

// silent checks that nothing has been sent that was not received: a message is answered before
// the next is read.
func (r rig) silent() {
	r.Helper()
	r.send(`{"id":"silent?","method":"ping"}`)
	r.hears(`{"id":"silent?","result":{}}`)
}
