package tap

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// maxName bounds ids, names of methods and tools and the like in a line, in bytes. The message itself has all of it.
const maxName = 128

// A line is a passed message on its way to a Tap. Its JSON is that of an [observe.Passed].
type line struct {
	time time.Time
	from *sender
	in   bool

	kind     string
	method   string
	id       jsonrpc.ID // zero if it is too long
	tool     string
	upstream string // that an error is about
	bytes    int
	took     time.Duration
	err      *observe.PassedError

	message *jsonrpc.Message // nil unless the Tap shows it
}

// A sender sends messages at a Point. It keeps the part of the JSON that all its lines share.
type sender struct {
	at                *observe.Point
	client, principal string
	in, out           []byte // JSON from behind the time up to the upstream, by direction
}

func newSender(at *observe.Point, client, principal string) *sender {
	s := &sender{at: at, client: client, principal: principal}
	head := func(way string) []byte {
		b := append([]byte(`,"side":"`), at.Side...)
		b = append(b, `","way":"`...)
		b = append(b, way...)
		b = appendText(append(b, `","session":`...), at.Session)
		b = appendMember(b, `,"client":`, client)
		return appendMember(b, `,"principal":`, principal)
	}
	s.in, s.out = head(observe.In), head(observe.Out)
	return s
}

// errorOf returns the failure that a response to a method reports, nil for none.
func errorOf(m *jsonrpc.Message, method string) *observe.PassedError {
	switch {
	case m.Error != nil:
	case method == mcp.MethodToolsCall && observe.SaysFailed(m.Result):
		return &observe.PassedError{Reason: string(observe.ToolFailed)}
	default:
		return nil
	}
	e := &observe.PassedError{}
	if code, _ := jsonrpc.Member(m.Error, "code"); len(code) < 20 {
		e.Code, _ = strconv.Atoi(string(code))
	}
	if data := jsonrpc.ReadErrorData(m.Error); observe.IsOurs(data.Reason) {
		e.Reason = data.Reason
		if jsonrpc.IsEvent(data.Event) {
			e.Event = data.Event
		}
	}
	return e
}

// upstreamOf returns the upstream that an error of the proxy is about, "" for none.
func upstreamOf(m *jsonrpc.Message) string {
	data := jsonrpc.ReadErrorData(m.Error)
	if !observe.IsOurs(data.Reason) || len(data.Upstream) > 32 || strings.Trim(data.Upstream, nameLetters) != "" {
		return ""
	}
	return data.Upstream
}

// nameLetters are the letters of names of upstreams.
const nameLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

// append appends the line to b.
func (l *line) append(b []byte, redacted bool, clock *clock) []byte {
	b = clock.append(append(b, `{"time":`...), l.time)
	if l.in {
		b = append(b, l.from.in...)
	} else {
		b = append(b, l.from.out...)
	}
	b = appendMember(b, `,"upstream":`, l.about())
	b = append(b, `,"kind":"`...)
	b = append(append(b, l.kind...), '"')
	b = appendMember(b, `,"method":`, l.method)
	if id := l.id.String(); id != "" {
		b = append(append(b, `,"id":`...), id...)
	}
	b = appendMember(b, `,"tool":`, l.tool)
	b = strconv.AppendInt(append(b, `,"bytes":`...), int64(l.bytes), 10)
	if µs := l.took.Microseconds(); µs > 0 {
		b = strconv.AppendInt(append(b, `,"tookMs":`...), µs/1000, 10)
		b = appendDigits(append(b, '.'), int(µs%1000), 100)
	}
	b = l.appendError(b)
	if l.message != nil {
		if of := l.message.Related.String(); of != "" && len(of) <= maxName {
			b = append(append(b, `,"of":`...), of...)
		}
		b = append(b, `,"message":`...)
		if redacted {
			b = appendRedacted(b, l.message.Text(), deepest)
		} else {
			b = l.message.Append(b)
		}
	}
	return append(b, "}\n"...)
}

// about returns the upstream of a line.
func (l *line) about() string { return cmp.Or(l.from.at.Upstream, l.upstream) }

// A clock writes times. It keeps the text of the last second, because most times are in the same one.
type clock struct {
	second int64
	text   []byte
}

// append appends a time as JSON, in UTC and microseconds.
func (c *clock) append(b []byte, t time.Time) []byte {
	if s := t.Unix(); s != c.second || c.text == nil {
		c.second, c.text = s, t.UTC().AppendFormat(c.text[:0], `"2006-01-02T15:04:05.`)
	}
	return append(appendDigits(append(b, c.text...), t.Nanosecond()/1000, 100_000), `Z"`...)
}

// appendDigits appends the digits of n, the first of which has the given place value.
func appendDigits(b []byte, n, first int) []byte {
	for ; first > 0; first /= 10 {
		b = append(b, '0'+byte(n/first%10))
	}
	return b
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
	if len(b) > before { // drop the first comma
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

// appendText appends a JSON string, cut if it is too long.
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
