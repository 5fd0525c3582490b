package metrics

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// answers count the answers of an upstream to one method with one result. They share the last minute with all other
// answers of the upstream.
type answers struct {
	histogram
	recent atomic.Pointer[minute] // nil before the first, and for methods that do not count there
}

// Fill sets the fields of the last minute. Nil Metrics set none.
func (m *Metrics) Fill(t *observe.Traffic) {
	if m == nil {
		return
	}
	if recent := m.recent.find(t.Upstream); recent != nil {
		recent.fill(time.Now(), t)
	}
}

const (
	parts   = 12 // of a minute
	partFor = 5 * time.Second
)

// A minute is a ring of parts, the newest of which is not over. The first answer in a new part clears the one in its
// place: the oldest, or one of the future if the clock was set back. An answer at the same moment may be lost.
type minute struct {
	parts [parts]part
	mu    sync.Mutex // held to clear a part
}

type part struct {
	number atomic.Int64 // of the part, since the epoch
	errors atomic.Int64
	took   [classes]atomic.Uint32
}

// classes is the number of classes of durations. Each power of two microseconds has four, so a duration is known to an
// eighth. The last class is for everything above 4 min.
const classes = 4 * 27

func classOf(d time.Duration) int {
	µs := uint64(max(d.Microseconds(), 0))
	if µs < 4 {
		return int(µs)
	}
	shift := bits.Len64(µs) - 3
	return min(4*shift+int(µs>>shift), classes-1)
}

// middleOf returns the middle of a class in milliseconds.
func middleOf(class int) float64 {
	if class < 4 {
		return float64(class) / 1000
	}
	shift := class/4 - 1
	return float64(uint64(4+class%4)<<shift+uint64(1)<<shift/2) / 1000
}

func (m *minute) add(end *observe.End) {
	if end.Outcome == observe.Cancelled || end.At.IsZero() { // neither success nor failure, or at an unknown time
		return
	}
	p := m.at(end.At.UnixNano() / int64(partFor))
	if end.Outcome != observe.OK {
		p.errors.Add(1)
	}
	p.took[classOf(end.Took)].Add(1)
}

// at returns the part with that number, and clears another one in its place.
func (m *minute) at(number int64) *part {
	p := &m.parts[number%parts]
	if p.number.Load() != number {
		m.mu.Lock()
		defer m.mu.Unlock()
		if p.number.Load() != number {
			p.clear()
			p.number.Store(number)
		}
	}
	return p
}

func (p *part) clear() {
	p.errors.Store(0)
	for i := range p.took {
		p.took[i].Store(0)
	}
}

func (m *minute) fill(now time.Time, t *observe.Traffic) {
	newest := now.UnixNano() / int64(partFor)
	var took [classes]int
	t.Requests, t.Errors = 0, 0
	for i := range m.parts {
		p := &m.parts[i]
		if n := p.number.Load(); n <= newest-parts || n > newest {
			continue
		}
		t.Errors += int(p.errors.Load())
		for class := range p.took {
			n := int(p.took[class].Load())
			took[class] += n
			t.Requests += n
		}
	}
	seen := partFor*(parts-1) + time.Duration(now.UnixNano()%int64(partFor))
	t.PerSecond = float64(t.Requests) / seen.Seconds()
	t.P50, t.P99 = quantile(took[:], t.Requests, 50), quantile(took[:], t.Requests, 99)
}

// quantile returns in milliseconds the time that percent of all requests did not exceed.
func quantile(took []int, all, percent int) float64 {
	below := 0
	for class, n := range took {
		if below += n; n > 0 && 100*below >= percent*all {
			return middleOf(class)
		}
	}
	return 0
}
