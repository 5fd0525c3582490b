package remote

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tmaxmax/go-sse"
)

func readAll(r io.Reader, limit int) (all []event, long int, end error) {
	e := newEvents(r, limit)
	for {
		ev, err := e.next()
		switch {
		case errors.Is(err, errEventTooLong):
			long++
		case err != nil:
			return all, long, err
		default:
			all = append(all, ev)
		}
	}
}

func TestEvents(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name, text string
		want       []event
	}{
		{"plain", "data: a\n\n", []event{{data: "a"}}},
		{"message", "event: message\nid: 1\ndata: a\ndata: b\n\n", []event{{data: "a\nb", id: "1"}}},
		{"CRLF", "event: endpoint\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []event{{kind: "endpoint", data: "a"}, {data: "b"}}},
		{"CR", "data: a\r\rdata: b\r\r", []event{{data: "a"}, {data: "b"}}},
		{"mixed", "data: a\r\ndata: b\n\r\n", []event{{data: "a\nb"}}},
		{"comments", ": x\n:\n\n:y\ndata: a\n: z\n\n\n\n", []event{{data: "a"}}},
		{"primes", "id: 5\ndata:\nretry: 20\n\n", []event{{id: "5", retry: 20 * ms}}},
		{"retry alone", "retry: 50\n\n", []event{{retry: 50 * ms}}},
		{"retry is bounded", "retry: 2000000000\n\nretry: 0\n\nretry: -1\n\nretry: x\n\n", []event{{retry: maxRetry}, {retry: minRetry}, {}, {}}},
		{"no last blank line", "data: a\n\nid: 2\ndata: {}", []event{{data: "a"}, {data: "{}"}}},
		{"cut in a message", "id: 1\ndata: a\n\nid: 2\ndata: {\"b\":", []event{{data: "a", id: "1"}}},
		{"cut in an id", "id: 1\ndata: a\n\nid: 2", []event{{data: "a", id: "1"}}},
		{"cut in a kind", "data: a\n\ndata: {}\nevent: endp", []event{{data: "a"}}},
		{"byte order mark", "\ufeffdata: a\n\n", []event{{data: "a"}}},
		{"unknown fields", "x: y\nz\ndata: a\n\n", []event{{data: "a"}}},
		{"id that cannot be sent", "id: a\x01\ndata: a\n\n", []event{{data: "a"}}},
		{"long id", "id: " + strings.Repeat("x", maxEventID+1) + "\ndata: a\n\n", []event{{data: "a"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.text), iotest.OneByteReader(strings.NewReader(tt.text))} {
				got, _, err := readAll(r, 1<<20)
				if err != io.EOF || len(got) != len(tt.want) {
					t.Fatalf("got %+v, %v, want %+v", got, err, tt.want)
				}
				for i, ev := range got {
					if ev != tt.want[i] {
						t.Errorf("event %d is %+v, want %+v", i, ev, tt.want[i])
					}
				}
			}
		})
	}
}

func TestLongEventIsSkipped(t *testing.T) {
	text := "data: a\n\ndata: " + strings.Repeat("x", eventSlack+100) + "\ndata: y\n\ndata: b\n\n"
	got, long, err := readAll(strings.NewReader(text), 10)
	if err != io.EOF || long != 1 || len(got) != 2 || got[0].data != "a" || got[1].data != "b" {
		t.Errorf("got %.200v, %d too long, %v", got, long, err)
	}
}

func TestBrokenStreamHasNoLastEvent(t *testing.T) {
	r := io.MultiReader(strings.NewReader("data: a\n\nid: 2\ndata: b\n"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, _, err := readAll(r, 100); err != io.ErrUnexpectedEOF || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

// FuzzEvents checks that cutting a stream into events changes nothing of what
// go-sse reads from the whole, however it arrives.
func FuzzEvents(f *testing.F) {
	for _, seed := range []string{
		"data: a\n\n", ": c\r\n\r\nid: 1\rdata: b\r\r", "retry: 7\n\ndata\n\n", "event: x\ndata: {\"jsonrpc\":\"2.0\"}\n\n\n\n", "data: x", "data:a\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		whole, _, _ := readAll(strings.NewReader(string(text)), 1<<20)
		bytewise, _, _ := readAll(iotest.OneByteReader(strings.NewReader(string(text))), 1<<20)
		if len(whole) != len(bytewise) {
			t.Fatalf("%d events at once, %d byte by byte", len(whole), len(bytewise))
		}
		for i, ev := range whole {
			if ev != bytewise[i] {
				t.Fatalf("event %d is %+v at once, %+v byte by byte", i, ev, bytewise[i])
			}
			m, err := (&Server{}).Limits.Decode([]byte(ev.data))
			if (m == nil) == (err == nil) {
				t.Fatalf("decoded to %v, %v", m, err)
			}
		}
		complete := string(text) + "\n\n" // else go-sse has an event that was cut off
		var data []string
		finished, _, _ := readAll(strings.NewReader(complete), 1<<20)
		for _, ev := range finished {
			if ev.data != "" {
				data = append(data, ev.data)
			}
		}
		i := 0
		for ev, err := range sse.Read(strings.NewReader(complete), nil) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Data == "" {
				continue
			}
			if i >= len(data) || data[i] != ev.Data {
				t.Fatalf("go-sse reads event %d as %q, we have %q", i, ev.Data, data)
			}
			i++
		}
		if i != len(data) {
			t.Fatalf("we have %d events, go-sse %d", len(data), i)
		}
	})
}
