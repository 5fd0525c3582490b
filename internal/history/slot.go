package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// An operation is what a client asks for: a call of a server, or its list of tools.
type operation struct {
	Server string `json:"server"`           // "" for a list
	Method string `json:"method,omitempty"` // of what is asked of no server: a list, of tools if it is "", or something about Theirs
	Theirs string `json:"theirs,omitempty"` // the task of another principal
	call

	task string // the id of its task

	CancelTask  time.Duration `json:"cancelTask,omitempty"`  // when it cancels its task
	CancelAfter time.Duration `json:"cancelAfter,omitempty"` // 0: it is not cancelled
	DropAfter   time.Duration `json:"dropAfter,omitempty"`   // when a client on legacy HTTP drops the response; 0: never
	Resume      bool          `json:"resume,omitempty"`      // it resumes the response then
}

// usage is how clients use a world.
type usage struct {
	kinds   []kind
	servers []string      // that they call; at least one of them is in followed
	least   int           // operations of a client
	most    int           // one more than a client may have
	gap     time.Duration // between two operations, at most
	linger  time.Duration // of a client with nothing to do, at most; 0 for none
	hurry   time.Duration // between two faults, at most
}

// of returns those of some servers that clients call.
func (u *usage) of(some []string) (all []string) {
	for _, s := range some {
		if slices.Contains(u.servers, s) {
			all = append(all, s)
		}
	}
	return all
}

// A slot is where one client comes after the other. Each is a plan that a seed gives.
type slot struct {
	world *world
	phase int
	index int
}

// run lets clients come and go until ctx is done; then the last one leaves when its operations have ended.
func (s *slot) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		random := rand.New(rand.NewPCG(s.world.seed, uint64(s.phase)<<40|uint64(s.index)<<24|uint64(n)))
		k := &s.world.kinds[(s.index+n)%len(s.world.kinds)]
		c := join(s.world, fmt.Sprintf("c%d.%d.%d", s.phase, n, s.index), k, func() string { return s.world.token(s.index) })
		if c == nil {
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		s.live(ctx, c, random)
	}
}

// live sends the operations of a client, some at once, and leaves.
func (s *slot) live(ctx context.Context, c *client, random *rand.Rand) {
	how := pick(random, c.kind.leaves)
	abrupt := random.IntN(3) == 0 // leaves with operations open
	var doing sync.WaitGroup
	room := make(chan struct{}, 1+random.IntN(6)) // operations at once
	for i := range s.world.least + random.IntN(s.world.most-s.world.least) {
		o := s.world.plan(random, fmt.Sprintf("%s:%d", c.name, i), c.kind.modern)
		select {
		case room <- struct{}{}:
		case <-c.over.Done():
		}
		if ctx.Err() != nil || c.over.Err() != nil {
			break
		}
		doing.Go(func() {
			c.do(o)
			<-room
		})
		sleep(ctx, time.Duration(random.Int64N(cmp.Or(s.world.pause.Load(), int64(s.world.gap)))))
	}
	if !abrupt || ctx.Err() != nil {
		doing.Wait()
	}
	if s.world.linger > 0 {
		sleep(c.over, time.Duration(random.Int64N(int64(s.world.linger))))
	}
	c.leave(how)
	doing.Wait()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func pick[T any](random *rand.Rand, of []T) T { return of[random.IntN(len(of))] }

// plan is the next operation of a client.
func (w *world) plan(random *rand.Rand, nonce string, modern bool) *operation {
	if w.way != nil {
		return w.planSmall(random, nonce)
	}
	o := &operation{Server: pick(random, w.servers), call: call{Nonce: nonce, MS: random.IntN(30)}}
	if w.plain {
		return o
	}
	switch random.IntN(13) {
	case 0:
		return &operation{call: call{Nonce: nonce}} // a list
	case 1, 2:
		o.Progress, o.Log = 1+random.IntN(5), random.IntN(5)
	case 3:
		o.MS, o.CancelAfter = 10_000, time.Duration(1+random.IntN(100))*time.Millisecond
	case 4:
		o.Ask = pick(random, []string{elicitation, sampling})
	case 5, 6, 7:
		o.Server = pick(random, w.of(followed))
		o.Do, o.Key, o.Value = pick(random, []string{"get", "set", "add"}), pick(random, []string{"x", "y"}), random.IntN(1000)
	case 8:
		o.Server, o.Do = pick(random, w.of(followed)), pick(random, []string{"touch", "touch", "grow"})
	case 9:
		if w.of(tasking[modern]) == nil {
			break
		}
		o.Task, o.MS = pick(random, []string{"result", "cancel"}), random.IntN(300)
		o.Server, o.CancelTask = pick(random, w.of(tasking[modern])), time.Duration(random.IntN(200))*time.Millisecond
	case 10:
		method := pick(random, []string{"tasks/get", "tasks/cancel", "tasks/list"})
		if method == "tasks/list" && (modern || w.of(tasking[modern]) == nil) { // that era has no such list
			method = "tasks/get"
		}
		return &operation{Method: method, call: call{Nonce: nonce}}
	case 11:
		o.MS, o.Progress = 200+random.IntN(800), random.IntN(6)
		o.DropAfter, o.Resume = time.Duration(1+random.IntN(500))*time.Millisecond, random.IntN(2) == 0
	}
	return o
}
