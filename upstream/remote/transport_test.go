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
