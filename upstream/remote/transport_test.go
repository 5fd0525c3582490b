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
		transport := s.prepare().client.Transport.(*http.Transport)
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

// A brokenConn is a kept connection to a server that is gone: nothing leaves with the next write.
type brokenConn struct {
	net.Conn
	gone *atomic.Bool
}

func (c brokenConn) Write(b []byte) (int, error) {
	if c.gone.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(b)
}

// TestNothingWritten: net/http says that it has written the header of a call when that is in a buffer. If none
// of it leaves, and the server cannot be reached again, the call was not sent.
func TestNothingWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := server(t, f.URL)
		f.reach(s)
		var gone atomic.Bool
		transport := s.prepare().client.Transport.(*http.Transport)
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if gone.Load() {
				return nil, errors.New("connection refused")
			}
			c, err := dial(ctx, network, addr)
			return brokenConn{c, &gone}, err
		}
		c := shaken(t, s)
		f.await("notifications/initialized", 1)
		synctest.Wait()
		gone.Store(true)
		c.request(1, "tools/call", `{}`)
		if m := c.recv(); !strings.Contains(string(m.Error), `"phase":"not_sent"`) {
			t.Errorf("answered with %s", m.Error)
		}
		gone.Store(false)
	})
}
