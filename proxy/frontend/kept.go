package frontend

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// maxKept bounds the bytes of the records that are kept for other replicas.
const maxKept = 64 << 20

// keptRecords are records of sessions that other replicas have. When such a replica has died, its
// sessions go on here, each with the next request of its client. Its owner's lock guards it.
type keptRecords struct {
	byID  map[string]*keptRecord
	bytes int
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
func (o *openSessions) keep(k *keeping) (all bool) {
	all = true
	for _, text := range k.Records {
		var r record
		if json.Unmarshal(text, &r) != nil || !r.valid() {
			continue
		}
		all = o.keepOne(r.ID, &keptRecord{age: r.age(), owner: k.Of, text: text}) && all
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range k.Forget {
		if before := o.kept.byID[id]; before != nil && before.owner == k.Of {
			o.forgetKeptLocked(id)
		}
	}
	return all
}

func (o *openSessions) keepOne(id string, k *keptRecord) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, size := o.kept.byID[id], len(k.text)
	if before != nil {
		if before.age.compare(k.age) > 0 {
			return true
		}
		size -= len(before.text)
	}
	if o.draining || o.kept.bytes+size > maxKept {
		return false
	}
	o.kept.byID[id] = k
	o.kept.bytes += size
	return true
}

func (o *openSessions) forgetKeptLocked(id string) {
	o.kept.bytes -= len(o.kept.byID[id].text)
	delete(o.kept.byID, id)
}

// expireKept removes the records whose owners are gone for longer than a session may be idle.
func (o *openSessions) expireKept(now time.Time, there map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, k := range o.kept.byID {
		switch {
		case there[k.owner]:
			k.alone = time.Time{}
		case k.alone.IsZero():
			k.alone = now
		case o.idle > 0 && now.Sub(k.alone) > o.idle:
			o.forgetKeptLocked(id)
		}
	}
}

// orphans returns the records that are kept here for replicas that are not among others, or cannot be reached and may
// be dead, by replica and id.
func (o *openSessions) orphans(others []Other) map[string]map[string][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]map[string][]byte)
	for id, k := range o.kept.byID {
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

// keeps returns what is kept here of a session; nil for nothing.
func (o *openSessions) keeps(id string) *keptAt {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k := o.kept.byID[id]; k != nil {
		return &keptAt{k.age, k.owner}
	}
	return nil
}

// adopt makes a session whose replica has died one that has moved here, so that the next request of its
// client begins it. It returns false if nothing is kept of it.
func (o *openSessions) adopt(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.kept.byID[id]
	if k == nil || o.closed {
		return false
	}
	o.forgetKeptLocked(id)
	var r record
	if json.Unmarshal(k.text, &r) != nil || o.byID[id] != nil || o.records.byID[id] != nil {
		return false
	}
	r.goOn()
	o.addMovedLocked(&r, r.over(k.text))
	o.tally.note(Adopted, k.owner)
	return true
}

// goOn makes the record one of the next generation. Nobody knows how many events its client has got, and
// how many streams there were: their numbers go on where none of the generation before comes.
func (r *record) goOn() {
	r.Adopted = true
	r.Moves++
	r.Last = int(r.Moves) << 32
	r.Streams = []recordedStream{{First: r.Last + 1, Sent: r.Last}}
}
