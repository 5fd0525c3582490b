package eras

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	replayFor        = 30 * time.Second // how long an answer is repeated to a client that has lost it
	maxStoredAnswers = 1024             // of one key on one upstream; older states are those of unknown suspensions
	maxReplayBytes   = 4 << 20          // in them; beyond, the oldest answers are dropped
)

// A stateUse is one use of a requestState, for one request with one input.
type stateUse struct {
	state     string
	digest    [32]byte // of the request: see digestOf
	responses [32]byte // hash
}

// A storedAnswer records that a requestState was used, and for a while the answer: a client that
// lost its connection asks again (2026-07-28 basic/transports/streamable-http).
type storedAnswer struct {
	stateUse
	answer *jsonrpc.Message // without id; nil if there is none, or it was dropped
	until  time.Time        // when the answer is dropped
	gone   bool             // dropped from its account
}

// storedAnswers are those of an account, oldest first. account.mu guards them.
type storedAnswers struct {
	all   []*storedAnswer
	bytes int // of their answers
}

// find returns the storedAnswer for the state of a use, whatever its input was.
func (rs *storedAnswers) find(u stateUse) *storedAnswer {
	for _, rc := range rs.all {
		if rc.state == u.state {
			return rc
		}
	}
	return nil
}

func (rs *storedAnswers) add(u stateUse) *storedAnswer {
	if len(rs.all) >= maxStoredAnswers {
		rs.dropAnswer(rs.all[0])
		rs.all[0].gone = true
		rs.all = rs.all[1:]
	}
	rc := &storedAnswer{stateUse: u}
	rs.all = append(rs.all, rc)
	return rc
}

// answered stores an answer for replayFor, if there is room.
func (rs *storedAnswers) answered(rc *storedAnswer, answer *jsonrpc.Message) {
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

func (rs *storedAnswers) dropAnswer(rc *storedAnswer) {
	if rc.answer != nil {
		rs.bytes -= rc.answer.Size()
		rc.answer = nil
	}
}

// replay returns the response to another use of a state.
func (rc *storedAnswer) replay(u stateUse) *jsonrpc.Message {
	switch {
	case rc.digest != u.digest:
		return jsonrpc.Failure(refusedState(stateInvalid))
	case rc.answer == nil || rc.stateUse != u || time.Now().After(rc.until):
		return jsonrpc.Failure(refusedState(stateUsed))
	}
	return &jsonrpc.Message{Result: rc.answer.Result, Error: rc.answer.Error, Extra: rc.answer.Extra}
}

// maxCanonical bounds the bytes that are made canonical, which takes much longer than a hash.
const maxCanonical = 64 << 10

// digestOf returns a hash of a request's contents. It does not depend on formatting, unless the
// request is long: then every byte counts.
func digestOf(method string, params json.RawMessage) [32]byte {
	var at [3]jsonrpc.Span
	if jsonrpc.Find(params, jsonrpc.Span{}, at[:], "name", "uri", "arguments") != nil {
		at = [3]jsonrpc.Span{{End: len(params)}} // ambiguous: every byte counts
	}
	text := append(binary.AppendUvarint(nil, uint64(len(method))), method...)
	for _, span := range at {
		value := canonicalIfShort(span.Of(params))
		text = append(binary.AppendUvarint(text, uint64(len(value))), value...)
	}
	return sha256.Sum256(text)
}

// canonicalIfShort is canonical for short text, and returns other text unchanged.
func canonicalIfShort(text json.RawMessage) json.RawMessage {
	if len(text) > maxCanonical {
		return text
	}
	return canonical(text)
}

// canonical returns JSON text without white space and with sorted members, for comparison. Numbers
// keep their spelling; of a duplicate key only the last remains.
func canonical(text json.RawMessage) json.RawMessage {
	if text == nil {
		return nil
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return text
	}
	out, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return out
}
