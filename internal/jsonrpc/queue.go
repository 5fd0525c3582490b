package jsonrpc

import (
	"context"
	"slices"
	"sync"
	"time"
)

// queueAtOnce bounds how many messages leave a Queue together. A message that has not left can
// still be cancelled without a trace.
const queueAtOnce = 64

// A Queue holds messages that wait to be sent on one Conn, in order. Put never blocks, and may fail
// when there is no room. Force never blocks and never fails for lack of room. A reader whose
// messages cause others calls Wait before it reads on.
//
// All methods need L, the lock of the Queue's owner, to be held, except Take, Next, Start, OnPass
// and Pass, which lock it themselves. So a message leaves, and its owner marks it as sent, in one step.
type Queue struct {
	L sync.Locker

	more, room sync.Cond // on L
	line       []Queued
	held       []Queued // held back by Hold
	hold       Class
	waiting    int // goroutines in Wait

	err      error // of Finish or Close; nil: it takes messages
	closed   bool  // by Close: nothing is sent any more
	paused   bool
	conn     Conn                // of Start; nil without one
	prompt   Prompt              // conn, if it is one
	resting                      // of whoever takes messages
	sending  bool                // whoever took messages is not back for more: Start sends them, or a reader handles them
	handle   func(*Message) bool // of OnPass
	passing  bool                // Pass calls handle
	leaving  bool                // OnPass waits for the end of that
	within   time.Duration
	lastSays func() []*Message
	late     *time.Timer // closes conn if the last messages take too long
}

// A Queued is a message in a Queue.
type Queued struct {
	*Message
	Room  *Room   // the room that it takes; nil if something else bounds it
	Class Class   // zero: Hold never holds it back
	Of    Leaving // asked when the message is about to leave; nil: always sent
}

// Leaving is the owner of a message.
type Leaving interface {
	// Leave is called with the lock held when it is the message's turn. It reports whether the
	// message is still to be sent; if so, it marks the message as sent.
	Leave() bool
}

// A Prompt is a Conn that takes most messages without waiting, because it is in memory. Whoever puts
// a message into an empty Queue hands it over by himself, and no goroutine has to be woken for that.
type Prompt interface {
	// SendNow is Send for one message, but not if Send would wait, fail, or do anything else that must
	// not be done with the lock of the Queue held. Then it returns false and has done nothing.
	// Otherwise it asks the owner of the message first whether it is still to be sent.
	SendNow(m Queued) bool
}

// Leave marks m as sent, and reports whether it is still to be sent.
func (m Queued) Leave() bool { return m.Of == nil || m.Of.Leave() }

// A Class is a set of kinds of messages, as bits that the owner of a Queue defines.
type Class uint8

// A Room bounds how much of a Queue one owner may fill. The Queue's lock guards it.
type Room struct {
	Messages, Bytes int // bounds; zero means none. A single message may exceed Bytes

	// Told is called with the number of bytes that enter and, negative, that leave, but not for
	// those that a Queue still holds when it is closed. Nil: not called. It must not block.
	Told func(bytes int)

	messages, bytes int
}

// fits reports whether one more message fits into times as much room.
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

// Put queues m. It returns [ErrFull] if its Room is full, and after Finish or Close the error given
// there.
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

// Force queues m even if its Room is full. After Finish or Close it returns the error given there.
func (q *Queue) Force(m Queued) error {
	if q.err == nil {
		q.add(m)
	}
	return q.err
}

func (q *Queue) add(m Queued) {
	if q.prompt != nil && len(q.line) == 0 && !q.sending && !q.paused && m.Class&q.hold == 0 && q.prompt.SendNow(m) {
		return
	}
	if m.Room != nil {
		m.Room.add(1, m.Size())
	}
	if m.Class&q.hold != 0 {
		q.held = append(q.held, m)
		return
	}
	q.line = append(q.line, m)
	q.wake()
}

// wake has what waits taken, or the end noticed.
func (q *Queue) wake() {
	if q.resume != nil && q.busy() {
		go q.resume()
		q.resume = nil
	}
	q.more.Broadcast()
}

// busy reports whether Take would return at once.
func (q *Queue) busy() bool { return !q.passing && (len(q.line) > 0 || q.err != nil || q.paused) }

// OnPass sets the function to which Pass passes messages; nil for none. It waits until an earlier one
// has returned.
func (q *Queue) OnPass(handle func(*Message) bool) {
	q.L.Lock()
	defer q.L.Unlock()
	q.handle = handle
	for q.passing {
		q.leaving = true
		q.more.Wait()
	}
	q.leaving = false
}

