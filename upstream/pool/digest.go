package pool

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxCanonical bounds in bytes what is brought into canonical form, which takes much
// longer than a hash.
const maxCanonical = 64 << 10

// digestOf returns a hash of what a request asks for. It is the same if the client
// has written the request anew, unless that is long: then every byte counts.
func digestOf(method string, params json.RawMessage) [32]byte {
	var at [3]jsonrpc.Span
	if jsonrpc.Find(params, jsonrpc.Span{}, at[:], "name", "uri", "arguments") != nil {
		at = [3]jsonrpc.Span{{End: len(params)}} // it can be read in two ways: every byte counts
	}
	text := append(binary.AppendUvarint(nil, uint64(len(method))), method...)
	for _, span := range at {
		value := canonicalIfShort(span.Of(params))
		text = append(binary.AppendUvarint(text, uint64(len(value))), value...)
	}
	return sha256.Sum256(text)
}

// canonicalIfShort is canonical for text that is not too long for it. The rest stays as
// it is.
func canonicalIfShort(text json.RawMessage) json.RawMessage {
	if len(text) > maxCanonical {
		return text
	}
	return canonical(text)
}

// canonical returns JSON text without white space, with the members of objects in
// order. It is for comparing: numbers are kept as they are written, but of a key
// that occurs twice only the last is.
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
