package bridge

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// Reasons why a requestState is refused, in the data of the error.
const (
	stateInvalid = "request_state_invalid" // forged, another's, or of another request
	stateExpired = "request_state_expired" // too old, or of a program that has ended
	stateUsed    = "request_state_used"
)

type parkID [16]byte

// A sealed is what a requestState says. On the wire it is base64url of
//
//	version 1 | instance 8 | nonce 12 | AES-256-GCM of: kind 1 | park 16 | round 1 | expiry 8, ms | digest 32
//
// in bytes, where the additional data is version, instance, and what the state is
// bound to: the upstream and the key of the principal. So nobody else can use it.
type sealed struct {
	restart bool // nothing is parked: the call begins anew
	park    parkID
	round   byte
	expiry  time.Time
	digest  [32]byte // of the request: see digestOf
}

const (
	sealVersion = 1
	clearSize   = 1 + 8
	nonceSize   = 12
	plainSize   = 1 + 16 + 1 + 8 + 32
	sealSize    = clearSize + nonceSize + plainSize + 16
)

// maxCanonical bounds in bytes what is brought into canonical form, which takes much
// longer than a hash.
const maxCanonical = 64 << 10

// Strict, since a text that differs must not mean the same.
var sealText = base64.RawURLEncoding.Strict()

// A sealer seals and opens requestState, with a key of its own that is nowhere else.
// Nonces are random: that is good for 2^32 states.
type sealer struct {
	aead  cipher.AEAD
	clear [clearSize]byte // what each of its states begins with
}

func newSealer() *sealer {
	var key [32]byte
	rand.Read(key[:])                 // never fails
	block, _ := aes.NewCipher(key[:]) // of a size that it takes
	aead, _ := cipher.NewGCM(block)
	s := &sealer{aead: aead, clear: [clearSize]byte{sealVersion}}
	rand.Read(s.clear[1:])
	return s
}

// boundTo returns what the states of a key on an upstream are bound to.
func boundTo(id tenantID) [32]byte {
	text := binary.AppendUvarint(nil, uint64(len(id.upstream)))
	return sha256.Sum256(append(append(text, id.upstream...), id.key...))
}

func (s *sealer) additional(bound [32]byte) []byte {
	return append(s.clear[:clearSize:clearSize], bound[:]...)
}

// seal returns the requestState that says v.
func (s *sealer) seal(v sealed, bound [32]byte) string {
	plain := make([]byte, 0, plainSize)
	if v.restart {
		plain = append(plain, 1)
	} else {
		plain = append(plain, 0)
	}
	plain = append(append(plain, v.park[:]...), v.round)
	plain = binary.BigEndian.AppendUint64(plain, uint64(v.expiry.UnixMilli()))
	plain = append(plain, v.digest[:]...)

	out := append(make([]byte, 0, sealSize), s.clear[:]...)
	out = out[:clearSize+nonceSize]
	rand.Read(out[clearSize:])
	out = s.aead.Seal(out, out[clearSize:], plain, s.additional(bound))
	return sealText.EncodeToString(out)
}

// open returns what a requestState says, or the reason why it is refused. One of
// another instance, of before a restart say, cannot be told from a forged one and
// counts as expired: its park is gone in any case.
func (s *sealer) open(state string, bound [32]byte) (v sealed, refused string) {
	if len(state) != sealText.EncodedLen(sealSize) {
		return v, stateInvalid
	}
	text, err := sealText.DecodeString(state)
	switch {
	case err != nil || len(text) != sealSize || text[0] != sealVersion:
		return v, stateInvalid
	case !bytes.Equal(text[:clearSize], s.clear[:]):
		return v, stateExpired
	}
	nonce, rest := text[clearSize:clearSize+nonceSize], text[clearSize+nonceSize:]
	plain, err := s.aead.Open(nil, nonce, rest, s.additional(bound))
	if err != nil {
		return v, stateInvalid
	}
	v.restart, v.round = plain[0] == 1, plain[17]
	copy(v.park[:], plain[1:])
	v.expiry = time.UnixMilli(int64(binary.BigEndian.Uint64(plain[18:])))
	copy(v.digest[:], plain[26:])
	return v, ""
}

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

// refusedState returns the error for a requestState that is not accepted.
func refusedState(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: requestState is not valid here", Data: stateData{reason}}
}

type stateData struct {
	Reason string `json:"reason"`
}
