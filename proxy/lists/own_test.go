package lists

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// What is known for many kinds of clients is bounded.
func TestKnownIsBounded(t *testing.T) {
	s := &Session{Options: Options{Memory: new(Memory)}}
	u := s.New(Config{Name: "a", Era: mcp.Modern}, nil)
	for n := range maxCaps + 4 {
		u.keep(catalog.Digest{byte(n + 1)}, catalog.Tools, Absent().Table, 1)
	}
	if len(u.known) != maxCaps || len(u.recent) != maxCaps || len(s.Memory.all()) != maxCaps {
		t.Error(len(u.known), len(u.recent), len(s.Memory.all()))
	}
	if _, listed := u.own(catalog.Digest{maxCaps + 4}, catalog.Tools); !listed {
		t.Error("the last one is forgotten")
	}
}

// What a private upstream lists in one session is unknown in others.
func TestPrivate(t *testing.T) {
	m := new(Memory)
	for _, private := range []bool{false, true} {
		name := map[bool]string{false: "open", true: "private"}[private]
		var us []*Upstream
		for range 2 {
			s := &Session{Options: Options{Memory: m}}
			us = append(us, s.New(Config{Name: name, Era: mcp.Legacy, Private: private}, nil))
		}
		us[0].keep(catalog.Digest{}, catalog.Tools, Absent().Table, 1)
		if _, listed := us[0].own(catalog.Digest{}, catalog.Tools); !listed {
			t.Error(name, "is unknown to the session that listed it")
		}
		other, _ := us[1].own(catalog.Digest{}, catalog.Tools)
		if recalled := us[1].recall(catalog.Digest{}, catalog.Tools); (other == nil) != private || (recalled == nil) != private {
			t.Error(name, other, recalled)
		}
	}
}

// Nothing is left of an upstream that has gone.
func TestRetain(t *testing.T) {
	m := new(Memory)
	for _, name := range []string{"a", "b", ""} {
		m.keep(tableKey{upstream: name}, Absent().Table)
		m.NoteLate(name, Starts)
	}
	m.Retain(map[string]bool{"b": true}, true)
	if all := m.all(); len(all) != 1 || all[tableKey{upstream: "b"}] == nil {
		t.Error("tables:", all)
	}
	if m.WasLate("a", Starts) || !m.WasLate("b", Starts) || !m.WasLate("", Starts) {
		t.Error("late:", m.late)
	}
	if m.Retain(map[string]bool{"b": true}, false); m.WasLate("", Starts) {
		t.Error("all are known")
	}
}

func TestRecent(t *testing.T) {
	var r recent
	for n := range maxCaps {
		if _, full := r.add(catalog.Digest{byte(n)}); full {
			t.Error("full at", n)
		}
	}
	if _, full := r.add(catalog.Digest{0}); full {
		t.Error("what is used again needs no room")
	}
	if forgotten, full := r.add(catalog.Digest{99}); !full || forgotten != (catalog.Digest{1}) || len(r) != maxCaps {
		t.Error("forgotten:", forgotten[0], full, len(r))
	}
}

// Many sessions that lack an upstream in a list are one warning, for each reason and each start.
func TestOneWarningForWhatIsMissing(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))
	m := new(Memory)
	session := func() *Upstream {
		s := &Session{Options: Options{Memory: m, Context: t.Context()}}
		return s.New(Config{Name: "a", Era: mcp.Legacy, Log: log}, nil)
	}
	lost := func(event string) *Failure {
		return FailureOf(peer.Unsent(&jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Event: event}, "a"))
	}
	late := func() *Failure { return FailureOf(jsonrpc.TimedOut("a")) }
	for step, want := range []struct {
		f        *Failure
		warnings int
	}{{lost("first"), 1}, {lost("second"), 2}, {late(), 3}, {late(), 3}} {
		for range 5 {
			session().LeftOut("tools/list", want.f)
			session().LeftOut("prompts/list", want.f)
		}
		if n := strings.Count(text.String(), "\n"); n != want.warnings {
			t.Errorf("step %d: %d warnings, want %d: %s", step, n, want.warnings, text.String())
		}
	}
	u, other := session(), session()
	u.Started()
	for range 3 { // two processes that have crashed, and start again later
		u.LeftOut("tools/list", lost("third"))
		other.LeftOut("tools/list", lost("fourth"))
	}
	if n := strings.Count(text.String(), "\n"); n != 5 {
		t.Errorf("after another start: %s", text.String())
	}
}
