//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A sharedWorld is a host with one shared upstream, its scripted server and its
// clients, all in one synctest bubble.
type sharedWorld struct {
	t       *testing.T
	host    *Host
	log     *logBook
	era     mcp.Era
	clients []*sharedClient

	mu      sync.Mutex
	servers []*sharedServer // one for each session, the newest last
	welcome string          // the answer to initialize, "result" or "error" and its value; "" for none
	dialErr error
	dials   int

	discover string // the answer to the first server/discover, as welcome
}

const welcome = `"result":{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}`

// inSharedWorld runs test in a bubble. Whatever is left after it is ended, and
// must end.
func inSharedWorld(t *testing.T, up Upstream, test func(w *sharedWorld)) {
	up.Shared = true
	inWorld(t, &sharedWorld{era: mcp.Legacy, welcome: welcome}, up, test)
}

const modernDiscover = `"result":{"supportedVersions":["2026-07-28"]}`

// inModernWorld is inSharedWorld for clients of the modern era, of which the server
// is known to be.
func inModernWorld(t *testing.T, test func(w *sharedWorld)) {
	inWorld(t, &sharedWorld{era: mcp.Modern, discover: modernDiscover}, Upstream{Era: mcp.Modern}, test)
}

func inWorld(t *testing.T, w *sharedWorld, up Upstream, test func(w *sharedWorld)) {
	synctest.Test(t, func(t *testing.T) {
		w.t, w.log = t, &logBook{}
		up.Dial, up.DialModern = w.dial, w.dial
		w.host = &Host{
			Upstreams: map[string]Upstream{"u": up},
			Log:       slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
		defer func() {
			for _, c := range w.clients {
				c.conn.Close()
				<-c.done
				c.reader.Wait()
			}
			w.host.Stop(context.Background())
			synctest.Wait()
		}()
		test(w)
	})
}

func (w *sharedWorld) dial(ctx context.Context) (jsonrpc.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials++
	if w.dialErr != nil {
		return nil, w.dialErr
	}
	near, far := jsonrpc.Pipe()
	context.AfterFunc(ctx, func() { near.Close() })
	s := &sharedServer{w: w, conn: far, welcome: w.welcome, discover: w.discover}
	w.servers = append(w.servers, s)
	go s.read()
	return near, nil
}

// server returns the server of the newest session.
func (w *sharedWorld) server() *sharedServer {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.servers) == 0 {
		w.t.Fatal("there is no session")
	}
	return w.servers[len(w.servers)-1]
}

// A sharedServer is the server's end of one session.
type sharedServer struct {
	w        *sharedWorld
	conn     *jsonrpc.PipeConn
	welcome  string
	discover string
	hand     func(*jsonrpc.Message) // gets what comes after initialize; nil: collect
	inbox
}

// An inbox collects what was received.
type inbox struct {
	mu  sync.Mutex
	got []string
	end error
}

func (b *inbox) add(m *jsonrpc.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := strings.Replace(string(m.Append(nil)), `"jsonrpc":"2.0",`, "", 1)
	if !m.Related.IsZero() {
		text = "@" + m.Related.String() + " " + text
	}
	b.got = append(b.got, text)
}

func (b *inbox) ended(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = err
}

// heard returns what came since it was last asked, after all has settled.
func (b *inbox) heard() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.got
	b.got = nil
	return got
}

func (s *sharedServer) read() {
	for {
		m, err := s.conn.Recv()
		if err != nil {
			s.ended(err)
			return
		}
		switch {
		case m.Method == "initialize" && s.welcome != "":
			s.sayText(`{"id":` + m.ID.String() + `,` + s.welcome + `}`)
		case m.Method == "server/discover" && m.ID.String() == "1":
			if s.discover != "" {
				s.sayText(`{"id":1,` + s.discover + `}`)
			}
		case m.Method == "initialize", m.Method == "notifications/initialized":
		case s.hand != nil:
			s.hand(m)
		default:
			s.add(m)
		}
	}
}

