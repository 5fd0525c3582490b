package jsonrpc

// Start owns Send of c until the end, and then calls over: with nil after Pause, and after Finish once
// everything was sent. Otherwise with the error of Close or Send. If c is a [Prompt], there is a goroutine
// only while something waits that c did not take at once, and at the end. A new goroutine for each
// message to a socket would cost more than one that waits.
func (q *Queue) Start(c Conn, over func(error)) {
	q.L.Lock()
	q.conn = c
	prompt, rests := c.(Prompt)
	q.prompt = prompt
	q.bound()
	q.L.Unlock()
	var batch []*Message
	var send func()
	send = func() {
		for !rests || !q.rest(send) {
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
	if !rests || !q.rest(send) {
		go send()
	}
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
