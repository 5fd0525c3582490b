package cluster

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A State is what a member says of itself.
type State string

// The states of a member. One of a later version may have others.
const (
	Ready    State = "ready"
	Draining State = "draining" // it leaves soon
)

// A Member is one of the replicas.
type Member struct {
	Instance string
	Self     bool   // this process
	Address  string // of its membership, HOST:PORT
	State    State
	Version  string // of its program
	Digest   string // of its configuration
	Sessions int    // that it has
	Linked   bool   // this process has a link to it
	Down     bool   // the link to it was lost, or could not be made
}

// A Change is that of another member.
type Change struct {
	What     What
	Instance string
	Address  string
	Event    string    // its id. A member that dies after its link was lost has that of the loss
	At       time.Time // when it was seen
	Since    time.Time // when the member joined
	Err      error     // of Lost
}

// What happened to a member.
type What int

// What may happen to a member.
const (
	Joined What = iota
	Left        // it announced that it leaves
	Died
	Lost // the link to it was lost, or could not be made; it may die of the same cause, or not
)

// meta is what members know of each other, in at most 512 bytes:
//
//	{"f":1,"l":7947,"s":"ready","v":"1.2.0","d":"9f2c…","n":120}
//
// Unknown members are ignored, so that later versions may add some.
type meta struct {
	Format   int    `json:"f"`
	Links    int    `json:"l"` // port
	State    State  `json:"s"`
	Version  string `json:"v"`
	Digest   string `json:"d"`
	Sessions int    `json:"n,omitempty"`
}

const (
	metaFormat = 1
	maxText    = 96 // bytes of Version and Digest, each
)

func (m meta) encode() []byte {
	m.Version, m.Digest = shorten(m.Version), shorten(m.Digest)
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // it has only strings and numbers
	}
	return text
}

// shorten cuts s to what fits, and drops what JSON would make longer.
func shorten(s string) string {
	visible := make([]byte, 0, maxText)
	for i := 0; i < len(s) && len(visible) < maxText; i++ {
		if c := s[i]; c > ' ' && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' {
			visible = append(visible, c)
		}
	}
	return string(visible)
}

// parseMeta returns what a member says of itself. What it does not understand is not there: such a member is not
// ready, and has no link.
func parseMeta(text []byte) meta {
	var m meta
	if json.Unmarshal(text, &m) != nil || m.Format < metaFormat || m.Links < 1 || m.Links > 65535 {
		return meta{}
	}
	return m
}

// A member is another replica, from when it joined until it has left or died.
type member struct {
	instance string
	ip       net.IP
	port     int
	meta     meta
	leaving  bool // it said so
	since    time.Time
	lost     string // event of the last Lost; "" for none
	link     *peer
}

func (m *member) address() string { return net.JoinHostPort(m.ip.String(), strconv.Itoa(m.port)) }

// members are the other replicas. Membership adds and removes them; the calls wait for nothing.
type members struct {
	newPeer func(instance, address string) *peer // static

	mu      sync.Mutex // guards the fields below
	others  map[string]*member
	changes []Change      // that nobody has taken; at most two for each member that ever joined, and for each lost link
	changed chan struct{} // has an element if there are changes; capacity 1
}

func newMembers(newPeer func(instance, address string) *peer) *members {
	return &members{newPeer: newPeer, others: make(map[string]*member), changed: make(chan struct{}, 1)}
}

// joined adds a member, or replaces what is known of it.
func (s *members) joined(instance string, ip net.IP, port int, m meta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.others[instance] != nil {
		s.others[instance].meta = m
		return
	}
	one := &member{instance: instance, ip: slices.Clone(ip), port: port, meta: m, since: time.Now()}
	one.link = s.newPeer(instance, net.JoinHostPort(ip.String(), strconv.Itoa(m.Links)))
	s.others[instance] = one
	s.changedLocked(one, Change{What: Joined})
}

// updated replaces what a member says of itself.
func (s *members) updated(instance string, m meta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.others[instance]; one != nil {
		one.meta = m
	}
}

// leaving records that a member said that it leaves: its end is not its death.
func (s *members) leaving(instance string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.others[instance]; one != nil {
		one.leaving = true
	}
}

// gone removes a member, ends its link, and reports whether it died, which is if it did not say that it leaves.
func (s *members) gone(instance string) (died bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.others[instance]
	if one == nil {
		return false
	}
	delete(s.others, instance)
	change := Change{What: Left}
	if !one.leaving { // requests that fail name the event of their link, or that of the last one before it is up again
		change = Change{What: Died, Event: cmp.Or(one.link.client.Event(), one.lost)}
		if one.lost != "" && one.link.now() != linkUp {
			change.Event = one.lost
		}
	}
	change.Event = cmp.Or(change.Event, jsonrpc.NewEvent())
	one.link.end(endOf(change.Event, errGone))
	s.changedLocked(one, change)
	return !one.leaving
}

// lost records that the link to a member was lost, or could not be made; event is "" then.
func (s *members) lost(instance, event string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.others[instance]; one != nil && !one.leaving {
		one.lost = cmp.Or(event, jsonrpc.NewEvent())
		s.changedLocked(one, Change{What: Lost, Event: one.lost, Err: err})
	}
}

func (s *members) changedLocked(m *member, c Change) {
	c.Instance, c.Address, c.Since, c.At = m.instance, m.address(), m.since, time.Now()
	c.Event = cmp.Or(c.Event, jsonrpc.NewEvent())
	s.changes = append(s.changes, c)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// takeChanges returns what happened since the last call, in order.
func (s *members) takeChanges() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.changes
	s.changes = nil
	return all
}

// alone reports whether there is no other member.
func (s *members) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.others) == 0
}

// at reports whether there is a member at an address.
func (s *members) at(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.others {
		if m.address() == address {
			return true
		}
	}
	return false
}

// find returns the link to a member. There is none if it is no member, or leaves.
func (s *members) find(instance string) (link *peer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.others[instance]
	if m == nil || m.leaving {
		return nil, false
	}
	return m.link, true
}

// ready returns the links to the members that are ready, in random order.
func (s *members) ready() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*peer
	for _, m := range s.others {
		if m.meta.State == Ready && !m.leaving {
			all = append(all, m.link)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// list returns the other members by instance.
func (s *members) list() []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Member
	for _, m := range s.others {
		link := m.link.now()
		all = append(all, Member{
			Instance: m.instance, Address: m.address(), State: m.meta.State, Version: m.meta.Version, Digest: m.meta.Digest, Sessions: m.meta.Sessions,
			Linked: link == linkUp, Down: link == linkDown,
		})
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.Instance, b.Instance) })
	return all
}

// each returns where the other members are.
func (s *members) each() []member {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []member
	for _, m := range s.others {
		all = append(all, *m)
	}
	return all
}
