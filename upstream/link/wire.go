package link

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Hello is the first line on a stream. It names the upstream that the proxy wants.
type Hello struct {
	Upstream string
	Key      string // of the upstream session that the stream attaches to
	Era      string // of the messages on the stream

	bytes bool // the stream is of bytes, and nothing else is set
}

// version is the version of the link's own lines.
const version = "1"

// maxHello bounds the line of a hello, in bytes.
const maxHello = 4 << 10

// notePrefix begins each of the link's own lines, and no message: the encoder of
// messages writes {"jsonrpc" first.
const notePrefix = `{"mcp-proxy"`

// okLine accepts a hello, before the upstream is started.
const okLine = notePrefix + `:` + version + `,"ok":true}` + "\n"

func isNote(line []byte) bool { return bytes.HasPrefix(line, []byte(notePrefix)) }

// appendNote appends {"mcp-proxy":1,"key": to b.
func appendNote(b []byte, key string) []byte {
	return append(append(append(b, notePrefix+`:`+version+`,"`...), key...), `":`...)
}

// line returns {"mcp-proxy":1,"upstream":"…","key":"…","era":"…"}.
func (h Hello) line() ([]byte, error) {
	if h.bytes {
		return []byte(bytesLine), nil
	}
	b := append(appendNote(nil, "upstream"), jsonrpc.Quote(h.Upstream)...)
	b = append(append(b, `,"key":`...), jsonrpc.Quote(h.Key)...)
	b = append(append(b, `,"era":`...), jsonrpc.Quote(h.Era)...)
	if b = append(b, "}\n"...); len(b) > maxHello {
		return nil, errLongHello
	}
	return b, nil
}

// Refusals of a hello. The other side gets the text.
var (
	errLongHello  = errors.New("hello too long")
	errBadHello   = errors.New("bad hello")
	errBadVersion = errors.New("unknown link version")
	errHasty      = errors.New("messages before the answer to the hello")
	errLateHello  = errors.New("hello timeout")
	errUnknown    = errors.New(jsonrpc.CauseChanged.String()) // the upstream was removed after it was announced
)

// parseHello reads the line of a hello. It checks the version first, since another version
// may have other members.
func parseHello(line []byte) (Hello, error) {
	var at [4]jsonrpc.Span
	if !utf8.Valid(line) || jsonrpc.Find(line, jsonrpc.Span{}, at[:], "mcp-proxy", "upstream", "key", "era") != nil {
		return Hello{}, errBadHello
	}
	switch v := at[0].Of(line); {
	case v == nil:
		return Hello{}, errBadHello
	case string(v) != version:
		return Hello{}, errBadVersion
	}
	var texts [3]string
	for i := range texts {
		var ok bool
		if texts[i], ok = jsonrpc.Unquote(at[i+1].Of(line)); !ok {
			return Hello{}, errBadHello
		}
	}
	return Hello{Upstream: texts[0], Key: texts[1], Era: texts[2]}, nil
}

// refusalLine returns {"mcp-proxy":1,"refused":"upstream changed"}.
func refusalLine(reason string) []byte {
	return append(append(appendNote(nil, "refused"), jsonrpc.Quote(reason)...), "}\n"...)
}

// closingLine returns {"mcp-proxy":1,"closed":{"cause":"exit status 3","delivered":true,"event":"k3v9x2ma"}},
// with "says":"…" and "lasting":true if the end has them.
func closingLine(end *jsonrpc.ClosedError) []byte {
	b := append(appendNote(nil, "closed"), `{"cause":`...)
	b = append(append(b, jsonrpc.Quote(end.Cause.String())...), `,"delivered":`...)
	b = strconv.AppendBool(b, end.Delivered)
	if end.Event != "" {
		b = append(append(b, `,"event":`...), jsonrpc.Quote(end.Event)...)
	}
	if end.Says != "" {
		b = append(append(b, `,"says":`...), jsonrpc.Quote(end.Says)...)
	}
	if end.Lasting {
		b = append(b, `,"lasting":true`...)
	}
	return append(b, "}}\n"...)
}

// appendRelated appends {"mcp-proxy":1,"re":7} to b.
func appendRelated(b []byte, id jsonrpc.ID) []byte {
	return append(append(appendNote(b, "re"), id.String()...), '}')
}

