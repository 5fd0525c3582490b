package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// TestD14_DeadWithoutTraffic finds a host that is gone without a word while
// nobody uses it: the next Open fails soon, not delivered, and works again after
// the redial.
func TestD14_DeadWithoutTraffic(t *testing.T) {
	t.Parallel()
	l, _ := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{})
	n := toxic(t, l.Addr(), new(toxics.NoopToxic), new(toxics.NoopToxic))
	r := reach(t, &Client{Heartbeat: quick, HelloTimeout: time.Second}, &Server{Handle: echo, Heartbeat: quick}, l, n.dial)
	await(t, r.announced)
	start := time.Now()
	n.set(new(toxics.TimeoutToxic), new(toxics.TimeoutToxic))
	await(t, r.lost)
	if took := time.Since(start); took < quick.Dead/2 || took > 10*quick.Dead { // the last beat may have come late
		t.Errorf("found dead after %v", took)
	}
	for range 2 {
		_, err := r.client.Open(t.Context(), hello)
		wantNotOpened(t, err, "link lost")
	}
	n.set(new(toxics.NoopToxic), new(toxics.NoopToxic))
	await(t, r.announced)
	call(t, open(t, r.client), numbered(1))
}

// TestD14_OpenWaitsForABlip after the loss, and not any more when it is over.
func TestD14_OpenWaitsForABlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{}
		c := &currentLink{link: l}
		c.detach(l)
		for _, want := range []time.Duration{blip, 0} {
			start := time.Now()
			_, err := c.await(t.Context())
			wantNotOpened(t, err, "link lost")
			if took := time.Since(start); took != want {
				t.Errorf("an opening failed after %v, want %v", took, want)
			}
		}
	})
}

// TestD14_Blip loses a link that is back at once: an Open notices nothing.
func TestD14_Blip(t *testing.T) {
	t.Parallel()
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	c := &Client{current: currentLink{blip: time.Minute}} // a busy machine takes more than a second to connect
	r := reach(t, c, &Server{Handle: echo}, l, dial.Dial)
	for range 2 { // more would meet a longer back-off
		await(t, r.announced)
		current(t, r.client).fail(errors.New("cut"))
		call(t, open(t, r.client), numbered(1))
	}
}

// TestReplaced has a half-open link: the host lost it, the proxy does not know.
func TestReplaced(t *testing.T) {
	handle, _ := handOver()
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	c, ends := &Client{}, make(chan error, 2)
	announced := make(chan []Upstream, 2)
	var calls []string // in order, since they never overlap
	c.Announced = func(u []Upstream) { calls = append(calls, "announced"); announced <- u }
	c.Lost = func(string, error) { calls = append(calls, "lost") }
	ctx, stop := context.WithCancel(t.Context())
	s := &Server{Handle: handle, Upstreams: []Upstream{{Name: "files"}}}
	serverEnd := make(chan error, 1)
	go func() { serverEnd <- s.Accept(ctx, l) }()
	serve := func() {
		carrier, err := dial.Dial(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		ends <- c.Serve(context.Background(), carrier)
	}
	go serve()
	await(t, announced)
	old := open(t, c)
	go serve()
	await(t, announced)
	wantEnd(t, old, "link lost", true)
	if err := await(t, ends); !errors.Is(err, errReplaced) {
		t.Errorf("the old link ended with %v, want %v", err, errReplaced)
	}
	open(t, c).Close()
	stop()
	await(t, ends)
	await(t, serverEnd)
	if want := []string{"announced", "lost", "announced", "lost"}; !slices.Equal(calls, want) {
		t.Errorf("called %v, want %v", calls, want)
	}
}

// TestHostsOfOneLink has two hosts that dial one link for good. Whoever is replaced says so,
// and waits long enough for the other to be of use.
func TestHostsOfOneLink(t *testing.T) {
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	var log syncBuffer
	c := &Client{}
	ctx, stop := context.WithCancel(t.Context())
	ends := make(chan error, 3)
	go func() { ends <- c.Accept(ctx, l) }()
	for range 2 {
		s := &Server{Handle: echo, Log: slog.New(slog.NewTextHandler(&log, nil))}
		go func() { ends <- s.Redial(ctx, dial.Dial) }()
	}
	replaced := "level=WARN msg=\"link lost\""
	for deadline := time.Now().Add(patience); !strings.Contains(log.String(), replaced); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no warning in\n%s", log.String())
		}
	}
	if !strings.Contains(log.String(), "another host has dialled the same link") {
		t.Error(log.String())
	}
	stop()
	for range 3 {
		await(t, ends)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*replacedPause)
		defer stop()
		dials := 0
		_ = redial(ctx, &endReporter{log: slog.New(slog.DiscardHandler), host: true},
			func(context.Context) (net.Conn, error) { dials++; return nil, nil },
			func(_ context.Context, _ net.Conn, w watcher) error { w.ended(true, "", errTakenOver); return nil })
		if dials < 5 || dials > 10 {
			t.Errorf("%d dials within %v", dials, 10*replacedPause)
		}
	})
}

