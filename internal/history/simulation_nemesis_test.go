package main

import (
	"maps"
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

func (s *simulation) killServer(_ *world, on string, _ time.Duration) error {
	if m := s.connectionOf(on); m != nil {
		m.kill(s.random.IntN(3))
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
	s.mu.Lock()
	p := s.proxy
	s.version++
	s.mu.Unlock()
	near := slices.DeleteFunc(slices.Clone(s.servers), isFar)
	if len(near) > 0 {
		p.near.host.Replace(maps.Clone(p.near.host.Upstreams), []string{pick(s.random, near)})
	}
	p.router.Update(s.configured(), nil)
	return nil
}

func (s *simulation) restartProxy(*world, string, time.Duration) error {
	s.mu.Lock()
	old := s.proxy
	s.proxy = s.newProxy()
	s.mu.Unlock()
	old.stop()
	return nil
}
