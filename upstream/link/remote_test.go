package link

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// quick is a heartbeat for tests, which a busy machine keeps up.
var quick = Heartbeat{Every: 100 * time.Millisecond, Dead: 2 * time.Second}

// A remote is a proxy's end that redials a host's, which listens.
type remote struct {
	client      *Client
	server      *Server
	announced   chan []Upstream // what Client.Announced was called with
	lost        chan error      // what Client.Lost was
	log         *syncBuffer     // of both
	stopClient  context.CancelFunc
	stopServer  context.CancelFunc
	clientEnded chan error
	serverEnded chan error
}

// reach runs s on l, and c on what dial dials, until the test ends.
func reach(t testing.TB, c *Client, s *Server, l net.Listener, dial func(context.Context) (net.Conn, error)) *remote {
	r := &remote{client: c, server: s, announced: make(chan []Upstream, 100), lost: make(chan error, 100), log: &syncBuffer{},
		clientEnded: make(chan error, 1), serverEnded: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	c.Log, s.Log = log.With("end", "proxy"), log.With("end", "host")
	c.Announced = func(u []Upstream) { r.announced <- u }
	c.Lost = func(_ string, err error) { r.lost <- err }
	var near, far context.Context
	near, r.stopClient = context.WithCancel(context.Background())
	far, r.stopServer = context.WithCancel(context.Background())
	go func() { r.serverEnded <- s.Accept(far, l) }()
	go func() { r.clientEnded <- c.Redial(near, dial) }()
	t.Cleanup(func() {
		r.stopClient()
		r.stopServer()
		for _, end := range []chan error{r.clientEnded, r.serverEnded} {
			if err := await(t, end); !errors.Is(err, context.Canceled) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("ended with %v", err)
			}
		}
	})
	return r
}

func call(t testing.TB, c jsonrpc.Conn, m *jsonrpc.Message) {
	t.Helper()
	if err := c.Send(m); err != nil {
		t.Fatalf("Send: %v", err)
	}
	got, err := c.Recv()
	if err != nil || string(got.Append(nil)) != string(m.Append(nil)) {
		t.Fatalf("Recv: %v, %v; want %.100s", got, err, m.Append(nil))
	}
}

// TestEveryCarrier announces, uses, closes and loses a link over each of them.
func TestEveryCarrier(t *testing.T) {
	files := []Upstream{{Name: "files", Settings: []byte(`{"tools":["a"]}`)}, {Name: "git"}}
	onEach(t, func(t *testing.T, l net.Listener, dial Endpoint) {
		r := reach(t, &Client{}, &Server{Handle: echo, Upstreams: files}, l, dial.Dial)
		if got := await(t, r.announced); !reflect.DeepEqual(got, files) {
			t.Errorf("announced %+v, want %+v", got, files)
		}
		if err := r.server.Announce(files[1:]); err != nil {
			t.Fatal(err)
		}
		if got := await(t, r.announced); !reflect.DeepEqual(got, files[1:]) {
			t.Errorf("announced %+v, want %+v", got, files[1:])
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				c := open(t, r.client)
				call(t, c, padded(300))
				call(t, c, padded(1<<20))
				c.Close()
			})
		}
		wg.Wait()
		onlyControl(t, current(t, r.client))
		c := open(t, r.client)
		current(t, r.client).fail(errors.New("cut"))
		wantEnd(t, c, "link lost", true)
		await(t, r.lost)
		if got := await(t, r.announced); !reflect.DeepEqual(got, files[1:]) { // Open waits a second at most
			t.Errorf("announced %+v after the redial, want %+v", got, files[1:])
		}
		call(t, open(t, r.client), numbered(1))
	})
}

// onlyControl waits until yamux holds no other stream.
func onlyControl(t *testing.T, l *link) {
	t.Helper()
	for deadline := time.Now().Add(patience); l.y.NumStreams() > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams are left", l.y.NumStreams())
		}
	}
}

// TestD13_LinkReset has several streams on a link that is cut: each ends with
// the one error, once, and everything works after the redial.
func TestD13_LinkReset(t *testing.T) {
	for name, fault := range map[string]func(n *network){
		"cut":             func(n *network) { n.cut() },
		"reset":           func(n *network) { n.set(&toxics.ResetToxic{}, &toxics.ResetToxic{}) },
		"timeout":         func(n *network) { n.set(&toxics.TimeoutToxic{Timeout: 50}, &toxics.TimeoutToxic{Timeout: 50}) },
		"silent":          func(n *network) { n.set(new(toxics.TimeoutToxic), new(toxics.TimeoutToxic)) },
		"silent upwards":  func(n *network) { n.set(new(toxics.TimeoutToxic), new(toxics.NoopToxic)) },
		"silent downward": func(n *network) { n.set(new(toxics.NoopToxic), new(toxics.TimeoutToxic)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handle, far := handOver()
			l, _ := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{})
			n := toxic(t, l.Addr(), new(toxics.NoopToxic), new(toxics.NoopToxic))
			r := reach(t, &Client{Heartbeat: quick}, &Server{Handle: handle, Heartbeat: quick}, l, n.dial)
			var wg sync.WaitGroup
			for range 6 {
				c := open(t, r.client)
				h := await(t, far)
				wg.Go(func() { wantEnd(t, c, "link lost", true) })
				wg.Go(func() { wantEnd(t, h, "link lost", true) })
			}
			await(t, r.announced)
			fault(n)
			wg.Wait()
			await(t, r.lost)
			n.set(new(toxics.NoopToxic), new(toxics.NoopToxic))
			await(t, r.announced)
			open(t, r.client).Close()
			if warned := strings.Count(r.log.String(), "level=WARN"); warned > 4 {
				t.Errorf("%d warnings:\n%s", warned, r.log)
			}
		})
	}
}

