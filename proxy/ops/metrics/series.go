package metrics

import (
	"slices"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// series are the successful calls of one listed tool or prompt. They are kept with its list entry, so that no call has
// to look them up. Nil keeps none.
type series struct {
	method   string                    // of all that is counted there
	ofCalls  atomic.Pointer[histogram] // nil until the first
	answered atomic.Pointer[answers]   // likewise
}

// calls returns the histogram of calls, found once.
func (s *series) calls(find func() *histogram) *histogram {
	if s == nil {
		return find()
	}
	return orFound(&s.ofCalls, find)
}

// requests returns the answers, found once.
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

// seriesIn returns the series kept with a list entry; nil for failures and for names that are not listed.
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

// outcomes count how the calls of an account ended.
type outcomes [len(observe.Outcomes)]atomic.Int64

func (o *outcomes) add(outcome observe.Outcome) {
	if i := slices.Index(observe.Outcomes[:], outcome); i >= 0 {
		o[i].Add(1)
	}
}