// A link that a bad network breaks again and again is up for about half of the time. One that ends at once is dialled
// less and less often.
func TestRedialOfALinkThatBreaks(t *testing.T) {
	for life, want := range map[time.Duration][2]int{0: {10, 40}, fairLife / 2: {10, 40}, 2 * time.Second: {150, 300}, 5 * time.Second: {60, 120}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			defer stop()
			dials := 0
			_ = redial(ctx, &endReporter{log: slog.New(slog.DiscardHandler)},
				func(context.Context) (net.Conn, error) { dials++; return nil, nil },
				func(_ context.Context, _ net.Conn, w watcher) error {
					time.Sleep(life)
					w.ended(true, "", io.EOF)
					return nil
				})
			if dials < want[0] || dials > want[1] {
				t.Errorf("%d dials of a link that lives for %v, want %v", dials, life, want)
			}
		})
	}
}

// TestHostDials turns the link around: the host dials, the proxy listens.
func TestHostDials(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, dial Endpoint) {
		c, s := &Client{}, &Server{Handle: echo, Upstreams: []Upstream{{Name: "files"}}}
		announced := make(chan []Upstream, 10)
		c.Announced = func(u []Upstream) { announced <- u }
		ctx, stop := context.WithCancel(t.Context())
		ends := make(chan error, 2)
		go func() { ends <- c.Accept(ctx, l) }()
		go func() { ends <- s.Redial(ctx, dial.Dial) }()
		for range 2 {
			await(t, announced)
			call(t, open(t, c), numbered(1))
			current(t, c).fail(errors.New("cut"))
		}
		stop()
		await(t, ends)
		await(t, ends)
	})
}

// eventually opens a stream when the link is back.
func eventually(t *testing.T, c *Client) jsonrpc.Conn {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		conn, err := c.Open(t.Context(), hello)
		if err == nil {
			return conn
		}
		if time.Now().After(deadline) {
			t.Fatalf("Open: %v", err)
		}
	}
}

// TestRedialReports has a host that is not there, comes, goes and comes again,
// all within seconds. There is one warning that it cannot be reached, and one for
// each link that is lost.
func TestRedialReports(t *testing.T) {
	t.Parallel()
	e := Endpoint{URL: "unix://" + filepath.Join(t.TempDir(), "s")}
	var log syncBuffer
	lost := make(chan error, 10)
	c := &Client{Log: slog.New(slog.NewTextHandler(&log, nil)), Lost: func(_ string, err error) { lost <- err }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Redial(ctx, e.Dial) }()
	for deadline := time.Now().Add(patience); !strings.Contains(log.String(), "WARN"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no warning")
		}
	}
	for range 2 {
		host, hangUp := context.WithCancel(t.Context())
		hostEnded := make(chan error, 1)
		l, err := e.Listen()
		if err != nil {
			t.Fatal(err)
		}
		go func() { hostEnded <- (&Server{Handle: echo}).Accept(host, l) }()
		eventually(t, c).Close()
		hangUp()
		await(t, hostEnded)
		if err := await(t, lost); !errors.Is(err, errLeft) {
			t.Errorf("lost: %v, want %v", err, errLeft)
		}
	}
	stop()
	await(t, ended)
	if warned, up := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "link up"); warned != 3 || up != 2 {
		t.Errorf("%d warnings and %d times up, want 3 and 2:\n%s", warned, up, log.String())
	}
}

