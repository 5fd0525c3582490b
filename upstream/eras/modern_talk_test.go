package eras

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// TestModernTalks plays the conversations in testdata/modern. A line is
//
//	# …                 a remark
//	client NAME KEY     a client's stream begins
//	caps {…}            what requests declare from here on
//	relates             the upstream's Related is certain
//	hello s0 {…}        the handshake of the first session that was opened, and its server's capabilities
//	c> …   s0> …        a client, or a server, says that; "@7 …" with Related 7
//	c< …   s0< …        it receives exactly that next, here with Related after @
//	quiet               nobody receives anything
//	sleep 250ms         time passes
//	s0 closes CAUSE     a session ends; "s0 dies CAUSE" before anything reached the server; c closes: a client's stream
//	c ended CAUSE       its stream has ended; s0 ended: the session
//	forget ID           the proxy of that id is gone
//	stop                the bridge stops
//
// STAMP stands for what every modern request says in _meta, $1 for the first
// requestState, and INITIALIZE for params with the capabilities that follow.
func TestModernTalks(t *testing.T) { playAll(t, "testdata/modern/*.txt", playModern) }

// A pooled is a bridge with modern clients and the legacy sessions that it opens.
type pooled struct {
	t       *testing.T
	b       *Bridge
	ctx     context.Context
	sides   map[string]*side
	keys    []string   // of the sessions, in order
	mu      sync.Mutex // guards sides and keys
	line    int
	relates bool
	states  []string
	caps    string
	done    map[string]chan error // what Modern returned
	logged  bytes.Buffer          // from level info on
}

func newPooled(t *testing.T) *pooled {
	k := &pooled{t: t, sides: make(map[string]*side), caps: "{}", done: make(map[string]chan error)}
	k.b = &Bridge{Relates: func(string) bool { return k.relates }, Idle: time.Minute, SuspendFor: 2 * time.Minute,
		Open: func(_ context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn {
			if upstream != "up" || era != mcp.Legacy {
				t.Errorf("opened %s, %s", upstream, era)
			}
			near, far := jsonrpc.Pipe()
			k.mu.Lock()
			defer k.mu.Unlock()
			k.sides[fmt.Sprintf("s%d", len(k.keys))] = newSide(far)
			k.keys = append(k.keys, key)
			return near
		}}
	k.b.Log = slog.New(slog.NewTextHandler(&k.logged, &slog.HandlerOptions{Level: slog.LevelInfo}))
	ctx, cancel := context.WithCancel(context.Background())
	k.ctx = ctx
	t.Cleanup(func() {
		cancel()
		k.b.Stop(context.Background())
		for _, s := range k.sides {
			s.c.Close()
		}
		for name, done := range k.done {
			if err := <-done; !errors.Is(err, jsonrpc.ErrClosed) {
				t.Errorf("stream %s returned %v", name, err)
			}
		}
		if len(k.b.accounts) != 0 {
			t.Errorf("%d accounts are left", len(k.b.accounts))
		}
	})
	return k
}

func (k *pooled) client(name, key string) {
	near, far := jsonrpc.Pipe()
	k.mu.Lock()
	k.sides[name] = newSide(near)
	k.mu.Unlock()
	done := make(chan error, 1)
	k.done[name] = done
	go func() { done <- k.b.Modern(k.ctx, "up", key, far) }()
}

func (k *pooled) recv(name string) *jsonrpc.Message {
	k.t.Helper()
	synctest.Wait()
	select {
	case m := <-k.side(name).in:
		return m
	default:
		k.t.Fatalf("line %d: %s received nothing", k.line, name)
		return nil
	}
}

func (k *pooled) side(name string) *side {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.sides[name]; s != nil {
		return s
	}
	k.t.Fatalf("line %d: there is no %s", k.line, name)
	return nil
}

func (k *pooled) hello(name, capabilities string) {
	k.t.Helper()
	if m := k.recv(name); m.Method != "initialize" {
		k.t.Fatalf("%s received %s", name, k.text(m))
	}
	k.say(name, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"serverInfo":{"name":"srv"}}}`)
	if m := k.recv(name); m.Method != "notifications/initialized" {
		k.t.Fatalf("%s received %s", name, k.text(m))
	}
}

func (k *pooled) say(name, text string) {
	k.t.Helper()
	var related jsonrpc.ID
	if rest, ok := strings.CutPrefix(text, "@"); ok {
		id, body, _ := strings.Cut(rest, " ")
		related, _ = jsonrpc.ParseID([]byte(id))
		text = body
	}
	text = strings.ReplaceAll(text, "STAMP", `"`+mcp.KeyVersion+`":"2026-07-28","`+mcp.KeyCapabilities+`":`+k.caps)
	for i := len(k.states); i > 0; i-- {
		text = strings.ReplaceAll(text, fmt.Sprintf("$%d", i), k.states[i-1])
	}
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		k.t.Fatalf("%v in %s", err, text)
	}
	m.Related = related
	if err := k.side(name).c.Send(m); err != nil {
		k.t.Fatal(err)
	}
	synctest.Wait()
}

var stateMember = regexp.MustCompile(`"requestState":"([^"]*)"`)

