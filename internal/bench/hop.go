package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// hop returns the pair that differs in that a request arrives at another replica than that of its
// session, which passes it on.
func (b programs) hop() (pair, error) {
	if err := b.writeReplicas(b.upstream(), "replica-far", "replica-near"); err != nil {
		return pair{}, err
	}
	return pair{
		name: "http, a hop",
		base: target{argv: b.serve(alone), serves: true, open: openHTTP},
		with: target{far: b.serve("replica-far"), argv: b.serve("replica-near"), serves: true, open: openHTTP, hops: true},
	}, nil
}

// writeReplicas writes configurations with those names, of proxies that are replicas of each other.
func (b programs) writeReplicas(rest string, names ...string) error {
	key := b.file("cluster-key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		return err
	}
	var ports []int
	var join []string
	for range names {
		port, err := freePorts()
		if err != nil {
			return err
		}
		ports, join = append(ports, port), append(join, fmt.Sprintf(`"127.0.0.1:%d"`, port))
	}
	for i, name := range names {
		text := fmt.Sprintf(`{%s, "admin": {"listen": [%q]}, "cluster": {"keyFile": %q, "listen": "127.0.0.1:%d", "join": [%s]}}`,
			rest, "unix://"+b.file(name+".sock"), key, ports[i], strings.Join(join, ", "))
		if err := os.WriteFile(b.config(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// freePorts returns the first of two neighbours that were free a moment ago: membership, and links.
func freePorts() (int, error) {
	for range 100 {
		text, err := freePort()
		if err != nil {
			return 0, err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no two free ports side by side")
}

// hop makes the callers use the near replica, once that passes requests on.
func (s *session) hop() error {
	w := s.conns[0].wire.(*httpWire)
	near, err := s.procs[0].address()
	if err != nil {
		return err
	}
	s.callers = nil
	if err := passesOn(near, w); err != nil {
		return err
	}
	w.host = near
	return nil
}

// passesOn waits until the replica at an address answers requests of the session of w.
func passesOn(near string, w *httpWire) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.NewRequest(http.MethodPost, "http://"+near+w.path(), strings.NewReader(`{"jsonrpc":"2.0","id":0,"method":"ping"}`))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Session-Id", w.session)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the near replica answers %s", resp.Status)
		}
	}
}
