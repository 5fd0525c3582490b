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

// A question is the part of a request that is compared.
type question struct {
	era    mcp.Era
	method string
	params map[string]any // with numbers in the form of normal; nil for none
}

// questionOf returns the question of a request: everything except members that differ from
// client to client and from hop to hop, and inputResponses, which requestState stands for.
func questionOf(m *jsonrpc.Message) question {
	q := question{era: mcp.Legacy, method: m.Method}
	if n := mcp.Read(m); n.Has(mcp.Version) || n.Method.ModernOnly() {
		q.era = mcp.Modern
	}
	params, ok := exact(m.Params).(map[string]any)
	if !ok && m.Params != nil { // for example an array
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
	if len(params) > 0 { // no params and {} are equal
		q.params = params
	}
	return q
}

// key returns a text that is the same for equal questions.
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

// textOf returns a value as JSON, with sorted keys.
func textOf(v any) string {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // values of exact can be encoded
	return strings.TrimSuffix(text.String(), "\n")
}

// exact decodes JSON so that equal values have equal texts by textOf. It keeps numbers of
// any size exactly.
func exact(text json.RawMessage) any {
	if text == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil { // too deep for the decoder: compare the text
		return string(text)
	}
	return normal(v)
}

// normal gives equal numbers in v the same form.
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

// normalNumber returns the form of all equal numbers: 150, 0.5 or, with many digits, 15e30.
func normalNumber(n json.Number) json.Number {
	mantissa, power, _ := strings.Cut(strings.ToLower(string(n)), "e")
	exponent, err := strconv.Atoi(cmp.Or(power, "0"))
	if err != nil || exponent != int(int32(exponent)) { // too large for any program
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

// written returns digits with an exponent, or without it if that is short.
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

// A difference is a value that differs from the one in a recorded question.
type difference struct {
	path        string // of keys: arguments.path
	here, there any    // missing for none
}

// missing stands for a missing member.
var missing any = new(int)

// differ appends the differences of two values at a path to all. It compares objects by
// member, and arrays as a whole.
func differ(all []difference, path string, here, there any) []difference {
	a, isMap := here.(map[string]any)
	b, areMaps := there.(map[string]any)
	if !isMap || !areMaps {
		if here == missing || there == missing || textOf(here) != textOf(there) {
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
	return missing
}

// String describes the difference in a few words.
func (d difference) String() string {
	return fmt.Sprintf("%s is %s there, %s here", shorten(d.path), shown(d.there), shown(d.here))
}

func shown(v any) string {
	if v == missing {
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
