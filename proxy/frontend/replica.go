package frontend

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

const maxKeeping = keepBatch + maxRecord + 1<<20 // bytes of a request to keep records

// serveReplica serves another replica.
func (h *HTTP) serveReplica(w http.ResponseWriter, r *http.Request) {
	id, isOne := strings.CutPrefix(r.URL.Path, replicaPath+"/")
	switch {
	case isOne && r.Method == http.MethodGet:
		h.serveWhereabouts(w, r, id)
	case r.URL.Path == replicaPath && r.Method == http.MethodPost:
		text, rec := readReplica[record](w, r, maxRecord)
		switch {
		case rec == nil:
		case !rec.valid():
			refuse(w, http.StatusBadRequest, "not a record of a session")
		case rec.Upstream != "" && (h.Known == nil || !h.Known(nil, rec.Upstream)):
			refuse(w, http.StatusNotFound, "no such upstream")
		case !h.open.directory.take(rec, text):
			unavailable(w, noRoom)
		default:
			writeStatus(w, http.StatusNoContent)
		}
	case id == "again" && r.Method == http.MethodPost:
		text, rec := readReplica[record](w, r, maxRecord)
		switch {
		case rec == nil:
		case !rec.valid():
			refuse(w, http.StatusBadRequest, "not a record of a session")
		default:
			h.open.directory.retake(rec, text)
			writeStatus(w, http.StatusNoContent)
		}
	case r.URL.Path == replicaPath && r.Method == http.MethodPut:
		if _, k := readReplica[keeping](w, r, maxKeeping); k != nil {
			if !h.open.directory.kept.keep(k) {
				unavailable(w, noRoom)
				return
			}
			writeStatus(w, http.StatusNoContent)
		}
	case id == "claims" && r.Method == http.MethodPost:
		if _, theirs := readReplica[claims](w, r, maxClaims*256); theirs != nil {
			if _, at := h.streamable.relay.at(theirs.Of); at == Gone {
				h.streamable.relay.found.hear(theirs.Of, time.Now())
			}
			text, _ := json.Marshal(h.open.keeper.compare(*theirs))
			writeJSON(w, http.StatusOK, text)
		}
	default:
		http.NotFound(w, r)
	}
}

// Keep lets other replicas keep what they need to continue the sessions of this one if it dies, and finds
// out which sessions others have continued while this process could not be reached, or did not run. It
// returns when ctx ends.
func (h *HTTP) Keep(ctx context.Context) {
	h.init()
	if h.open.keeper != nil {
		h.open.keeper.run(ctx)
	}
}

// Move begins to move the sessions of Streamable HTTP to other replicas, each when nothing is in flight.
// Until then they are served as ever. Shortly before the deadline of ctx, or when it ends, what is in
// flight gets the connection-closed error, and the rest is moved. Sessions that no other replica takes
// end. Drain must have been called. wait waits until no session is left, and returns how many were
// moved. Without other replicas Move does nothing, and sessions drain as those of other transports do. Without any time
// they end with Close, and others may continue them.
func (h *HTTP) Move(ctx context.Context) (wait func() (moved int)) {
	h.init()
	if h.Replicas == nil || len(h.Replicas.Others()) == 0 {
		return func() int { return 0 }
	}
	h.open.departure.begun.Store(true) // also without any time: whoever keeps its record forgets a session that drains
	if ctx.Err() != nil {
		return func() int { return 0 }
	}
	m := &mover{directory: h.open.directory, freed: h.open.departure.freed, replicas: h.Replicas, room: make(chan struct{}, moveAtOnce)}
	done := make(chan int, 1)
	go func() { done <- m.run(ctx) }()
	return func() int { return <-done }
}

// Moves returns what became of sessions so far.
func (h *HTTP) Moves() Moves {
	h.init()
	d := h.open.directory
	all := d.tally.moves()
	_, all.Waiting = d.count()
	all.Kept = d.kept.count()
	return all
}

const noRoom = "no room for more sessions of others"

// readReplica reads the body of a request of another replica. It refuses the request if it is none of
// the kind, and returns nil.
func readReplica[T any](w http.ResponseWriter, r *http.Request, limit int64) (text []byte, body *T) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	body = new(T)
	if err != nil || json.Unmarshal(text, body) != nil {
		refuse(w, http.StatusBadRequest, "not a message between replicas")
		return nil, nil
	}
	return text, body
}

func (h *HTTP) serveWhereabouts(w http.ResponseWriter, r *http.Request, id string) {
	all, here := h.open.directory.whereabouts(id)
	switch {
	case here, all.At != "" && r.Header.Get("Accept") == "":
		writeStatus(w, http.StatusNoContent)
	case (all.At != "" || all.Kept != nil) && r.Header.Get("Accept") != "":
		text, _ := json.Marshal(all)
		writeJSON(w, http.StatusOK, text)
	default:
		writeStatus(w, http.StatusNotFound)
	}
}
