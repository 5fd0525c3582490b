package bridge

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestSealTellsWhatItWasGiven(t *testing.T) {
	s, bound := newSealer(), boundTo(tenantID{"up", "key"})
	for _, v := range []sealed{
		{},
		{restart: true, park: parkID{1, 2, 15: 3}, round: 8, expiry: time.UnixMilli(1_800_000_000_123), digest: [32]byte{0: 9, 31: 7}},
	} {
		if v.expiry.IsZero() {
			v.expiry = time.UnixMilli(0)
		}
		state := s.seal(v, bound)
		if got, refused := s.open(state, bound); refused != "" || got != v {
			t.Errorf("got %+v, %q; want %+v", got, refused, v)
		}
		if state == s.seal(v, bound) {
			t.Error("two states are the same text")
		}
	}
}

func TestSealRefuses(t *testing.T) {
	s, bound := newSealer(), boundTo(tenantID{"up", "key"})
	state := s.seal(sealed{}, bound)
	refused := func(what, state string, bound [32]byte, want string) {
		t.Helper()
		if v, got := s.open(state, bound); got != want || v != (sealed{}) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	refused("another principal", state, boundTo(tenantID{"up", "other"}), stateInvalid)
	refused("another upstream", state, boundTo(tenantID{"u", "pkey"}), stateInvalid)
	refused("another instance", newSealer().seal(sealed{}, bound), bound, stateExpired)
	refused("nothing", "", bound, stateInvalid)
	refused("less", state[1:], bound, stateInvalid)
	refused("more", state+"A", bound, stateInvalid)
	refused("a line break", state[:20]+"\n"+state[20:], bound, stateInvalid)
	refused("a line break instead", state[:20]+"\n"+state[21:], bound, stateInvalid)
	refused("padding", state[:len(state)-1]+"=", bound, stateInvalid)
	refused("not base64url", strings.Repeat("+", len(state)), bound, stateInvalid)
}

// Each bit counts, those that base64 leaves over, too.
func TestSealRefusesEachChange(t *testing.T) {
	s, bound := newSealer(), boundTo(tenantID{"up", "key"})
	state := s.seal(sealed{round: 1, expiry: time.Now()}, bound)
	for i := range state {
		for c := range 256 {
			if changed := state[:i] + string([]byte{byte(c)}) + state[i+1:]; changed != state {
				if _, refused := s.open(changed, bound); refused == "" {
					t.Fatalf("accepted with %q at %d", byte(c), i)
				}
			}
		}
	}
}

func FuzzSeal(f *testing.F) {
	s, bound := newSealer(), boundTo(tenantID{"up", "key"})
	state := s.seal(sealed{round: 1, expiry: time.Now()}, bound)
	f.Add(0, "", state)
	f.Add(20, "x", state)
	f.Add(3, "\n", state[:50])
	f.Fuzz(func(t *testing.T, at int, with, text string) {
		made := text
		if at >= 0 && at < len(state) { // one that is almost right
			made = state[:at] + with + state[min(len(state), at+len(with)):]
		}
		for _, made := range []string{made, text} {
			if v, refused := s.open(made, bound); (refused == "") != (made == state) || refused != "" && v != (sealed{}) {
				t.Errorf("%q: refused %q", made, refused)
			}
		}
	})
}

func TestDigestIsOfWhatIsAsked(t *testing.T) {
	digest := func(method, params string) [32]byte { return digestOf(method, json.RawMessage(params)) }
	of := digest("tools/call", `{"name":"a","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740993}}`)
	same := digest("tools/call", ` { "arguments" : {"y":9007199254740993, "x":[1,{"a":"\u00e9","b":1}]},"_meta":{"v":1},"name":"\u0061","requestState":"s","inputResponses":{}}`)
	if same != of {
		t.Error("written anew it is another")
	}
	for _, other := range []string{
		`{"name":"b","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740993}}`,
		`{"name":"a","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740992}}`,
		`{"name":"a","arguments":{"x":[{"b":1,"a":"é"},1],"y":9007199254740993}}`,
		`{"uri":"a","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740993}}`,
		`{"name":"a"}`, `{"name":"a","arguments":{}}`, ``,
	} {
		if digest("tools/call", other) == of {
			t.Errorf("the same as %s", other)
		}
	}
	if digest("prompts/get", `{"name":"a"}`) == digest("tools/call", `{"name":"a"}`) {
		t.Error("the method does not count")
	}
}
