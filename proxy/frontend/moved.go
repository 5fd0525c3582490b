package frontend

import "time"

const maxRecords = 64 << 20 // bytes of all records that nobody has asked for yet

// movedRecords are sessions that other replicas have moved here, and that their clients have not used
// yet. The first request begins them. Its owner's lock guards it.
type movedRecords struct {
	byID  map[string]*movedRecord
	bytes int
}

type movedRecord struct {
	*record
	text   []byte
	expiry *time.Timer   // nil: never
	frozen chan struct{} // it is being moved; closed when it is over
	taker  string        // as in httpSession
}

// take stores a record of a session that moves here. It returns false if there is no room, or if this replica leaves.
func (o *openSessions) take(r *record, text []byte) bool {
	o.yield(r.ID, r.Of, r.Moves-1) // a copy that is left from a split, if the others were not compared yet
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.byID[r.ID] != nil || o.records.byID[r.ID] != nil || o.draining && o.moved[r.ID] != "" && o.moved[r.ID] != r.Of:
		return true // it was sent again
	case o.draining || o.records.bytes+len(text) > maxRecords:
		return false
	}
	o.addMovedLocked(r, text)
	o.tally.note(Taken, r.Of)
	return true
}

func (o *openSessions) addMovedLocked(r *record, text []byte) {
	m := &movedRecord{record: r, text: text}
	if o.idle > 0 {
		m.expiry = time.AfterFunc(o.idle, func() {
			if o.drop(r.ID, m) {
				o.keeper.noteEnd(r.ID)
			}
		})
	}
	o.records.byID[r.ID] = m
	o.records.bytes += len(text)
	delete(o.moved, r.ID) // it may have come back
	if k := o.kept.byID[r.ID]; k != nil && k.age.Moves < r.Moves {
		o.forgetKeptLocked(r.ID)
	}
	o.keeper.note(r.ID)
}

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

// Moves returns what became of sessions so far.
func (h *HTTP) Moves() Moves {
	h.init()
	h.open.mu.Lock()
	defer h.open.mu.Unlock()
	t := &h.open.tally
	return Moves{
		Waiting: len(h.open.records.byID), Kept: len(h.open.kept.byID), Resumed: t.resumed, Found: t.found,
		Taken: t.so[Taken], Adopted: t.so[Adopted], Yielded: t.so[Yielded], Missing: t.so[Missing],
	}
}

// A tally counts what became of sessions. Its owner's lock guards it.
type tally struct {
	so             [Missing + 1]int // by Became
	resumed, found int              // as in Moves
	untold         map[tiding]int   // since the last report
}

type tiding struct {
	what     Became
	instance string // of the other replica
}

func (t *tally) note(what Became, instance string) {
	t.so[what]++
	if t.untold == nil {
		t.untold = make(map[tiding]int)
	}
	t.untold[tiding{what, instance}]++
}

// report reports what became of sessions since the last call.
func (o *openSessions) report(to Replicas) {
	o.mu.Lock()
	all := o.tally.untold
	o.tally.untold = nil
	o.mu.Unlock()
	for became, n := range all {
		to.Became(became.what, became.instance, n)
	}
}

// onward returns the record for the replica that its session moves on to before its client has used it.
func (k *movedRecord) onward(of string) []byte {
	next := *k.record
	next.Of, next.Moves = of, k.Moves+1
	return next.over(k.text)
}

// drop removes a record, unless its session has begun.
func (o *openSessions) drop(id string, k *movedRecord) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropLocked(id, k)
}

func (o *openSessions) dropLocked(id string, k *movedRecord) bool {
	if o.records.byID[id] != k {
		return false
	}
	delete(o.records.byID, id)
	o.records.bytes -= len(k.text)
	if k.expiry != nil {
		k.expiry.Stop()
	}
	return true
}

// beginMovedLocked returns the session of a record, which its caller starts.
func (o *openSessions) beginMovedLocked(k *movedRecord, from caller) *httpSession {
	o.dropLocked(k.ID, k)
	o.tally.resumed++
	s := o.newSession(k.ID, from)
	s.resume(k.record, from, k.Digest != o.digest())
	o.counted++
	o.uncounted++
	o.wg.Add(1)
	o.byID[k.ID] = s
	return s
}

// entered returns the leave of a session that has moved here. It does not count against the bounds, since
// it was admitted elsewhere.
func (o *openSessions) entered(from caller) (leave func()) {
	left := func() {}
	if o.admit != nil {
		if admitted, refusal := o.admit(from.who); refusal == nil {
			left = admitted
		}
	}
	return func() {
		left()
		o.mu.Lock()
		o.uncounted--
		o.mu.Unlock()
		o.leave()
	}
}

// freeze makes the requests of a session wait whose record is being moved. It returns false if they do, or
// if the session has begun.
func (o *openSessions) freeze(k *movedRecord) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k.frozen != nil || o.records.byID[k.ID] != k {
		return false
	}
	k.frozen = make(chan struct{})
	return true
}

// thaw is that of a session whose record was to be moved.
func (o *openSessions) thaw(k *movedRecord) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(k.frozen)
	k.frozen = nil
}
