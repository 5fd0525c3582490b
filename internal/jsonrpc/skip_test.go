package jsonrpc

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// usual are objects that a skipper accepts by itself.
var usual = []string{
	`{}`, " {\r\n\t} ", `{"":0}`, `{"a":"","b":[],"c":{}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}`,
	`{ "a" : [ 1 , -0 , 0.5 , 1e9 , -1.25E-3 , 10 , true , false , null , [ [ ] ] ] , "b" : { "c" : { } } }`,
	`{"n\u0061me":"\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00","é":"ü\u2028 ` + "\u2028" + `"}`,
	`{"a":"` + strings.Repeat("x", 1000) + `","a":"` + strings.Repeat(`x\"`, 100) + `"}`,
	`{"a":` + strings.Repeat("[", skipDepth) + strings.Repeat("]", skipDepth) + `}`,
}

// unusual are texts that it leaves to jsontext.
var unusual = []string{
	``, ` `, `[]`, `1`, `{`, `{"a"`, `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{"a":1}x`, `{"a":1}}`, `{a:1}`, `{1:1}`, `{"a":[1,]}`,
	`{"a":[1`, `{"a":[1}`, `{"a":01}`, `{"a":-}`, `{"a":+1}`, `{"a":.5}`, `{"a":1.}`, `{"a":1e}`, `{"a":1e+}`, `{"a":1.e1}`, `{"a":tru}`, `{"a":nulL}`, `{"a":NaN}`,
	`{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":"\u12"}`, `{"a":"\`, `{"a":"` + "\x1f" + `"}`, `{"a":"12345678` + "\n" + `"}`, `{"a":"1234567`, "{\"a\":1\v}",
	`{"a":` + strings.Repeat("[", skipDepth+1) + strings.Repeat("]", skipDepth+1) + `}`,
}

func TestSkipper(t *testing.T) {
	for _, text := range usual {
		if !skips(t, text) {
			t.Errorf("%q was left to jsontext", text)
		}
	}
	for _, text := range unusual {
		if skips(t, text) {
			t.Errorf("%q was accepted", text)
		}
	}
	for _, text := range usual { // almost right, at each place
		for at := range text {
			skips(t, text[:at])
			skips(t, text[at:])
			skips(t, text[:at]+text[at+1:])
			for _, c := range "\x00\x1f \"\\{}[]:,01-.eEutfn\x7f\x80\xff" {
				skips(t, text[:at]+string(c)+text[at:])
			}
		}
	}
}

// A string ends at the right byte wherever that is among eight, and whatever the others are.
func TestSkipperStrings(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		text := make([]byte, rng.IntN(24))
		for i := range text {
			if text[i] = byte(rng.Uint32()); rng.IntN(4) > 0 {
				text[i] |= 0x40
			}
		}
		skips(t, `{"a":"`+string(text)+`"}`)
	}
}

// skips reports whether a skipper accepts text. What it accepts, jsontext must accept as the same.
func skips(t *testing.T, text string) bool {
	t.Helper()
	got, ok := skipper(text).object(nil)
	if want, err := tokenize([]byte(text)); ok && (err != nil || !reflect.DeepEqual(got, want)) {
		t.Errorf("%q has the members %v, %v, want %v", text, got, err, want)
	}
	return ok
}

// FuzzSkipper compares a skipper with jsontext.
func FuzzSkipper(f *testing.F) {
	for _, text := range append(usual, unusual...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { skips(t, text) })
}
