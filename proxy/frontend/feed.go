package frontend

import (
	"context"
	"time"
)

// A feed is where the events of one HTTP response come from.
type feed interface {
	// next appends the events that are there to out, as server-sent events, and
	// reports whether more may come.
	next(out []byte) (longer []byte, more bool)

	written()             // what next returned went out
	woken() chan struct{} // receives when next may have something
}

// copyEvents writes what f has until that ends, the client is gone, or ctx is
// done. While there is nothing it keeps the connection alive. It reports whether
// it came to the end.
func copyEvents(ctx context.Context, out *responder, f feed) bool {
	idle := time.NewTicker(keepAlive)
	defer idle.Stop()
	for {
		var more bool
		if out.buf, more = f.next(out.buf); len(out.buf) > 0 {
			if out.flush() != nil {
				return false
			}
			f.written()
		}
		if !more {
			return true
		}
		select {
		case <-f.woken():
		case <-idle.C:
			if out.comment() != nil {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
}

// A sessionFeed is a stream of a session on the connection of rd.
type sessionFeed struct {
	s  *session
	st *stream
	rd *reader
}

func (f sessionFeed) next(out []byte) ([]byte, bool) {
	more := f.s.take(f.st, f.rd)
	for i, e := range f.rd.batch {
		id := ""
		if !f.s.legacy {
			id = eventID(f.st.number, f.rd.at-len(f.rd.batch)+1+i)
		}
		out = appendEvent(out, "message", id, e.data)
	}
	return out, more
}

func (f sessionFeed) written()             { f.s.wrote(f.st, f.rd) }
func (f sessionFeed) woken() chan struct{} { return f.rd.wake }
