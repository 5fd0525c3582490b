package eras

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A memberEdit is what becomes of one member of an object.
type memberEdit struct {
	at   jsonrpc.Span    // of its value, as [jsonrpc.Find] tells it; one that is zero is left out
	with json.RawMessage // its new value; nil takes the member out
}

// edited returns an object with edits made, as [jsonrpc.Set] would, but without
// another look at what does not change. The object is not written to.
func edited(object json.RawMessage, edits ...memberEdit) json.RawMessage {
	slices.SortFunc(edits, func(a, b memberEdit) int { return a.at.Start - b.at.Start })
	size := len(object)
	for _, e := range edits {
		size += len(e.with)
	}
	out, from := make([]byte, 0, size), 0
	for _, e := range edits {
		switch {
		case e.at.IsZero():
		case e.with != nil:
			out = append(append(out, object[from:e.at.Start]...), e.with...)
			from = e.at.End
		default:
			out = append(out, object[from:nameStart(object, e.at.Start)]...)
			if from = afterComma(object, e.at.End); from == e.at.End { // the last one
				out = bytes.TrimSuffix(bytes.TrimRight(out, space), []byte(","))
			}
		}
	}
	return append(out, object[from:]...)
}

const space = " \t\r\n"

// nameStart returns where the name of the value at start begins. It is a name that
// Find was asked for, and so holds no quote.
func nameStart(object []byte, start int) int {
	end := bytes.LastIndexByte(object[:start], '"')
	return bytes.LastIndexByte(object[:end], '"')
}

// afterComma returns where the next member begins after the value at end, or end if
// there is none.
func afterComma(object []byte, end int) int {
	rest := bytes.TrimLeft(object[end:], space)
	if rest[0] != ',' {
		return end
	}
	return len(object) - len(bytes.TrimLeft(rest[1:], space))
}