func parse(t testing.TB, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0",` + strings.TrimPrefix(text, "{")))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// say sends messages; "@5 {…}" is related to the call 5.
func (s *sharedServer) say(texts ...string) {
	s.w.t.Helper()
	for _, text := range texts {
		s.sayText(text)
	}
	synctest.Wait()
}

func (s *sharedServer) sayText(text string) {
	s.w.t.Helper()
	var related jsonrpc.ID
	if rest, ok := strings.CutPrefix(text, "@"); ok {
		id, body, _ := strings.Cut(rest, " ")
		related, _ = jsonrpc.ParseID([]byte(id))
		text = body
	}
	m := parse(s.w.t, text)
	m.Related = related
	_ = s.conn.Send(m) // after the end nobody listens
}

// hears checks what came since the last time.
func (s *sharedServer) hears(want ...string) {
	s.w.t.Helper()
	check(s.w.t, "the server", s.heard(), want)
}

// die ends the session as a crash does.
func (s *sharedServer) die(cause string) {
	jsonrpc.CloseWith(s.conn, &jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(cause), Delivered: true})
	synctest.Wait()
}

func check(t *testing.T, who string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s got\n\t%s\nwant\n\t%s", who, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// A sharedClient is the proxy's end of one client's stream.
type sharedClient struct {
	w      *sharedWorld
	name   string
	conn   *jsonrpc.PipeConn
	cancel context.CancelCauseFunc
	done   chan error // gets what Attach returned, and is then closed
	reader sync.WaitGroup
	inbox
}

// attach attaches a client that reads what it gets.
func (w *sharedWorld) attach(name string) *sharedClient {
	c := w.attachDeaf(name)
	c.listen()
	return c
}

// attachIn is attach for a client of an era.
func (w *sharedWorld) attachIn(name string, era mcp.Era) *sharedClient {
	c := w.attachDeafIn(name, era)
	c.listen()
	return c
}

// attachDeaf attaches a client that does not read until listen.
func (w *sharedWorld) attachDeaf(name string) *sharedClient { return w.attachDeafIn(name, w.era) }

func (w *sharedWorld) attachDeafIn(name string, era mcp.Era) *sharedClient {
	near, far := jsonrpc.Pipe()
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &sharedClient{w: w, name: name, conn: near, cancel: cancel, done: make(chan error, 1)}
	w.clients = append(w.clients, c)
	go func() {
		c.done <- attach(ctx, w.host, "u", name, era, far)
		close(c.done)
	}()
	return c
}

func (c *sharedClient) listen() {
	c.reader.Go(func() {
		for {
			m, err := c.conn.Recv()
			if err != nil {
				c.ended(err)
				return
			}
			c.add(m)
		}
	})
}

// all is what a client can declare.
const all = `{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}`

// start attaches a client that can do everything, and initializes it.
func (w *sharedWorld) start(name string) *sharedClient { return w.startWith(name, all) }

func (w *sharedWorld) startWith(name, capabilities string) *sharedClient {
	w.t.Helper()
	c := w.attach(name)
	c.say(`{"id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`}}`,
		`{"method":"notifications/initialized"}`)
	c.hears(`{"id":"init",` + welcome + `}`)
	return c
}

func (c *sharedClient) say(texts ...string) {
	c.w.t.Helper()
	for _, text := range texts {
		_ = c.conn.Send(parse(c.w.t, text)) // after the end nobody listens
	}
	synctest.Wait()
}

func (c *sharedClient) hears(want ...string) {
	c.w.t.Helper()
	check(c.w.t, c.name, c.heard(), want)
}

// leave closes the stream and waits for the end of Attach.
func (c *sharedClient) leave() {
	c.w.t.Helper()
	c.conn.Close()
	if err := <-c.done; !errors.Is(err, jsonrpc.ErrClosed) {
		c.w.t.Fatalf("Attach returned %v", err)
	}
	synctest.Wait()
}

// ends checks that the stream has ended, and how.
func (c *sharedClient) ends(cause string, delivered bool) {
	c.w.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	end := c.end
	c.mu.Unlock()
	var closed *jsonrpc.ClosedError
	if !errors.As(end, &closed) || closed.Cause.String() != cause || closed.Delivered != delivered || !jsonrpc.IsEvent(closed.Event) {
		c.w.t.Fatalf("%s ended with %#v; want cause %q, delivered %v", c.name, end, cause, delivered)
	}
	if err, first := <-c.done; first && !errors.Is(err, jsonrpc.ErrClosed) {
		c.w.t.Fatalf("Attach returned %v", err)
	}
}

// lives checks that a client is served as if nothing had happened.
func (c *sharedClient) lives(s *sharedServer) {
	c.w.t.Helper()
	c.say(`{"id":"alive","method":"alive"}`)
	heard := s.heard()
	if len(heard) != 1 {
		c.w.t.Fatalf("the server got %q", heard)
	}
	var m struct{ ID json.RawMessage }
	json.Unmarshal([]byte(heard[0]), &m)
	s.say(`{"id":` + string(m.ID) + `,"result":{}}`)
	c.hears(`{"id":"alive","result":{}}`)
}

const (
	closedError = `"error":{"code":-32000,"message":"Connection closed: client disconnected","data":{"reason":"connection_closed","cause":"client disconnected","phase":"in_flight","retryable":false}}`
	cannot      = `"error":{"code":-32603,"message":"cannot attribute server request"}`
	goneReason  = `"reason":"client disconnected"`
)
