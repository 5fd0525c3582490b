package peer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// TestAnswersWithoutRoom: a client sends calls and reads no answers. Whoever sends those for the server may
// wait for room in the Conn, but in no handler: when the Conn ends, it goes on.
func TestAnswersWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 200 // more than the Conns hold
		client, a := jsonrpc.Pipe()
		b, server := jsonrpc.Pipe()
		passed := 0
		far := newSide("far", peer.Options{Name: "files"})
		near := newSide("near", peer.Options{Room: jsonrpc.Room{Messages: 4}, Request: func(r *peer.Request) {
			c := far.NewCall(r.Method)
			c.Passes = true
			c.Done = func(m *jsonrpc.Message, lost *peer.Lost) {
				switch {
				case lost != nil || !r.Take():
				case c.Passed:
					passed++
					r.Answer(&jsonrpc.Message{Result: m.Result})
				default:
					r.AnswerWhenRoom(&jsonrpc.Message{Result: m.Result})
				}
			}
			if err := r.Forward(c, &jsonrpc.Message{}); err != nil {
				t.Error(err)
			}
		}})
		near.run(t, a, false)
		ctx, end := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- far.Run(ctx, directTap{&tap{PipeConn: b}}) }()
		go func() {
			for i := range calls {
				_ = client.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), "work", nil))
			}
		}()
		var ids []jsonrpc.ID
		for range calls {
			m, err := server.Recv()
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, m.ID)
		}
		sent := make(chan error, 1)
		go func() {
			for _, id := range ids {
				if err := server.Send(jsonrpc.NewResult(id, []byte(`{}`))); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		synctest.Wait()
		select {
		case err := <-sent:
			t.Errorf("all was sent, though nobody reads: %v", err)
		default:
		}
		end(errors.New("over"))
		if err := <-sent; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("the sender ends with %v", err)
		}
		if passed == 0 {
			t.Error("no answer was handled by its sender")
		}
		client.Close()
		near.End(<-near.done)
		far.End(<-done)
	})
}
