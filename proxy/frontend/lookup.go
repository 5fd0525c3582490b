package frontend

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	lookupTimeout = 3 * time.Second
	missingFor    = 30 * time.Second // how long it is remembered that nobody has a session
	maxLookups    = 1 << 16          // remembered
)

// lookups find sessions whose replica is gone, and that it may have moved: all others are asked, and
// the answer is remembered.
type lookups struct {
	mu    sync.Mutex
	known map[string]lookup // guarded by mu
}

// A lookup is what is remembered of one session.
type lookup struct {
	instance string // "" for none
	at       time.Time
}

// find returns where a session is that is not here. It waits for the answers of the others.
func (f *lookups) find(ctx context.Context, id string, l *relay) (via http.RoundTripper, at Where) {
	f.mu.Lock()
	known, ok := f.known[id]
	f.mu.Unlock()
	switch {
	case !ok:
	case known.instance != "":
		if via, at := l.at(known.instance); at != Gone {
			return via, at
		}
	case time.Since(known.at) < missingFor:
		return nil, Nowhere
	}
	instance, via, sure := ask(ctx, id, l.replicas.Others())
	switch {
	case via != nil:
		f.remember(id, instance)
		l.open.found(1, 0)
		return via, There
	case !sure:
		return nil, Away
	}
	f.remember(id, "")
	l.open.found(0, 1)
	return nil, Nowhere
}

// found counts lookups.
func (o *openSessions) found(some, none int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moves.Found += some
	o.moves.Missing += none
}

func (f *lookups) remember(id, instance string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil || len(f.known) >= maxLookups {
		f.known = make(map[string]lookup)
	}
	f.known[id] = lookup{instance, time.Now()}
}

// ask asks all replicas for a session. via is nil if none has it; sure means then that all have answered.
func ask(ctx context.Context, id string, all []Other) (instance string, via http.RoundTripper, sure bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	type answer struct {
		of          Other
		has, failed bool
	}
	answers := make(chan answer, len(all))
	for _, o := range all {
		go func() {
			has, err := hasSession(ctx, o.Via, id)
			answers <- answer{o, has, err != nil}
		}()
	}
	sure = true
	for range all {
		a := <-answers
		if a.has {
			return a.of.Instance, a.of.Via, true
		}
		sure = sure && !a.failed
	}
	return "", nil, sure
}

// hasSession asks one replica for a session.
func hasSession(ctx context.Context, via http.RoundTripper, id string) (bool, error) {
	if via == nil {
		return false, errAway
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://replica"+replicaPath+"/"+id, nil)
	if err != nil {
		return false, err
	}
	resp, err := via.RoundTrip(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return true, nil
	case http.StatusNotFound:
		return false, nil
	}
	return false, errNoAnswer
}

var errNoAnswer = errors.New("the replica does not say whether it has the session")
