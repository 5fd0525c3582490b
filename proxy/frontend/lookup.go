package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	lookupTimeout = 3 * time.Second
	missingFor    = 30 * time.Second // how long it is remembered that nobody has a session
	maxLookups    = 1 << 16          // remembered
)

// lookups find sessions whose replica is gone, and that it may have moved, or that another one continues:
// all others are asked, and the answer is remembered.
type lookups struct {
	mu    sync.Mutex // guards the fields below
	known map[string]lookup
	heard map[string]time.Time // when replicas that seemed to be dead have sent claims, by instance
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
	a := ask(ctx, id, l.replicas.Others())
	switch {
	case a.has != nil && a.has.Via == nil:
		return nil, Away
	case a.has != nil:
		f.remember(id, a.has.Instance)
		l.directory.tally.find()
		return a.has.Via, There
	case !a.sure:
		return nil, Away
	}
	if via, at := l.keeperOf(id, a); at != Nowhere {
		return via, at
	}
	f.remember(id, "")
	instance, _, _ := strings.Cut(id, ".")
	l.directory.tally.note(Missing, instance)
	return nil, Nowhere
}

// keeperOf returns where a session goes on that no other replica has: where its newest record is kept, if the
// replica that had it is dead. That may be here: then it goes on from now on.
func (l *relay) keeperOf(id string, a heard) (via http.RoundTripper, at Where) {
	known, here := l.directory.whereabouts(id)
	if here { // another request has done that meanwhile
		return nil, Here
	}
	if via, at := l.at(known.At); at != Gone { // it has come here and moved on while the others were asked
		return via, at
	}
	mine := known.Kept
	if mine != nil && l.found.heardLately(mine.Owner) {
		return nil, Away
	}
	var best *answer
	for i := range a.kept {
		k := &a.kept[i]
		if _, at := l.at(k.kept.Owner); at != Gone { // which says that the session has ended
			continue
		}
		if best == nil || k.newer(best.kept, best.of.Instance) {
			best = k
		}
	}
	if mine != nil {
		if _, at := l.at(mine.Owner); at == Gone && (best == nil || !best.newer(mine, l.replicas.Instance())) {
			if l.directory.adopt(id) {
				return nil, Here
			}
		}
	}
	if best != nil {
		return best.of.Via, There
	}
	return nil, Nowhere
}

// newer reports whether the record of a is newer than another one, which that instance keeps.
func (a *answer) newer(than *keptAt, instance string) bool {
	order := a.kept.compare(than.recordAge)
	return order > 0 || order == 0 && a.of.Instance > instance
}

func (f *lookups) remember(id, instance string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil || len(f.known) >= maxLookups {
		f.known = make(map[string]lookup)
	}
	f.known[id] = lookup{instance, time.Now()}
}

// hearFor is how long a replica counts as alive that has sent its claims although this one holds it for dead.
const hearFor = 10 * time.Second

// hear records that a replica has sent its claims that is not among the others.
func (f *lookups) hear(instance string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.heard, func(_ string, at time.Time) bool { return now.Sub(at) > hearFor })
	if f.heard == nil {
		f.heard = make(map[string]time.Time)
	}
	f.heard[instance] = now
}

// heardLately reports whether hear was called for a replica a moment ago.
func (f *lookups) heardLately(instance string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.heard[instance]
	return ok && time.Since(at) < hearFor
}

// Heard is what all other replicas know of a session.
type heard struct {
	has  *Other   // the one that has it; nil for none
	sure bool     // all have answered, if none has it
	kept []answer // of those that keep a record
}

type answer struct {
	of   Other
	has  bool
	at   string // instance to which it has moved
	kept *keptAt
	err  error
}

// ask asks all replicas for a session.
func ask(ctx context.Context, id string, all []Other) (found heard) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	each := make(chan answer, len(all))
	for _, o := range all {
		go func() { each <- askOne(ctx, o, id) }()
	}
	found.sure = true
	for range all {
		a := <-each
		if a.has {
			found.has = &a.of
			return found
		}
		if i := slices.IndexFunc(all, func(o Other) bool { return o.Instance == a.at }); i >= 0 {
			found.has = &all[i]
			return found
		}
		if a.kept != nil {
			found.kept = append(found.kept, a)
		}
		found.sure = found.sure && a.err == nil
	}
	return found
}

// askOne asks one replica for a session.
func askOne(ctx context.Context, o Other, id string) (a answer) {
	a.of = o
	var status int
	var text []byte
	status, text, a.err = tell(ctx, o.Via, http.MethodGet, replicaPath+"/"+id, nil)
	switch {
	case a.err != nil, status == http.StatusNotFound:
	case status == http.StatusNoContent:
		a.has = true
	default:
		var w whereabouts
		if status != http.StatusOK || json.Unmarshal(text, &w) != nil {
			a.err = errNoAnswer
		}
		a.at, a.kept = w.At, w.Kept
	}
	return a
}

var errNoAnswer = errors.New("the replica does not say whether it has the session")
