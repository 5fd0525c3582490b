package remote

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// A farSide is the server's end of a session, of which the grid of conntest knows
// no more than that messages come and go: posts come, and the GET stream, or the
// stream of HTTP+SSE, goes.
type farSide struct {
	*httptest.Server
	legacy bool
	in     chan *jsonrpc.Message
	out    chan *jsonrpc.Message
	over   chan struct{}
	once   sync.Once
}

func newFarSide(legacy bool) *farSide {
	f := &farSide{legacy: legacy, in: make(chan *jsonrpc.Message, 16), out: make(chan *jsonrpc.Message, 16), over: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	return f
}

func (f *farSide) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet:
		f.write(w, r)
	case r.Method == http.MethodPost && f.legacy && r.URL.Path != "/message":
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.Method == http.MethodPost:
		text, err := io.ReadAll(r.Body)
		m, bad := jsonrpc.Decode(text)
		if err != nil || bad != nil {
			return
		}
		select {
		case f.in <- m:
			w.WriteHeader(http.StatusAccepted)
		case <-f.over:
			w.WriteHeader(http.StatusNotFound)
		}
	}
}

func (f *farSide) write(w http.ResponseWriter, r *http.Request) {
	stream(w, "event: endpoint\ndata: /message\n\n")
	defer f.end()
	for {
		var m *jsonrpc.Message
		select {
		case m = <-f.out:
		default:
			select {
			case m = <-f.out:
			case <-f.over:
				select {
				case m = <-f.out: // what was sent before Close
				default:
					return
				}
			case <-r.Context().Done():
				return
			}
		}
		stream(w, "data: "+string(m.Append(nil))+"\n\n")
	}
}

func (f *farSide) end() { f.once.Do(func() { close(f.over) }) }

func (f *farSide) Recv() (*jsonrpc.Message, error) {
	select {
	case m := <-f.in:
		return m, nil
	case <-f.over:
	}
	select {
	case m := <-f.in:
		return m, nil
	default:
		return nil, jsonrpc.ErrClosed
	}
}

func (f *farSide) Send(m *jsonrpc.Message) error {
	select {
	case <-f.over:
		return jsonrpc.ErrClosed
	default:
	}
	select {
	case f.out <- m:
		return nil
	case <-f.over:
		return jsonrpc.ErrClosed
	}
}

func (f *farSide) Close() error {
	f.end()
	return nil
}

// TestIsConn runs the grid over HTTP+SSE, where the stream is the connection.
func TestIsConn(t *testing.T) {
	t.Parallel()
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		far := newFarSide(true)
		s := &Server{Name: "up", URL: far.URL, SSE: true, StopGrace: 10 * time.Second} // to post all, on any machine
		near, err := s.Dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		near.Send(jsonrpc.NewNotification("first", nil)) // opens the stream
		if m, err := far.Recv(); err != nil || m.Method != "first" {
			t.Fatalf("received %v, %v", m, err)
		}
		t.Cleanup(func() {
			near.Close()
			far.Close()
			far.Server.CloseClientConnections()
			far.Server.Close()
		})
		return near, far
	})
}

// When the host stops, that is the end, before any request fails of it.
func TestLifeEndsBeforeItsWork(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		l := newLife(ctx)
		cancel()
		<-l.work.Done()
		if l.over() == nil {
			t.Fatal("its work was given up before the end")
		}
	}
}
