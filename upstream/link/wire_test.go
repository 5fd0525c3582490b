package link

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestLines pins the bytes on the wire: the other end may be another version.
func TestLines(t *testing.T) {
	greeting, err := Hello{Upstream: "files", Key: "k\"1", Era: "legacy"}.line()
	if err != nil {
		t.Fatal(err)
	}
	end := &jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true}
	related := jsonrpc.NewNotification("n", nil)
	related.Related = jsonrpc.IntID(7)
	related.Forwarded = &jsonrpc.Forwarded{To: map[string][]string{"Authorization": {"secret"}}} // stays in this process
	for _, tt := range []struct{ got, want string }{
		{string(greeting), `{"mcp-proxy":1,"upstream":"files","key":"k\"1","era":"legacy"}` + "\n"},
		{okLine, `{"mcp-proxy":1,"ok":true}` + "\n"},
		{string(refusalLine("upstream changed")), `{"mcp-proxy":1,"refused":"upstream changed"}` + "\n"},
		{string(closingLine(end)), `{"mcp-proxy":1,"closed":{"cause":"signal: killed","delivered":true}}` + "\n"},
		{string(closingLine(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Event: "k3v9x2ma", Says: "did not start: x", Lasting: true})),
			`{"mcp-proxy":1,"closed":{"cause":"start failed","delivered":false,"event":"k3v9x2ma","says":"did not start: x","lasting":true}}` + "\n"},
		{string(appendMessage(nil, related)), `{"mcp-proxy":1,"re":7}` + "\n" + `{"jsonrpc":"2.0","method":"n"}` + "\n"},
	} {
		if tt.got != tt.want {
			t.Errorf("line %q\nwant %q", tt.got, tt.want)
		}
	}
}

func TestParseHello(t *testing.T) {
	for line, want := range map[string]error{
		`{"mcp-proxy":1,"upstream":"files","key":"k","era":"legacy"}`:              nil,
		`{ "era":"legacy", "key":"k","x":[1],"upstream":"files", "mcp-proxy": 1 }`: nil,
		`{"mcp-proxy":2}`: errBadVersion,
		`{"mcp-proxy":"1","upstream":"files","key":"k","era":"legacy"}`:          errBadVersion,
		`{"mcp-proxy":1,"upstream":"files","key":"k"}`:                           errBadHello,
		`{"mcp-proxy":1,"upstream":7,"key":"k","era":"legacy"}`:                  errBadHello,
		`{"mcp-proxy":1,"upstream":"a","upstream":"b","key":"k","era":"legacy"}`: errBadHello,
		`{"mcp-proxy":1,"upstream":"a","Upstream":"b","key":"k","era":"legacy"}`: errBadHello,
		`{"mcp-proxy":1,"upstream":"a` + "\xff" + `","key":"k","era":"legacy"}`:  errBadHello,
		`{"jsonrpc":"2.0","method":"initialize","id":1}`:                         errBadHello,
		`{"mcp-proxy":1`: errBadHello,
		`GET / HTTP/1.1`: errBadHello,
		``:               errBadHello,
	} {
		if _, err := parseHello([]byte(line)); err != want {
			t.Errorf("%s\n%v, want %v", line, err, want)
		}
	}
}

