package jsonrpc

import "github.com/go-json-experiment/json/jsontext"

// maxScannedID bounds the id that an idScanner keeps, in bytes.
const maxScannedID = 256

// An idScanner finds the top-level id in bytes that are too many to keep or are not valid JSON, so
// that the request that they answer need not wait for ever. It keeps at most a key or an id.
// TypeScript servers write the id last, so it looks at every byte.
type idScanner struct {
	depth    int
	inString bool
	escaped  bool

	token  []byte // the string or scalar being read at depth 1
	atKey  bool   // the next token at depth 1 is a key
	key    string // the key before the value being read
	id     ID
	reply  bool // a "result" or an "error" was seen
	called bool // a "method" was seen
}

// Write scans p; it never fails.
func (s *idScanner) Write(p []byte) (int, error) {
	for _, c := range p {
		s.scan(c)
	}
	return len(p), nil
}

func (s *idScanner) scan(c byte) {
	if s.inString {
		s.keep(c)
		switch {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = true
		case c == '"':
			s.inString = false
		}
		return
	}
	switch c {
	case '"':
		s.inString = true
		s.keep(c)
	case '{', '[':
		if s.depth++; s.depth == 1 {
			s.atKey = c == '{'
		}
	case '}', ']':
		if s.depth == 1 {
			s.endValue()
		}
		s.depth--
	case ':':
		if s.depth == 1 && s.atKey {
			s.endKey()
		}
	case ',':
		if s.depth == 1 {
			s.endValue()
			s.atKey = true
		}
	case ' ', '\t', '\r', '\n':
	default:
		s.keep(c)
	}
}

func (s *idScanner) keep(c byte) {
	if s.depth == 1 && len(s.token) <= maxScannedID {
		s.token = append(s.token, c)
	}
}

func (s *idScanner) endKey() {
	s.key, _ = Unquote(s.token)
	s.token, s.atKey = s.token[:0], false
	switch s.key {
	case "result", "error":
		s.reply = true
	case "method":
		s.called = true
	}
}

func (s *idScanner) endValue() {
	// The id may be sent back, so it must be JSON even if the rest is not.
	if s.key == "id" && len(s.token) <= maxScannedID && jsontext.Value(s.token).IsValid() {
		if id, ok := ParseID(s.token); ok {
			s.id = id
		}
	}
	s.key, s.token = "", s.token[:0]
}

// scanID returns what an idScanner finds in data: the top-level id, and whether data is a response.
func scanID(data []byte) (ID, bool) {
	var s idScanner
	s.Write(data)
	return s.found()
}

func (s *idScanner) found() (ID, bool) { return s.id, s.reply && !s.called }
