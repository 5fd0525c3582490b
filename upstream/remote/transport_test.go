package remote

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// countingConn counts its writes.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// TestOneWrite posts small calls: the header and the body of each leave in one write, so that the server
// is not woken twice.
func TestOneWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := server(t, f.URL)
		f.reach(s)
		var writes atomic.Int64
		transport := s.prepare().client.Transport.(onceTransport).Transport
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			return countingConn{c, &writes}, err
		}
		c := shaken(t, s)
		f.await("notifications/initialized", 1)
		for i := range int64(3) {
			before := writes.Load()
			c.request(i+1, "tools/call", `{"name":"`+strings.Repeat("x", 2000)+`"}`)
			c.recv()
			if n := writes.Load() - before; n != 1 {
				t.Errorf("a small call was written in %d writes", n)
			}
		}
	})
}

// TestStalledWrite gives up a small request that is not written in time, where the timeout of the
// connection does not tell: on HTTP/2.
func TestStalledWrite(t *testing.T) {
	for _, written := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, giveUp := abortable(t.Context(), "https://localhost/mcp")
			defer giveUp(nil)
			r := newReach(nil)
			hooks := httptrace.ContextClientTrace(r.traceWrite(ctx, time.Minute, giveUp))
			if r.connected.Load() {
				t.Error("connected before anything was written")
			}
			hooks.WroteHeaders()
			if !r.connected.Load() {
				t.Error("not connected although the header was written")
			}
			if written {
				hooks.WroteRequest(httptrace.WroteRequestInfo{})
			}
			time.Sleep(2 * time.Minute)
			select {
			case <-r.whenWritten():
			default:
				if written {
					t.Error("it is not known that the request was written")
				}
			}
			if stalled := errors.Is(context.Cause(ctx), errStalled); stalled == written {
				t.Errorf("written: %v, given up: %v", written, context.Cause(ctx))
			}
		})
	}
	if _, giveUp := abortable(t.Context(), "http://localhost/mcp"); giveUp != nil {
		t.Error("a request over HTTP/1 has a timer of its own")
	}
}

// closing is a RoundTripper whose first requests get a connection that the server closes just then.
type closing struct {
	http.RoundTripper
	times, tries int
	kept, wrote  bool
}

func (c *closing) RoundTrip(r *http.Request) (*http.Response, error) {
	c.tries++
	if c.tries > c.times {
		return c.RoundTripper.RoundTrip(r)
	}
	hooks := httptrace.ContextClientTrace(r.Context())
	hooks.GotConn(httptrace.GotConnInfo{Reused: c.kept})
	if c.wrote {
		hooks.WroteHeaders()
		hooks.WroteRequest(httptrace.WroteRequestInfo{Err: errors.New("closed")})
	}
	return nil, errors.New("http: server closed idle connection")
}

// TestServerClosesKeptConnection sends a call again if the kept connection that it got was closed before any
// of it was written, which net/http does itself only for methods without effects.
func TestServerClosesKeptConnection(t *testing.T) {
	for _, tt := range []struct {
		name        string
		closing     closing
		tries       int
		phase, want string
	}{
		{"closed", closing{times: 2, kept: true}, 3, "", `{}`},
		{"closed again and again", closing{times: 9, kept: true}, 4, "not_sent", ""},
		{"closed when some was written", closing{times: 9, kept: true, wrote: true}, 1, "in_flight", ""},
		{"a new connection", closing{times: 9}, 1, "not_sent", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fake) {
				s, _ := server(t, f.URL)
				c := shaken(t, f.reach(s))
				f.await("notifications/initialized", 1)
				synctest.Wait()
				client, fails := s.prepare().client, tt.closing
				fails.RoundTripper = client.Transport
				client.Transport = &fails
				defer func() { client.Transport = fails.RoundTripper }()
				c.request(1, "tools/call", `{}`)
				m := c.recv()
				if fails.tries != tt.tries || string(m.Result) != tt.want || !strings.Contains(string(m.Error), tt.phase) {
					t.Errorf("%d tries, answered with %s, want %d, %s%s", fails.tries, m.Append(nil), tt.tries, tt.want, tt.phase)
				}
			})
		})
	}
}

// A leaving says whether a server is gone, and how long writes to it take to fail.
type leaving struct {
	atomic.Bool
	after atomic.Int64
}

// A brokenConn is a kept connection to a server that is gone: nothing leaves with the next write.
type brokenConn struct {
	net.Conn
	gone *leaving
}

func (c brokenConn) Write(b []byte) (int, error) {
	if c.gone.Load() {
		time.Sleep(time.Duration(c.gone.after.Load()))
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(b)
}

// gone has the server of s be gone once the result is set: nothing can be written to kept connections any
// more, and dial is called for each new one, which fails if dial does.
func gone(s *Server, dial func() error) *leaving {
	var gone leaving
	transport := s.prepare().client.Transport.(onceTransport).Transport
	before := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if gone.Load() {
			if err := dial(); err != nil {
				return nil, err
			}
			return before(ctx, network, addr)
		}
		c, err := before(ctx, network, addr)
		if c, ok := c.(*timeoutConn); ok {
			c.Conn = brokenConn{c.Conn, &gone}
		}
		return c, err
	}
	return &gone
}