// hasNote reports whether a note precedes a message.
func hasNote(m *jsonrpc.Message) bool { return !m.Related.IsZero() }

// appendMessage appends m as a line, after a note with its Related if it has one.
func appendMessage(b []byte, m *jsonrpc.Message) []byte {
	if hasNote(m) {
		b = append(appendRelated(b, m.Related), '\n')
	}
	return append(m.Append(b), '\n')
}

// A note is one of the link's own lines other than a hello. Members that a later version
// adds are ignored.
type note struct {
	ok      bool
	refused string               // why the hello was refused
	related jsonrpc.ID           // of the next message
	closed  *jsonrpc.ClosedError // the end

	// On a control stream.
	version   int             // of the link, with ok; zero if there is none
	beat      bool            // asks for an answer
	upstreams json.RawMessage // an announcement
	rejected  json.RawMessage // the announced upstreams that the proxy does not offer
}

// parseNote reads a note. The error is an [*jsonrpc.InvalidError].
func parseNote(line []byte) (n note, err error) {
	var at [8]jsonrpc.Span
	if !utf8.Valid(line) || jsonrpc.Find(line, jsonrpc.Span{}, at[:],
		"ok", "refused", "re", "closed", "version", "beat", "upstreams", "rejected") != nil {
		return note{}, errBadNote
	}
	n.ok = string(at[0].Of(line)) == "true"
	n.refused, _ = jsonrpc.Unquote(at[1].Of(line))
	n.refused = shorten(n.refused)
	n.related, _ = jsonrpc.ParseID(at[2].Of(line))
	n.version, _ = strconv.Atoi(string(at[4].Of(line)))
	n.beat = string(at[5].Of(line)) == "true"
	n.upstreams, n.rejected = at[6].Of(line), at[7].Of(line)
	if closed := at[3].Of(line); closed != nil {
		n.closed, err = parseClosed(closed)
	}
	return n, err
}

// parseClosed reads an end. Older versions omit some members.
func parseClosed(doc json.RawMessage) (*jsonrpc.ClosedError, error) {
	var at [5]jsonrpc.Span
	if jsonrpc.Find(doc, jsonrpc.Span{}, at[:], "cause", "delivered", "event", "says", "lasting") != nil {
		return nil, errBadNote
	}
	cause, ok := jsonrpc.Unquote(at[0].Of(doc))
	if !ok {
		return nil, errBadNote
	}
	end := &jsonrpc.ClosedError{
		Cause:     cmp.Or(jsonrpc.ParseCause(shorten(cause)), errClosed.Cause),
		Delivered: string(at[1].Of(doc)) != "false", // only a "false" makes it safe to send requests again
		Lasting:   string(at[4].Of(doc)) == "true",
	}
	if cause == otherEra {
		end.Cause = jsonrpc.CauseStartFailed
	}
	if event, _ := jsonrpc.Unquote(at[2].Of(doc)); jsonrpc.IsEvent(event) {
		end.Event = event
	}
	says, _ := jsonrpc.Unquote(at[3].Of(doc))
	end.Says = shorten(says)
	return end, nil
}

// otherEra is the cause of hosts before v1.1 for a stream whose upstream turned out to speak
// the other era: the next stream works. v1.2 may drop it.
const otherEra = "speaks another era"

// plain drops the text of an end that came over a socket if it could have a path, a URL or
// something else that clients must not see.
func plain(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(" ():,-", r)
	}
	if strings.ContainsFunc(end.Says, odd) {
		end.Says = ""
	}
	return end
}

var errBadNote = &jsonrpc.InvalidError{Code: jsonrpc.CodeParseError, Reason: "bad line of the link"}

// A fault is a reason to refuse or end a link, which is also sent to the other side.
type fault string

func (f fault) Error() string { return string(f) }

func faultf(format string, args ...any) error { return fault(fmt.Sprintf(format, args...)) }

// maxCause bounds the texts about an end from the other side, in bytes: they reach logs and
// clients.
const maxCause = 200

// shorten returns the beginning of text, without unprintable characters.
func shorten(text string) string {
	n := min(len(text), maxCause)
	for n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text[:n])
}
