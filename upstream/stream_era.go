package upstream

import (
	"encoding/json"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// firstAnswer handles the first answer, which shows whether the server speaks this era.
// failed is the error in it.
func (s *stream) firstAnswer(n startSign, failed json.RawMessage) {
	switch n {
	case refusal:
		// What another mcp-proxy says of its upstreams tells nothing about its era.
		if jsonrpc.ReadErrorData(failed).Reason == "" { // ends before the client gets the refusal
			other, err := s.otherEra()
			switch {
			case other:
				s.endOtherEra()
			case err != nil && s.up.Command != nil: // the next start may show that the refusal is one of the era
				end := jsonrpc.EndOf(err, jsonrpc.CauseStartFailed)
				s.end(end.Cause, end)
			}
		}
		s.eras.refused(failed)
		s.inFlight.refuse(failed)
		return
	case greeting:
		if s.inFlight.asksClient() && s.sessionless() && s.alsoModern() { // only in the other era it can ask
			s.endOtherEra()
			return
		}
		s.eras.initialized()
	}
	s.stopStartTimer()
	s.restart.answered()
}

// endOtherEra ends the stream because its server speaks the other era.
func (s *stream) endOtherEra() { s.end(jsonrpc.CauseStartFailed, mcp.ErrOtherEra) }

// sessionless reports whether the server answered initialize without beginning a session.
// A process always has one.
func (s *stream) sessionless() bool {
	r, ok := s.server.(*remoteSession)
	return ok && r.sessionless()
}

// alsoModern reports whether a server that answered initialize speaks the modern era, too. It
// may take as long as a probe.
func (s *stream) alsoModern() bool {
	if s.ends.Load() || s.eras.only != "" {
		return false
	}
	modern, err := s.eras.speaksModern(s.ctx, s.ended)
	return modern && err == nil
}

// otherEra reports whether a server that refused initialize speaks the modern era. It may take
// as long as a probe. The error is why that could not be found out.
func (s *stream) otherEra() (bool, error) {
	if s.ends.Load() || s.inFlight.modern {
		return false, nil
	}
	modern, news, err := s.eras.notInitialized(s.ctx, s.ended)
	if news {
		s.log.Info("upstream is used only in the modern era")
	}
	return modern, err
}

// hangsUp reports whether a server that had started ended without an answer to initialize.
func (s *stream) hangsUp() bool {
	return (s.up.Command != nil || s.dialled.Load()) && s.inFlight.awaitsInitialize()
}

// lost ends the stream because its server has ended.
func (s *stream) lost(err error) {
	end := jsonrpc.EndOf(err, jsonrpc.CauseConnectionLost)
	if end.Cause.Kind != jsonrpc.KindLogin && s.hangsUp() { // before a login the era cannot be found out
		if other, _ := s.otherEra(); other {
			s.endOtherEra()
			return
		}
	}
	if errors.Is(end, mcp.ErrOtherEra) {
		s.eras.misread()
	}
	s.end(end.Cause, end)
}
