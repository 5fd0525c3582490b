package cluster

import (
	"context"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// The times of membership. A member that is killed is declared dead within 6 s, one that does not run for 3 s is not.
// A probe every probeEvery fails after that time, then the member has suspicion probes' time to refute. Up to ten
// members that suspicion does not grow (memberlist multiplies it by the logarithm of their number). With two members
// the whole takes at most 0.6 + 0.6 + 3.3 s; with ten, one of nine probes the dead one within 2.4 s but for one time in
// a thousand. memberlist's default, a suspicion that is shortened by confirmations, would take up to 24 s.
const (
	probeEvery   = 300 * time.Millisecond
	probeTimeout = 150 * time.Millisecond // until others are asked to probe, and TCP is tried
	suspicion    = 11                     // probes
	degraded     = 2                      // how much longer probes of a busy process may take

	gossipEvery = 100 * time.Millisecond
	tcpTimeout  = 3 * time.Second

	updateTimeout = time.Second     // until a change of our state was sent
	byeTimeout    = time.Second     // until all members were told that we leave
	leaveTimeout  = 2 * time.Second // until a member has passed that on
)

// A gossip is this process as a member: the one file that knows memberlist, which calls the exported methods with its
// lock.
type gossip struct {
	// Static, set by the caller of open.
	instance string
	meta     func() []byte
	others   *members
	died     func(instance string) // is called after others.gone of a member that has not left

	// Static after open.
	list    *memberlist.Memberlist
	net     *memberlist.NetTransport
	keyring *memberlist.Keyring
	stop    context.CancelFunc // ends what it dials
}

// open opens the ports, and begins to answer other members.
func (g *gossip) open(at *ports, keys [][]byte, to *slog.Logger) (err error) {
	if g.keyring, err = memberlist.NewKeyring(keys, keys[0]); err != nil {
		return err
	}
	logger := log.New(&gossipLog{log: to}, "", 0)
	g.net, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{at.host}, BindPort: at.port, Logger: logger})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	config := timings()
	config.Name, config.Keyring, config.Logger = g.instance, g.keyring, logger
	config.Transport = &transport{g.net, ctx}
	config.BindPort, config.AdvertiseAddr, config.AdvertisePort = at.port, at.advertised.IP.String(), at.advertised.Port
	config.Delegate, config.Events = g, g
	if g.list, err = memberlist.Create(config); err != nil {
		stop()
		_ = g.net.Shutdown()
	}
	return err
}

func timings() *memberlist.Config {
	config := memberlist.DefaultLANConfig()
	config.ProbeInterval, config.ProbeTimeout = probeEvery, probeTimeout
	config.SuspicionMult, config.SuspicionMaxTimeoutMult, config.AwarenessMaxMultiplier = suspicion, 1, degraded
	config.GossipInterval, config.TCPTimeout = gossipEvery, tcpTimeout
	config.EnableCompression = false // messages are small
	return config
}

// join exchanges what is known with the member at an address.
func (g *gossip) join(address string) error {
	_, err := g.list.Join([]string{address})
	return err
}

// update sends others what meta returns now.
func (g *gossip) update() error { return g.list.UpdateNode(updateTimeout) }

// useKeys replaces the keys, of which the first encrypts.
func (g *gossip) useKeys(keys [][]byte) error {
	for _, k := range keys {
		if err := g.keyring.AddKey(k); err != nil {
			return err
		}
	}
	old := len(g.keyring.GetKeys()) - len(keys)
	if old > 0 { // those to remove come last: RemoveKey of another one changes a slice that others read
		for i := len(keys) - 1; i > 0; i-- {
			_ = g.keyring.UseKey(keys[i])
		}
	}
	if err := g.keyring.UseKey(keys[0]); err != nil {
		return err
	}
	for all := g.keyring.GetKeys(); old > 0; old-- {
		if err := g.keyring.RemoveKey(all[len(keys)+old-1]); err != nil {
			return err
		}
	}
	return nil
}

