package frontend

// A reader is one HTTP response that carries a stream, and its feed.
type reader struct {
	out   *eventStreams
	st    *eventStream
	wake  chan struct{} // capacity 1: there is something to write
	to    *responder    // nil before anything can be written; guarded by out.mu
	at    int           // number of the last event taken; guarded by out.mu
	batch []event       // the events taken last; owned by the goroutine of the response
}

// responses returns all events of a POST's stream if it is complete and has nothing but responses.
// They are not stored. From now on events are written to the responder.
func (rd *reader) responses(to *responder) ([]event, bool) {
	rd.out.mu.Lock()
	defer rd.out.mu.Unlock()
	rd.to = to
	if rd.st.owed > 0 {
		return nil, false
	}
	for _, e := range rd.st.events {
		if !e.response {
			return nil, false
		}
	}
	return rd.st.events, true
}

// wrotePlain drops a plain stream after its response was sent, or failed.
func (rd *reader) wrotePlain() {
	rd.out.mu.Lock()
	defer rd.out.mu.Unlock()
	rd.out.idle.clientPresent()
	rd.to = nil // its handler is about to return
	rd.out.lose(rd.st)
}

// next implements feed.
func (rd *reader) next(out []byte) ([]byte, bool) {
	more := rd.take()
	for i, e := range rd.batch {
		id := ""
		if rd.out.keep > 0 {
			id = eventID(rd.st.number, rd.at-len(rd.batch)+1+i)
		}
		out = appendEvent(out, "message", id, e.data)
	}
	return out, more
}

func (rd *reader) take() (more bool) {
	rd.out.mu.Lock()
	defer rd.out.mu.Unlock()
	clear(rd.batch)
	rd.batch = rd.batch[:0]
	st := rd.st
	if st.reader != rd { // replaced by a newer connection
		return false
	}
	rd.at = max(rd.at, st.first-1) // skip events that were evicted meanwhile
	rd.batch = append(rd.batch, st.events[rd.at-st.first+1:]...)
	rd.at += len(rd.batch)
	return !st.done() && !rd.out.closed && !rd.out.released
}

// written implements feed. It unblocks Send.
func (rd *reader) written() {
	o, st := rd.out, rd.st
	o.mu.Lock()
	defer o.mu.Unlock()
	for st.sent < rd.at {
		st.sent++
		if i := st.sent - st.first; 0 <= i && i < len(st.events) { // otherwise it was dropped meanwhile
			st.backlog.add(-len(st.events[i].data))
			o.read.add(len(st.events[i].data))
		}
	}
	if st != o.standalone {
		o.idle.clientPresent()
	}
	if st.reader == rd {
		o.keepTo(st, rd.at)
		o.room.Broadcast()
	}
}

func (rd *reader) woken() chan struct{} { return rd.wake }

// detach ends the connection of rd. Unwritten events stay for a client that can resume; otherwise
// they are dropped. ours means that the proxy ended the connection.
func (rd *reader) detach(resumable, ours bool) {
	o, st := rd.out, rd.st
	o.mu.Lock()
	defer o.mu.Unlock()
	if st.reader != rd {
		return
	}
	st.reader = nil
	st.backlog.spare.Store(true)
	if st == o.standalone && !o.closed && !o.released && !ours {
		o.idle.cut()
	}
	if !o.closed && (resumable || st.sent > 0 || st.number == 0) {
		o.keepTo(st, st.lastEvent())
		o.forget(st)
	} else {
		questions := o.takeQuestions(st)
		o.lose(st)
		for _, q := range questions {
			if o.standalone.backlog.room(len(q.data)) {
				o.push(o.standalone, q)
			} else {
				o.drop(q)
			}
		}
	}
	o.room.Broadcast()
}
