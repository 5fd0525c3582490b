package metrics

import (
	"slices"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A series counts the successful requests and calls for one listed tool or prompt. The list entry keeps it, which
// saves the lookups by labels. A nil series looks up each time.
type series struct {
	method  string                    // of everything counted here
	request atomic.Pointer[histogram] // nil before the first request
	call    atomic.Pointer[answers]   // nil before the first call
}

// requests returns the histogram of requests, and calls find only once.
func (s *series) requests(find func() *histogram) *histogram {
	if s == nil {
		return find()
	}
	return orFound(&s.request, find)
}

// calls returns the answers to calls, and calls find only once.
func (s *series) calls(find func() *answers) *answers {
	if s == nil {
		return find()
	}
	return orFound(&s.call, find)
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
func seriesIn(l *atomic.Value, method string, outcome observe.Outcome) *series {
	if l == nil || outcome != observe.OK {
		return nil
	}
	k, _ := l.Load().(*series)
	if k == nil {
		l.CompareAndSwap(nil, &series{method: method})
		k, _ = l.Load().(*series)
	}
	if k == nil || k.method != method { // a prompt has series for prompts/get or for completion
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
