package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestClosingLineTellsTheEvent has a host tell more than a cause: what may be said to
// clients arrives.
func TestClosingLineTellsTheEvent(t *testing.T) {
	for _, says := range []string{"did not start: exit status 3", "did not start: exit status 3: no license in /etc"} {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Event: "k3v9x2ma", Says: says, Lasting: true}
		p := join(t, &Client{}, &Server{Handle: handled(func(context.Context, Hello, jsonrpc.Conn) error { return end })})
		_, err := open(t, p.client).Recv()
		got := jsonrpc.EndOf(err, jsonrpc.Cause{})
		want := *end
		if strings.Contains(says, "/") {
			want.Says = ""
		}
		if *got != want {
			t.Errorf("got %+v, want %+v", *got, want)
		}
	}
}

// TestLostLinkIsOneEvent cuts a link with several streams: their ends, the line in the
// log and an Open before the link is back name one event; another loss is another.
func TestLostLinkIsOneEvent(t *testing.T) {
	t.Parallel()
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	var log syncBuffer
	events := make(chan string, 2)
	c := &Client{Log: slog.New(slog.NewTextHandler(&log, nil)), Lost: func(event string, _ error) { events <- event }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	dials := make(chan func(context.Context) (net.Conn, error), 1)
	dials <- dial.Dial
	go func() { ended <- (&Server{Handle: echo}).Accept(ctx, l) }()
	go func() {
		ended <- c.Redial(ctx, func(ctx context.Context) (net.Conn, error) {
			select {
			case d := <-dials:
				return d(ctx)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	}()
	var before string
	for range 2 {
		var conns []jsonrpc.Conn
		for range 3 {
			conns = append(conns, eventually(t, c))
		}
		current(t, c).fail(errors.New("cut"))
		event := await(t, events)
		if !jsonrpc.IsEvent(event) || event == before {
			t.Errorf("event %q after %q", event, before)
		}
		for _, conn := range conns {
			if _, err := conn.Recv(); jsonrpc.EndOf(err, jsonrpc.Cause{}).Event != event {
				t.Errorf("a stream ended with %+v, want the event %s", err, event)
			}
		}
		if _, err := c.Open(ctx, hello); jsonrpc.EndOf(err, jsonrpc.Cause{}).Event != event {
			t.Errorf("Open: %+v, want the event %s", err, event)
		}
		if text := log.String(); strings.Count(text, fmt.Sprintf(`level=WARN msg="link lost" event=%s `, event)) != 1 {
			t.Errorf("the log is\n%s", text)
		}
		before = event
		dials <- dial.Dial
	}
	stop()
	await(t, ended)
	await(t, ended)
}
