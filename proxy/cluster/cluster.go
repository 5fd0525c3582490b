package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is how often the key file is looked at.
	lookEvery = time.Second

	// deadWithin is the time in which a member that has died is declared dead.
	deadWithin = 6 * time.Second
)

// Options of a Cluster.
type Options struct {
	KeyFile   string   // keys: one a line, hex or base64 of 32 bytes or more; the first signs, all verify
	Join      []string // HOST[:PORT] of other members, perhaps of this one; names stand for all their addresses
	Listen    string   // HOST:PORT for membership, TCP and UDP; links listen on the next port
	Advertise string   // HOST[:PORT] by which others reach Listen, and the next port; "" for Listen's own
	Version   string   // of the program
	Digest    string   // of the configuration

	// Handler serves requests that other members pass on. ConnContext, if not nil, marks the contexts of these.
	Handler     http.Handler
	ConnContext func(ctx context.Context) context.Context

	// Happened, if not nil, is called when another member has joined, left or died, or its link was lost. The calls
	// are sequential.
	Happened func(Change)

	Log *slog.Logger // nil discards
}

// A Cluster is this process as one of several replicas.
type Cluster struct {
	// Static after construction.
	o        Options
	log      *slog.Logger
	instance string
	keys     *keys
	carriers *carriers
	others   *members

	introduced chan struct{} // closed when Join's members know this process, as far as they answer

	// Static after Listen.
	ports  *ports
	gossip *gossip

	lost []Change // that were not logged; owned by watch

	parting  sync.Once // Goodbye
	draining atomic.Bool
	digest   atomic.Pointer[string] // of the configuration
	sessions atomic.Int64           // that this process has
	untold   chan struct{}          // has an element if others do not know what meta returns; capacity 1

	mu      sync.Mutex     // guards running
	running bool           // links may be dialled
	links   sync.WaitGroup // those that are kept up
}

// New reads the keys. It opens nothing.
func New(o Options) (*Cluster, error) {
	c := &Cluster{o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), instance: newInstance(), untold: make(chan struct{}, 1), introduced: make(chan struct{})}
	c.digest.Store(&o.Digest)
	var err error
	if c.keys, err = newKeys(o.KeyFile, c.instance); err != nil {
		return nil, fmt.Errorf("cluster.keyFile %w", err)
	}
	for _, name := range o.Join {
		if host, _ := splitJoin(name, 0); host == "" {
			return nil, fmt.Errorf("cluster.join %q: want HOST or HOST:PORT", name)
		}
	}
	c.carriers = &carriers{keys: c.keys, open: make(map[*carrier]struct{})}
	c.others = newMembers(func(instance, address string) *peer {
		p := newPeer(instance, c.log, c.spawn, func(ctx context.Context) (net.Conn, error) {
			return c.dial(ctx, instance, address)
		})
		p.fell = func(event string, err error) { c.others.lost(instance, event, err) }
		return p
	})
	return c, nil
}

// Listen opens the ports, and answers other members. Run must follow. Its errors name the option and the address.
func (c *Cluster) Listen() error {
	p, err := openPorts(c.o.Listen, c.o.Advertise)
	if err != nil {
		return err
	}
	c.ports = p
	g := &gossip{instance: c.instance, meta: c.meta, others: c.others, died: c.carriers.died}
	if err := g.open(p, c.keys.current.Load().gossip(), c.log); err != nil {
		p.links.Close()
		return fmt.Errorf("cluster.listen %s: %w", c.o.Listen, err)
	}
	c.gossip = g
	return nil
}

// Run makes this process a member until ctx ends: it joins, and asks again for members, announces in the end that it
// leaves, and ends its links. It closes the ports.
func (c *Cluster) Run(ctx context.Context) {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	c.run(true)
	wg.Go(func() { c.serve(serving, c.ports.links) })
	wg.Go(func() { (&joiner{cluster: c}).run(ctx) })
	c.watch(ctx)
	c.Goodbye()
	c.gossip.leave()
	c.gossip.shutdown()
	c.run(false)
	for _, m := range c.others.each() {
		m.link.end(errStopped)
	}
	stop()
	c.links.Wait()
	wg.Wait()
}

// watch follows the keys and the members until ctx ends.
func (c *Cluster) watch(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	bad := ""
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			bad = c.refresh(bad)
			c.reportLost(now)
		case <-c.untold:
			if err := c.gossip.update(); err != nil {
				c.log.Debug("the state of this replica was not sent in time", "err", err)
			}
		case <-c.others.changed:
			for _, change := range c.others.takeChanges() {
				c.report(change)
			}
		}
	}
}

// refresh follows the key file. It returns what is wrong with it, and logs that if it is news.
func (c *Cluster) refresh(before string) (bad string) {
	changed, err := c.keys.refresh()
	switch {
	case err != nil && err.Error() != before:
		c.log.Error("cannot read the keys of the cluster; using the known ones", "err", err)
	case err == nil && before != "":
		c.log.Info("the keys of the cluster can be read again")
	}
	if err != nil {
		return err.Error()
	}
	if changed {
		set := c.keys.current.Load()
		if err := c.gossip.useKeys(set.gossip()); err != nil {
			c.log.Error("cannot use a key of the cluster", "err", err)
		}
		c.carriers.withdraw()
		c.log.Info("the keys of the cluster have changed", "keys", len(set.all))
	}
	return ""
}

// report logs a change, but a lost link only if its member does not die of it: one event is one line.
func (c *Cluster) report(change Change) {
	c.lost = slices.DeleteFunc(c.lost, func(l Change) bool {
		return l.Event == change.Event || l.Instance == change.Instance && change.What == Left
	})
	log := c.log.With("event", change.Event, "member", change.Instance, "address", change.Address)
	switch change.What {
	case Joined:
		log.Info("replica joined")
	case Left:
		log.Info("replica left")
	case Died:
		log.Warn("replica died")
	case Lost:
		c.lost = append(c.lost, change)
	}
	if c.o.Happened != nil {
		c.o.Happened(change)
	}
}

