package pool

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	replayFor      = 30 * time.Second // an answer, to a client that has lost it
	maxReceipts    = 1024             // of one key on one upstream; a state of before is one of an unknown park
	maxReplayBytes = 4 << 20          // in them; beyond, the oldest answers are not kept
)

// A use is one use of a requestState, for one request with one input.
type use struct {
	state     string
	digest    [32]byte // of the request: see digestOf
	responses [32]byte // hash
}

// A receipt notes that a requestState was used, and for a moment what came of it: a
// client whose connection is lost asks again (2026-07-28
// basic/transports/streamable-http).
type receipt struct {
	use
	answer *jsonrpc.Message // without id; nil if there is none, or not any more
	until  time.Time        // that the answer is given again
	gone   bool             // it is none of its tenant any more
}

// receipts are those of a tenant, the oldest first. Guarded by tenant.mu.
type receipts struct {
	all   []*receipt
	bytes int // of their answers
}

// find returns the receipt of the state that is used, with whatever input.
func (rs *receipts) find(u use) *receipt {
	for _, rc := range rs.all {
		if rc.state == u.state {
			return rc
		}
	}
	return nil
}

func (rs *receipts) add(u use) *receipt {
	if len(rs.all) >= maxReceipts {
		rs.dropAnswer(rs.all[0])
		rs.all[0].gone = true
		rs.all = rs.all[1:]
	}
	rc := &receipt{use: u}
	rs.all = append(rs.all, rc)
	return rc
}

// answered keeps an answer for a moment, if there is room.
func (rs *receipts) answered(rc *receipt, answer *jsonrpc.Message) {
	now := time.Now()
	size := answer.Size()
	for _, old := range rs.all {
		if now.After(old.until) || rs.bytes+size > maxReplayBytes {
			rs.dropAnswer(old)
		}
	}
	if size <= maxReplayBytes && !rc.gone {
		rc.answer, rc.until = answer, now.Add(replayFor)
		rs.bytes += size
	}
}

func (rs *receipts) dropAnswer(rc *receipt) {
	if rc.answer != nil {
		rs.bytes -= rc.answer.Size()
		rc.answer = nil
	}
}

// replay returns what a client hears that uses a state a second time.
func (rc *receipt) replay(u use) *jsonrpc.Message {
	switch {
	case rc.digest != u.digest:
		return failure(refusedState(stateInvalid))
	case rc.answer == nil || rc.use != u || time.Now().After(rc.until):
		return failure(refusedState(stateUsed))
	}
	return &jsonrpc.Message{Result: rc.answer.Result, Error: rc.answer.Error, Extra: rc.answer.Extra}
}
