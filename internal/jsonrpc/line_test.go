package jsonrpc_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// readAll returns what a LineReader reads from r: the method or id of each message, "!id" for each
// rejected line, and the error at the end.
func readAll(r io.Reader, limit int) string {
	lines := jsonrpc.NewLineReader(r, jsonrpc.Limits{Message: limit})
	var got []string
	for {
		m, err := lines.Read()
		var invalid *jsonrpc.InvalidError
		switch {
		case errors.As(err, &invalid):
			got = append(got, "!"+invalid.ID.String())
		case err != nil:
			return strings.Join(append(got, err.Error()), " ")
		case m.Method != "":
			got = append(got, m.Method)
		default:
			got = append(got, m.ID.String())
		}
	}
}

func note(method string) string { return `{"jsonrpc":"2.0","method":"` + method + `"}` }

func reply(id string, size int) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":"` + strings.Repeat("x", size) + `"}`
}

// lateReply returns a response with the id last, like those of TypeScript servers.
func lateReply(id string, size int) string {
	return `{"result":{"id":0,"text":"\"id\":9` + strings.Repeat("x", size) + `"},"jsonrpc":"2.0","id":` + id + `}`
}

func TestLineReader(t *testing.T) {
	const limit = 1000
	exact := reply("5", limit-len(reply("5", 0)))
	tests := []struct{ name, text, want string }{
		{"nothing", "", "EOF"},
		{"two", note("a") + "\n" + note("b") + "\n", "a b EOF"},
		{"no last newline", note("a") + "\n" + note("b"), "a b EOF"},
		{"cut short", note("a") + "\n" + reply("7", 20)[:30], "a EOF"},
		{"garbage at the end", note("a") + "\nbye", "a ! EOF"},
		{"CRLF", note("a") + "\r\n" + note("b") + "\r\n", "a b EOF"},
		{"blank lines", "\n \r\n\n" + note("a") + "\n\n\t\n" + note("b") + "\n\n", "a b EOF"},
		{"byte order mark", "\ufeff" + note("a") + "\n" + note("b") + "\n", "a b EOF"},
		{"byte order mark later", note("a") + "\n\ufeff" + note("b") + "\n", "a ! EOF"},
		{"blanks at the end", note("a") + "\n  ", "a EOF"},
		{"garbage between", note("a") + "\nServer listening!\n" + note("b") + "\n", "a ! b EOF"},
		{"pretty printed", "{\n" + note("a") + "\n}\n", "! a ! EOF"},
		{"as long as allowed", exact + "\n" + note("b"), "5 b EOF"},
		{"as long as allowed, CRLF apart", exact + "\n" + exact, "5 5 EOF"},
		{"one byte too long", reply("5", limit-len(reply("5", 0))+1) + "\n" + note("b") + "\n", "!5 b EOF"},
		{"too long, id in front", reply("5", 9000) + "\n" + note("b") + "\n", "!5 b EOF"},
		{"too long, id at the end", lateReply(`"x"`, 9000) + "\n" + note("b") + "\n", `!"x" b EOF`},
		{"too long, no newline", note("a") + "\n" + lateReply("6", 9000), "a !6 EOF"},
		{"too long, id too long", reply(`"`+strings.Repeat("i", 300)+`"`, 9000) + "\n", "! EOF"},
		{"too long twice, then small", reply("5", 70_000) + "\n" + lateReply("6", 70_000) + "\n" + note("b") + "\n", "!5 !6 b EOF"},
		{"too long blank", strings.Repeat(" ", 5000) + "\n" + note("b") + "\n", "! b EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			readers := map[string]io.Reader{
				"whole":    strings.NewReader(tt.text),
				"one byte": iotest.OneByteReader(strings.NewReader(tt.text)),
				"halves":   iotest.HalfReader(strings.NewReader(tt.text)),
				"data+EOF": iotest.DataErrReader(strings.NewReader(tt.text)),
			}
			for how, r := range readers {
				if got := readAll(r, limit); got != tt.want {
					t.Errorf("%s: got %s, want %s", how, got, tt.want)
				}
			}
		})
	}
}

func TestLineReaderError(t *testing.T) {
	broken := io.MultiReader(strings.NewReader(note("a")+"\n"+note("cut short")), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got := readAll(broken, 0); got != "a unexpected EOF" {
		t.Errorf("got %s: a line cut short by an error is no message", got)
	}
}

// A message does not change while later lines are read.
func TestLineReaderGivesAway(t *testing.T) {
	var text strings.Builder
	var want []string
	for i, size := range []int{10, 100_000, 10, 70_000, 64 << 10, 5, 200_000, 4096, 1} {
		line := reply(fmt.Sprint(i), size)
		want = append(want, line)
		text.WriteString(line + "\n")
	}
	lines := jsonrpc.NewLineReader(strings.NewReader(text.String()), jsonrpc.Limits{})
	var messages []*jsonrpc.Message
	for range want {
		m, err := lines.Read()
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m)
	}
	for i, m := range messages {
		if got := string(m.Append(nil)); got != want[i] {
			t.Errorf("message %d became %.60s… of %d bytes", i, got, len(got))
		}
	}
}

