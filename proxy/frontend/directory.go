package frontend

import (
	"bytes"
	"encoding/json"
	"maps"
	"sync"
	"time"
)

// A directory says where the sessions are that clients name by an id: here, moved here and not used since, or moved to
// another replica. It also has the records that this replica keeps for others.
type directory struct {
	changes *changes      // nil: sessions do not move; static
	idle    time.Duration // after which a session that has moved here ends if it is not used; not positive: never
	kept    keptRecords   // has a lock of its own, as have the next two
	tally   tally
	gone    movedAway

	mu      sync.Mutex              // guards the fields below
	byID    map[string]*httpSession // sessions that a client may still use
	moved   movedRecords
	leaving bool // nothing moves here any more
	closed  bool
}

func newDirectory(idle time.Duration) *directory {
	return &directory{
		idle: idle, kept: keptRecords{byID: make(map[string]*keptRecord)},
		byID: make(map[string]*httpSession), moved: movedRecords{byID: make(map[string]*movedRecord)},
	}
}

// add adds a session that begins here.
func (d *directory) add(s *httpSession) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byID[s.id] = s
}

// remove removes a session that has ended. over means that no other replica continues it.
func (d *directory) remove(s *httpSession, over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byID[s.id] == s {
		delete(d.byID, s.id)
	}
	if over {
		s.changes.noteEnd(s.id)
	}
}

// find returns the session with an id, nil for none. It begins one that has moved here with what begin returns for its
// record, if key is that of its client; begun is true then. frozen is not nil if it has not begun and is being moved on.
func (d *directory) find(id string, key connKey, begin func(*record) *httpSession) (s *httpSession, begun bool, frozen <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, m := d.byID[id], d.moved.byID[id]
	switch {
	case s != nil || m == nil || m.key() != key || d.closed:
		return s, false, nil
	case m.frozen != nil:
		return nil, false, m.frozen
	}
	d.moved.drop(m)
	d.tally.resume()
	s = begin(m.record)
	d.byID[id] = s
	return s, true, nil
}

// take stores a record of a session that moves here. It returns false if there is no room, or if this replica leaves.
// Until the session begins or moves on, its replica may send the record again, with what came meanwhile.
func (d *directory) take(r *record, text []byte) bool {
	d.yield(r.ID, r.Of, r.Moves-1) // a copy that is left from a split, if the others were not compared yet
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.gone.to(r.ID)
	switch {
	case d.retakeLocked(r, text):
		return true
	case d.hereLocked(r.ID) || d.leaving && at != "" && at != r.Of:
		return true // it was sent again
	case d.leaving || !d.moved.hasRoom(text):
		return false
	}
	d.addMovedLocked(r, text)
	d.tally.note(Taken, r.Of)
	return true
}

// retake is take for a record that was taken already. Its client may have come, and ended the session, since.
func (d *directory) retake(r *record, text []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retakeLocked(r, text)
}

// retakeLocked replaces the record of a session that has moved here, unless the session has begun or moves on, and
// reports whether it did. One that was sent before is read late, and replaces none.
func (d *directory) retakeLocked(r *record, text []byte) bool {
	m := d.moved.byID[r.ID]
	if m == nil || m.frozen != nil || m.Of != r.Of || m.Moves != r.Moves || m.Seq > r.Seq || !d.moved.hasRoom(text) {
		return false
	}
	d.moved.drop(m)
	d.addMovedLocked(r, text)
	return true
}

// adopt makes a session whose replica has died one that has moved here, so that the next request of its
// client begins it. It returns false if nothing is kept of it, and true if another request has done that meanwhile.
func (d *directory) adopt(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.hereLocked(id) {
		return !d.closed
	}
	k := d.kept.remove(id)
	var r record
	if k == nil || json.Unmarshal(k.text, &r) != nil {
		return false
	}
	r.goOn()
	d.addMovedLocked(&r, r.over(k.text))
	d.tally.note(Adopted, k.owner)
	return true
}

func (d *directory) addMovedLocked(r *record, text []byte) {
	m := &movedRecord{record: r, text: text}
	if d.idle > 0 {
		m.expiry = time.AfterFunc(d.idle, func() {
			if d.drop(m) {
				d.changes.noteEnd(r.ID)
			}
		})
	}
	d.moved.add(m)
	d.gone.forget(r.ID) // it may have come back
	d.kept.removeOlder(r.ID, r.Moves)
	d.changes.note(r.ID)
}

// drop removes the record of a session that has moved here. It returns false if the session has begun, or if the record is
// no longer here.
func (d *directory) drop(m *movedRecord) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.moved.drop(m)
}

