package listen

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
)

func TestResources(t *testing.T) {
	var kept atomic.Int64
	rs := Resources{Kept: &kept}
	a, b := newServer("a"), newServer("b")
	params := func(uri string) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"uri":%q}`, uri)) }
	of := func(s *server) string { return fmt.Sprintf("%s", rs.Of(s)) }
	for _, uri := range []string{"x:2", "x:1", "x:3"} {
		rs.Add(uri, a, params(uri))
	}
	rs.Add("x:3", b, params("x:3")) // another upstream has it now
	if got, want := of(a)+of(b), `[{"uri":"x:1"} {"uri":"x:2"}][{"uri":"x:3"}]`; got != want {
		t.Errorf("remembered %s, want %s", got, want)
	}
	if got, want := kept.Load(), 3*int64(Size("x:1", params("x:1"))); got != want {
		t.Errorf("%d bytes count, want %d", got, want)
	}
	if rs.Take("x:1") != a || rs.Take("x:1") != nil || rs.Take("x:3") != b {
		t.Error("took the subscriptions of other upstreams")
	}
	a.hangUp()
	rs.Forget(a)
	rs.Add("x:2", a, params("x:2")) // its answer was on the way
	if got := of(a); got != "[]" || kept.Load() != 0 {
		t.Errorf("%s and %d bytes are left", got, kept.Load())
	}
}

func TestResourcesAreBounded(t *testing.T) {
	var kept atomic.Int64
	rs := Resources{Kept: &kept}
	a := newServer("a")
	for i := range maxResources + 1 {
		rs.Add(fmt.Sprint("x:", i), a, nil)
	}
	got := rs.Of(a)
	if len(got) != maxResources || slices.ContainsFunc(got, func(p json.RawMessage) bool { return p != nil }) {
		t.Error("remembered:", len(got))
	}
}
