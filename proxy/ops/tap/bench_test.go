package tap

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A still Conn receives one message for ever, and discards sent messages.
type still struct {
	jsonrpc.Conn
	batch []*jsonrpc.Message
}

func (s *still) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	return append(batch, s.batch...), nil
}
func (s *still) Recv() (*jsonrpc.Message, error)  { return s.batch[0], nil }
func (s *still) Send(*jsonrpc.Message) error      { return nil }
func (s *still) SendAll([]*jsonrpc.Message) error { return nil }

// BenchmarkCall measures a request and its response at one Point, in batches of eight.
func BenchmarkCall(b *testing.B) {
	for name, o := range map[string]*Options{"off": nil, "all": {}, "rate": {Rate: 1000}} {
		b.Run(name, func(b *testing.B) {
			taps := new(Taps)
			inner := &still{}
			var answers []*jsonrpc.Message
			for i := range int64(8) {
				inner.batch = append(inner.batch, jsonrpc.NewRequest(jsonrpc.IntID(1e6+i), "tools/call", []byte(`{"name":"files__write","arguments":{"path":"/a/b/c","text":"hello"}}`)))
				answers = append(answers, jsonrpc.NewResult(jsonrpc.IntID(1e6+i), []byte(`{"content":[{"type":"text","text":"written, all of it"}]}`)))
			}
			c := taps.Conn(observe.Point{Side: observe.SideClient, Session: "ABCDEFGH", Who: func(*jsonrpc.Message) (string, string) { return "client", "anonymous" }}, inner)
			if o != nil {
				tap, err := taps.Open(*o)
				if err != nil {
					b.Fatal(err)
				}
				done := make(chan int)
				go func() {
					n := 0
					for {
						text, err := tap.Lines()
						if err != nil {
							done <- n
							return
						}
						n += len(text)
					}
				}()
				defer func() { tap.Close(); b.ReportMetric(float64(<-done)/float64(b.N), "bytes/op") }()
			}
			b.ReportAllocs()
			var batch []*jsonrpc.Message
			for i := 0; b.Loop(); i++ {
				if i%8 == 0 {
					batch, _ = c.(interface {
						RecvAll([]*jsonrpc.Message) ([]*jsonrpc.Message, error)
					}).RecvAll(batch[:0])
					_ = jsonrpc.SendAll(c, answers)
				}
			}
		})
	}
}