// TestNothingWritten: net/http says that it has written the header of a call when that is in a buffer. If none
// of it leaves, and the server cannot be reached again, the call was not sent, and nobody tries once more.
func TestNothingWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := server(t, f.URL)
		f.reach(s)
		dials := 0
		gone := gone(s, func() error { dials++; return errors.New("connection refused") })
		c := shaken(t, s)
		f.await("notifications/initialized", 1)
		synctest.Wait()
		gone.Store(true)
		c.request(1, "tools/call", `{}`)
		if m := c.recv(); !strings.Contains(string(m.Error), `"phase":"not_sent"`) || dials != 1 {
			t.Errorf("answered with %s after %d dials", m.Error, dials)
		}
		gone.Store(false)
	})
}

// TestCancelledBeforeWritten: nothing of a call leaves a kept connection, and it takes long to make another one.
// The cancellation, which gets there sooner, waits for the call: whether it comes before the write has failed or
// afterwards.
func TestCancelledBeforeWritten(t *testing.T) {
	for _, fails := range []time.Duration{0, 50 * time.Millisecond} {
		inBubble(t, func(t *testing.T, f *fake) {
			s, _ := server(t, f.URL)
			f.reach(s)
			dials := 0
			gone := gone(s, func() error {
				if dials++; dials == 1 {
					time.Sleep(time.Second)
				}
				return nil
			})
			gone.after.Store(int64(fails))
			f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
			c := shaken(t, s)
			f.await("notifications/initialized", 1)
			synctest.Wait()
			gone.Store(true)
			c.request(1, "tools/call", `{}`)
			time.Sleep(10 * time.Millisecond)
			c.cancel(1)
			time.Sleep(5 * time.Second)
			all := strings.Join(f.all(), " ")
			if call, cancel := strings.Index(all, "tools/call"), strings.Index(all, "notifications/cancelled"); call < 0 || cancel < call {
				t.Errorf("the write fails after %v: the server got %s", fails, all)
			}
		})
	}
}

// TestWrittenAndGone: net/http would send a call with an Idempotency-Key again after the server has read it and gone.
// That it cannot be reached again does not mean that the call was not sent.
func TestWrittenAndGone(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := server(t, f.URL)
		s.Headers = map[string]string{"Idempotency-Key": "7"}
		f.reach(s)
		gone := gone(s, func() error { return errors.New("connection refused") })
		f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			gone.Store(true)
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		})
		c := shaken(t, s)
		f.await("notifications/initialized", 1)
		synctest.Wait()
		c.request(1, "tools/call", `{}`)
		if m := c.recv(); !strings.Contains(string(m.Error), `"phase":"in_flight"`) {
			t.Errorf("answered with %s", m.Error)
		}
		gone.Store(false)
	})
}

// TestWrittenBefore: net/http would send a call with an Idempotency-Key, which the server has read, again on another kept
// connection, of which nothing leaves.
func TestWrittenBefore(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := server(t, f.URL)
		s.Headers = map[string]string{"Idempotency-Key": "7"}
		f.reach(s)
		gone := gone(s, func() error { return errors.New("connection refused") })
		both := make(chan struct{})
		var calls atomic.Int64
		f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
			switch calls.Add(1) {
			case 2: // at once, so that two connections are kept
				close(both)
			case 3:
				gone.Store(true)
				c, _, _ := w.(http.Hijacker).Hijack()
				c.Close()
				return
			}
			<-both
			reply(w, m, `{}`)
		})
		c := shaken(t, s)
		f.await("notifications/initialized", 1)
		synctest.Wait()
		c.request(1, "tools/call", `{}`)
		c.request(2, "tools/call", `{}`)
		c.recv()
		c.recv()
		synctest.Wait()
		c.request(3, "tools/call", `{}`)
		if m := c.recv(); !strings.Contains(string(m.Error), `"phase":"in_flight"`) {
			t.Errorf("answered with %s", m.Error)
		}
		gone.Store(false)
	})
}

// TestReadAndGone: the server reads a list that may be asked for again, and is gone then.
func TestReadAndGone(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := modernServer(t, f)
		f.reach(s)
		gone := gone(s, func() error { return errors.New("connection refused") })
		f.handle("resources/read", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			gone.Store(true)
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		})
		c := dialModern(t, s)
		c.request(1, "tools/list", params(""))
		c.recv()
		synctest.Wait()
		c.request(2, "resources/read", params(`"uri":"u"`))
		if m := c.recv(); !strings.Contains(string(m.Error), `"phase":"in_flight"`) {
			t.Errorf("answered with %s", m.Error)
		}
		gone.Store(false)
	})
}
