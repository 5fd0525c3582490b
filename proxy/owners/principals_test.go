package owners

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// When a principal has too much, its oldest thing is forgotten, and never because of another
// principal; when all together have too much, the principal that was given nothing for the longest
// time is forgotten. A task of a tool with a long name counts as several things.
func TestBelongingsAreBounded(t *testing.T) {
	var b Principals
	who := func(i int) identity.Principal {
		return identity.Principal{Kind: identity.Token, Name: fmt.Sprint(i)}
	}
	digest := func(i int) [32]byte { return OfTask.Digest("", "u", mcp.Modern, fmt.Sprint(i)) }
	b.Add(who(0), digest(0))
	for i := range maxOwned + 1 {
		b.Add(who(1), digest(i))
		b.Add(who(1), digest(i)) // is one
	}
	if b.Has(who(1), digest(0)) || !b.Has(who(1), digest(1)) || !b.Has(who(1), digest(maxOwned)) {
		t.Error("not the oldest was forgotten")
	}
	if !b.Has(who(0), digest(0)) || b.Has(who(0), digest(1)) || b.Has(who(2), digest(1)) {
		t.Error("another principal has more or less than it was given")
	}
	b.AddTask(who(1), digest(-1), strings.Repeat("x", 2560), true)
	if b.Has(who(1), digest(11)) || !b.Has(who(1), digest(12)) || len(b.Tool(who(1), digest(-1))) != 2560 {
		t.Error("a long name has no weight")
	}
	for i := 2; b.count < maxOwnedInAll; i++ {
		for j := range min(maxOwned, maxOwnedInAll-b.count) {
			b.Add(who(i), digest(j))
		}
	}
	b.Add(who(0), digest(1)) // one too many, by who was given nothing for the longest time until now
	if b.Has(who(1), digest(maxOwned)) || !b.Has(who(0), digest(0)) || !b.Has(who(2), digest(0)) || b.count > maxOwnedInAll || len(b.of) != b.recent.Len() || len(b.only) > 0 {
		t.Errorf("%d things of %d principals", b.count, len(b.of))
	}
}

// Where all principals have one server, the one that was given an id last has its task. Elsewhere two may have tasks
// with one id.
func TestTaskIsOfOne(t *testing.T) {
	a, b := identity.Principal{Kind: identity.Token, Name: "a"}, identity.Principal{Kind: identity.Token, Name: "b"}
	d := OfTask.Digest("", "u", mcp.Modern, "t")
	for _, alone := range []bool{true, false} {
		var p Principals
		p.AddTask(a, d, "x", alone)
		p.AddTask(b, d, "y", alone)
		if p.Has(a, d) == alone || p.Tool(b, d) != "y" {
			t.Errorf("alone %v: a has it: %v, b has that of %q", alone, p.Has(a, d), p.Tool(b, d))
		}
	}
}

// A principal is forgotten with its last task that another one was given: else a server that gives the same id to each
// client would fill the memory.
func TestNothingOfNobody(t *testing.T) {
	var p Principals
	d := OfTask.Digest("", "u", mcp.Modern, "1")
	for i := range 9 {
		p.AddTask(identity.Principal{Kind: identity.Token, Name: fmt.Sprint(i)}, d, "x", true)
	}
	if len(p.of) != 1 || p.recent.Len() != 1 || len(p.only) != 1 || p.count != 1 {
		t.Errorf("%d things of %d principals", p.count, len(p.of))
	}
}
