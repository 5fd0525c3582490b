package peer_test

import (
	"encoding/json"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// inShared runs a test with a Peer that makes calls for two owners.
func inShared(t *testing.T, test func(s *side, server *jsonrpc.PipeConn)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSide("near", peer.Options{Refuse: peer.DropDuplicates, Class: func(m *jsonrpc.Message) jsonrpc.Class {
			if m.Method == "held" {
				return 1
			}
			return 0
		}})
		near, server := jsonrpc.Pipe()
		s.run(t, near, true)
		go func() {
			for {
				if _, err := server.Recv(); err != nil {
					return
				}
			}
		}()
		test(s, server)
		server.Close()
		<-s.done
	})
}

func (s *side) callOf(owner any) *peer.Call {
	c := s.NewCall("work")
	c.Works, c.Owner, c.Room = true, owner, &jsonrpc.Room{}
	_ = c.Send(&jsonrpc.Message{})
	synctest.Wait()
	return c
}

func (s *side) asked(owner any, server *jsonrpc.PipeConn, id int64) *peer.Request {
	_ = server.Send(jsonrpc.NewRequest(jsonrpc.IntID(id), "ask", nil))
	synctest.Wait()
	r := s.Request(jsonrpc.IntID(id))
	if r != nil {
		r.Assign(owner, "", nil)
	}
	return r
}

func TestMarkIsOfOneOwner(t *testing.T) {
	inShared(t, func(s *side, server *jsonrpc.PipeConn) {
		a, b := s.callOf("a"), s.callOf("b")
		r := s.asked("a", server, 1)
		if _, got := s.Open(); got != 1 {
			t.Errorf("%d requests", got)
		}
		_ = server.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "ask", nil)) // a twin
		r.Refuse(jsonrpc.ConnectionClosed(-32000, "", jsonrpc.OtherCause("gone"), jsonrpc.InFlight))
		if !a.Marked() || b.Marked() {
			t.Errorf("marked: %v, %v", a.Marked(), b.Marked())
		}
		if later := s.callOf("a"); later.Marked() {
			t.Error("a call is marked that the server had not got")
		}
	})
}

func TestForget(t *testing.T) {
	inShared(t, func(s *side, server *jsonrpc.PipeConn) {
		a, other, b := s.callOf("a"), s.callOf("a"), s.callOf("b")
		ofA, ofB := s.asked("a", server, 1), s.asked("b", server, 2)
		a.Take()
		if a.Forget(); !ofA.Open() {
			t.Error("another call possibly waits")
		}
		other.Take()
		if other.Forget(); ofA.Open() || !ofB.Open() {
			t.Errorf("open: %v, %v", ofA.Open(), ofB.Open())
		}
		b.Take()
	})
}

func TestHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSide("near", peer.Options{})
		near, server := jsonrpc.Pipe()
		c := s.call(`{}`)
		s.HalfClose(&jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("enough")})
		s.run(t, near, true)
		m, err := server.Recv()
		if err != nil || m.Method != "work" {
			t.Fatal(m, err)
		}
		if m, err := server.Recv(); err != io.EOF {
			t.Error(m, err)
		}
		_ = server.Send(jsonrpc.NewResult(c.ID, json.RawMessage(`{}`)))
		synctest.Wait()
		if s.ended[c] != 1 {
			t.Error("an answer was not heard")
		}
		jsonrpc.CloseWith(server, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("done")})
		if err := <-s.done; jsonrpc.EndOf(err, jsonrpc.Cause{}).Cause.String() != "done" {
			t.Error(err)
		}
	})
}

// Each request that has begun is either handled or refused, even if it comes after the end.
// Otherwise a count of requests would be too high.
func TestRequestsBehindTheEndAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, refused := 0, 0
		s := newSide("near", peer.Options{
			Begin: func(*peer.Request) { begun++ },
			Refuse: func(_ *peer.Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
				if refused++; answer != nil || !errors.Is(why, jsonrpc.ErrClosed) {
					t.Errorf("%v: %v", why, answer)
				}
				return answer
			},
		})
		near, client := jsonrpc.Pipe()
		s.run(t, near, true)
		s.End(&jsonrpc.ClosedError{Cause: jsonrpc.CauseClientGone})
		for id := range int64(3) {
			_ = client.Send(jsonrpc.NewRequest(jsonrpc.IntID(id), "ask", nil))
		}
		synctest.Wait()
		if begun != refused || begun == 0 {
			t.Errorf("%d have begun, %d were refused", begun, refused)
		}
		client.Close()
		<-s.done
	})
}

// Retire ends a Peer only if nothing is open, and what comes later is refused.
func TestRetire(t *testing.T) {
	inShared(t, func(s *side, server *jsonrpc.PipeConn) {
		c := s.callOf(nil)
		r := s.asked(nil, server, 1)
		retires := func(when string, want bool) {
			t.Helper()
			if s.Retire(time.Second) != want {
				t.Errorf("%s: retires %v", when, !want)
			}
		}
		retires("with a call and a request", false)
		c.Take()
		retires("with a request", false)
		r.Take()
		retires("with a request that will be answered", false)
		r.Answer(nil)
		s.Hold(1)
		s.SendIn(nil, jsonrpc.NewNotification("held", nil))
		retires("with something to send", false)
		s.Release(1)
		synctest.Wait()
		late := s.NewCall("late")
		retires("with a call that was not sent", true)
		if err := late.Send(&jsonrpc.Message{}); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("late call: %v", err)
		}
	})
}
