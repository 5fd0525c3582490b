package jsonrpc

import "time"

// RestAfter is how long a goroutine waits for messages before it ends, if they come often: a stack is most of
// what an idle client takes. The next message starts another. When a crowd arrives, stacks of goroutines that end
// soon lie between those that stay, and the runtime gives back 32 KiB of them at a time. So it is short.
const RestAfter = 100 * time.Millisecond

// resting is the part of a Queue that decides when whoever takes messages ends until there are more.
type resting struct {
	resume func()      // of rest, until it is called
	idle   *time.Timer // of rest, to its end; nil while it is not needed
	waits  int         // how often rest began to wait
	waited int         // waits, when idle began
	tired  bool        // rest is not to wait any longer
	rested time.Time   // when rest last looked whether messages come often
}

// rest waits until Take would not wait, and returns false. If there is nothing to take for so long, it returns
// true, and resume is called, in a goroutine of its own, as soon as Take would not wait. It does not wait after a
// message that comes alone: the end of the wait would wake a program that is idle. Only whoever calls Take may call it.
func (q *Queue) rest(after time.Duration, resume func()) bool {
	q.L.Lock()
	defer q.L.Unlock()
	q.sending = false
	if after > 0 && !q.busy() && q.isOften(after) {
		q.waits++
		q.tired = false // by an end of idle while nobody waited
		if q.idle == nil {
			q.waited = q.waits
			q.idle = time.AfterFunc(after, func() { q.tire(after) })
		}
		for !q.busy() && !q.tired {
			q.more.Wait()
		}
	}
	if q.busy() {
		return false
	}
	q.resume = resume
	return true
}

// isOften reports whether messages come so often that the next one is likely to come soon.
func (q *Queue) isOften(after time.Duration) bool {
	if q.idle != nil {
		return true
	}
	before := q.rested
	q.rested = time.Now()
	return q.rested.Sub(before) < after/4
}

func (q *Queue) stopIdle() {
	if q.idle != nil {
		q.idle.Stop()
		q.idle = nil
	}
}

// tire ends the wait of rest, if it has been the same one for so long.
func (q *Queue) tire(after time.Duration) {
	q.L.Lock()
	defer q.L.Unlock()
	switch {
	case q.idle == nil: // the end
	case q.waited != q.waits:
		q.waited = q.waits
		q.idle.Reset(after)
	default:
		q.idle, q.tired = nil, true
		q.more.Broadcast()
	}
}