func TestParseNote(t *testing.T) {
	killed := note{closed: &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("killed"), Delivered: true}}
	unsent := note{closed: &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}}
	for _, tt := range []struct {
		line string
		want note
	}{
		{`{"mcp-proxy":1,"ok":true}`, note{ok: true}},
		{`{"mcp-proxy":1,"refused":"no"}`, note{refused: "no"}},
		{`{"mcp-proxy":1,"re":"a"}`, note{related: jsonrpcID(`"a"`)}},
		{`{"mcp-proxy":1,"closed":{"cause":"killed","delivered":true}}`, killed},
		{`{"mcp-proxy":1,"closed":{"cause":"killed"}}`, killed},
		{`{"mcp-proxy":1,"closed":{"cause":"start failed","delivered":false}}`, unsent},
		{`{"mcp-proxy":1,"closed":{"cause":"killed","event":"k3v9x2ma","says":"was killed","lasting":true,"later":[]}}`,
			note{closed: &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("killed"), Delivered: true, Event: "k3v9x2ma", Says: "was killed", Lasting: true}}},
		{`{"mcp-proxy":1,"closed":{"cause":"killed","event":"k3v9x2m/","says":7,"lasting":"true"}}`, killed},
		{`{"mcp-proxy":1,"closed":{"cause":"killed","event":"k3v9x2maa","says":"\u0007","lasting":1}}`, killed},
		{`{"mcp-proxy":1,"closed":{"cause":"killed","event":7,"says":"` + strings.Repeat("x", 300) + `"}}`,
			note{closed: &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("killed"), Delivered: true, Says: strings.Repeat("x", maxCause)}}},
		{`{"mcp-proxy":1,"later":{}}`, note{}},
		{`{"mcp-proxy":1,"refused":"\u001b[1mno\u0000\n\u200b"}`, note{refused: "[1mno"}},
		{`{"mcp-proxy":1,"closed":{"cause":"\u0007"}}`, note{closed: &jsonrpc.ClosedError{Cause: jsonrpc.CauseClosed, Delivered: true}}},
	} {
		got, err := parseNote([]byte(tt.line))
		if err != nil || !sameNote(got, tt.want) {
			t.Errorf("%s: %+v, %v; want %+v", tt.line, got, err, tt.want)
		}
	}
	for _, line := range []string{`{"mcp-proxy"`, `{"mcp-proxy":1,"closed":{}}`, `{"mcp-proxy":1,"closed":7}`,
		`{"mcp-proxy":1,"ok":true,"ok":false}`, `{"mcp-proxy":1,"closed":{"cause":"a","cause":"b"}}`, "{\"mcp-proxy\":\"\xff\"}"} {
		var bad *jsonrpc.InvalidError
		if n, err := parseNote([]byte(line)); !errors.As(err, &bad) {
			t.Errorf("%q: %+v, %v; want an InvalidError", line, n, err)
		}
	}
}

// What another process says is not repeated to clients if it could be more than words.
func TestPlainEnds(t *testing.T) {
	for says, want := range map[string]bool{
		"did not start: exit status 3":          true,
		"needs OAuth (HTTP 401)":                true,
		"did not start: x: too many open files": true,
		"did not start: see /var/log/x":         false,
		"is at https://example.com":             false,
		`did not start: C:\secret`:              false,
		"did not start: password=x":             false,
		"did not start: \u00e9":                 false,
	} {
		if got := plain(&jsonrpc.ClosedError{Says: says}).Says; (got == says) != want || !want && got != "" {
			t.Errorf("%q became %q", says, got)
		}
	}
}

func jsonrpcID(text string) jsonrpc.ID {
	id, _ := jsonrpc.ParseID([]byte(text))
	return id
}

