// Command echo is an MCP server over stdio that costs next to nothing, so that
// a benchmark measures what stands in front of it. With the argument http it is
// one over Streamable HTTP, at a port of its choice, which it tells on stdout. It
// answers requests of both eras, but no call of the tool wait.
//
// It reads no more of a message than it must, knows compact JSON only, and
// trusts its client: it is no example of a server.
package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strconv"
)

func main() {
	run := func() error { return serve(os.Stdin, os.Stdout) }
	if len(os.Args) > 1 && os.Args[1] == "http" {
		run = listen
	}
	if err := run(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

const (
	welcome = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}`
	found   = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"public"}`
	tools   = `{"resultType":"complete","ttlMs":0,"cacheScope":"public","tools":[{"name":"echo","description":"Returns text, or size bytes of it.","inputSchema":{"type":"object"}}]}`
)

// serve answers what is in r until it ends. Answers to requests that arrived
// together leave together.
func serve(r io.Reader, w io.Writer) error {
	in := bufio.NewReaderSize(r, 64<<10)
	out := bufio.NewWriterSize(w, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if err == io.EOF {
			return out.Flush()
		}
		if err != nil {
			return err
		}
		answer(out, line)
		if in.Buffered() > 0 {
			continue
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// answer writes the response to one request, and nothing for a notification.
func answer(out *bufio.Writer, line []byte) {
	id := after(line, `"id":`, ",}")
	if id == nil || bytes.Contains(line, []byte(`"params":{"name":"wait"`)) {
		return
	}
	out.WriteString(`{"jsonrpc":"2.0","id":`)
	out.Write(id)
	out.WriteString(`,"result":`)
	switch method := after(line, `"method":"`, `"`); string(method) {
	case "tools/call":
		out.WriteString(`{"resultType":"complete","content":[{"type":"text","text":"`)
		writeText(out, line)
		out.WriteString(`"}]}`)
	case "initialize":
		out.WriteString(welcome)
	case "server/discover":
		out.WriteString(found)
	case "tools/list":
		out.WriteString(tools)
	default:
		out.WriteString("{}")
	}
	out.WriteString("}\n")
}

var filler = bytes.Repeat([]byte("x"), 64<<10)

func writeText(out *bufio.Writer, line []byte) {
	size, _ := strconv.Atoi(string(after(line, `"size":`, ",}")))
	for ; size > 0; size -= len(filler) {
		out.Write(filler[:min(size, len(filler))])
	}
	out.Write(after(line, `"text":"`, `"`))
}

// after returns what stands between key and the first of the bytes in ends.
func after(line []byte, key, ends string) []byte {
	_, rest, found := bytes.Cut(line, []byte(key))
	if !found {
		return nil
	}
	end := bytes.IndexAny(rest, ends)
	if end < 0 {
		return nil
	}
	return rest[:end]
}
