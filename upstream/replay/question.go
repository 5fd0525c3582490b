package replay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A question is what is compared of a request.
type question struct {
	era    mcp.Era
	method string
	params map[string]any // with numbers as normal writes them; nil if there are none
}

// questionOf returns what is compared of a request: everything but what differs from
// client to client and from hop to hop, and what it answers. That it does answer something
// tells its requestState.
func questionOf(m *jsonrpc.Message) question {
	q := question{era: mcp.Legacy, method: m.Method}
	if n := mcp.Read(m); n.Has(mcp.Version) || n.Method.ModernOnly() {
		q.era = mcp.Modern
	}
	params, ok := exact(m.Params).(map[string]any)
	if !ok && m.Params != nil { // an array, say
		params = map[string]any{"": exact(m.Params)}
	}
	switch m.Method {
	case mcp.MethodPing, mcp.MethodDiscover:
		params = nil
	case mcp.MethodInitialize:
		params = map[string]any{"protocolVersion": params["protocolVersion"]}
	}
	delete(params, "_meta")
	delete(params, "inputResponses")
	if len(params) > 0 { // none and {} are the same
		q.params = params
	}
	return q
}

// key returns a text that equal questions have.
func (q question) key() string { return string(q.era) + " " + q.method + " " + textOf(q.params) }

// what names a question for people: tools/call of write.
func (q question) what() string {
	switch of, _ := q.params[mcp.MethodOf(q.method).Key].(string); {
	case of == "", q.method == mcp.MethodInitialize:
		return q.method
	default:
		return q.method + " of " + shorten(of)
	}
}

// textOf returns a value as JSON, with the keys of objects in order.
func textOf(v any) string {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // what exact returns can be encoded
	return strings.TrimSuffix(text.String(), "\n")
}

// exact decodes JSON so that equal values are equal texts by textOf. Numbers are kept
// exactly, whatever their size.
func exact(text json.RawMessage) any {
	if text == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil { // deeper than that package reads: compared as it is written
		return string(text)
	}
	return normal(v)
}

// normal writes all equal numbers in v in the same way.
func normal(v any) any {
	switch v := v.(type) {
	case json.Number:
		return normalNumber(v)
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = normal(v[key])
		}
	}
	return v
}

// normalNumber writes a number as all equal ones are written: 150 and 0.5, and those of
// many digits as 15e30.
func normalNumber(n json.Number) json.Number {
	mantissa, power, _ := strings.Cut(strings.ToLower(string(n)), "e")
	exponent, err := strconv.Atoi(cmp.Or(power, "0"))
	if err != nil || exponent != int(int32(exponent)) { // nobody computes with such a number
		return n
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	digits := strings.TrimRight(all, "0")
	if digits == "" {
		return "0"
	}
	exponent += len(all) - len(digits) - len(fraction)
	if negative {
		return json.Number("-" + written(digits, exponent))
	}
	return json.Number(written(digits, exponent))
}

// written writes digits with an exponent, and without one if that is short.
func written(digits string, exponent int) string {
	switch point := len(digits) + exponent; {
	case exponent >= 0 && point <= 30:
		return digits + strings.Repeat("0", exponent)
	case exponent < 0 && point > 0:
		return digits[:point] + "." + digits[point:]
	case exponent < 0 && point > -10:
		return "0." + strings.Repeat("0", -point) + digits
	}
	return digits + "e" + strconv.Itoa(exponent)
}

// A difference is a value that is another one in a recorded question.
type difference struct {
	path        string // of keys: arguments.path
	here, there any    // missing{} for none
}

type missing struct{}

// differ adds to all where two values below a path differ. It looks into objects, not into
// arrays.
func differ(all []difference, path string, here, there any) []difference {
	a, isMap := here.(map[string]any)
	b, areMaps := there.(map[string]any)
	if !isMap || !areMaps {
		if here == (missing{}) || there == (missing{}) || textOf(here) != textOf(there) {
			all = append(all, difference{path, here, there})
		}
		return all
	}
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = differ(all, strings.TrimPrefix(path+"."+key, "."), valueOf(a, key), valueOf(b, key))
	}
	return all
}

func valueOf(m map[string]any, key string) any {
	if v, ok := m[key]; ok {
		return v
	}
	return missing{}
}

// String says what differs in few words.
func (d difference) String() string {
	return fmt.Sprintf("%s is %s there, %s here", shorten(d.path), shown(d.there), shown(d.here))
}

func shown(v any) string {
	if v == (missing{}) {
		return "missing"
	}
	return shorten(textOf(v))
}

// mostShown bounds the characters of a value in an error.
const mostShown = 80

func shorten(s string) string {
	runes := []rune(s)
	if len(runes) <= mostShown {
		return s
	}
	return string(runes[:mostShown]) + "…"
}
