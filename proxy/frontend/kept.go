package frontend

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// maxKept bounds the bytes of the records that are kept for other replicas.
const maxKept = 64 << 20

// keptRecords are records of sessions that other replicas have. When such a replica has died, its
// sessions go on here, each with the next request of its client.
type keptRecords struct {
	mu      sync.Mutex // guards the fields below
	byID    map[string]*keptRecord
	bytes   int
	leaving bool // nothing is kept any more
}

type keptRecord struct {
	age   recordAge
	owner string // instance of the replica that has the session
	text  []byte
	alone time.Time // when the owner was first seen to be gone; zero if it is there
}

// A recordAge tells the newer of two records of a session.
type recordAge struct {
	Moves int64 `json:"moves"`
	Seq   int64 `json:"seq"` // orders the records of one owner
}

func (a recordAge) compare(b recordAge) int {
	return cmp.Or(cmp.Compare(a.Moves, b.Moves), cmp.Compare(a.Seq, b.Seq))
}

func (r *record) age() recordAge { return recordAge{r.Moves, r.Seq} }

// A keeping is the body of a request to keep records:
//
//	{"of":"R4KQ2ZB7XWNTE","records":[{"v":1,"id":"…",…}],"forget":["…"]}
type keeping struct {
	Of      string            `json:"of"` // instance of the replica that has the sessions
	Records []json.RawMessage `json:"records,omitempty"`
	Forget  []string          `json:"forget,omitempty"` // ids of sessions that have ended, or that another replica keeps
}

// keep stores records of another replica in place of older ones. It returns false if there is no room
// for one, or if this replica leaves. Records that it cannot read are not kept.
func (r *keptRecords) keep(k *keeping) (all bool) {
	all = true
	for _, text := range k.Records {
		var one record
		if json.Unmarshal(text, &one) != nil || !one.valid() {
			continue
		}
		all = r.keepOne(one.ID, &keptRecord{age: one.age(), owner: k.Of, text: text}) && all
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range k.Forget {
		if before := r.byID[id]; before != nil && before.owner == k.Of {
			r.removeLocked(id)
		}
	}
	return all
}

func (r *keptRecords) keepOne(id string, k *keptRecord) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, size := r.byID[id], len(k.text)
	if before != nil {
		if before.age.compare(k.age) > 0 {
			return true
		}
		size -= len(before.text)
	}
	if r.leaving || r.bytes+size > maxKept {
		return false
	}
	r.byID[id] = k
	r.bytes += size
	return true
}

// remove removes and returns what is kept of a session; nil for nothing.
func (r *keptRecords) remove(id string) *keptRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.byID[id]
	if k != nil {
		r.removeLocked(id)
	}
	return k
}

// removeOlder removes the record of a session that has moved less often.
func (r *keptRecords) removeOlder(id string, moves int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.byID[id]; k != nil && k.age.Moves < moves {
		r.removeLocked(id)
	}
}

func (r *keptRecords) removeLocked(id string) {
	r.bytes -= len(r.byID[id].text)
	delete(r.byID, id)
}

// expire removes the records whose owners are gone for longer than idle, which ends sessions; not positive: never.
func (r *keptRecords) expire(now time.Time, there map[string]bool, idle time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, k := range r.byID {
		switch {
		case there[k.owner]:
			k.alone = time.Time{}
		case k.alone.IsZero():
			k.alone = now
		case idle > 0 && now.Sub(k.alone) > idle:
			r.removeLocked(id)
		}
	}
}

// orphans returns the records that are kept here for replicas that are not among others, or cannot be reached and may
// be dead, by replica and id.
func (r *keptRecords) orphans(others []Other) map[string]map[string][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]map[string][]byte)
	for id, k := range r.byID {
		if slices.ContainsFunc(others, func(other Other) bool { return other.Instance == k.owner && other.Via != nil }) {
			continue
		}
		if all[k.owner] == nil {
			all[k.owner] = make(map[string][]byte)
		}
		all[k.owner][id] = k.text
	}
	return all
}

// A keptAt says that a replica keeps a record.
type keptAt struct {
	recordAge
	Owner string `json:"owner"`
}

// of returns what is kept here of a session; nil for nothing.
func (r *keptRecords) of(id string) *keptAt {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.byID[id]; k != nil {
		return &keptAt{k.age, k.owner}
	}
	return nil
}

func (r *keptRecords) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

func (r *keptRecords) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
}
