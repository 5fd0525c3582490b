package link

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Bounds of an announcement. A proxy refuses a larger one.
const (
	maxAnnouncement = 1 << 20  // bytes of its line
	maxUpstreams    = 1000     // in one
	maxSettings     = 16 << 10 // bytes of one upstream's
)

// An Upstream is what a host announces to its proxies.
type Upstream struct {
	Name     string          // [A-Za-z0-9_-]{1,32} without "__"
	Settings json.RawMessage // JSON for the proxy, which the link does not read; may be nil
}

// announcementLine returns
//
//	{"mcp-proxy":1,"upstreams":[{"name":"files","settings":{…}},{"name":"git"}]}
//
// or an error if no proxy would accept it.
func announcementLine(upstreams []Upstream) ([]byte, error) {
	if err := checkUpstreams(upstreams); err != nil {
		return nil, err
	}
	var all [][]byte
	for _, u := range upstreams {
		var settings bytes.Buffer
		if u.Settings != nil && json.Compact(&settings, u.Settings) != nil {
			return nil, faultf("upstream %q: settings are not JSON", u.Name)
		}
		all = append(all, jsonrpc.Set(nil,
			jsonrpc.Value{Key: "name", Text: jsonrpc.Quote(u.Name)}, jsonrpc.Value{Key: "settings", Text: settings.Bytes()}))
	}
	line := listLine("upstreams", all)
	if len(line) > maxAnnouncement {
		return nil, errLongAnnouncement
	}
	return line, nil
}

// listLine returns {"mcp-proxy":1,"key":[…]}.
func listLine(key string, objects [][]byte) []byte {
	b := append(appendNote(nil, key), '[')
	return append(append(b, bytes.Join(objects, []byte{','})...), "]}\n"...)
}

const errLongAnnouncement = fault("announcement too long")

// parseAnnouncement reads the upstreams of a line. The error is a fault.
func parseAnnouncement(list json.RawMessage) ([]Upstream, error) {
	elements, err := jsonrpc.Elements(list)
	if err != nil {
		return nil, fault("bad announcement")
	}
	if len(elements) > maxUpstreams {
		return nil, errManyUpstreams(len(elements))
	}
	upstreams := make([]Upstream, len(elements))
	for i, element := range elements {
		var at [2]jsonrpc.Span
		if jsonrpc.Find(element, jsonrpc.Span{}, at[:], "name", "settings") != nil {
			return nil, fault("bad announcement")
		}
		name, ok := jsonrpc.Unquote(at[0].Of(element))
		if !ok {
			return nil, fault("an upstream without a name")
		}
		upstreams[i] = Upstream{Name: name, Settings: at[1].Of(element)}
	}
	return upstreams, checkUpstreams(upstreams)
}

// checkUpstreams returns a fault if an announcement is invalid.
func checkUpstreams(upstreams []Upstream) error {
	if len(upstreams) > maxUpstreams {
		return errManyUpstreams(len(upstreams))
	}
	seen := make(map[string]bool, len(upstreams))
	for _, u := range upstreams {
		switch {
		case !isName(u.Name):
			return faultf("bad upstream name %q", shorten(u.Name))
		case seen[u.Name]:
			return faultf("upstream %q is announced twice", u.Name)
		case len(u.Settings) > maxSettings:
			return faultf("upstream %q: settings of more than %d bytes", u.Name, maxSettings)
		}
		seen[u.Name] = true
	}
	return nil
}

func errManyUpstreams(n int) error {
	return faultf("%d upstreams announced, at most %d are allowed", n, maxUpstreams)
}

// A Rejection tells a host why the proxy does not offer an announced upstream.
type Rejection struct {
	Upstream string
	Why      string // one sentence, without details of other hosts
	Event    string // as in the proxy's log
}

// rejectionsLine returns
//
//	{"mcp-proxy":1,"rejected":[{"name":"files","why":"…","event":"k3v9x2ma"}]}
func rejectionsLine(all []Rejection) []byte {
	var objects [][]byte
	for _, r := range all {
		objects = append(objects, jsonrpc.Set(nil, jsonrpc.Value{Key: "name", Text: jsonrpc.Quote(r.Upstream)},
			jsonrpc.Value{Key: "why", Text: jsonrpc.Quote(r.Why)}, jsonrpc.Value{Key: "event", Text: jsonrpc.Quote(r.Event)}))
	}
	return listLine("rejected", objects)
}

// parseRejections reads the list of a rejectionsLine. The error is a fault.
func parseRejections(list json.RawMessage) ([]Rejection, error) {
	elements, err := jsonrpc.Elements(list)
	if err != nil || len(elements) > maxUpstreams {
		return nil, errRejections
	}
	var all []Rejection
	for _, element := range elements {
		var at [3]jsonrpc.Span
		if jsonrpc.Find(element, jsonrpc.Span{}, at[:], "name", "why", "event") != nil {
			return nil, errRejections
		}
		name, _ := jsonrpc.Unquote(at[0].Of(element))
		why, _ := jsonrpc.Unquote(at[1].Of(element))
		event, _ := jsonrpc.Unquote(at[2].Of(element))
		if !isName(name) || !jsonrpc.IsEvent(event) {
			return nil, errRejections
		}
		all = append(all, Rejection{name, shorten(why), event})
	}
	return all, nil
}

const errRejections = fault("bad list of rejections")

// An announcer has the newest line that all control streams of one end must send.
type announcer struct {
	mu      sync.Mutex    // guards the fields below
	line    []byte        // nil: nothing yet
	changed chan struct{} // closed when line changes; made by next
}

// begin puts the first line, unless there is a line.
func (b *announcer) begin(first func() ([]byte, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line != nil {
		return nil
	}
	line, err := first()
	if err == nil {
		b.putLocked(line)
	}
	return err
}

func (b *announcer) put(line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.putLocked(line)
}

func (b *announcer) putLocked(line []byte) {
	b.line = line
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// next returns the line that a control stream must send, nil if it has sent it, and a
// channel that is closed when there is another. sent is the last line that it has sent.
func (b *announcer) next(sent []byte) (line []byte, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	if bytes.Equal(sent, b.line) {
		return nil, b.changed
	}
	return b.line, b.changed
}

// isName reports whether name is valid for an upstream.
func isName(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return name != "" && len(name) <= 32 && strings.Trim(name, letters) == "" && !strings.Contains(name, "__")
}
