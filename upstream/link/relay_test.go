package link

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// relayed returns a Client whose streams continue on the link of another one to s, and functions that cut the link
// behind, and end the relay.
func relayed(t *testing.T, s *Server) (client *Client, cut func(), stop context.CancelFunc) {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	lent, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(end)
	connected := func() (near, far net.Conn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if far, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return near, far
	}
	behind, client := &Client{}, &Client{}
	near, far := connected()
	wg.Go(func() { s.Serve(ctx, far) })
	wg.Go(func() { behind.Serve(ctx, near) })
	to, from := connected()
	wg.Go(func() { (&Server{Through: behind}).Serve(lent, from) })
	wg.Go(func() { client.Serve(ctx, to) })
	return client, func() { near.Close() }, stop
}

// A relay changes nothing of a stream, small or large, and passes on who closes it and why.
func TestRelay(t *testing.T) {
	t.Parallel()
	handle, conns := handOver()
	client, _, _ := relayed(t, &Server{Handle: handle, Known: func(name string) bool { return name == "files" }})
	c := open(t, client)
	host := await(t, conns)
	for _, m := range []*jsonrpc.Message{numbered(1), padded(700_000), {ID: jsonrpc.IntID(2), Method: "x", Related: jsonrpc.IntID(7)}} {
		for _, way := range [][2]jsonrpc.Conn{{c, host}, {host, c}} {
			sent := make(chan error, 1)
			go func() { sent <- way[0].Send(m) }()
			got, err := way[1].Recv()
			if err != nil || string(got.Append(nil)) != string(m.Append(nil)) || got.Related != m.Related {
				t.Fatalf("%.80v arrived as %.80v, %v", m, got, err)
			}
			if err := await(t, sent); err != nil {
				t.Fatal(err)
			}
		}
	}
	host.Send(numbered(3))
	jsonrpc.CloseWith(host, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("exit status 3"), Event: "k3v9x2ma"})
	if m, err := c.Recv(); err != nil || m.ID != jsonrpc.IntID(3) {
		t.Errorf("before the end: %v, %v", m, err)
	}
	wantEnd(t, c, "exit status 3", false)

	c = open(t, client)
	host = await(t, conns)
	c.Send(numbered(4))
	c.Close()
	if m, err := host.Recv(); err != nil || m.ID != jsonrpc.IntID(4) {
		t.Errorf("before the client's end: %v, %v", m, err)
	}
	wantEnd(t, host, "closed", true)

	c, err := client.Open(t.Context(), Hello{Upstream: "other", Key: "k", Era: "legacy"})
	if err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c, jsonrpc.CauseChanged.String(), false)
	c.Close()
}

// What a host sends at once, perhaps together with its answer to the hello, arrives.
func TestRelayOfHastyHost(t *testing.T) {
	t.Parallel()
	client, _, _ := relayed(t, &Server{Handle: handled(func(_ context.Context, _ Hello, c jsonrpc.Conn) error {
		c.Send(padded(3000))
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
	})})
	for range 100 {
		c := open(t, client)
		if m, err := c.Recv(); err != nil || !strings.Contains(string(m.Params), "xxx") {
			t.Fatalf("%v, %v", m, err)
		}
		wantEnd(t, c, jsonrpc.CauseStartFailed.String(), false)
		c.Close()
	}
}

// When the link behind a relay is lost, or the relay ends, all streams in front see a lost link, with the event of that.
func TestRelayIsLost(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		client, cut, stop := relayed(t, &Server{Handle: echo})
		var conns []jsonrpc.Conn
		for range 20 {
			c := open(t, client)
			if err := c.Send(numbered(1)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Recv(); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		event := client.Event()
		if stopped {
			stop()
		} else {
			cut()
		}
		for _, c := range conns {
			_, err := c.Recv()
			end, ok := errors.AsType[*jsonrpc.ClosedError](err)
			if !ok || end.Cause != jsonrpc.CauseLinkLost || !end.Delivered || end.Event != event {
				t.Errorf("stopped %t: %v", stopped, err)
			}
		}
	}
}
