package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMembership(t *testing.T) {
	t.Parallel()
	a, b, c := three(t, keyFile(t, 1), http.NotFoundHandler())
	if !a.saw(Joined, b) || !a.saw(Joined, c) {
		await(t, "a heard of them", func() bool { return a.saw(Joined, b) && a.saw(Joined, c) })
	}
	m := a.Members()
	for _, one := range m[1:] {
		if one.Self || one.State != Ready || one.Version != "1.2" || one.Digest != "d" || one.Linked {
			t.Errorf("member %+v", one)
		}
	}

	b.SetDigest("e")
	await(t, "b has another configuration", func() bool {
		return slices.ContainsFunc(a.Members(), func(m Member) bool { return m.Instance == b.Instance() && m.Digest == "e" })
	})
	b.Drain()
	await(t, "b drains", func() bool {
		for _, one := range a.Members() {
			if one.Instance == b.Instance() {
				return one.State == Draining
			}
		}
		return false
	})
	id := b.NewID()
	b.leave()
	await(t, "b left", func() bool { return a.saw(Left, b) && c.saw(Left, b) && a.knows(c) && c.knows(a) })
	if _, at := a.Owner(id); at != Gone {
		t.Errorf("its sessions are %v", at)
	}

	id = c.NewID()
	if _, at := a.Owner(id); at != There {
		t.Errorf("c's sessions are %v", at)
	}
	killed := time.Now()
	c.kill()
	await(t, "c died", func() bool { return a.saw(Died, c) && a.knows() })
	t.Log("declared dead after", time.Since(killed))
	if _, at := a.Owner(id); at != Gone {
		t.Errorf("its sessions are %v", at)
	}
	if a.saw(Left, c) || a.saw(Died, b) {
		t.Error("who left did not die, and the other way round")
	}
}

// Whoever has another key does not become a member, and is told so only by silence.
func TestAnotherKey(t *testing.T) {
	t.Parallel()
	a := start(t, keyFile(t, 1), http.NotFoundHandler())
	b := start(t, keyFile(t, 2), http.NotFoundHandler(), a.address())
	c := start(t, keyFile(t, 1), http.NotFoundHandler(), a.address(), b.address())
	await(t, "those with the same key", func() bool { return a.knows(c) && c.knows(a) })
	if err := b.gossip.join(a.address()); err == nil {
		t.Error("joined with another key")
	}
	if err := a.gossip.join(b.address()); err == nil {
		t.Error("joined one with another key")
	}
	if !b.knows() || !a.knows(c) {
		t.Error("one with another key is a member")
	}
	if _, at := a.Owner(b.NewID()); at != Nowhere {
		t.Error("an id of another cluster is", at)
	}
}

// A replica that starts first, or after a split, is found later.
func TestJoinLater(t *testing.T) {
	t.Parallel()
	file := keyFile(t, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	later := l.Addr().String()
	a := start(t, file, http.NotFoundHandler(), later, "localhost:"+strings.Split(later, ":")[1])
	missed, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	missed.Close()
	l.Close()
	b := new(replica)
	if b.Cluster, err = New(Options{KeyFile: file, Listen: later, Join: []string{later}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Listen(); err != nil {
		t.Skip("the port, or the next, was taken: ", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	defer func() { cancel(); <-done }()
	await(t, "a found b", func() bool { return a.knows(b) && b.knows(a) })
}

func TestPortsInUse(t *testing.T) {
	file := keyFile(t, 1)
	a := start(t, file, http.NotFoundHandler())
	fails := func(o Options, want string) {
		t.Helper()
		o.KeyFile = file
		c, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Listen(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	at := a.address()
	fails(Options{Listen: at}, "cluster.listen "+at+": bind: address already in use")
	before := fmt.Sprintf("127.0.0.1:%d", a.ports.port-1)
	if l, err := net.Listen("tcp", before); err == nil {
		l.Close()
		fails(Options{Listen: before}, "cluster.listen "+before+": the next port, for links: bind: address already in use")
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	if l, err := net.Listen("tcp", udp.LocalAddr().String()); err == nil {
		l.Close()
		fails(Options{Listen: udp.LocalAddr().String()}, "cluster.listen "+udp.LocalAddr().String()+": UDP: bind: address already in use")
	}
	for _, bad := range []string{"", "7946", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:-1"} {
		want := "want HOST:PORT"
		if strings.Contains(bad, ":") {
			want = "want a port below 65535, since links use the next one"
		}
		fails(Options{Listen: bad}, "cluster.listen "+bad+": "+want)
	}
	fails(Options{Listen: "127.0.0.1:65535"}, "cluster.listen 127.0.0.1:65535: want a port below 65535, since links use the next one")
	fails(Options{Listen: "192.0.2.1:0"}, "cluster.listen 192.0.2.1:0: bind: cannot assign requested address")
	fails(Options{Listen: "127.0.0.1:0", Advertise: "127.0.0.1:x"}, "cluster.advertise 127.0.0.1:x: want HOST or HOST:PORT, with a port below 65535")
}

func TestAdvertised(t *testing.T) {
	for _, test := range []struct{ listen, advertise, want string }{
		{"127.0.0.1:0", "", "127.0.0.1:PORT"},
		{"127.0.0.1:0", "192.0.2.7", "192.0.2.7:PORT"},
		{":0", "192.0.2.7:7", "192.0.2.7:7"},
		{"0.0.0.0:0", "2001:db8::1", "[2001:db8::1]:PORT"},
		{":0", "[2001:db8::1]:7", "[2001:db8::1]:7"},
	} {
		p, err := openPorts(test.listen, test.advertise)
		if err != nil {
			t.Fatal(err)
		}
		p.links.Close()
		if got, want := p.advertised.String(), strings.ReplaceAll(test.want, "PORT", fmt.Sprint(p.port)); got != want {
			t.Errorf("%s, %s: %s, want %s", test.listen, test.advertise, got, want)
		}
	}
	p, err := openPorts(":0", "")
	if err != nil {
		t.Fatal(err)
	}
	p.links.Close()
	if p.advertised.IP == nil || p.advertised.IP.IsUnspecified() {
		t.Error("others cannot reach", p.advertised.IP)
	}
}
