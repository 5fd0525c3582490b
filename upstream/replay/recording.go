package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

const (
	// maxFile bounds the bytes of a file, since a recording is kept in memory.
	maxFile = 512 << 20

	// maxAround is how much longer than its message a line may be.
	maxAround = 64 << 10

	format = 1 // of recordings
)

// A Recording is the recorded conversation of all sessions with one server.
type Recording struct {
	upstream  string
	exchanges []*exchange            // in the order of the requests
	equal     map[string][]*exchange // by question.key
}

// speaks reports whether there is a request of an era.
func (r *Recording) speaks(era mcp.Era) bool {
	return slices.ContainsFunc(r.exchanges, func(x *exchange) bool { return x.question.era == era })
}

// methods returns the methods of an era for which there is a result.
func (r *Recording) methods(era mcp.Era) []string {
	found := make(map[string]bool)
	for _, x := range r.exchanges {
		if x.question.era == era && x.answer != nil && x.answer.Result != nil {
			found[x.question.method] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// A recordLine is a line of a recording, with some of the members of [observe.Recording].
type recordLine struct {
	Recording int             `json:"recording"` // of the first line
	LeftOut   int             `json:"leftOut"`
	End       bool            `json:"end"` // of the last line, as is Messages
	Messages  int             `json:"messages"`
	Error     json.RawMessage `json:"error"` // of a last line: a text, why the recording is not whole

	Side     string          `json:"side"`
	Way      string          `json:"way"`
	Session  string          `json:"session"`
	Upstream string          `json:"upstream"`
	Of       json.RawMessage `json:"of"`
	Message  json.RawMessage `json:"message"`
}

// A recordedMessage is a message between the proxy and a server, with its place in the file.
type recordedMessage struct {
	*jsonrpc.Message
	line       int
	session    string
	of         jsonrpc.ID // as Message.Related
	fromServer bool
}

// Open returns the recording of an upstream in a file. upstream may be "" if the file has
// only one. The error names the file.
func Open(path, upstream string) (*Recording, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := read(file, upstream, jsonrpc.Limits{Message: maxFile, ID: mcp.MaxRouted})
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return r, nil
}

// open opens a regular file of at most maxFile bytes.
func open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // opening a pipe would block
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	return os.Open(path)
}

// read returns the recording of an upstream. If there is only one, its name does not matter.
func read(r io.Reader, upstream string, limits jsonrpc.Limits) (*Recording, error) {
	upstreams, err := readLines(r, limits)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(upstreams))
	switch {
	case len(names) == 0:
		return nil, errors.New("has no message of an upstream")
	case len(names) == 1:
		upstream = names[0]
	case upstreams[upstream] != nil:
	case upstream == "":
		return nil, fmt.Errorf("has the upstreams %s: choose one with --upstream", strings.Join(names, ", "))
	default:
		return nil, fmt.Errorf("has the upstreams %s, and none named %s", strings.Join(names, ", "), upstream)
	}
	recording := newRecording(upstreams[upstream])
	recording.upstream = upstream
	return recording, nil
}

// readLines returns the messages to and from upstreams, by their names.
func readLines(r io.Reader, limits jsonrpc.Limits) (map[string][]recordedMessage, error) {
	lines := jsonrpc.NewLineReader(io.LimitReader(r, maxFile), jsonrpc.Limits{Message: limits.MaxMessage() + maxAround})
	upstreams, messages := make(map[string][]recordedMessage), 0
	for n := 1; ; n++ {
		text, err := lines.ReadLine()
		if err == io.EOF && n > 1 {
			return upstreams, nil // without a last line, for example after a crash
		}
		var l recordLine
		if err == nil {
			err = json.Unmarshal(text, &l)
		}
		switch {
		case n == 1 && (err != nil || l.Recording == 0):
			return nil, errors.New("is not a recording of tap --record")
		case err != nil:
			return nil, fmt.Errorf("line %d does not belong in a recording: %w", n, err)
		case n == 1 && l.Recording != format:
			return nil, fmt.Errorf("is a recording of format %d, and this program reads format %d", l.Recording, format)
		case n == 1:
			continue
		case l.LeftOut > 0:
			return nil, fmt.Errorf("line %d says that messages were left out", n)
		case l.Message == nil && len(l.Error) > 0:
			return nil, fmt.Errorf("line %d says that the recording is incomplete: %s", n, l.Error)
		case l.End && l.Messages != messages:
			return nil, fmt.Errorf("line %d says that there are %d messages, and there are %d", n, l.Messages, messages)
		case l.End:
			return upstreams, nil
		}
		messages++
		m, err := l.heard(n, limits)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if l.Side == observe.SideUpstream && l.Upstream != "" {
			upstreams[l.Upstream] = append(upstreams[l.Upstream], m...)
		}
	}
}

// heard returns the messages of a line: several for an array.
func (l *recordLine) heard(n int, limits jsonrpc.Limits) ([]recordedMessage, error) {
	if l.Message == nil {
		return nil, errors.New("has no message, as a tap without --record")
	}
	m, err := limits.Decode(l.Message)
	if err != nil {
		return nil, err
	}
	of, _ := jsonrpc.ParseID(l.Of)
	var all []recordedMessage
	for e := range m.Each {
		all = append(all, recordedMessage{Message: e, line: n, session: l.Session, of: of, fromServer: l.Way == observe.In})
	}
	return all, nil
}