// A host is not there yet, refuses us when it is, and leaves: why the link does not come up, or back, must not wait for the
// next warning of a lasting failure. What varies in an error is no other reason.
func TestRedialWarnsOfEachReason(t *testing.T) {
	expired := func() error { return fmt.Errorf("certificate has expired, it is %v", time.Now().Format(time.RFC3339)) }
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	gone := fmt.Errorf("%w: %w", errHungUp, io.EOF)
	left := fmt.Errorf("%w: proxy stopped", errLeft)
	status := func(code int) error { return fmt.Errorf("dial: %w", &wsconn.StatusError{Code: code}) }
	for _, tt := range []struct {
		name string
		ends func(dial int) (up bool, err error)
		want []string // the warnings within warnAgain
	}{
		{"never there", func(int) (bool, error) { return false, refused }, []string{"link failed"}},
		{"starts later than we, and refuses us", func(dial int) (bool, error) {
			if dial < 3 {
				return false, refused
			}
			return false, expired()
		}, []string{"link failed", "link failed"}},
		{"is lost, and starts again", func(dial int) (bool, error) {
			return dial == 0, []error{gone, refused, gone}[dial%3]
		}, []string{"link lost"}},
		{"starts later than what is in front of it, which refuses us then", func(dial int) (bool, error) {
			return false, []error{status(502), status(503), status(403), status(404)}[min(dial, 3)]
		}, []string{"link failed", "link failed", "link failed"}},
		{"makes a socket later, which we may not use", func(dial int) (bool, error) {
			return false, []error{syscall.ENOENT, syscall.EACCES}[min(dial, 1)]
		}, []string{"link failed", "link failed"}},
		{"leaves, and refuses us as it did before", func(dial int) (bool, error) {
			return dial == 1, []error{status(401), left, status(401)}[min(dial, 2)]
		}, []string{"link failed", "link failed"}},
		{"leaves, and is gone for a while", func(dial int) (bool, error) {
			return dial == 0, []error{left, refused}[min(dial, 1)]
		}, nil},
		{"is lost, and refuses us then, or is gone", func(dial int) (bool, error) {
			if dial%2 == 0 {
				return dial == 0, gone
			}
			return false, expired()
		}, []string{"link lost", "link failed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), warnAgain)
				defer stop()
				var log syncBuffer
				dial := -1
				_ = redial(ctx, &endReporter{log: slog.New(slog.NewTextHandler(&log, nil)), host: true},
					func(context.Context) (net.Conn, error) { dial++; return nil, nil },
					func(_ context.Context, _ net.Conn, w watcher) error {
						up, err := tt.ends(dial)
						w.ended(up, "", err)
						return nil
					})
				var got []string
				for line := range strings.Lines(log.String()) {
					if _, text, warns := strings.Cut(line, `level=WARN msg="`); warns {
						text, _, _ = strings.Cut(text, `"`)
						got = append(got, text)
					}
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("want the warnings %q, got\n%s", tt.want, log.String())
				}
			})
		})
	}
}

// TestD14_LostInHello loses the link after the hello of a stream was sent and
// before it was answered: nothing was started, so that Open says it again.
func TestD14_LostInHello(t *testing.T) {
	var dials atomic.Int64
	hosts := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	dial := func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		if dials.Add(1) > 1 {
			go func() { hosts <- (&Server{Handle: echo}).Serve(ctx, far) }()
			return near, nil
		}
		go func() {
			session, err := yamux.Server(far, newConfig(orDiscard(nil)))
			if err != nil {
				t.Error(err)
				return
			}
			defer session.Close()
			for _, answer := range []string{string(pickedLine(1)), ""} {
				y, err := session.AcceptStream()
				if err != nil {
					t.Error(err)
					return
				}
				bufio.NewReader(y).ReadString('\n')
				io.WriteString(y, answer)
			}
		}()
		return near, nil
	}
	c, ended := &Client{}, make(chan error, 1)
	go func() { ended <- c.Redial(ctx, dial) }()
	call(t, open(t, c), numbered(1))
	stop()
	await(t, ended)
	await(t, hosts)
}

// TestRedialTellsOfFailure has a host that is not there, and then something that is
// none.
func TestRedialTellsOfFailure(t *testing.T) {
	failed := make(chan error, 100)
	c := &Client{Failed: func(err error) { failed <- err }}
	refused := errors.New("refused")
	dials := 0
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Redial(ctx, func(context.Context) (net.Conn, error) {
			if dials++; dials == 1 {
				return nil, refused
			}
			near, far := tcpPair(t)
			far.Write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
			return near, nil
		})
	}()
	if err := await(t, failed); !errors.Is(err, refused) {
		t.Errorf("the first failure is %v", err)
	}
	if err := await(t, failed); !errors.Is(err, errNotLink) {
		t.Errorf("the second failure is %v", err)
	}
	stop()
	await(t, ended)
}