// reportLost logs the links that were lost so long ago that their members live.
func (c *Cluster) reportLost(now time.Time) {
	for len(c.lost) > 0 && now.Sub(c.lost[0].At) > deadWithin {
		l := c.lost[0]
		c.lost = c.lost[1:]
		log := c.log.With("event", l.Event, "member", l.Instance, "address", l.Address, "err", l.Err)
		if link, ok := c.others.find(l.Instance); ok && link.now() == linkUp {
			log.Warn("the link to a replica was lost, and is up again")
		} else {
			log.Warn("a replica cannot be reached: check the port after that of cluster.listen")
		}
	}
}

// run allows or forbids new links.
func (c *Cluster) run(running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = running
}

// spawn runs a goroutine that Run waits for, if there is a Run.
func (c *Cluster) spawn(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		c.links.Go(fn)
	}
	return c.running
}

// dial connects to the links of a member.
func (c *Cluster) dial(ctx context.Context, instance, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, brief(err))
	}
	return c.carriers.client(conn, instance), nil
}

// meta returns what this process says of itself.
func (c *Cluster) meta() []byte {
	return meta{Format: metaFormat, Links: c.ports.advertised.Port + 1, State: c.state(), Version: c.o.Version, Digest: c.Digest(), Sessions: int(c.sessions.Load())}.encode()
}

func (c *Cluster) state() State {
	if c.draining.Load() {
		return Draining
	}
	return Ready
}

// address returns where others reach the membership of this process; "" before Listen.
func (c *Cluster) address() string {
	if c.ports == nil {
		return ""
	}
	return c.ports.advertised.String()
}

// Introduced returns what Run closes when the members at Join know this process, and it knows them: before, it does not
// know who has which session. Run waits 3 s at most for those that do not answer.
func (c *Cluster) Introduced() <-chan struct{} { return c.introduced }

// Instance returns the random name of this process.
func (c *Cluster) Instance() string { return c.instance }

// NewID returns a new id that this process owns: INSTANCE.RANDOM.MAC, in visible ASCII.
func (c *Cluster) NewID() string { return c.keys.current.Load().newID(c.instance) }

// Drain tells others that this member leaves soon. It does not wait.
func (c *Cluster) Drain() {
	if !c.draining.Swap(true) {
		c.tell()
	}
}

// Digest returns that of the configuration.
func (c *Cluster) Digest() string { return *c.digest.Load() }

// SetDigest replaces the Digest of the options. It does not wait.
func (c *Cluster) SetDigest(digest string) {
	if before := c.digest.Swap(&digest); *before != digest {
		c.tell()
	}
}

// SetSessions tells others how many sessions this process has; the last number, if there are several soon one
// after the other. It does not wait.
func (c *Cluster) SetSessions(n int) {
	if c.sessions.Swap(int64(n)) != int64(n) {
		c.tell()
	}
}

// tell lets Run tell others what meta returns.
func (c *Cluster) tell() {
	select {
	case c.untold <- struct{}{}:
	default:
	}
}

// Goodbye tells others that nothing is here any more: to them this member is gone. What they have passed on
// before is still served. It waits for at most a second, and does nothing before Listen.
func (c *Cluster) Goodbye() {
	if c.gossip != nil {
		c.parting.Do(c.gossip.bye)
	}
}

// Where is the owner of an id.
type Where int

// Where the owner of an id may be.
const (
	Here    Where = iota // this process made it
	There                // another member, to which the RoundTripper leads
	Away                 // a member that cannot be reached, and was not declared dead: try later
	Gone                 // its member is gone
	Nowhere              // the id is not one of ours
)

// String returns the word for the log.
func (w Where) String() string { return [...]string{"here", "there", "away", "gone", "nowhere"}[w] }

// Owner returns who made an id, without waiting. Via is for There.
func (c *Cluster) Owner(id string) (via http.RoundTripper, at Where) {
	instance, ok := c.keys.current.Load().instanceOf(id)
	switch {
	case !ok:
		return nil, Nowhere
	case instance == c.instance:
		return nil, Here
	}
	link, ok := c.others.find(instance)
	switch {
	case !ok:
		return nil, Gone
	case !link.use():
		return nil, Away
	}
	return link, There
}

// Ready returns a way to some other member that is ready and can be reached, as far as is known.
func (c *Cluster) Ready() (via http.RoundTripper, ok bool) {
	for _, link := range c.others.ready() {
		if link.use() {
			return link, true
		}
	}
	return nil, false
}

// An Other is another member.
type Other struct {
	Instance string
	Since    time.Time // when it joined, or joined again after it was declared dead
	State    State
	Via      http.RoundTripper // nil if it cannot be reached now
}

// Others returns the other members that have not said that they leave, without waiting. It dials those that
// nobody has needed yet.
func (c *Cluster) Others() (all []Other) {
	for _, m := range c.others.each() {
		o := Other{Instance: m.instance, Since: m.since, State: m.meta.State}
		if m.link.use() {
			o.Via = m.link
		}
		if !m.leaving {
			all = append(all, o)
		}
	}
	return all
}

// Members returns this process, and the others by instance.
func (c *Cluster) Members() []Member {
	self := Member{
		Instance: c.instance, Self: true, Address: c.address(), State: c.state(), Version: c.o.Version, Digest: c.Digest(), Sessions: int(c.sessions.Load()),
	}
	return slices.Insert(c.others.list(), 0, self)
}
