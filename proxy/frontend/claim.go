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
	mine := k.directory.generations()
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
				k.directory.yield(id, to.Instance, moves)
			}
		case status >= http.StatusInternalServerError:
			return false
		default: // a version that continues no sessions
			return true
		}
	}
	return true
}

// compare ends the copies of sessions that another replica has in a higher generation, and returns those
// that are here in a higher one. The names of both break a tie. It remembers where sessions are that were made here, and whose
// copies here have ended meanwhile.
func (k *keeper) compare(theirs claims) claims {
	self := k.replicas.Instance()
	mine := claims{Of: self, Sessions: make(map[string]int64)}
	for id, moves := range theirs.Sessions {
		here, ok := k.directory.generation(id)
		switch {
		case !ok: // requests for what was made here come here first
			if _, at := k.replicas.Owner(id); at == Here {
				k.directory.gone.set(id, theirs.Of)
			}
		case here > moves || here == moves && self > theirs.Of:
			mine.Sessions[id] = here
		default:
			k.directory.yield(id, theirs.Of, moves)
		}
	}
	return mine
}
