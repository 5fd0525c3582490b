package jsonrpc

import (
	"context"
	"slices"
	"sync"
	"time"
)

// queueAtOnce bounds what leaves a Queue together. What has not left can still be
// cancelled without a trace.
const queueAtOnce = 64

// A Queue is a line of messages to one Conn. Putting never blocks: what may not wait is
// put by force, what may be refused is refused, and who reads the messages that cause
// others waits for room before it reads on. The order of what is put is the order of
// what is sent.
//
// All methods need L, the lock of its owner, to be held; Take, Next and Run, which take
// it themselves, do not. That makes it one step for a message to leave and for its owner to
// note that it was sent.
type Queue struct {
	L sync.Locker

	more, room sync.Cond // on L
	line       []Queued
	held       []Queued // of a class that is held
	hold       Class
	waiting    int // for room

	state    queueState
	err      error // of Finish or Close
	paused   bool
	conn     Conn // of Run
	within   time.Duration
	lastSays func() []*Message
	late     *time.Timer // closes conn if the last words take too long
}

type queueState int // only moves forward

const (
	queueOpen      queueState = iota
	queueFinishing            // takes no more; what is in line is sent
	queueClosed
)

// Queued is a message in a Queue.
type Queued struct {
	*Message
	Room  *Room   // that it takes; nil for none, if something else bounds it
	Class Class   // zero is never held
	Of    Leaving // is asked when the message is to leave; nil for what is sent in any case
}

// Leaving is who a message belongs to.
type Leaving interface {
	// Leave is called with the lock held when it is the message's turn. It reports
	// whether the message is still to be sent, and notes that it counts as sent if so.
	Leave() bool
}

// A Class is a set of kinds of messages, as bits that the owner of a Queue gives a
// meaning.
type Class uint8

// A Room is how much of a Queue one owner may fill. It is guarded by the Queue's lock.
type Room struct {
	Messages, Bytes int // bounds; zero means none. A message that is alone may be larger

	// Told hears of the bytes that come and, as less than zero, of those that go, but not of
	// those that a Queue still holds when it is closed. Nil: nobody does. It must not wait.
	Told func(bytes int)

	messages, bytes int
}

// fits reports whether one more message has room, in so many times as much as there is.
func (r *Room) fits(size, times int) bool {
	return r == nil || (r.Messages == 0 || r.messages < times*r.Messages) &&
		(r.Bytes == 0 || r.messages == 0 || r.bytes+size <= times*r.Bytes)
}

func (r *Room) add(messages, bytes int) {
	if r != nil {
		r.messages += messages
		r.bytes += bytes
		if r.Told != nil {
			r.Told(bytes)
		}
	}
}

// NewQueue returns an empty Queue that is guarded by l.
func NewQueue(l sync.Locker) *Queue {
	q := &Queue{L: l}
	q.more.L, q.room.L = l, l
	return q
}

// Put puts m in line. It returns [ErrFull] if its Room has none, and after Finish or
// Close the error that was given there.
func (q *Queue) Put(m Queued) error {
	if q.err != nil {
		return q.err
	}
	if !m.Room.fits(m.Size(), 1) {
		return ErrFull
	}
	q.add(m)
	return nil
}

// Force puts m in line, whether there is room or not. After Finish or Close it returns the
// error.
func (q *Queue) Force(m Queued) error {
	if q.err == nil {
		q.add(m)
	}
	return q.err
}

func (q *Queue) add(m Queued) {
	if m.Room != nil {
		m.Room.add(1, m.Size())
	}
	if m.Class&q.hold != 0 {
		q.held = append(q.held, m)
		return
	}
	q.line = append(q.line, m)
	q.more.Signal()
}

// Wait waits until r has room, or less than so many times as much is in use: a factor
// above 1 is spare room, for what must hardly ever wait. It returns an error once the
// Queue takes no more.
func (q *Queue) Wait(r *Room, times int) error {
	return q.WaitContext(context.Background(), r, times)
}

// WaitContext is Wait, but it returns the error of ctx if that is done first.
func (q *Queue) WaitContext(ctx context.Context, r *Room, times int) error {
	for !q.Roomy(r, times) {
		if err := ctx.Err(); err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() {
			q.L.Lock()
			defer q.L.Unlock()
			q.room.Broadcast()
		})
		q.waiting++
		q.room.Wait()
		q.waiting--
		stop()
	}
	return q.err
}

// Roomy reports whether Wait would not wait.
func (q *Queue) Roomy(r *Room, times int) bool { return q.err != nil || q.paused || r.fits(1, times) }

// Err returns why the Queue takes no more; nil as long as it does.
func (q *Queue) Err() error { return q.err }

// Hold keeps back the messages of a class from now on, also those that are in line.
func (q *Queue) Hold(c Class) {
	q.hold |= c
	q.line = slices.DeleteFunc(q.line, func(m Queued) bool {
		held := m.Class&q.hold != 0
		if held {
			q.held = append(q.held, m)
		}
		return held
	})
}

// Release lets go what Hold keeps back of a class, behind first.
func (q *Queue) Release(c Class, first ...*Message) {
	q.hold &^= c
	for _, m := range first {
		q.Force(Queued{Message: m})
	}
	q.held = slices.DeleteFunc(q.held, func(m Queued) bool {
		free := m.Class&q.hold == 0
		if free {
			q.line = append(q.line, m)
		}
		return free
	})
	q.more.Signal()
}

