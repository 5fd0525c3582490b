package frontend

import (
	"sync"
	"time"
)

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

func (r *movedRecords) hasRoom(text []byte) bool { return r.bytes+len(text) <= maxRecords }

func (r *movedRecords) add(m *movedRecord) {
	r.byID[m.ID] = m
	r.bytes += len(m.text)
}

// drop removes a record. It returns false if it is not there.
func (r *movedRecords) drop(m *movedRecord) bool {
	if r.byID[m.ID] != m {
		return false
	}
	delete(r.byID, m.ID)
	r.bytes -= len(m.text)
	if m.expiry != nil {
		m.expiry.Stop()
	}
	return true
}

// onward returns the record for the replica that its session moves on to before its client has used it.
func (m *movedRecord) onward(of string) []byte {
	next := *m.record
	next.Of, next.Moves = of, m.Moves+1
	return next.over(m.text)
}

// maxMovedAway bounds the sessions of which is remembered where they have gone. A replica that leaves remembers all.
const maxMovedAway = 1 << 16

// movedAway remembers where sessions have gone that were here.
type movedAway struct {
	mu  sync.Mutex        // guards the fields below
	at  map[string]string // by session: the instance that has it now
	all bool              // not bounded
}

func (a *movedAway) set(id, instance string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == nil || len(a.at) >= maxMovedAway && !a.all {
		a.at = make(map[string]string)
	}
	a.at[id] = instance
}

// to returns where a session has gone; "" if it has not.
func (a *movedAway) to(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at[id]
}

func (a *movedAway) forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.at, id)
}

func (a *movedAway) keepAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = true
}
