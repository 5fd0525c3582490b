package lists

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// This file is what the client has seen of merged lists, and how it is told that they have changed.
// It is of the legacy era: in the modern one a client subscribes.

// debounce is how long a list_changed is held back for others to join it. It
// must stay well under the 100 ms that clients are promised.
const debounce = 50 * time.Millisecond

// Promise notes the lists for which initialize has promised the client a list_changed.
func (s *Session) Promise(lists [catalog.Kinds]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promised = lists
}

// Want notes that the client asks for a merged list. What is announced later, which counts as after
// asOf, the client has to ask for again.
func (s *Session) Want(k catalog.Kind) (asOf int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted[k] = true
	return s.announced
}

// Showed notes what of an upstream the client sees in a merged list. Want returned asOf when the
// client asked for the list.
func (s *Session) Showed(u *Upstream, k catalog.Kind, digest catalog.Digest, asOf int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &u.shown[k]
	of.digest = digest
	if of.announced <= asOf {
		of.announced = 0
	}
}

// Answered notes that the client has seen a list, or that there is none. An upstream that lists
// something later is a change.
func (s *Session) Answered(k catalog.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown[k] = true
}

// Announce tells the client to ask again for the lists that it has asked for, because of these
// upstreams, or of some that are gone: once for each kind, however many upstreams there are. Until the
// client has listed, it is not told when these upstreams start.
func (s *Session) Announce(upstreams []*Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced++
	for k := range catalog.Kinds {
		if !s.wanted[k] || !s.promised[k] {
			continue
		}
		for _, of := range upstreams {
			of.shown[k].announced = s.announced
		}
		s.tellLocked(k)
	}
}

// Unannounced returns the lists whose change would be news to the client.
func (u *Upstream) Unannounced() (lists [catalog.Kinds]bool) {
	s := u.of
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range lists {
		lists[k] = u.shown[k].announced == 0
	}
	return lists
}

// matters reports whether the client waits for news of a list.
func (s *Session) matters(k catalog.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown[k] && s.promised[k]
}

// compare tells the client if what an upstream lists differs from what it has seen.
func (s *Session) compare(u *Upstream, k catalog.Kind, digest catalog.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown[k] && s.promised[k] && u.shown[k].announced == 0 && digest != u.shown[k].digest {
		s.tellLocked(k)
	}
}

// TellWanted tells the client of the lists that it has asked for and that have changed.
func (s *Session) TellWanted(lists [catalog.Kinds]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, yes := range lists {
		if yes && s.wanted[k] && s.promised[k] {
			s.tellLocked(catalog.Kind(k))
		}
	}
}

// TellChanged sends one list_changed for all changes within the debounce.
func (s *Session) TellChanged(k catalog.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellLocked(k)
}

func (s *Session) tellLocked(k catalog.Kind) {
	none := s.held == [catalog.Kinds]bool{}
	s.held[min(k, catalog.Resources)] = true // there is one notification for both
	if none && s.Context.Err() == nil {
		s.Goroutines.Go(s.flush)
	}
}

// flush sends what is held back when the debounce is over.
func (s *Session) flush() {
	select {
	case <-time.After(debounce):
	case <-s.Context.Done():
		return
	}
	s.mu.Lock()
	held := s.held
	s.held = [catalog.Kinds]bool{}
	s.mu.Unlock()
	for k, yes := range held {
		if yes {
			s.Tell(jsonrpc.NewNotification(catalog.Kind(k).Changed(), nil))
		}
	}
}
