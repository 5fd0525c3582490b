package remote

import (
	"context"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	maxSessionID = 1024 // bytes
	maxVersion   = 64   // bytes
)

// initialize posts the session's first request. Without an answer there is no
// session. A server that does not know it may be one of 2024-11-05, which is
// found out with a GET (2025-11-25 basic/transports, backwards compatibility).
func (s *session) initialize(c *call) {
	if s.server.SSE {
		s.runLegacy(c)
		return
	}
	x, reply, f := s.greet(c.ctx, c.m, c.m.ID)
	if f == nil && x.vague {
		reply, f = nil, refusedBy(x.resp)
	}
	if f != nil && mayBeLegacy(f.status) {
		x.close()
		if s.becomeLegacy(c.ctx) {
			s.open()
			s.runLegacy(c)
			return
		}
	}
	defer x.linger(c.cancel)
	if f != nil {
		s.failed(f)
		return
	}
	s.mu.Lock()
	s.peer = x.p
	s.mu.Unlock()
	s.open()
	s.reply(c, reply)
}

// Sessionless reports, once initialize was answered, whether the server has begun no
// session with that: it can then send nothing but answers.
func (s *session) Sessionless() bool {
	p := s.current()
	return p.id == "" && !p.legacy
}

func mayBeLegacy(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

// open lets the messages behind initialize go.
func (s *session) open() { s.openOnce.Do(func() { close(s.opened) }) }

// greet posts initialize to a peer that does not know us, which is then x.p.
func (s *session) greet(ctx context.Context, m *jsonrpc.Message, related jsonrpc.ID) (*exchange, *jsonrpc.Message, *failure) {
	p := s.newPeer(s.server.URL)
	x := &exchange{server: s.server, to: s, p: p, id: m.ID, related: related, reach: newReach(nil)}
	x.greeted = func(h http.Header) *failure {
		id := h.Get(headerSession)
		if len(id) > maxSessionID || !visible(id) {
			return invalid("invalid session id")
		}
		p.id = id
		return nil
	}
	reply, f := x.run(ctx, m)
	if reply != nil && reply.Result != nil {
		version, _ := jsonrpc.Unquote(member(reply.Result, "protocolVersion"))
		if len(version) <= maxVersion && visible(version) {
			p.version = version
		}
	}
	return x, reply, f
}

// visible reports whether s has only the characters that a session's id may
// have.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// member returns the value of a key of an object, nil if it cannot be read.
func member(object []byte, key string) []byte {
	value, err := jsonrpc.Member(object, key)
	if err != nil {
		return nil
	}
	return value
}
