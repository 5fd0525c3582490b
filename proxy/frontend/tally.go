package frontend

import "sync"

// Moves counts sessions that have moved here, and searches for sessions of replicas that are gone.
type Moves struct {
	Waiting int // moved here, and not used since
	Kept    int // of others, whose records are here
	Taken   int // moved here, so far
	Resumed int // moved here, and used by their clients since
	Adopted int // continued here, since the replica that had them has died
	Yielded int // ended here, since another replica has continued them
	Found   int // found at another replica than the one that made them, which is gone
	Missing int // those that nobody had
}

// A tally counts what became of sessions.
type tally struct {
	mu             sync.Mutex       // guards the fields below
	so             [Missing + 1]int // by Became
	resumed, found int              // as in Moves
	untold         map[tiding]int   // since the last report
}

type tiding struct {
	what     Became
	instance string // of the other replica
}

func (t *tally) note(what Became, instance string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.so[what]++
	if t.untold == nil {
		t.untold = make(map[tiding]int)
	}
	t.untold[tiding{what, instance}]++
}

func (t *tally) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resumed++
}

func (t *tally) find() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found++
}

// moves returns what became of sessions so far.
func (t *tally) moves() Moves {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Moves{
		Resumed: t.resumed, Found: t.found,
		Taken: t.so[Taken], Adopted: t.so[Adopted], Yielded: t.so[Yielded], Missing: t.so[Missing],
	}
}

// report reports what became of sessions since the last call.
func (t *tally) report(to Replicas) {
	t.mu.Lock()
	all := t.untold
	t.untold = nil
	t.mu.Unlock()
	for became, n := range all {
		to.Became(became.what, became.instance, n)
	}
}
