package frontend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// replicaPath is the path under which replicas serve each other:
//
//	POST /replica/sessions           takes over the session in the body, a record
//	PUT  /replica/sessions           keeps records, see keeping
//	POST /replica/sessions/claims    compares which sessions both have, see claims
//	GET  /replica/sessions/ID        204 if the session is there, else 404; or a whereabouts if that is accepted
const replicaPath = "/replica/sessions"

const (
	maxRecord  = 1 << 20 // bytes of a record
	maxKeeping = keepBatch + maxRecord + 1<<20
)

// Whereabouts are what a replica knows of a session that it does not have.
type whereabouts struct {
	At   string  `json:"at,omitempty"`   // instance to which it has moved from here
	Kept *keptAt `json:"kept,omitempty"` // its record is here
}

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
		case !h.open.take(rec, text):
			unavailable(w, noRoom)
		default:
			writeStatus(w, http.StatusNoContent)
		}
	case r.URL.Path == replicaPath && r.Method == http.MethodPut:
		if _, k := readReplica[keeping](w, r, maxKeeping); k != nil {
			if !h.open.keep(k) {
				unavailable(w, noRoom)
				return
			}
			writeStatus(w, http.StatusNoContent)
		}
	case id == "claims" && r.Method == http.MethodPost:
		if _, theirs := readReplica[claims](w, r, maxClaims*256); theirs != nil {
			if _, at := h.streamable.relay.at(theirs.Of); at == Gone {
				h.open.hear(theirs.Of, time.Now())
			}
			text, _ := json.Marshal(h.open.compare(h.Replicas.Instance(), *theirs))
			writeJSON(w, http.StatusOK, text)
		}
	default:
		http.NotFound(w, r)
	}
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
	all, here := h.open.whereabouts(id)
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

// whereabouts returns what this replica knows of a session, and whether it is here. So at each moment of a
// move somebody has it.
func (o *openSessions) whereabouts(id string) (all whereabouts, here bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID[id] != nil || o.records.byID[id] != nil {
		return all, true
	}
	all.At = o.moved[id]
	if k := o.kept.byID[id]; k != nil {
		all.Kept = &keptAt{k.age, k.owner}
	}
	return all, false
}

// tell sends a request to another replica, and returns the answer; via is nil if it cannot be reached.
func tell(ctx context.Context, via http.RoundTripper, method, path string, body []byte) (status int, text []byte, err error) {
	if via == nil {
		return 0, nil, errAway
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://replica"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if method == http.MethodGet {
		r.Header.Set("Accept", typeJSON)
	}
	resp, err := via.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxClaims*256))
	return resp.StatusCode, text, err
}

var errAway = errors.New(ownerAway)
