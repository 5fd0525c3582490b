package main

import (
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// faults are all that can happen to a world in memory.
func (s *simulation) faults() []fault {
	all := []fault{
		{"kill server", s.servers, s.killServer, 0},
		{"stop server", s.servers, s.stopServer, time.Second},
		{"reload", []string{"configuration"}, s.reload, 0},
		{"reload without a server", []string{"configuration"}, s.removeServer, 100 * time.Millisecond},
		{"restart proxy", []string{"proxy"}, s.restartProxy, 0},
	}
	if slices.ContainsFunc(s.servers, isFar) {
		all = append(all, fault{"cut", []string{"link"}, s.cut, 100 * time.Millisecond}, fault{"restart host", []string{"host"}, s.restartHost, 0})
	}
	return all
}

// connectionOf returns a connection to a server, nil for none.
func (s *simulation) connectionOf(name string) *memoryServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live[name]) == 0 {
		return nil
	}
	return pick(s.random, s.live[name])
}

// below returns a random number for a fault. Several are done at once.
func (s *simulation) below(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

func (s *simulation) killServer(_ *world, on string, _ time.Duration) error {
	if m := s.connectionOf(on); m != nil {
		m.kill(s.below(3))
	}
	return nil
}

func (s *simulation) stopServer(_ *world, on string, d time.Duration) error {
	if m := s.connectionOf(on); m != nil {
		m.freeze(d)
	}
	return nil
}

func (s *simulation) cut(_ *world, _ string, d time.Duration) error {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Event: jsonrpc.NewEvent()}
	s.log.add(end.Event)
	s.mu.Lock()
	far, p := s.far, s.proxy
	s.mu.Unlock()
	far.cut(end)
	time.Sleep(d)
	far.heal()
	p.router.Returned(s.of([]string{"far", "far-common"})...)
	return nil
}

func (s *simulation) restartHost(*world, string, time.Duration) error {
	s.mu.Lock()
	old := s.far
	s.far = s.newHost(isFar)
	s.mu.Unlock()
	old.stop()
	return nil
}

// reload changes a server that clients use.
func (s *simulation) reload(*world, string, time.Duration) error {
	near := slices.DeleteFunc(slices.Clone(s.servers), isFar)
	if len(near) == 0 {
		s.configure("", "")
	} else {
		s.configure("", near[s.below(len(near))])
	}
	return nil
}

// removeServer reloads a configuration without one of the servers, and a while later the one before.
func (s *simulation) removeServer(_ *world, _ string, d time.Duration) error {
	server := s.servers[s.below(len(s.servers))]
	step := func(what What, removed string) {
		s.rec.add("nemesis", what, "", server)
		s.configure(removed, server)
		s.rec.add("nemesis", what, "", server+" done")
	}
	step(Removes, server)
	time.Sleep(d)
	step(Adds, "")
	return nil
}

// configure reloads a configuration without one server, in which another one, or the same, has changed, "" for none.
func (s *simulation) configure(removed, changed string) {
	s.mu.Lock()
	p, h := s.proxy, s.proxy.near
	if isFar(changed) {
		h = s.far
	}
	s.versions[changed]++
	s.removed = removed
	ofHost, all := s.upstreams(h.has), s.configured()
	s.mu.Unlock()
	replace := func() {
		h.host.Replace(ofHost, []string{changed})
		h.bridge.Changed([]string{changed})
	}
	switch {
	case changed == "":
		p.router.Update(all, nil)
	case isFar(changed): // its host announces what it has reloaded
		replace()
		p.router.Update(all, nil)
	default: // as Proxy.Reload does
		p.router.Changing.Lock()
		defer p.router.Changing.Unlock()
		h.bridge.Changed([]string{changed})
		p.router.Update(all, nil)
		replace()
	}
}

// restartProxy ends the proxy in order, and has another one. What is open may get more or less time.
func (s *simulation) restartProxy(*world, string, time.Duration) error {
	s.mu.Lock()
	old := s.proxy
	s.proxy = s.newProxy()
	s.mu.Unlock()
	old.stop([]time.Duration{0, 10 * time.Millisecond, 2 * time.Second}[s.below(3)])
	return nil
}