// bye tells all members that this one leaves. memberlist also announces that, but its callback does not tell who
// left from who died.
func (g *gossip) bye() {
	var wg sync.WaitGroup
	for _, m := range g.others.each() {
		wg.Go(func() {
			node := &memberlist.Node{Name: m.instance, Addr: m.ip, Port: uint16(m.port)}
			_ = g.list.SendReliable(node, append([]byte(byePrefix), g.list.LocalNode().Name...))
		})
	}
	late := time.AfterFunc(byeTimeout, g.stop)
	wg.Wait()
	late.Stop()
}

// leave ends the membership. Links of others to this member end with it.
func (g *gossip) leave() { _ = g.list.Leave(leaveTimeout) }

// shutdown closes the ports. memberlist's last goroutines end within the time of a probe.
func (g *gossip) shutdown() {
	g.stop()
	_ = g.list.Shutdown()
}

// byePrefix begins the message of a member that leaves; its instance follows. Messages that are unknown are ignored.
const byePrefix = "bye "

// NotifyJoin implements memberlist.EventDelegate.
func (g *gossip) NotifyJoin(n *memberlist.Node) {
	if n.Name != g.instance {
		g.others.joined(n.Name, n.Addr, int(n.Port), parseMeta(n.Meta))
	}
}

// NotifyUpdate implements memberlist.EventDelegate.
func (g *gossip) NotifyUpdate(n *memberlist.Node) { g.others.updated(n.Name, parseMeta(n.Meta)) }

// NotifyLeave implements memberlist.EventDelegate.
func (g *gossip) NotifyLeave(n *memberlist.Node) {
	if n.Name != g.instance && g.others.gone(n.Name) {
		g.died(n.Name)
	}
}

// NotifyMsg implements memberlist.Delegate.
func (g *gossip) NotifyMsg(text []byte) {
	if who, ok := strings.CutPrefix(string(text), byePrefix); ok {
		g.others.leaving(who)
	}
}

// NodeMeta implements memberlist.Delegate.
func (g *gossip) NodeMeta(int) []byte { return g.meta() }

// GetBroadcasts implements memberlist.Delegate.
func (g *gossip) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (g *gossip) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (g *gossip) MergeRemoteState([]byte, bool) {}

// A transport dials until ctx ends: memberlist's Join cannot be interrupted.
type transport struct {
	*memberlist.NetTransport
	ctx context.Context //nolint:containedctx // memberlist has none to pass
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: timeout}).DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	return &dialled{c, context.AfterFunc(t.ctx, func() { c.Close() })}, nil
}

// dialled is a connection that ends with the transport.
type dialled struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (d *dialled) Close() error {
	d.forget()
	return d.Conn.Close()
}

// A gossipLog logs what memberlist reports at level debug: what matters is a change of members, which we log. One
// thing nobody else notices: that only TCP reaches others. A busy machine may also lose some packets.
type gossipLog struct {
	log *slog.Logger

	mu     sync.Mutex // guards the fields below
	since  time.Time  // of the first of lost
	lost   int        // probes over UDP that were lost, within a minute
	warned bool
}

const (
	lostProbe = "over TCP but UDP probes failed" // of memberlist's line for it
	maxLost   = 20
)

// Write implements io.Writer, for one line.
func (l *gossipLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.Contains(text, lostProbe) && l.lose(time.Now()) {
		l.log.Warn("other replicas are reached over TCP and not over UDP: check the firewall")
	}
	l.log.Debug("memberlist", "says", text)
	return len(line), nil
}

// lose counts a lost probe, and reports whether to warn: once, of many within a minute.
func (l *gossipLog) lose(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) > time.Minute {
		l.since, l.lost = now, 0
	}
	l.lost++
	if l.warned || l.lost < maxLost {
		return false
	}
	l.warned = true
	return true
}
