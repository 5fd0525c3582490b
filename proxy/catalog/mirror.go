package catalog

import (
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Headers of a call repeat some parameters of its tool, for intermediaries that do not read bodies
// (2026-07-28 server/tools, "x-mcp-header"). "Any server that processes the message body MUST
// validate" that both agree.

// maxMirrors bounds the bytes that a table uses for these parameters. Beyond it, tools are not
// checked.
const maxMirrors = 1 << 20

// mirrors are the parameters that headers of calls repeat, by tool. Few tools have any.
type mirrors struct {
	of    map[string][]mcp.Mirror
	bytes int // of it, about
}

// add adds the mirrored parameters of a listed tool. It ignores a tool with wrong annotations,
// which would not be listed over HTTP.
func (ms *mirrors) add(name string, tool json.RawMessage) {
	schema, err := jsonrpc.Member(tool, "inputSchema")
	if err != nil {
		return
	}
	found, err := mcp.Mirrors(schema)
	size := sizeOf(name, found)
	if err != nil || size == 0 || ms.bytes+size > maxMirrors {
		return
	}
	if ms.of == nil {
		ms.of = make(map[string][]mcp.Mirror)
	}
	ms.of[name] = found
	ms.bytes += size
}

// sizeOf returns the approximate size of a tool's mirrors.
func sizeOf(name string, found []mcp.Mirror) (size int) {
	for _, m := range found {
		size += 128 + len(name) + len(m.Header)
		for _, key := range m.Path {
			size += 16 + len(key)
		}
	}
	return size
}

// Disagrees compares the headers of a call with its arguments. It returns the error for the
// response, nil if they agree. It ignores headers that the tool does not define.
func Disagrees(wanted []mcp.Mirror, headers map[string][]string, n *mcp.Notes) (*jsonrpc.Error, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	arguments, err := n.Raw(mcp.Arguments), n.Err(mcp.Arguments)
	if err != nil {
		return nil, err
	}
	for _, m := range wanted {
		if !m.Agrees(headers[strings.ToLower(m.Header)], arguments) {
			return mcp.HeaderMismatch(m.Header), nil
		}
	}
	return nil, nil
}
