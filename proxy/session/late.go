package session

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Nobody waits twice. An upstream that was once not there in time holds up no later
// initialize or list that another one can answer, until it has answered. Then clients hear
// of it by list_changed.

// starts means the start, in each era.
const starts = mcp.MethodInitialize

// late reports whether nobody is to wait for the upstream's answer to a method if another
// one can answer. An upstream that has started here is not late to start, whatever other
// sessions saw.
func (u *upstreamConn) late(method string) bool {
	return method != starts && u.s.p.memory.wasLate(u.up.Name, method) || !u.started() && u.s.p.memory.wasLate(u.up.Name, starts)
}

// noteLate notes that the upstream did not answer in time.
func (u *upstreamConn) noteLate(method string) {
	u.s.p.memory.noteLate(u.up.Name, method)
	if !u.started() {
		u.s.p.memory.noteLate(u.up.Name, starts)
	}
}

// alive reports whether the upstream has answered initialize on an open stream.
func (u *upstreamConn) alive() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && u.attempt.ready && !u.attempt.ended
}

// started reports whether the upstream has answered anything on an open stream.
func (u *upstreamConn) started() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && u.attempt.heard && !u.attempt.ended
}

// starting reports whether there is an open stream on which nothing was answered yet.
func (u *upstreamConn) starting() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && !u.attempt.heard && !u.attempt.ended
}

// heardLocked notes that the upstream has answered something. It may answer now what it
// was too late for before.
func (u *upstreamConn) heardLocked(a *attempt) {
	if !a.heard {
		a.heard = true
		u.s.p.memory.noteInTime(u.up.Name, starts)
		u.s.p.memory.noteInTime(u.up.Name, mcp.MethodDiscover) // that is how the modern era starts
	}
	u.lag.heard()
}

// heard is heardLocked for an acknowledgment, which is no answer.
func (u *upstreamConn) heard() {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if !u.attempt.ended {
		u.heardLocked(u.attempt)
	}
}

// late reports whether what ctx bounds took too long, and was not cancelled.
func late(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// lateFailure is why an upstream has no part in an answer that did not wait for it.
func (u *upstreamConn) lateFailure() *failure {
	f := ownFailure(jsonrpc.TimedOut(u.up.Name))
	if u.starting() {
		if u.era == mcp.Legacy {
			f = ownFailure(u.slow())
		}
		f.cause = jsonrpc.CauseStillStarting
	}
	f.late = true
	return f
}

// A failure is why one upstream has no part in an answer made of many: its own error, or
// ours about it.
type failure struct {
	wire        json.RawMessage
	cause       string // for the log
	unsupported bool   // the upstream has no such list, whatever it declared
	late        bool   // it was not waited for any longer
	skipped     bool   // or not at all
}

func ownFailure(err *jsonrpc.Error) *failure {
	cause := err.Message
	if data, ok := err.Data.(jsonrpc.ErrorData); ok && data.Cause != "" {
		cause = data.Cause
	}
	return &failure{wire: err.Raw(), cause: cause}
}

// slow is the error of what does not wait for the start any longer.
func (u *upstreamConn) slow() *jsonrpc.Error {
	return u.lost(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartTimeout}, jsonrpc.NotSent)
}
