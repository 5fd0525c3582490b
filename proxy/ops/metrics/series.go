package metrics

import (
	"slices"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Series are those of what has ended well for one tool or prompt that an upstream lists.
// They stay with that, so that nobody looks them up for each call. Nil keeps none.
type series struct {
	method   string                    // of all that is counted there
	ofCalls  atomic.Pointer[histogram] // nil until the first
	answered atomic.Pointer[answers]   // likewise
}

// calls returns that of calls, which find returns if nobody knows it yet.
func (s *series) calls(find func() *histogram) *histogram {
	if s == nil {
		return find()
	}
	return orFound(&s.ofCalls, find)
}

// requests returns that of requests, likewise.
func (s *series) requests(find func() *answers) *answers {
	if s == nil {
		return find()
	}
	return orFound(&s.answered, find)
}

func orFound[V any](at *atomic.Pointer[V], find func() *V) *V {
	v := at.Load()
	if v == nil {
		v = find()
		at.Store(v)
	}
	return v
}

// seriesIn returns what is kept for one of those; nil for what nothing is kept for.
func seriesIn(l *observe.Listed, method string, outcome observe.Outcome) *series {
	if l == nil || outcome != observe.OK {
		return nil
	}
	k, _ := l.Load().(*series)
	if k == nil {
		l.CompareAndSwap(nil, &series{method: method})
		k, _ = l.Load().(*series)
	}
	if k == nil || k.method != method { // a prompt is also what arguments are completed for
		return nil
	}
	return k
}

// Outcomes count how the calls of an account have ended.
type outcomes [len(observe.Outcomes)]atomic.Int64

func (o *outcomes) add(outcome observe.Outcome) {
	if i := slices.Index(observe.Outcomes[:], outcome); i >= 0 {
		o[i].Add(1)
	}
}