// A line of 16 MiB is rejected alone, in little memory.
func TestLineReaderOversizeMemory(t *testing.T) {
	const limit = 64 << 10
	huge := io.MultiReader(
		strings.NewReader(`{"jsonrpc":"2.0","result":"`),
		io.LimitReader(letters{}, 16<<20),
		strings.NewReader(`","id":"last"}`+"\n"+note("next")+"\n"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := readAll(huge, limit)
	runtime.ReadMemStats(&after)
	if got != `!"last" next EOF` {
		t.Errorf("got %s", got)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 16*limit {
		t.Errorf("allocated %d bytes in total", allocated)
	}
}

// letters is endless text.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestLineWriterConcurrent(t *testing.T) {
	const writers, each = 8, 50
	var out bytes.Buffer // the LineWriter's lock guards it
	lines := jsonrpc.NewLineWriter(&out)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range each {
				id := jsonrpc.IntID(int64(w*each + n))
				ok := jsonrpc.NewResult(id, []byte("\"a\"\n")) // the line break must not get out
				if n%2 == 0 {
					lines.Write(ok)
				} else {
					lines.WriteAll([]*jsonrpc.Message{ok})
				}
			}
		})
	}
	wg.Wait()
	if got := len(strings.Fields(readAll(&out, 0))); got != writers*each+1 {
		t.Errorf("read %d messages, want %d", got-1, writers*each)
	}
}

// counter counts writes, and fails those after the first good ones.
type counter struct{ writes, good int }

func (c *counter) Write(p []byte) (int, error) {
	if c.writes++; c.writes > c.good {
		return len(p) / 2, io.ErrShortWrite
	}
	return len(p), nil
}

// No message follows a line that broke off.
func TestLineWriterErrorSticks(t *testing.T) {
	out := &counter{good: 1}
	lines := jsonrpc.NewLineWriter(out)
	m := jsonrpc.NewNotification("a", nil)
	if err := lines.Write(m); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := lines.Write(m); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("Write after a broken line: %v", err)
		}
	}
	if err := lines.WriteLines([]byte("x\n")); !errors.Is(err, io.ErrShortWrite) || out.writes != 2 {
		t.Errorf("%d writes, last error %v", out.writes, err)
	}
}

func TestLineWriterOneWrite(t *testing.T) {
	out := &counter{good: 10}
	lines := jsonrpc.NewLineWriter(out)
	small := jsonrpc.NewNotification("a", nil)
	lines.Write(small)
	lines.WriteAll([]*jsonrpc.Message{small, small, small, small})
	if out.writes != 2 {
		t.Errorf("%d writes, want 2: one a call", out.writes)
	}
	if err := lines.WriteAll(nil); err != nil || out.writes != 2 {
		t.Errorf("nothing took %d writes, %v", out.writes-2, err)
	}
}

// A large message is written without a copy, as the same line.
func TestLineWriterLarge(t *testing.T) {
	value := []byte(`["` + strings.Repeat("x", 1<<20) + `"]`)
	for _, params := range [][]byte{value, append([]byte{'[', '\n'}, value[1:]...)} {
		m := jsonrpc.NewNotification("a", params)
		var out bytes.Buffer
		if err := jsonrpc.NewLineWriter(&out).Write(m); err != nil {
			t.Fatal(err)
		}
		if want := append(m.Append(nil), '\n'); !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%d bytes, want %d", out.Len(), len(want))
		}
	}
}

// RecvAll returns the messages that have come, does not wait for more, and returns messages before
// the error that follows them.
func TestRecvAll(t *testing.T) {
	line := `{"jsonrpc":"2.0","method":"a"}` + "\n"
	in, out := io.Pipe()
	c := jsonrpc.NewLineConn(in, io.Discard, jsonrpc.Limits{}, in.Close)
	defer c.Close()
	go func() {
		io.WriteString(out, line+"\n"+line+" \n"+line[:9])
		io.WriteString(out, line[9:]+"no message\n"+line)
		out.Close()
	}()
	for _, want := range []int{2, 1, 1} {
		batch, err := jsonrpc.RecvAll(c, nil)
		if _, invalid := errors.AsType[*jsonrpc.InvalidError](err); len(batch) != want || err != nil && !invalid {
			t.Errorf("%d messages, %v; want %d", len(batch), err, want)
		}
	}
	if batch, err := jsonrpc.RecvAll(c, nil); err != io.EOF || len(batch) != 0 {
		t.Errorf("at the end: %d messages, %v", len(batch), err)
	}
	a, b := jsonrpc.Pipe()
	a.Send(jsonrpc.NewNotification("a", nil))
	if batch, err := jsonrpc.RecvAll(b, nil); err != nil || len(batch) != 1 {
		t.Errorf("pipe: %d messages, %v", len(batch), err)
	}
}
