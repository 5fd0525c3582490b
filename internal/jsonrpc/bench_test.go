package jsonrpc_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// call returns a tools/call message of about size bytes, like those of clients: one long text with
// some escapes, and short members.
func call(size int) []byte {
	const head = `{"jsonrpc":"2.0","id":1234,"method":"tools/call","params":{"_meta":{"progressToken":"t-1"},` +
		`"name":"files__write_file","arguments":{"path":"/data/report.txt","options":{"mode":420,"tags":["a","b"]},"content":"`
	const tail = `"}}}`
	const line = `The quick brown fox, \"quoted\", jumps over\n`
	text := strings.Repeat(line, max(1, (size-len(head)-len(tail))/len(line)))
	return []byte(head + text + tail)
}

var sizes = []struct {
	name string
	size int
}{{"300B", 300}, {"64KiB", 64 << 10}}

// BenchmarkDecode does what routing a call needs: it reads the method, the name and the token, and
// splices a new name in.
func BenchmarkDecode(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			text := call(s.size)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				m, err := jsonrpc.Decode(text)
				if err != nil || m.Method != "tools/call" {
					b.Fatal(m, err)
				}
				var at [2]jsonrpc.Span
				if err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "name", "_meta"); err != nil {
					b.Fatal(err)
				}
				if name, ok := jsonrpc.Unquote(at[0].Of(m.Params)); !ok || name != "files__write_file" {
					b.Fatal(name)
				}
				m.Params = jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: []byte(`"write_file"`)})
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			m, err := jsonrpc.Decode(call(s.size))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(s.size))
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = m.Append(buf[:0])
			}
		})
	}
}

func BenchmarkLineReader(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			line := append(call(s.size), '\n')
			text := bytes.Repeat(line, 16)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			r := bytes.NewReader(nil)
			lines := jsonrpc.NewLineReader(endless{r, text}, jsonrpc.Limits{})
			for b.Loop() {
				if _, err := lines.ReadLine(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// endless repeats text for ever.
type endless struct {
	*bytes.Reader
	text []byte
}

func (e endless) Read(p []byte) (int, error) {
	if e.Len() == 0 {
		e.Reset(e.text)
	}
	return e.Reader.Read(p)
}
