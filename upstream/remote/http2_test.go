package remote

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A breaker is a server on HTTP/2 that breaks requests off.
type breaker struct {
	*fake
	t     *testing.T
	how   func(r *http.Request, body string) any // an http2.ErrCode to reset the stream, goAway, or nil to answer
	tries atomic.Int64                           // requests that were broken off
	conns sync.WaitGroup
}

type goAway struct{}

// newBreaker returns a breaker, and a Server that reaches it.
func newBreaker(t *testing.T, how func(r *http.Request, body string) any) (*breaker, *Server) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	t.Cleanup(certified.Close)
	config := certified.TLS.Clone()
	config.NextProtos = []string{"h2"}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{fake: newFake(t), t: t, how: how}
	var open sync.Map
	b.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Store(c, nil)
			b.conns.Go(func() {
				defer c.Close()
				b.serve(c)
			})
		}
	})
	s, _ := server(t, "https://"+l.Addr().String()+"/mcp")
	s.TLS = certified.Client().Transport.(*http.Transport).TLSClientConfig
	t.Cleanup(func() {
		l.Close()
		open.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		b.conns.Wait()
	})
	return b, s
}

// serve serves one connection, a request at a time.
func (b *breaker) serve(c net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = f.WriteWindowUpdate(0, 1<<24)
	var r *http.Request
	var body bytes.Buffer
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		over := false
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			r = httptest.NewRequest(frame.PseudoValue("method"), "/mcp", nil)
			for _, h := range frame.RegularFields() {
				r.Header.Add(h.Name, h.Value)
			}
			body.Reset()
			over = frame.StreamEnded()
		case *http2.DataFrame:
			body.Write(frame.Data())
			over = frame.StreamEnded()
		}
		if over {
			b.answer(f, frame.Header().StreamID, r, body.String())
		}
	}
}

func (b *breaker) answer(f *http2.Framer, stream uint32, r *http.Request, body string) {
	how := b.how(r, body)
	if how != nil {
		b.tries.Add(1)
	}
	switch how := how.(type) {
	case http2.ErrCode:
		_ = f.WriteRSTStream(stream, how)
		return
	case goAway:
		_ = f.WriteGoAway(max(stream, 2)-2, http2.ErrCodeNo, nil)
		return
	}
	w := httptest.NewRecorder()
	again := httptest.NewRequest(r.Method, "/mcp", strings.NewReader(body))
	again.Header = r.Header
	b.ServeHTTP(w, again)
	var block bytes.Buffer
	h := hpack.NewEncoder(&block)
	_ = h.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(w.Code)})
	for name, values := range w.Header() {
		_ = h.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: values[0]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = f.WriteData(stream, true, w.Body.Bytes())
}

// TestHTTP2Broken breaks calls off. One that may have run is not sent again, and what was not taken is sent again
// a few times.
func TestHTTP2Broken(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		name   string
		how    any
		times  int64 // that it is broken off; then it is answered
		tries  int64
		cause  string // "" for the result
		phase  jsonrpc.Phase
		params string
	}{
		{"protocol error", http2.ErrCodeProtocol, 99, 1, "stream ended", jsonrpc.InFlight, ""},
		{"internal error", http2.ErrCodeInternal, 99, 1, "stream ended", jsonrpc.InFlight, ""},
		{"refused once", http2.ErrCodeRefusedStream, 1, 1, "", "", ""},
		{"large, refused once", http2.ErrCodeRefusedStream, 1, 1, "", "", large},
		{"refused each time", http2.ErrCodeRefusedStream, 99, 4, "connection reset", jsonrpc.NotSent, ""},
		{"gone away once", goAway{}, 1, 1, "", "", ""},
		{"gone away each time", goAway{}, 99, 4, "connection lost", jsonrpc.NotSent, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var broken atomic.Int64
			b, s := newBreaker(t, func(_ *http.Request, body string) any {
				if strings.Contains(body, `"tools/call"`) && broken.Add(1) <= tt.times {
					return tt.how
				}
				return nil
			})
			s.Headers = map[string]string{"Idempotency-Key": "7"}
			c := shaken(t, s)
			b.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) { reply(w, m, `{}`) })
			c.request(1, "tools/call", `{"x":"`+tt.params+`"}`)
			if m := c.recv(); tt.cause == "" {
				wantResult(t, m, 1, `{}`)
			} else {
				wantError(t, m, 1, jsonrpc.ReasonClosed, tt.cause, tt.phase)
			}
			if n := b.tries.Load(); n != tt.tries {
				t.Errorf("broken off %d times, want %d", n, tt.tries)
			}
			c.close()
		})
	}
}

// TestHTTP2BrokenStream resets the stream of each GET. net/http repeats it at once for ever.
func TestHTTP2BrokenStream(t *testing.T) {
	t.Parallel()
	b, s := newBreaker(t, func(r *http.Request, _ string) any {
		if r.Method == http.MethodGet {
			return http2.ErrCodeProtocol
		}
		return nil
	})
	c := shaken(t, s)
	for i := range int64(3) {
		c.request(i+1, "ping", "")
		wantResult(t, c.recv(), i+1, `{}`)
	}
	c.close()
	if n := b.tries.Load(); n > 20 {
		t.Errorf("%d tries", n)
	}
}

// TestClosedBody: net/http may close a large body and read it all the same, for another try. That would not be counted
// as sent.
func TestClosedBody(t *testing.T) {
	r := newReach(nil)
	r.begin()
	b := &body{r: bytes.NewReader(make([]byte, 100<<10)), of: r, giveUp: func(error) {}, timeout: time.Hour}
	b.Close()
	if n, err := io.Copy(io.Discard, b); n != 0 || !errors.Is(err, errClosed) || r.connected.Load() {
		t.Errorf("read %d bytes, %v, sent: %v", n, err, r.connected.Load())
	}
}

// TestRedirectedStream follows as many redirects of a GET as are allowed.
func TestRedirectedStream(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := len(r.URL.Path); n <= maxRedirects {
			http.Redirect(w, r, "/"+strings.Repeat("x", n), http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	tr := &transport{client: newClient(s.Client().Transport.(*http.Transport).TLSClientConfig, time.Second)}
	defer tr.client.CloseIdleConnections()
	resp, f := tr.get(t.Context(), &endpoint{url: s.URL + "/"}, "")
	if f != nil {
		t.Fatalf("%v: %v", f.cause, f.err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}
