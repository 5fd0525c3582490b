package frontend

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/fnv"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	keepEvery   = 100 * time.Millisecond // how often changed records are sent
	keepTimeout = time.Second            // of one request
	keepSilent  = 2 * time.Second        // how long a replica is not asked that has not answered
	keepBatch   = 512 << 10              // bytes of records in one request, besides the last one
	keepRefused = 10 * time.Second       // how long a replica is not asked that has refused
	expireEvery = 10 * time.Second
	tellEvery   = time.Second // how often is reported what became of sessions, and how many there are
)

// A keeper gives each session of this process that may move to another replica, which keeps its record
// and continues the session if this process dies. The records that have changed are sent together.
type keeper struct {
	directory *directory
	replicas  Replicas
	pulse     pulse

	// Owned by run.
	at       map[string]string          // by session: the instance that keeps it
	outdated map[string]map[string]bool // by instance: sessions whose record it may keep, and should not
	ring     []string                   // instances that may keep records, in order
	refused  map[string]time.Time       // by instance
	seq      int64                      // of the last record
	agreed   map[string]time.Time       // see agree
	doubt    chan struct{}              // that agreed is for
	expired  time.Time                  // when records of others were last looked at
	told     time.Time                  // when what became of sessions was last reported
	serves   int                        // sessions; as reported
}

func newKeeper(directory *directory, replicas Replicas) *keeper {
	return &keeper{
		directory: directory, replicas: replicas, at: make(map[string]string), refused: make(map[string]time.Time),
		agreed: make(map[string]time.Time), outdated: make(map[string]map[string]bool),
	}
}

// run is HTTP.Keep.
func (k *keeper) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.pulse.run(ctx) })
	k.pulse.start()
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		others := k.replicas.Others()
		k.agree(ctx, others)
		k.send(ctx, others)
		k.tidy(time.Now(), others)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// tidy reports what became of sessions, and drops what is kept for replicas that have long gone.
func (k *keeper) tidy(now time.Time, others []Other) {
	if now.Sub(k.told) >= tellEvery {
		k.told = now
		k.directory.tally.report(k.replicas)
		if n, _ := k.directory.count(); n != k.serves {
			k.serves = n
			k.replicas.Serves(n)
		}
	}
	if now.Sub(k.expired) >= expireEvery {
		k.expired = now
		there := make(map[string]bool)
		for _, o := range others {
			there[o.Instance] = true
		}
		k.directory.kept.expire(now, there, k.directory.idle)
	}
}

// send sends the records that have changed, or that another replica keeps from now on, and tells others which they
// need not keep any more.
func (k *keeper) send(ctx context.Context, others []Other) {
	via := k.turn(time.Now(), others)
	changed := k.directory.changes.take()
	batches := make(map[string]*batch)
	to := func(instance string) *batch {
		if batches[instance] == nil {
			batches[instance] = &batch{via: via[instance], body: keeping{Of: k.replicas.Instance()}}
		}
		return batches[instance]
	}
	for id, ended := range changed {
		keeps := k.keeperOf(id)
		if keeps != "" && to(keeps).size >= keepBatch {
			k.directory.changes.add(id, ended) // the next time
			continue
		}
		text, lives := k.directory.recordOf(id, k.seq+1, k.replicas.Instance(), k.replicas.Digest())
		if !lives && !ended { // the end is noted soon, or this process stops
			continue
		}
		k.assign(id, keeps, text != nil)
		if text != nil && keeps != "" { // else nobody, until the ring changes, or there is nothing to keep
			k.seq++
			to(keeps).add(id, text)
		}
	}
	for instance, ids := range k.outdated {
		if _, there := via[instance]; !there {
			delete(k.outdated, instance)
			continue
		}
		for id := range ids {
			at, lives := k.at[id]
			_, sent := changed[id]
			if via[instance] != nil && (!lives || at != "" && !sent) { // another one has it by now
				to(instance).forget(id)
			}
		}
	}
	var wg sync.WaitGroup
	for _, b := range batches {
		wg.Go(func() { b.post(ctx) })
	}
	wg.Wait()
	for instance, b := range batches {
		k.settle(instance, b)
	}
}

// assign records who keeps a session from now on. Another one that may have its record should forget that.
func (k *keeper) assign(id, keeps string, lives bool) {
	if before := k.at[id]; before != "" && (before != keeps || !lives) {
		if k.outdated[before] == nil {
			k.outdated[before] = make(map[string]bool)
		}
		k.outdated[before][id] = true
	}
	if !lives {
		delete(k.at, id)
		return
	}
	k.at[id] = keeps
	delete(k.outdated[keeps], id)
}

// settle repeats what a replica did not take. One that does not know what that is has nothing to forget.
func (k *keeper) settle(instance string, b *batch) {
	if b.status != 0 {
		for _, id := range b.body.Forget {
			delete(k.outdated[instance], id)
		}
	}
	if b.status == http.StatusNoContent {
		return
	}
	k.refused[instance] = time.Now() // it has no room, leaves, or does not know what that is
	if b.status == 0 {
		k.refused[instance] = time.Now().Add(keepSilent - keepRefused)
	}
	for _, id := range b.ids {
		k.directory.changes.note(id)
	}
}

// turn finds out who may keep records: all replicas that are ready and did not refuse. It returns how to
// reach each of them. If they are others than before, the records that another one keeps from now on
// are to be sent.
func (k *keeper) turn(now time.Time, others []Other) map[string]http.RoundTripper {
	via := make(map[string]http.RoundTripper)
	var ring []string
	for _, o := range others {
		via[o.Instance] = o.Via
		if o.Ready && o.Via != nil && now.Sub(k.refused[o.Instance]) > keepRefused {
			ring = append(ring, o.Instance)
			delete(k.refused, o.Instance)
		}
	}
	slices.Sort(ring)
	if !slices.Equal(ring, k.ring) {
		k.ring = ring
		for id, at := range k.at {
			if k.keeperOf(id) != at {
				k.directory.changes.note(id)
			}
		}
	}
	return via
}

// keeperOf returns the instance that keeps a session; "" for none. If one comes or goes, few sessions
// change theirs (rendezvous hashing).
func (k *keeper) keeperOf(id string) (best string) {
	var most uint64
	for _, instance := range k.ring {
		h := fnv.New64a()
		_, _ = h.Write([]byte(instance))
		_, _ = h.Write([]byte(id))
		if sum := h.Sum64(); best == "" || sum > most {
			best, most = instance, sum
		}
	}
	return best
}

// A batch is what one replica is sent.
type batch struct {
	via    http.RoundTripper // nil: it cannot be reached now
	body   keeping
	ids    []string // of the records
	size   int      // of the records
	status int      // of the answer; 0 for none
}

func (b *batch) add(id string, text []byte) {
	b.size += len(text)
	b.body.Records = append(b.body.Records, text)
	b.ids = append(b.ids, id)
}

func (b *batch) forget(id string) {
	if len(b.body.Forget) < maxClaims { // else the next time
		b.body.Forget = append(b.body.Forget, id)
	}
}

func (b *batch) post(ctx context.Context) {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false) // the client's values are as they came
	if to.Encode(b.body) != nil {
		return // the records are valid
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	b.status, _, _ = tell(ctx, b.via, http.MethodPut, replicaPath, text.Bytes())
}