// Drop takes out what is not wanted, sent or held, as if it had never been put.
func (q *Queue) Drop(unwanted func(Queued) bool) {
	drop := func(m Queued) bool {
		if !unwanted(m) {
			return false
		}
		m.Room.add(-1, -m.Size())
		return true
	}
	q.line, q.held = slices.DeleteFunc(q.line, drop), slices.DeleteFunc(q.held, drop)
	q.freed()
}

// Finish lets nothing in any more, because of err. Run sends what is in line, asks for
// the last words if last is not nil, sends them and returns: then the Conn is to be closed
// or half-closed. What is held is not sent. If all that takes longer than within, Run's
// Conn is closed, with err.
func (q *Queue) Finish(err error, within time.Duration, last func() []*Message) {
	if q.state != queueOpen {
		return
	}
	q.state, q.err, q.within, q.lastSays, q.held = queueFinishing, Closed(err), within, last, nil
	q.bound()
	q.more.Broadcast()
	q.room.Broadcast()
}

// bound starts the time of the last words, once there is a Conn and an end.
func (q *Queue) bound() {
	if c := q.conn; c != nil && q.state == queueFinishing && q.late == nil {
		cause := q.err
		q.late = time.AfterFunc(q.within, func() { _ = CloseWith(c, cause) })
	}
}

// Close drops everything and lets nothing in any more. The first error counts.
func (q *Queue) Close(err error) {
	if q.state == queueClosed {
		return
	}
	if q.err == nil {
		q.err = Closed(err)
	}
	q.state, q.line, q.held = queueClosed, nil, nil
	q.more.Broadcast()
	q.room.Broadcast()
}

// Pause, if on, makes Run return, at once if it is called after that. What is in line waits
// until Pause is off, for the next Run; nobody waits for room meanwhile.
func (q *Queue) Pause(on bool) {
	q.paused = on
	q.more.Broadcast()
	q.room.Broadcast()
}

// Len returns how many messages wait, held ones too.
func (q *Queue) Len() int { return len(q.line) + len(q.held) }

// Bytes returns how many bytes wait, those of held messages too.
func (q *Queue) Bytes() (n int) {
	for _, m := range q.line {
		n += m.Size()
	}
	for _, m := range q.held {
		n += m.Size()
	}
	return n
}

// Take waits for messages, takes them and appends them to batch: nobody else may Take or
// Run. At the end it returns the error of Finish or Close; after Finish all is taken.
func (q *Queue) Take(batch []*Message) ([]*Message, error) {
	return q.takeUpTo(queueAtOnce, batch)
}

// Next is Take for one message: all others can still be cancelled without a trace.
func (q *Queue) Next() (*Message, error) {
	var one [1]*Message
	got, err := q.takeUpTo(1, one[:0])
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

func (q *Queue) takeUpTo(limit int, batch []*Message) ([]*Message, error) {
	q.L.Lock()
	defer q.L.Unlock()
	for {
		for len(q.line) == 0 || q.paused {
			if q.err != nil || q.paused {
				return batch, q.err
			}
			q.more.Wait()
		}
		if longer := q.take(limit, batch); len(longer) > len(batch) {
			return longer, nil
		}
	}
}

// take takes the first messages; none, if nobody wants them any more.
func (q *Queue) take(limit int, batch []*Message) []*Message {
	n := min(len(q.line), limit)
	for _, m := range q.line[:n] {
		if m.Room != nil {
			m.Room.add(-1, -m.Size())
		}
		if m.Of == nil || m.Of.Leave() {
			batch = append(batch, m.Message)
		}
	}
	q.line = slices.Delete(q.line, 0, n)
	q.freed()
	return batch
}

// freed wakes who waits for room.
func (q *Queue) freed() {
	if q.waiting > 0 {
		q.room.Broadcast()
	}
}

// Run owns Send of c until the end. It returns nil after Finish, when all that was to be
// sent is, and after Pause; else the error of Close, or of Send, of which the Queue's owner
// makes what it likes.
func (q *Queue) Run(c Conn) error {
	q.L.Lock()
	q.conn = c
	q.bound()
	q.L.Unlock()
	err := q.send(c)
	q.L.Lock()
	defer q.L.Unlock()
	q.conn = nil
	if q.late != nil {
		q.late.Stop()
	}
	return err
}

func (q *Queue) send(c Conn) error {
	var batch []*Message
	for {
		batch, _ = q.Take(batch[:0])
		if len(batch) == 0 {
			return q.finish(c)
		}
		if err := SendAll(c, batch); err != nil {
			return Closed(err)
		}
		clear(batch) // keep no message alive while there are none
	}
}

// finish sends the last words, unless the Queue was closed or paused.
func (q *Queue) finish(c Conn) error {
	q.L.Lock()
	state, paused, last := q.state, q.paused, q.lastSays
	q.L.Unlock()
	switch {
	case state == queueClosed:
		return q.err // which nobody changes any more
	case state == queueOpen || paused:
		return nil
	case last == nil: // whoever closes the Conn may have a cause to tell
		return nil
	}
	if words := last(); len(words) > 0 {
		if err := SendAll(c, words); err != nil {
			return Closed(err)
		}
	}
	return nil
}