// TestSlowLinkIsAlive has 50 busy streams through 1 MiB/s, with a heartbeat
// that a beat behind all their data would miss.
func TestSlowLinkIsAlive(t *testing.T) {
	t.Parallel()
	l, _ := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{})
	n := toxic(t, l.Addr(), &toxics.BandwidthToxic{Rate: 1024}, &toxics.BandwidthToxic{Rate: 1024})
	s := &Server{Handle: echo, Heartbeat: Heartbeat{Every: 200 * time.Millisecond, Dead: 2 * time.Second}}
	r := reach(t, &Client{Heartbeat: s.Heartbeat}, s, l, n.dial)
	var wg sync.WaitGroup
	for range 50 {
		c := open(t, r.client)
		wg.Go(func() {
			for range 2 {
				call(t, c, padded(50<<10))
			}
		})
	}
	wg.Wait()
	select {
	case err := <-r.lost:
		t.Errorf("lost: %v", err)
	default:
	}
}

// TestFaultyNetwork sends through what delays, slices and throttles.
func TestFaultyNetwork(t *testing.T) {
	for name, toxin := range map[string]toxics.Toxic{
		"latency":   &toxics.LatencyToxic{Latency: 30, Jitter: 20},
		"slicer":    &toxics.SlicerToxic{AverageSize: 7, SizeVariation: 5, Delay: 10},
		"bandwidth": &toxics.BandwidthToxic{Rate: 2048},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{})
			n := toxic(t, l.Addr(), toxin, toxin)
			r := reach(t, &Client{}, &Server{Handle: echo}, l, n.dial)
			var wg sync.WaitGroup
			for range 4 {
				c := open(t, r.client)
				wg.Go(func() {
					for i := range 5 {
						call(t, c, numbered(i))
						call(t, c, padded(4<<10))
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestLastWords cancels the proxy's end just after a stream was closed: what it
// sent reaches the host's handler.
func TestLastWords(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, dial Endpoint) {
		received := make(chan int, 100)
		s := &Server{Handle: handled(func(_ context.Context, _ Hello, c jsonrpc.Conn) error {
			n := 0
			for {
				if _, err := c.Recv(); err != nil {
					received <- n
					return err
				}
				n++
			}
		})}
		r := reach(t, &Client{}, s, l, dial.Dial)
		c := open(t, r.client)
		for n := range 50 {
			if err := c.Send(numbered(n)); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		start := time.Now()
		r.stopClient()
		if got := await(t, received); got != 50 {
			t.Errorf("%d of 50 messages arrived", got)
		}
		err := await(t, r.clientEnded)
		if took := time.Since(start); took > byeTimeout {
			t.Errorf("ended after %v", took)
		}
		r.clientEnded <- err
	})
}

// TestStalledStreamSlowsNobody never reads one stream, over a socket.
func TestStalledStreamSlowsNobody(t *testing.T) {
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	r := reach(t, &Client{}, &Server{Handle: echo}, l, dial.Dial)
	stalled := open(t, r.client)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		untilClosed(t, func() error { return stalled.Send(padded(100 << 10)) }) // and never receives
	}()
	var wg sync.WaitGroup
	for range 4 {
		c := open(t, r.client)
		wg.Go(func() {
			for n := range 200 {
				call(t, c, numbered(n))
			}
		})
	}
	wg.Wait()
	stalled.Close()
	await(t, sent)
}

// TestThousandStreamsOnSocket opens them, uses them all, and closes them.
func TestThousandStreamsOnSocket(t *testing.T) {
	const count = 1000
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	r := reach(t, &Client{}, &Server{Handle: echo}, l, dial.Dial)
	conns := make([]jsonrpc.Conn, count)
	var at atomic.Int64
	times(count, func() {
		c := open(t, r.client)
		call(t, c, numbered(1))
		conns[at.Add(1)-1] = c
	})
	for _, c := range conns {
		c.Close()
	}
	onlyControl(t, current(t, r.client))
}

// TestStreamFlood opens more streams than the host takes.
func TestStreamFlood(t *testing.T) {
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	r := reach(t, &Client{}, &Server{Handle: echo, Streams: 20}, l, dial.Dial)
	var conns []jsonrpc.Conn
	for {
		c, err := r.client.Open(t.Context(), hello)
		if err != nil {
			wantNotOpened(t, err, "overloaded")
			break
		}
		conns = append(conns, c)
	}
	if len(conns) < 19 || len(conns) > 20 {
		t.Errorf("%d streams were taken, want 20 with the control stream", len(conns))
	}
	for _, c := range conns {
		call(t, c, numbered(1))
		c.Close()
	}
	onlyControl(t, current(t, r.client))
	open(t, r.client).Close() // there is room again
}
