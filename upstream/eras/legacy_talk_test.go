package eras

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// TestLegacyTalks plays the conversations in testdata/legacy. A line is
//
//	# …                     a remark
//	hello CLIENT SERVER V   the handshake, with capabilities of both and a version
//	c> …   s> …             the client, or the server, says that; "@7 …" with Related 7
//	c< …   s< …             it receives exactly that next, here with Related after @
//	quiet                   neither receives anything
//	sleep 250ms             time passes
//	s closes CAUSE          the modern stream ends; c closes: the client's
//	c ended CAUSE           the client's stream has ended; s ended: the modern one
//
// STAMP stands for the members of _meta that every modern request carries, * for an
// elicitationId.
func TestLegacyTalks(t *testing.T) { playAll(t, "testdata/legacy/*.txt", play) }

// A talk is a legacy client and a modern server with a bridge between them.
type talk struct {
	t              *testing.T
	client, server *side
	stamp          string
	done           chan error // what Legacy returned
}

// newTalk begins a stream, in a bubble. It ends with the test.
func newTalk(t *testing.T) *talk {
	client, clientFar := jsonrpc.Pipe()
	server, serverFar := jsonrpc.Pipe()
	b := &Bridge{Open: func(_ context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn {
		if upstream != "up" || key != "key" || era != mcp.Modern {
			t.Errorf("opened %s, %s, %s", upstream, key, era)
		}
		return serverFar
	}}
	k := &talk{t: t, client: newSide(client), server: newSide(server), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { k.done <- b.Legacy(ctx, "up", "key", clientFar) }()
	t.Cleanup(func() {
		cancel()
		client.Close()
		server.Close()
	})
	return k
}

func (k *talk) recv(s *side) *jsonrpc.Message {
	k.t.Helper()
	synctest.Wait()
	select {
	case m := <-s.in:
		return m
	default:
		k.t.Fatal("nothing was received")
		return nil
	}
}

// hello is the handshake. The stamp is then known.
func (k *talk) hello(client, server, version string) {
	k.t.Helper()
	k.say(k.client, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+
		`","capabilities":`+client+`,"clientInfo":{"name":"c","version":"1"}}}`)
	m := k.recv(k.server)
	if m.Method != "server/discover" {
		k.t.Fatalf("the server was asked %s", m.Method)
	}
	meta, _ := jsonrpc.Member(m.Params, "_meta")
	k.stamp = strings.TrimSuffix(strings.TrimPrefix(string(meta), "{"), "}")
	k.say(k.server, `{"jsonrpc":"2.0","id":`+m.ID.String()+`,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":`+
		server+`,"ttlMs":0,"cacheScope":"public"}}`)
	if m := k.recv(k.client); m.Result == nil {
		k.t.Fatalf("initialize failed: %s", m.Error)
	}
	k.say(k.client, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// say sends a message, which may begin with "@7 ".
func (k *talk) say(s *side, text string) {
	k.t.Helper()
	var related jsonrpc.ID
	if rest, ok := strings.CutPrefix(text, "@"); ok {
		id, body, _ := strings.Cut(rest, " ")
		related, _ = jsonrpc.ParseID([]byte(id))
		text = body
	}
	m, err := jsonrpc.Decode([]byte(strings.ReplaceAll(text, "STAMP", k.stamp)))
	if err != nil {
		k.t.Fatalf("%v in %s", err, text)
	}
	m.Related = related
	if err := s.c.Send(m); err != nil {
		k.t.Fatal(err)
	}
	synctest.Wait() // the other side may speak next
}

var minted = regexp.MustCompile(`"elicitationId":"[A-Z2-7]{26}"`)

// text returns the written form of a received message.
func (k *talk) text(m *jsonrpc.Message) string {
	text := minted.ReplaceAllString(string(m.Append(nil)), `"elicitationId":"*"`)
	if k.stamp != "" {
		text = strings.ReplaceAll(text, k.stamp, "STAMP")
	}
	if !m.Related.IsZero() {
		text = "@" + m.Related.String() + " " + text
	}
	return text
}

// quiet fails if either side has received something.
func (k *talk) quiet() {
	k.t.Helper()
	synctest.Wait()
	for _, s := range []*side{k.client, k.server} {
		if len(s.in) > 0 {
			k.t.Errorf("received %s", k.text(<-s.in))
		}
	}
}

// ended fails unless a side's stream has ended with that cause.
func (k *talk) ended(s *side, cause string) {
	k.t.Helper()
	synctest.Wait()
	select {
	case err := <-s.end:
		closed, _ := errors.AsType[*jsonrpc.ClosedError](err)
		if !errors.Is(err, jsonrpc.ErrClosed) || cause != "" && (closed == nil || closed.Cause.String() != cause) {
			k.t.Errorf("ended with %v, want %q", err, cause)
		}
	default:
		k.t.Error("has not ended")
	}
}

// play plays a conversation, and returns what happened.
func play(t *testing.T, text string) string {
	k := newTalk(t)
	sides := map[string]*side{"c": k.client, "s": k.server}
	var out strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(line)
		switch {
		case verb == "" || verb == "#":
		case verb == "hello":
			k.hello(fields[1], fields[2], fields[3])
		case verb == "quiet":
			k.quiet()
		case verb == "sleep":
			d, _ := time.ParseDuration(rest)
			time.Sleep(d)
		case strings.HasSuffix(verb, ">"):
			k.say(sides[verb[:1]], rest)
		case strings.HasSuffix(verb, "<"):
			got := k.text(k.recv(sides[verb[:1]]))
			if got != rest && !*update {
				t.Errorf("line %d:\n got %s\nwant %s", i+1, got, rest)
			}
			line = verb + " " + got
		case fields[1] == "closes":
			jsonrpc.CloseWith(sides[verb].c, &jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(strings.Join(fields[2:], " ")), Delivered: true})
		case fields[1] == "is":
			jsonrpc.CloseWith(sides[verb].c, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Delivered: true, Err: mcp.ErrOtherEra})
		case fields[1] == "ended":
			k.ended(sides[verb], strings.Join(fields[2:], " "))
		default:
			t.Fatalf("line %d: %s", i+1, line)
		}
		out.WriteString(line + "\n")
	}
	k.quiet()
	return out.String()
}
