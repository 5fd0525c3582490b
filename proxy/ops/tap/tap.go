package tap

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Options say what a Tap shows. The zero value shows all lines without the content of messages.
type Options struct {
	// Globs; "" matches everything.
	Session  string
	Upstream string // of the upstream's side; on the side of clients only errors have one
	Client   string
	Method   string
	Tool     string

	Errors   bool // only responses that report a failure
	Rate     int  // lines a second; zero means no bound
	Payloads bool // with the messages, in which secrets are redacted

	// Whole shows every message unchanged. A Tap that is not read fast enough then ends with [ErrMissed].
	Whole bool
}

// Check returns an error if one of the globs is invalid. It names the filter as flags and queries do.
func (o *Options) Check() error {
	for _, f := range []struct{ name, glob string }{
		{"session", o.Session}, {"upstream", o.Upstream}, {"client", o.Client}, {"method", o.Method}, {"tool", o.Tool},
	} {
		if err := glob.Check(f.glob); err != nil {
			return fmt.Errorf("%s %s: %w", f.name, strconv.Quote(f.glob), err)
		}
	}
	return nil
}

// at reports whether a Tap may want messages at a Point.
func (o *Options) at(p *observe.Point) bool {
	return fits(o.Session, p.Session) && (p.Upstream == "" || fits(o.Upstream, p.Upstream))
}

func (o *Options) wants(l *line) bool {
	return (!o.Errors || l.err != nil) && o.at(l.from.at) && fits(o.Upstream, l.about()) &&
		fits(o.Client, l.from.client) && fits(o.Method, l.method) && fits(o.Tool, l.tool)
}

func fits(g, name string) bool {
	if g == "" {
		return true
	}
	_, ok := glob.First([]string{g}, name)
	return ok
}

// A Tap shows one operator the messages that pass.
type Tap struct {
	// Static after construction.
	o         Options
	taps      *Taps
	mostLines int           // that may be unread
	mostBytes int           // of their messages
	begun     chan struct{} // buffered(1): the queue is not empty any more
	hurry     chan struct{} // buffered(1): half of the room is used

	// Owned by the caller of Lines.
	text   []byte
	clock  clock
	spare  []line
	last   time.Time // of the last lines
	passed int       // messages that Lines has returned

	mu      sync.Mutex // guards the fields below
	queue   []line
	size    int           // of the messages in queue
	leftOut int           // since the last lines
	limit   *rate.Limiter // nil for none
	ended   error         // set at the end
}

// The unread data that a Tap may hold: some, and much if it must not miss anything.
const (
	someLines, someBytes = 8 << 10, 16 << 20
	muchLines, muchBytes = 128 << 10, 256 << 20
)

// pace is the time in which a Tap gathers lines: one write for many lines makes it cheap.
const pace = 20 * time.Millisecond

func newTap(taps *Taps, o Options) *Tap {
	t := &Tap{o: o, taps: taps, mostLines: someLines, mostBytes: someBytes}
	t.begun, t.hurry = make(chan struct{}, 1), make(chan struct{}, 1)
	if o.Whole {
		t.mostLines, t.mostBytes = muchLines, muchBytes
	}
	if o.Rate > 0 {
		t.limit = rate.NewLimiter(rate.Limit(o.Rate), o.Rate)
	}
	return t
}

// Close ends the Tap. Queued lines can still be read.
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

// offer queues a line if the Tap wants it and has room.
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
	full := len(t.queue) >= t.mostLines || t.size+size > t.mostBytes
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
	case len(t.queue) == t.mostLines/2 || t.size > t.mostBytes/2:
		signal(t.hurry)
	}
}

// kept returns a copy of a message to keep. It shares the bytes, which never change.
func kept(m *jsonrpc.Message) *jsonrpc.Message {
	return &jsonrpc.Message{ID: m.ID, Method: m.Method, Params: m.Params, Result: m.Result, Error: m.Error, Extra: m.Extra, Related: m.Related}
}

// Passed returns how many messages Lines has returned.
func (t *Tap) Passed() int { return t.passed }

// Lines waits for messages and returns them as lines of JSON, which are valid until the next call. A line of its own
// counts those that were left out. At the end it returns [ErrEnded] or [ErrMissed] after the last lines.
func (t *Tap) Lines() ([]byte, error) {
	t.gather()
	told := time.NewTicker(time.Second) // for the count of lines left out if no line follows
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

// gather waits a moment for more lines.
func (t *Tap) gather() {
	wait := time.NewTimer(pace - time.Since(t.last))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-t.hurry:
	}
}

// over returns the end of the Tap if nothing is left to read.
func (t *Tap) over() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 {
		return nil
	}
	return t.ended
}

// take converts the queue to text.
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