// Pass passes m on at once, in the goroutine of the caller, so that no other has to be woken: if OnPass
// has set a function for that, no message is ahead of m, and whoever took the last ones is back for
// more. Otherwise it returns false, and m is still to be put. No locks may be held that the function
// takes. If the function returns false, because it would wait, m is the next message to be taken.
func (q *Queue) Pass(m Queued) bool {
	q.L.Lock()
	defer q.L.Unlock()
	if q.handle == nil || q.passing || q.sending || q.paused || q.err != nil || len(q.line) > 0 {
		return false
	}
	if !m.Leave() {
		return true
	}
	q.passing = true
	defer func() {
		q.passing = false
		if q.leaving || q.busy() { // else nobody need be woken
			q.wake()
		}
	}()
	if !q.pass(m.Message) && !q.closed {
		q.line = slices.Insert(q.line, 0, Queued{Message: m.Message})
	}
	return true
}

// pass calls the function of OnPass without the lock. net/http recovers a panic of it.
func (q *Queue) pass(m *Message) (done bool) {
	handle := q.handle
	q.L.Unlock()
	defer q.L.Lock()
	return handle(m)
}

// Wait waits until r has room, or until less than times its bounds is in use: a factor above 1 is
// spare room for messages that should hardly ever wait. It returns an error once the Queue takes no
// more.
func (q *Queue) Wait(r *Room, times int) error {
	return q.WaitContext(context.Background(), r, times)
}

// WaitContext is Wait, but returns the error of ctx if ctx ends first.
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

// Roomy reports whether Wait would return at once.
func (q *Queue) Roomy(r *Room, times int) bool { return q.err != nil || q.paused || r.fits(1, times) }

// Err returns why the Queue takes no more; nil while it does.
func (q *Queue) Err() error { return q.err }

// Hold holds back the messages of a class from now on, including those that are queued already.
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

// Release sends first and then the messages of a class that Hold held back.
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
	q.wake()
}

// Drop removes the unwanted messages, queued or held, as if they had never been put.
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

// Finish makes the Queue take no more, because of err. Start sends what is queued, then the result of
// last unless that is nil, and calls over: then the Conn is to be closed or half-closed. Held messages
// are not sent. If all that takes longer than within, Start's Conn is closed with err.
func (q *Queue) Finish(err error, within time.Duration, last func() []*Message) {
	if q.err != nil {
		return
	}
	q.err, q.within, q.lastSays, q.held = Closed(err), within, last, nil
	q.stopIdle()
	q.bound()
	q.wake()
	q.room.Broadcast()
}

// bound starts the timer of the last messages, once there is a Conn and Finish was called.
func (q *Queue) bound() {
	if c := q.conn; c != nil && q.err != nil && !q.closed && q.late == nil {
		cause := q.err
		q.late = time.AfterFunc(q.within, func() { _ = CloseWith(c, cause) })
	}
}

// Close drops everything and makes the Queue take no more. The first error counts.
func (q *Queue) Close(err error) {
	if q.closed {
		return
	}
	if q.err == nil {
		q.err = Closed(err)
	}
	q.closed, q.line, q.held = true, nil, nil
	q.stopIdle()
	q.wake()
	q.room.Broadcast()
}

// Pause(true) ends Start, at once if it is called later. Queued messages wait for the next Start after
// Pause(false). Meanwhile Wait does not block.
func (q *Queue) Pause(on bool) {
	q.paused = on
	q.wake()
	q.room.Broadcast()
}

// Len returns the number of messages, including held ones.
func (q *Queue) Len() int { return len(q.line) + len(q.held) }

// Bytes returns the size of all messages, including held ones.
func (q *Queue) Bytes() (n int) {
	for _, m := range q.line {
		n += m.Size()
	}
	for _, m := range q.held {
		n += m.Size()
	}
	return n
}

// Take waits for messages, takes them and appends them to batch. Only one goroutine may call Take, and
// none between Start and its end. At the end Take returns the error of Finish or Close; after Finish it
// first takes all that is left.
func (q *Queue) Take(batch []*Message) ([]*Message, error) {
	return q.takeUpTo(queueAtOnce, batch)
}

// Next is Take for one message, so that all others can still be cancelled without a trace.
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
	q.sending = false
	for {
		for len(q.line) == 0 || q.paused || q.passing {
			if !q.passing && (q.err != nil || q.paused) {
				return batch, q.err
			}
			q.more.Wait()
		}
		if longer := q.take(limit, batch); len(longer) > len(batch) {
			q.sending = true
			return longer, nil
		}
	}
}

// take takes the first messages. It takes none if their owners no longer want them.
func (q *Queue) take(limit int, batch []*Message) []*Message {
	n := min(len(q.line), limit)
	for _, m := range q.line[:n] {
		if m.Room != nil {
			m.Room.add(-1, -m.Size())
		}
		if m.Leave() {
			batch = append(batch, m.Message)
		}
	}
	q.line = slices.Delete(q.line, 0, n)
	q.freed()
	return batch
}

// freed wakes goroutines that wait for room.
func (q *Queue) freed() {
	if q.waiting > 0 {
		q.room.Broadcast()
	}
}