// eventMember matches a valid event member.
var eventMember = regexp.MustCompile(`"event":"[0-9a-hjkmnp-tv-z]{8}"`)

func (k *pooled) text(m *jsonrpc.Message) string {
	text := stateMember.ReplaceAllStringFunc(string(m.Append(nil)), func(member string) string {
		state := stateMember.FindStringSubmatch(member)[1]
		at := slices.Index(k.states, state)
		if at < 0 {
			at = len(k.states)
			k.states = append(k.states, state)
		}
		return fmt.Sprintf(`"requestState":"$%d"`, at+1)
	})
	text = strings.ReplaceAll(text, `"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}`, "SRV")
	text = eventMember.ReplaceAllLiteralString(text, `"event":"anyevent"`)
	if !m.Related.IsZero() {
		text = "@" + m.Related.String() + " " + text
	}
	return text
}

func (k *pooled) quiet() {
	k.t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.sides)) {
		for s := k.sides[name]; len(s.in) > 0; {
			k.t.Errorf("line %d: %s received %s", k.line, name, k.text(<-s.in))
		}
	}
}

func (k *pooled) ended(name, cause string) {
	k.t.Helper()
	synctest.Wait()
	select {
	case err := <-k.side(name).end:
		closed, _ := errors.AsType[*jsonrpc.ClosedError](err)
		if !errors.Is(err, jsonrpc.ErrClosed) || cause != "" && (closed == nil || closed.Cause.String() != cause) {
			k.t.Errorf("%s ended with %v, want %q", name, err, cause)
		}
	default:
		k.t.Errorf("%s has not ended", name)
	}
}

// playModern plays a conversation, and returns what happened.
func playModern(t *testing.T, text string) string {
	k := newPooled(t)
	k.client("c", "p-key")
	var out strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(line)
		k.line = i + 1
		switch {
		case verb == "" || verb == "#":
		case verb == "client":
			k.client(fields[1], fields[2])
		case verb == "caps":
			k.caps = rest
		case verb == "relates":
			k.relates = true
		case verb == "hello":
			k.hello(fields[1], fields[2])
		case verb == "quiet":
			k.quiet()
		case verb == "forget":
			k.b.Forget(rest)
		case verb == "stop":
			k.b.Stop(context.Background())
		case verb == "sleep":
			d, _ := time.ParseDuration(rest)
			time.Sleep(d)
		case strings.HasSuffix(verb, ">"):
			k.say(strings.TrimSuffix(verb, ">"), rest)
		case strings.HasSuffix(verb, "<"):
			got := k.text(k.recv(strings.TrimSuffix(verb, "<")))
			if got != rest && !*update {
				t.Errorf("line %d:\n got %s\nwant %s", i+1, got, rest)
			}
			line = verb + " " + got
		case fields[1] == "closes" || fields[1] == "dies":
			jsonrpc.CloseWith(k.side(verb).c, &jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(strings.Join(fields[2:], " ")), Delivered: fields[1] == "closes"})
		case fields[1] == "is":
			jsonrpc.CloseWith(k.side(verb).c, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Delivered: true, Err: mcp.ErrOtherEra})
		case fields[1] == "ended":
			k.ended(verb, strings.Join(fields[2:], " "))
		default:
			t.Fatalf("line %d: %s", i+1, line)
		}
		out.WriteString(line + "\n")
	}
	k.quiet()
	return out.String()
}
