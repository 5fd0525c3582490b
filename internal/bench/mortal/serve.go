package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

// serve answers what is in r until it ends, each request when it is done.
func (s *server) serve(r io.Reader, w io.Writer) error {
	var writing sync.Mutex
	lines := bufio.NewScanner(r)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return err
		}
		respond := func() {
			if a := s.answer(m, "", nil); a != nil {
				writing.Lock()
				defer writing.Unlock()
				json.NewEncoder(w).Encode(a) // a proxy that is gone is found by the end of stdin
			}
		}
		if m.Method == "tools/call" {
			go respond()
		} else {
			respond()
		}
	}
	return lines.Err()
}

// listen serves Streamable HTTP until it fails, and says on stdout where.
func (s *server) listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	os.Stdout.WriteString("listening on http://" + l.Addr().String() + "/mcp\n")
	return http.Serve(l, &sessions{server: s, known: map[string]bool{}})
}

// sessions are those of Streamable HTTP. They are gone when the process is.
type sessions struct {
	server *server

	mu    sync.Mutex // guards the field below
	known map[string]bool
}

func (h *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	switch r.Method {
	case http.MethodDelete:
		h.server.note("deleted", "")
		h.put(id, false)
	case http.MethodPost:
		h.post(w, r, id)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (h *sessions) post(w http.ResponseWriter, r *http.Request, id string) {
	var m message
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if m.Method == "initialize" {
		id = rand.Text()
		h.put(id, true)
		w.Header().Set("Mcp-Session-Id", id)
	} else if !h.has(id) {
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	switch a := h.server.answer(m, id, r.Context().Done()); {
	case a != nil:
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(a) // nobody is told that the client has gone
	case m.ID != nil: // cancelled: the response ends, and has nothing
		w.Header().Set("Content-Type", "text/event-stream")
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (h *sessions) put(id string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known[id] = known
}

func (h *sessions) has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known[id]
}
