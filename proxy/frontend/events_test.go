package frontend

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tmaxmax/go-sse"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestAppendEvent(t *testing.T) {
	tests := []struct{ name, id, data, want string }{
		{"message", "3-17", `{"x":1}`, "event: message\nid: 3-17\ndata: {\"x\":1}\n\n"},
		{"", "", "x", "data: x\n\n"},
		{"", "0-0", "", "id: 0-0\ndata: \n\n"},
		{"endpoint", "", " /m", "event: endpoint\ndata:  /m\n\n"},
		{"", "", "a\nb\r\nc\rd\n", "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
		{"", "", "x\n\nid: 1\nevent: y", "data: x\ndata: \ndata: id: 1\ndata: event: y\n\n"},
	}
	for _, tt := range tests {
		if got := string(appendEvent(nil, tt.name, tt.id, []byte(tt.data))); got != tt.want {
			t.Errorf("event %q %q %q:\n%q, want\n%q", tt.name, tt.id, tt.data, got, tt.want)
		}
	}
}

func TestEventID(t *testing.T) {
	for _, id := range [][2]int{{0, 0}, {1, 2}, {1 << 40, 7}} {
		stream, event, ok := parseEventID(eventID(id[0], id[1]))
		if !ok || stream != id[0] || event != id[1] {
			t.Errorf("%v became %s became %d-%d, %v", id, eventID(id[0], id[1]), stream, event, ok)
		}
	}
}

// FuzzSSE writes events and reads them back with an independent library. A message comes back
// unchanged, other data with each line end as \n.
func FuzzSSE(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","method":"x","params":{"s":"\u2028\n"}}`), []byte("a\r\n\rb\n"), 3, 17)
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result": [1,`+"\n\r"+`2]}`), []byte(": x\nid: 2\n\n"), 0, 0)
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xe2\x80\xa8\xef\xbb\xbf\"}"), []byte("\xef\xbb\xbf\x00"), 1, 1)
	f.Add([]byte(``), []byte(``), -1, 1)
	f.Fuzz(func(t *testing.T, message, data []byte, stream, number int) {
		id := eventID(stream, number)
		want := []sse.Event{{LastEventID: id, Type: "x", Data: lines(data)}}
		text := appendEvent(nil, "x", id, data)
		if m, err := jsonrpc.Decode(message); err == nil {
			line := m.Append(nil)
			want = append(want, sse.Event{LastEventID: id, Type: "message", Data: string(line)})
			text = appendEvent(text, "message", "", line)
		}
		text = appendEvent(text, "", "end", []byte("end"))
		want = append(want, sse.Event{LastEventID: "end", Data: "end"})

		for ev, err := range sse.Read(bytes.NewReader(text), &sse.ReadConfig{MaxEventSize: 1 << 24}) {
			if err != nil || len(want) == 0 || ev != want[0] {
				t.Fatalf("read %+v (%v), want %+v\nfrom %q", ev, err, want, text)
			}
			want = want[1:]
		}
		if len(want) > 0 {
			t.Fatalf("not read: %+v\nfrom %q", want, text)
		}
	})
}

// lines returns data with the line ends that a reader returns.
func lines(data []byte) string {
	return strings.ReplaceAll(strings.ReplaceAll(string(data), "\r\n", "\n"), "\r", "\n")
}
