package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// joinEvery is the time between two attempts while this process is alone.
	joinEvery = time.Second

	// healEvery is that while it is not: after a split, both sides have forgotten each other.
	healEvery = 30 * time.Second

	// patience is how many attempts may fail before a warning: replicas that start at the same time miss each other.
	patience = 5

	lookupTimeout = 3 * time.Second

	// introduction is the time after which this process serves clients, also if some address does not answer.
	introduction = 3 * time.Second
)

// A joiner finds other members.
type joiner struct {
	cluster *Cluster
	failed  int  // attempts in a row
	warned  bool // of them
}

// run asks for other members until ctx ends.
func (j *joiner) run(ctx context.Context) {
	introduced := sync.OnceFunc(func() { close(j.cluster.introduced) })
	defer time.AfterFunc(introduction, introduced).Stop()
	defer introduced()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := (time.Time{}); ; timer.Reset(joinEvery) {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if j.cluster.others.alone() || time.Since(last) >= healEvery {
			last = time.Now()
			j.report(j.attempt(ctx), ctx)
			introduced()
		}
	}
}

// attempt contacts all addresses at which there is no member, at once: when it returns for the first time, each of
// them knows this process. Its error is why some were not found.
func (j *joiner) attempt(ctx context.Context) error {
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error // guarded by mu
	)
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, err)
	}
	for _, name := range j.cluster.o.Join {
		all, err := addresses(ctx, name, j.cluster.ports.port)
		if err != nil {
			fail(err)
		}
		for _, address := range all {
			if address == j.cluster.address() || j.cluster.others.at(address) || ctx.Err() != nil {
				continue
			}
			wg.Go(func() {
				if err := j.cluster.gossip.join(address); err != nil {
					j.cluster.log.Debug("cannot join", "address", address, "err", err)
					fail(errors.New("no replica with one of our keys answers at " + address))
				}
			})
		}
	}
	wg.Wait()
	return failed
}

// addresses returns all addresses of HOST[:PORT].
func addresses(ctx context.Context, name string, port int) ([]string, error) {
	host, text := splitJoin(name, port)
	if ip, err := netip.ParseAddr(host); err == nil {
		return []string{net.JoinHostPort(ip.String(), text)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	var all []string
	for _, ip := range ips {
		all = append(all, net.JoinHostPort(ip.String(), text))
	}
	return all, nil
}

// CheckJoin returns why a name of [Options.Join] leads to no address; nil if it leads to one.
func CheckJoin(ctx context.Context, name string) error {
	_, err := addresses(ctx, name, 0)
	return err
}

// report logs once that there is nobody to join, and once that there is.
func (j *joiner) report(err error, ctx context.Context) {
	switch {
	case ctx.Err() != nil:
	case !j.cluster.others.alone():
		if j.warned {
			j.cluster.log.Info("joined the cluster")
		}
		j.failed, j.warned = 0, false
	case err != nil:
		if j.failed++; j.failed >= patience && !j.warned {
			j.warned = true
			j.cluster.log.Warn("cannot join the cluster, serving alone", "err", err)
		}
	}
}
