package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// serveHTTP serves Streamable HTTP of the server's era until the process ends.
func (s *server) serveHTTP(address string) error {
	h := &httpServer{server: s, sessions: map[string]*httpSession{}}
	if s.modern {
		return http.ListenAndServe(address, http.HandlerFunc(h.serveModern))
	}
	return http.ListenAndServe(address, http.HandlerFunc(h.serveLegacy))
}

type httpServer struct {
	*server

	mu       sync.Mutex
	sessions map[string]*httpSession
	last     int
}

// An httpSession is a session of the legacy era: each request has a stream of its own.
type httpSession struct {
	*connection

	mu      sync.Mutex
	streams map[string]*stream // by the id of the request
}

// A stream is the body of a response to a POST.
type stream struct {
	mu sync.Mutex
	to http.ResponseWriter // nil when it has ended
}

func (s *stream) send(m *message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == nil {
		return
	}
	s.to.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(s.to, "data: %s\n\n", m.bytes())
	_ = http.NewResponseController(s.to).Flush() // an end shows at the request's context
}

// begin sends what is before the first message: the server has accepted the request.
func (s *stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to.Header().Set("Content-Type", "text/event-stream")
	_ = http.NewResponseController(s.to).Flush()
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

func (h *httpServer) serveModern(w http.ResponseWriter, r *http.Request) {
	var m message
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&m) != nil || !m.isRequest() {
		http.Error(w, "a POST of a request", http.StatusMethodNotAllowed)
		return
	}
	out := &stream{to: w}
	defer out.end()
	c := newConnection(h.server, func(_ string, m *message) { out.send(m) })
	defer context.AfterFunc(r.Context(), func() { c.cancel(string(m.ID)) })()
	<-c.handle(context.Background(), &m) // it is cancelled by c.cancel alone
}

func (h *httpServer) serveLegacy(w http.ResponseWriter, r *http.Request) {
	var m message
	switch r.Method {
	case http.MethodDelete:
		h.mu.Lock()
		s := h.sessions[r.Header.Get("Mcp-Session-Id")]
		delete(h.sessions, r.Header.Get("Mcp-Session-Id"))
		h.mu.Unlock()
		if s != nil {
			s.end()
		}
		return
	case http.MethodPost:
		if json.NewDecoder(r.Body).Decode(&m) == nil {
			break
		}
		fallthrough
	default:
		http.Error(w, "a POST of a message", http.StatusMethodNotAllowed)
		return
	}
	s := h.session(w, r, &m)
	if s == nil {
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	if !m.isRequest() {
		w.WriteHeader(http.StatusAccepted)
		s.handle(context.Background(), &m)
		return
	}
	out := &stream{to: w}
	defer out.end()
	s.mu.Lock()
	s.streams[string(m.ID)] = out
	s.mu.Unlock()
	done := s.handle(context.Background(), &m) // a dropped POST cancels nothing
	out.begin()
	select {
	case <-done:
	case <-r.Context().Done():
	}
	s.mu.Lock()
	delete(s.streams, string(m.ID))
	s.mu.Unlock()
}

// session returns the session of a request: a new one for initialize, and nil for an unknown id.
func (h *httpServer) session(w http.ResponseWriter, r *http.Request, m *message) *httpSession {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.Method != "initialize" {
		return h.sessions[r.Header.Get("Mcp-Session-Id")]
	}
	h.last++
	id := fmt.Sprintf("%s-%d", h.journal.by, h.last)
	s := &httpSession{streams: map[string]*stream{}}
	s.connection = newConnection(h.server, func(request string, m *message) {
		s.mu.Lock()
		out := s.streams[request]
		s.mu.Unlock()
		if out != nil {
			out.send(m)
		}
	})
	h.sessions[id] = s
	w.Header().Set("Mcp-Session-Id", id)
	return s
}