// freeze makes the requests of a session wait whose record is being moved. It returns false if they do, or
// if the session has begun.
func (d *directory) freeze(m *movedRecord) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.frozen != nil || d.moved.byID[m.ID] != m {
		return false
	}
	m.frozen = make(chan struct{})
	return true
}

// thaw is that of a session whose record was to be moved.
func (d *directory) thaw(m *movedRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(m.frozen)
	m.frozen = nil
}

// toMove returns the sessions of Streamable HTTP, and the records of others that have moved here.
func (d *directory) toMove() (sessions []*httpSession, records []*movedRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.byID {
		if !s.sse {
			sessions = append(sessions, s)
		}
	}
	for _, m := range d.moved.byID {
		records = append(records, m)
	}
	return sessions, records
}

// count returns the number of sessions of Streamable HTTP that are here, and of those among them that their clients have not
// used since they moved here.
func (d *directory) count() (all, waiting int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all = len(d.moved.byID)
	for _, s := range d.byID {
		if !s.sse {
			all++
		}
	}
	return all, len(d.moved.byID)
}

// generations returns how often each session that is here has moved.
func (d *directory) generations() map[string]int64 {
	sessions, moved := d.toMove()
	all := make(map[string]int64, len(sessions)+len(moved))
	for _, s := range sessions {
		all[s.id] = s.moves
	}
	for _, m := range moved {
		all[m.ID] = m.Moves
	}
	return all
}

// generation returns how often the session has moved; false if it is not here.
func (d *directory) generation(id string) (moves int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.generationLocked(id)
}

func (d *directory) generationLocked(id string) (moves int64, ok bool) {
	if s := d.byID[id]; s != nil && !s.sse {
		return s.moves, true
	}
	if m := d.moved.byID[id]; m != nil {
		return m.Moves, true
	}
	return 0, false
}

// yield ends the copy of a session that another replica continues, which has moved that often, unless the session has
// moved here since that was known. Requests that are in flight get the connection-closed error, and later ones are
// passed on.
func (d *directory) yield(id, to string, moves int64) {
	d.mu.Lock()
	s, m := d.byID[id], d.moved.byID[id]
	if here, ok := d.generationLocked(id); !ok || here > moves {
		d.mu.Unlock()
		return
	}
	d.gone.set(id, to)
	if m != nil {
		d.moved.drop(m)
		d.changes.noteEnd(id)
	}
	delete(d.byID, id) // it may come back before it has ended
	d.tally.note(Yielded, to)
	d.mu.Unlock()
	if s != nil {
		s.end(errMoved, true)
	}
}

func (d *directory) hereLocked(id string) bool { return d.byID[id] != nil || d.moved.byID[id] != nil }

// Whereabouts are what a replica knows of a session that it does not have.
type whereabouts struct {
	At   string  `json:"at,omitempty"`   // instance to which it has moved from here
	Kept *keptAt `json:"kept,omitempty"` // its record is here
}

// whereabouts returns what this replica knows of a session, and whether it is here. So at each moment of a
// move somebody has it.
func (d *directory) whereabouts(id string) (all whereabouts, here bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hereLocked(id) {
		return all, true
	}
	return whereabouts{d.gone.to(id), d.kept.of(id)}, false
}

// recordOf returns the record of a session that is here, as it is sent to who keeps it; nil if there is none that another
// replica could continue. lives is whether the session is here. of is this replica, and digest as of Replicas.
func (d *directory) recordOf(id string, seq int64, of, digest string) (text []byte, lives bool) {
	d.mu.Lock()
	s, moved := d.byID[id], d.moved.byID[id]
	var mine record
	if moved != nil { // it may begin soon, and what its client says changes it
		mine = *moved.record
		mine.Streams, mine.Said.Subscribed = nil, maps.Clone(mine.Said.Subscribed)
	}
	d.mu.Unlock()
	var r *record
	switch {
	case s != nil:
		s.mu.Lock()
		lives = s.in.Err() == nil
		if lives && s.movableLocked() {
			r = s.recordLocked(of, digest)
		}
		defer s.mu.Unlock() // the record has its values
	case moved != nil:
		r, lives = &mine, true
	}
	if r == nil {
		return nil, lives
	}
	r.Seq = seq
	return bytes.TrimSuffix(r.encode(), []byte("\n")), true
}

// leave makes it take no more sessions and records of others.
func (d *directory) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = true
	d.kept.leave()
	d.gone.keepAll()
}

// close drops the sessions that have moved here, of which none begins any more.
func (d *directory) close() {
	d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, m := range d.moved.byID {
		d.moved.drop(m)
	}
}
