package tap

import (
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Options say what a Tap shows. The zero value shows everything but what is in messages.
type Options struct {
	Filter
	Rate     int  // lines a second; zero means no bound
	Payloads bool // messages, too, without what looks like a secret

	// Whole shows every message unchanged: a Tap that is not read fast enough ends with [ErrMissed].
	Whole bool
}

// A Tap shows one operator what passes.
type Tap struct {
	// Static after construction.
	o     Options
	taps  *Taps
	most  room
	begun chan struct{} // of one: there is something, after there was nothing
	hurry chan struct{} // of one: half of the room is used

	// Owned by who calls Lines.
	text   []byte
	clock  clock
	spare  []line
	last   time.Time // when Lines returned something
	passed int       // messages that it has returned

	mu      sync.Mutex // guards what follows
	queue   []line
	size    int           // of the messages in it
	leftOut int           // since the last lines
	limit   *rate.Limiter // nil for none
	ended   error         // no more comes
}

// A room is how much unread data a Tap may hold.
type room struct{ lines, bytes int }

var (
	someRoom  = room{8 << 10, 16 << 20}
	largeRoom = room{128 << 10, 256 << 20} // of one that must miss nothing
)

// pace is how long lines are gathered: one write for many lines is what makes a Tap cheap.
const pace = 20 * time.Millisecond

func newTap(taps *Taps, o Options) *Tap {
	t := &Tap{o: o, taps: taps, most: someRoom, begun: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
	if o.Whole {
		t.most = largeRoom
	}
	if o.Rate > 0 {
		t.limit = rate.NewLimiter(rate.Limit(o.Rate), o.Rate)
	}
	return t
}

// Close ends the Tap. What is queued can still be read.
func (t *Tap) Close() {
	t.taps.leave(t)
	t.end(ErrEnded)
}

func (t *Tap) end(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(why)
}

func (t *Tap) endLocked(why error) {
	if t.ended == nil {
		t.ended = why
	}
	signal(t.begun)
	signal(t.hurry)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// offer takes a line into the queue, if it is wanted and there is room.
func (t *Tap) offer(l *line, m *jsonrpc.Message) {
	if !t.o.wants(l) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	size := 0
	if t.o.Payloads || t.o.Whole {
		size = m.Size()
	}
	full := len(t.queue) >= t.most.lines || t.size+size > t.most.bytes
	switch {
	case t.ended != nil:
		return
	case full && t.o.Whole:
		t.endLocked(ErrMissed)
		return
	case full, t.limit != nil && !t.limit.AllowN(l.time, 1):
		t.leftOut++
		return
	}
	t.queue = append(t.queue, *l)
	if size > 0 {
		t.queue[len(t.queue)-1].message = kept(m)
	}
	t.size += size
	switch {
	case len(t.queue) == 1:
		signal(t.begun)
	case len(t.queue) == t.most.lines/2 || t.size > t.most.bytes/2:
		signal(t.hurry)
	}
}

// kept is the copy of a message that a Tap keeps. It shares the bytes, which nobody writes to.
func kept(m *jsonrpc.Message) *jsonrpc.Message {
	return &jsonrpc.Message{ID: m.ID, Method: m.Method, Params: m.Params, Result: m.Result, Error: m.Error, Extra: m.Extra, Related: m.Related}
}

// Passed returns how many messages Lines has returned.
func (t *Tap) Passed() int { return t.passed }

// Lines waits for messages, and returns them as lines of JSON, valid until the next call. A line says how many were left
// out. The error comes after all lines.
func (t *Tap) Lines() ([]byte, error) {
	t.gather()
	told := time.NewTicker(time.Second) // of what was left out, though nothing follows
	defer told.Stop()
	for {
		if t.take(); len(t.text) > 0 {
			t.last = time.Now()
			return t.text, nil
		}
		if err := t.over(); err != nil {
			return nil, err
		}
		select {
		case <-t.begun:
		case <-told.C:
		}
	}
}

// gather waits a moment, so that lines come together.
func (t *Tap) gather() {
	wait := time.NewTimer(pace - time.Since(t.last))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-t.hurry:
	}
}

// over returns the end of the Tap when nothing is left to read.
func (t *Tap) over() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 {
		return nil
	}
	return t.ended
}

// take writes what is in the queue as text.
func (t *Tap) take() {
	t.mu.Lock()
	lines, leftOut := t.queue, t.leftOut
	t.queue, t.size, t.leftOut = t.spare[:0], 0, 0
	t.mu.Unlock()
	t.text = t.text[:0]
	if cap(t.text) > 1<<20 { // of a large message
		t.text = nil
	}
	if leftOut > 0 {
		t.text = append(strconv.AppendInt(append(t.text, `{"leftOut":`...), int64(leftOut), 10), "}\n"...)
	}
	for i := range lines {
		t.text = lines[i].append(t.text, !t.o.Whole, &t.clock)
	}
	t.passed += len(lines)
	clear(lines)
	t.spare = lines
}

// want reports whether a tap may want messages at a Point.
func (l *activeTaps) want(p *observe.Point) bool {
	for _, t := range l.taps {
		if t.o.at(p) {
			return true
		}
	}
	return false
}
