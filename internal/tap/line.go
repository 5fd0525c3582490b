package tap

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// maxName bounds what a line tells of an id, a method, a tool and such, in bytes. The message
// itself has all of it.
const maxName = 128

// A line is a message that has passed, on its way to a Tap. Its JSON is that of an
// [observe.Passed].
type line struct {
	time time.Time
	at   *Point
	way  observe.Way

	client, principal string
	upstream          string // that an error is about, where the Point has none

	kind   observe.Kind
	id     jsonrpc.ID
	method string
	tool   string
	bytes  int
	took   time.Duration
	err    *observe.PassedError

	message *jsonrpc.Message // for who wants it
}

// errorOf returns what is wrong with a response to a method, nil for nothing.
func errorOf(m *jsonrpc.Message, method string) *observe.PassedError {
	if m.Error == nil {
		if method != mcp.MethodToolsCall || !bytes.Contains(m.Result, []byte(`"isError"`)) {
			return nil
		}
		if is, _ := jsonrpc.Member(m.Result, "isError"); string(is) == "true" {
			return &observe.PassedError{Reason: "tool_error"}
		}
		return nil
	}
	e := &observe.PassedError{}
	if code, _ := jsonrpc.Member(m.Error, "code"); len(code) < 20 {
		e.Code, _ = strconv.Atoi(string(code))
	}
	if data := jsonrpc.ReadErrorData(m.Error); ours(data.Reason) {
		e.Reason = data.Reason
		if jsonrpc.IsEvent(data.Event) {
			e.Event = data.Event
		}
	}
	return e
}

// ours reports whether a reason is one of those that a proxy gives. The data of another error
// is a server's own, and may say anything.
func ours(reason string) bool {
	switch reason {
	case jsonrpc.ReasonClosed, jsonrpc.ReasonTimeout, jsonrpc.ReasonOverloaded, jsonrpc.ReasonInvalidResponse, jsonrpc.ReasonScope:
		return true
	}
	return false
}

// upstreamOf returns the upstream that an error of ours is about, "" for none.
func upstreamOf(m *jsonrpc.Message) string {
	data := jsonrpc.ReadErrorData(m.Error)
	if !ours(data.Reason) || len(data.Upstream) > 32 || strings.Trim(data.Upstream, nameLetters) != "" {
		return ""
	}
	return data.Upstream
}

// nameLetters are those of which names of upstreams are made.
const nameLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

// append appends the line and its end to b.
func (l *line) append(b []byte, redacted bool) []byte {
	b = append(b, `{"time":"`...)
	b = l.time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","side":"`...)
	b = append(b, l.at.Side...)
	b = append(b, `","way":"`...)
	b = append(b, l.way...)
	b = append(b, `","session":`...)
	b = appendText(b, l.at.Session)
	b = appendMember(b, `,"client":`, l.client)
	b = appendMember(b, `,"principal":`, l.principal)
	b = appendMember(b, `,"upstream":`, l.about())
	b = append(b, `,"kind":"`...)
	b = append(append(b, l.kind...), '"')
	b = appendMember(b, `,"method":`, l.method)
	if id := l.id.String(); id != "" && len(id) <= maxName {
		b = append(append(b, `,"id":`...), id...)
	}
	b = appendMember(b, `,"tool":`, l.tool)
	b = strconv.AppendInt(append(b, `,"bytes":`...), int64(l.bytes), 10)
	if ms := float64(l.took.Microseconds()) / 1000; ms > 0 {
		b = strconv.AppendFloat(append(b, `,"tookMs":`...), ms, 'f', -1, 64)
	}
	b = l.appendError(b)
	if l.message != nil {
		b = append(b, `,"message":`...)
		if redacted {
			b = appendRedacted(b, l.message.Append(nil), deepest)
		} else {
			b = l.message.Append(b)
		}
	}
	return append(b, "}\n"...)
}

// about returns the upstream of a line.
func (l *line) about() string {
	if l.at.Upstream != "" {
		return l.at.Upstream
	}
	return l.upstream
}

func (l *line) appendError(b []byte) []byte {
	if l.err == nil {
		return b
	}
	b = append(b, `,"error":{`...)
	before := len(b)
	if l.err.Code != 0 {
		b = strconv.AppendInt(append(b, `,"code":`...), int64(l.err.Code), 10)
	}
	b = appendMember(b, `,"reason":`, l.err.Reason)
	b = appendMember(b, `,"event":`, l.err.Event)
	if len(b) > before { // without the first comma
		b = append(b[:before], b[before+1:]...)
	}
	return append(b, '}')
}

// appendMember appends a member if it is not "".
func appendMember(b []byte, key, text string) []byte {
	if text == "" {
		return b
	}
	return appendText(append(b, key...), text)
}

// appendText appends a JSON string, which is cut where it is too long.
func appendText(b []byte, s string) []byte {
	if len(s) > maxName {
		s = s[:maxName]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		s = strings.ToValidUTF8(s, "")
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return append(b, jsonrpc.Quote(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// size is about how many bytes a line takes until it is read.
func (l *line) size() int {
	if l.message == nil {
		return 0
	}
	return l.message.Size()
}