func sameNote(a, b note) bool {
	if a.closed != nil && b.closed != nil && *a.closed == *b.closed {
		a.closed, b.closed = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

func TestLongHello(t *testing.T) {
	if _, err := (Hello{Upstream: "files", Key: strings.Repeat("k", maxHello)}).line(); err != errLongHello {
		t.Errorf("line: %v, want %v", err, errLongHello)
	}
}

// FuzzHello checks that no hello breaks the host, and that one which is
// accepted means the same when it is written anew.
func FuzzHello(f *testing.F) {
	for _, line := range []string{`{"mcp-proxy":1,"upstream":"files","key":"k","era":"legacy"}`, `{"mcp-proxy":2}`,
		`{"mcp-proxy":1,"upstream":"\ud800","key":"\u0000","era":""}`, `{"mcp-proxy":1,"upstream":"a","Upstream":"b"}`, ``, `{`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		h, err := parseHello(line)
		if err != nil {
			if err != errBadHello && err != errBadVersion {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		text, err := h.line()
		if err == errLongHello {
			return
		}
		again, err := parseHello(bytes.TrimSuffix(text, []byte("\n")))
		if err != nil || again != h || bytes.Count(text, []byte("\n")) != 1 {
			t.Fatalf("%+v became %q: %+v, %v", h, text, again, err)
		}
	})
}

// FuzzNote checks that no line of a host breaks the proxy, and that what it
// says of an end means the same when it is written anew.
func FuzzNote(f *testing.F) {
	for _, line := range []string{okLine, string(refusalLine("no")), string(closingLine(errClosed)),
		`{"mcp-proxy":1,"re":7}`, `{"mcp-proxy":1,"re":"\n"}`, `{"mcp-proxy":1,"closed":{"cause":"\ud800"}}`} {
		f.Add([]byte(strings.TrimSpace(line)))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		n, err := parseNote(line)
		if err != nil {
			if !errors.As(err, new(*jsonrpc.InvalidError)) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !n.related.IsZero() {
			again, err := parseNote(appendRelated(nil, n.related))
			if err != nil || again.related != n.related {
				t.Fatalf("related %s became %+v, %v", n.related, again, err)
			}
		}
		if n.closed != nil {
			again, err := parseNote(closingLine(n.closed))
			if err != nil || !sameNote(again, note{closed: n.closed}) {
				t.Fatalf("%+v became %+v, %v", n.closed, again, err)
			}
		}
	})
}

// FuzzAnnouncement checks that what is accepted means the same when it is
// written anew, and that every refusal says why.
func FuzzAnnouncement(f *testing.F) {
	for _, line := range []string{`[{"name":"files","settings":{"a":[1]}},{"name":"git"}]`, `[]`, `[{"name":"a"},{"name":"a"}]`,
		`[{"name":"a__b"}]`, `[{"name":"\u0061","settings":"\ud800"}]`, `[{}]`, `{}`, `[{"name":"a","Name":"b"}]`, `7`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		n, err := parseNote(append(append([]byte(`{"mcp-proxy":1,"upstreams":`), list...), '}'))
		if err != nil || n.upstreams == nil {
			return
		}
		upstreams, err := parseAnnouncement(n.upstreams)
		if err != nil {
			if _, ok := errors.AsType[fault](err); !ok || err.Error() == "" {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		line, err := announcementLine(upstreams)
		if err != nil {
			t.Fatalf("%q became %v", list, err)
		}
		if n, err = parseNote(line); err != nil || bytes.Count(line, []byte("\n")) != 1 {
			t.Fatalf("%q became %q: %v", list, line, err)
		}
		again, err := parseAnnouncement(n.upstreams)
		if err != nil || len(again) != len(upstreams) {
			t.Fatalf("%q became %q: %v", list, line, err)
		}
		for i := range again {
			if again[i].Name != upstreams[i].Name {
				t.Fatalf("%q became %q", upstreams[i].Name, again[i].Name)
			}
		}
	})
}

// FuzzControlHello checks that no hello breaks the host, and that it picks no
// version that was not offered.
func FuzzControlHello(f *testing.F) {
	for _, line := range []string{string(controlHello("")), string(controlHello("id")), `{"mcp-proxy":1,"control":true,"versions":[2,1]}`,
		`{"mcp-proxy":2,"control":true}`, `{"control":true,"versions":{}}`, `{"control":true`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		isControl(line)
		v, err := pickVersion(line)
		if _, ok := errors.AsType[fault](err); err != nil && !ok {
			t.Fatalf("refused with %v", err)
		}
		if err == nil && (v != 1 || !bytes.Contains(line, []byte("1"))) {
			t.Fatalf("picked %d of %q", v, line)
		}
	})
}

// An older host ends the first stream to an upstream that speaks the other era alone: the next
// one works, and nothing ran.
func TestEndOfAnOlderHost(t *testing.T) {
	n, err := parseNote([]byte(`{"mcp-proxy":1,"closed":{"cause":"speaks another era","delivered":false,"event":"k3v9x2ma"}}`))
	if err != nil || n.closed.Cause != jsonrpc.CauseStartFailed || n.closed.Delivered || n.closed.Lasting {
		t.Errorf("got %+v, %v", n.closed, err)
	}
}
