package jsonrpc

import "runtime"

// Start owns Send of c until the end, and then calls over: with nil after Pause, and after Finish once
// everything was sent. Otherwise with the error of Close or Send. There is a goroutine only while something
// waits, and at the end: if c is a [Prompt], it is started for what c did not take at once. For a socket it
// stays for a while if messages come often, because a new one for each would cost more.
func (q *Queue) Start(c Conn, over func(error)) {
	q.L.Lock()
	q.conn = c
	prompt, _ := c.(Prompt)
	q.prompt = prompt
	q.bound()
	q.L.Unlock()
	patience := RestAfter
	if prompt != nil {
		patience = 0
	}
	var batch []*Message
	var send func()
	send = func() {
		for !q.rest(patience, send) {
			batch, _ = q.Take(batch[:0])
			err := q.send(c, batch)
			if len(batch) == 0 || err != nil {
				q.end()
				over(err)
				return
			}
			clear(batch) // do not keep messages alive while idle
		}
	}
	if prompt == nil || !q.rest(0, send) {
		go send()
	}
}

// Receive passes on all that comes from c: handle is called with what [RecvAll] returns, until it returns
// false, and keeps nothing of batch. Then Receive returns. If c is a [Resting], it also returns when nothing
// is likely to come soon, and another goroutine goes on with the next message; and it calls gather, unless that
// is nil, when something has come and before it takes it.
func Receive(c Conn, gather func(), handle func(batch []*Message, err error) (more bool)) {
	r, rests := c.(Resting)
	var batch []*Message
	var receive func()
	receive = func() {
		for n := 0; !rests || !r.Rest(receive); {
			if rests && gather != nil {
				gather()
			}
			var err error
			batch, err = RecvAll(c, batch[:0])
			more := handle(batch, err)
			clear(batch) // do not keep messages alive while idle
			if !more {
				return
			}
			// A socket that always has something to read must not keep the only processor.
			if n += max(len(batch), 1); n >= maxAtOnce && !rests {
				n = 0
				runtime.Gosched()
			}
		}
	}
	receive()
}

// send sends a batch; an empty one is the last.
func (q *Queue) send(c Conn, batch []*Message) error {
	if len(batch) == 0 {
		return q.finish(c)
	}
	if err := SendAll(c, batch); err != nil {
		return Closed(err)
	}
	return nil
}

func (q *Queue) end() {
	q.L.Lock()
	defer q.L.Unlock()
	q.conn, q.prompt = nil, nil
	q.stopIdle()
	if q.late != nil {
		q.late.Stop()
	}
}

// finish sends the last messages, unless the Queue was closed or paused.
func (q *Queue) finish(c Conn) error {
	q.L.Lock()
	err, closed, paused, last := q.err, q.closed, q.paused, q.lastSays
	q.L.Unlock()
	switch {
	case closed:
		return err
	case err == nil || paused:
		return nil
	case last == nil: // whoever closes the Conn may have a cause to send
		return nil
	}
	if words := last(); len(words) > 0 {
		if err := SendAll(c, words); err != nil {
			return Closed(err)
		}
	}
	return nil
}
