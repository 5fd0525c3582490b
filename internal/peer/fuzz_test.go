package peer_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// FuzzPeers drives a client, a server and a proxy between them with random calls in both
// directions, answers, cancellations, progress, pauses and ends, and checks the six sentences.
func FuzzPeers(f *testing.F) {
	f.Add([]byte{0x00, 0x08, 0x02, 0x08, 0x00, 0x08, 0x12, 0x08})
	f.Add([]byte{0x00, 0x00, 0x01, 0x08, 0x04, 0x08, 0x05, 0x06, 0x08, 0x03, 0x08})
	f.Add([]byte{0x00, 0x00, 0x00, 0x08, 0x09})
	f.Add([]byte{0x00, 0x08, 0x04, 0x08, 0x0a, 0x04, 0x00})
	f.Add([]byte{0x00, 0x01, 0x00, 0x11, 0x00, 0x08, 0x07, 0x0b, 0x00, 0x02, 0x03})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 256 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			w := newChain(t, len(script)%2 == 1)
			for _, b := range script {
				w.step(b&0xf, int(b>>4))
			}
			w.end(t)
		})
	})
}

// FuzzPeersInOrder waits after each step, so that the order is known.
func FuzzPeersInOrder(f *testing.F) {
	f.Add([]byte{0x00, 0x02, 0x00, 0x01, 0x02, 0x04, 0x06, 0x05, 0x03})
	f.Add([]byte{0x00, 0x04, 0x01, 0x03, 0x02, 0x07, 0x09})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 128 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			w := newChain(t, len(script)%2 == 1)
			for _, b := range script {
				w.step(b&0xf, int(b>>4))
				synctest.Wait()
			}
			w.end(t)
			w.late(t)
		})
	})
}

// step does one thing to the nth of its possible targets.
func (w *chain) step(what byte, n int) {
	switch what {
	case 0:
		w.client.call(`{}`)
	case 1:
		w.client.cancelNth(n)
	case 2:
		w.server.answerNth(n)
	case 3:
		w.client.answerNth(n)
	case 4:
		w.server.call(`{}`)
	case 5:
		w.server.cancelNth(n)
	case 6:
		w.server.progressNth(n)
	case 7:
		w.client.progressNth(n)
	case 8:
		synctest.Wait()
	case 9:
		w.server.conn.Close()
	case 10:
		w.client.conn.CloseWrite()
	case 11:
		w.client.conn.Close()
	case 12:
		_ = w.client.conn.PipeConn.Send(jsonrpc.NewResult(jsonrpc.IntID(int64(n)), json.RawMessage(`{}`))) // of nothing, or of what is not to be answered yet
	case 13:
		w.server.twiceNth(n)
	case 14:
		w.client.array(n)
	case 15:
		w.near.Drain(nil, 0)
	}
}

// nth returns the nth element, modulo their number.
func nth[T any](all []T, n int) (v T, ok bool) {
	if len(all) == 0 {
		return v, false
	}
	return all[n%len(all)], true
}

func (s *side) cancelNth(n int) {
	if c, ok := nth(s.calls, n); ok {
		s.cancel(c)
	}
}

func (s *side) answerNth(n int) {
	s.mu.Lock()
	r, ok := nth(s.open, n)
	s.mu.Unlock()
	if ok && r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)}) {
		s.settles(r)
	}
}

// twiceNth answers twice on the wire, like broken servers.
func (s *side) twiceNth(n int) {
	s.mu.Lock()
	r, ok := nth(s.open, n)
	s.mu.Unlock()
	if ok && r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)}) {
		s.settles(r)
		_ = s.conn.PipeConn.Send(jsonrpc.NewResult(r.ID, json.RawMessage(`{}`)))
	}
}

func (s *side) progressNth(n int) {
	s.mu.Lock()
	r, ok := nth(s.open, n)
	s.mu.Unlock()
	if ok {
		s.Send(progress(r.ID))
	}
}

// array sends two requests in an array, with their own ids.
func (s *side) array(n int) {
	id := func(i int) jsonrpc.ID {
		id, _ := jsonrpc.ParseID(jsonrpc.Quote(string(rune('a' + 2*n + i))))
		return id
	}
	s.Send(&jsonrpc.Message{Batch: []*jsonrpc.Message{
		jsonrpc.NewRequest(id(0), "ping", nil), jsonrpc.NewRequest(id(1), "ping", nil),
	}})
}
