package frontend

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stillFor is how long this process may stand still, stopped or frozen, before others may have declared
	// it dead, and continued its sessions.
	stillFor  = 3 * time.Second
	beatEvery = 500 * time.Millisecond

	maxClaims = 10_000 // in one request
)

// A pulse notices when this process did not run for a while. Then all others are asked which of its
// sessions they have continued, before it serves one.
type pulse struct {
	last atomic.Int64 // when the process was last seen to run, in nanoseconds of the wall clock; 0: not watched

	mu    sync.Mutex    // guards doubt
	doubt chan struct{} // closed when all others have answered; nil: there is no doubt
}

// start begins to watch.
func (p *pulse) start() { p.last.Store(time.Now().UnixNano()) }

// run watches until ctx ends.
func (p *pulse) run(ctx context.Context) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for ctx.Err() == nil {
		select {
		case <-beat.C:
			p.doubted(time.Now())
		case <-ctx.Done():
			p.last.Store(0)
		}
	}
}

// doubted returns a channel that is closed when it is known which sessions are still here; nil if it is.
func (p *pulse) doubted(now time.Time) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.last.Load()
	if last == 0 {
		return nil
	}
	if still := now.UnixNano() - last; p.doubt == nil && still > int64(stillFor) {
		p.doubt = make(chan struct{})
	}
	p.last.Store(now.UnixNano())
	return p.doubt
}

// clear ends a doubt.
func (p *pulse) clear(doubt chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doubt == doubt {
		close(doubt)
		p.doubt = nil
	}
}

// await waits until it is known which sessions are still here. It returns false if that takes too long, or
// ctx ends.
func (k *keeper) await(ctx context.Context) bool {
	if k == nil || k.pulse.last.Load() == 0 {
		return true
	}
	doubt := k.pulse.doubted(time.Now())
	if doubt == nil {
		return true
	}
	late := time.NewTimer(lookupTimeout)
	defer late.Stop()
	select {
	case <-doubt:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// Claims are the sessions that a replica has, with their generations, in a request to another one, and
// those of them that the other has in a higher generation, in the response.
type claims struct {
	Of       string           `json:"of"` // instance of the replica that has the sessions
	Sessions map[string]int64 `json:"sessions"`
}

// agree tells each replica that has joined, or joined again, which sessions are here, and each replica
// after this process did not run for a while. Of two copies of a session one ends.
func (k *keeper) agree(ctx context.Context, others []Other) {
	doubt := k.pulse.doubted(time.Now())
	if doubt != k.doubt {
		k.doubt = doubt
		if doubt != nil {
			clear(k.agreed)
		}
	}
	maps.DeleteFunc(k.agreed, func(instance string, since time.Time) bool {
		return !slices.ContainsFunc(others, func(o Other) bool { return o.Instance == instance && o.Since.Equal(since) })
	})
	var wg sync.WaitGroup
	all := make([]bool, len(others))
	for i, o := range others {
		if _, ok := k.agreed[o.Instance]; ok {
			all[i] = true
			continue
		}
		wg.Go(func() { all[i] = k.claim(ctx, o) })
	}
	wg.Wait()
	for i, o := range others {
		if all[i] {
			k.agreed[o.Instance] = o.Since
		}
	}
	if doubt != nil && !slices.Contains(all, false) {
		k.pulse.clear(doubt)
	}
}

// claim tells one replica which sessions are here, and ends those that it has in a higher generation. It
// returns false if it has not answered.
func (k *keeper) claim(ctx context.Context, to Other) bool {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	mine := k.open.generations()
	for len(mine) > 0 {
		some := claims{Of: k.replicas.Instance(), Sessions: make(map[string]int64)}
		for id, moves := range mine {
			some.Sessions[id] = moves
			delete(mine, id)
			if len(some.Sessions) == maxClaims {
				break
			}
		}
		text, err := json.Marshal(some)
		if err != nil {
			return false
		}
		status, text, err := tell(ctx, to.Via, http.MethodPost, replicaPath+"/claims", text)
		var theirs claims
		switch {
		case err != nil:
			return false
		case status == http.StatusOK && json.Unmarshal(text, &theirs) == nil:
			for id, moves := range theirs.Sessions {
				k.open.yield(id, to.Instance, moves)
			}
		case status >= http.StatusInternalServerError:
			return false
		default: // a version that continues no sessions
			return true
		}
	}
	return true
}

// generations returns how often each session that is here has moved.
func (o *openSessions) generations() map[string]int64 {
	sessions, moved := o.toMove()
	all := make(map[string]int64, len(sessions)+len(moved))
	for _, s := range sessions {
		all[s.id] = s.moves
	}
	for _, m := range moved {
		all[m.ID] = m.Moves
	}
	return all
}

// sessions returns the number of sessions of Streamable HTTP that are here.
func (o *openSessions) sessions() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(o.records.byID)
	for _, s := range o.byID {
		if !s.sse {
			n++
		}
	}
	return n
}

// compare ends the copies of sessions that another replica has in a higher generation, and returns those
// that are here in a higher one. self breaks a tie. It remembers where sessions are that were made here, and whose
// copies here have ended meanwhile.
func (o *openSessions) compare(self string, theirs claims) claims {
	mine := claims{Of: self, Sessions: make(map[string]int64)}
	for id, moves := range theirs.Sessions {
		here, ok := o.generation(id)
		switch {
		case !ok: // requests for what was made here come here first
			if _, at := o.keeper.replicas.Owner(id); at == Here {
				o.movedTo(id, theirs.Of)
			}
		case here > moves || here == moves && self > theirs.Of:
			mine.Sessions[id] = here
		default:
			o.yield(id, theirs.Of, moves)
		}
	}
	return mine
}

// hearFor is how long a replica counts as alive that has sent its claims although this one holds it for dead.
const hearFor = 10 * time.Second

// hear records that a replica has sent its claims that is not among the others.
func (o *openSessions) hear(instance string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.heard, func(_ string, at time.Time) bool { return now.Sub(at) > hearFor })
	if o.heard == nil {
		o.heard = make(map[string]time.Time)
	}
	o.heard[instance] = now
}

// heardLately reports whether hear was called for a replica a moment ago.
func (o *openSessions) heardLately(instance string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.heard[instance]
	return ok && time.Since(at) < hearFor
}

// generation returns how often the session has moved; false if it is not here.
func (o *openSessions) generation(id string) (moves int64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.generationLocked(id)
}

func (o *openSessions) generationLocked(id string) (moves int64, ok bool) {
	if s := o.byID[id]; s != nil && !s.sse {
		return s.moves, true
	}
	if m := o.records.byID[id]; m != nil {
		return m.Moves, true
	}
	return 0, false
}

// yield ends the copy of a session that another replica continues, which has moved that often, unless the session has
// moved here since that was known. Requests that are in flight get the connection-closed error, and later ones are
// passed on.
func (o *openSessions) yield(id, to string, moves int64) {
	o.mu.Lock()
	s, m := o.byID[id], o.records.byID[id]
	if here, ok := o.generationLocked(id); !ok || here > moves {
		o.mu.Unlock()
		return
	}
	o.setMovedLocked(id, to)
	if m != nil {
		o.dropLocked(id, m)
		o.keeper.noteEnd(id)
	}
	delete(o.byID, id) // it may come back before it has ended
	o.tally.note(Yielded, to)
	o.mu.Unlock()
	if s != nil {
		s.end(errMoved, true)
	}
}
