package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A mesh is what is between replicas: each advertises two ports of it, of which the first is for membership, on TCP and
// UDP, and the next one for links. What comes there goes on to the replica, unless one of the two is split off: then
// packets are lost, and connections carry nothing until the end of that, as in a network without a route.
type mesh struct {
	process func(name string) *process

	mu    sync.Mutex // guards the fields below
	alone string     // is split off; "" for nobody
	whole chan struct{}
	ends  []*meshEnd
}

// A meshEnd is the place in a mesh of one replica.
type meshEnd struct {
	*mesh
	name       string
	advertised *net.UDPAddr
	listens    *net.UDPAddr // the replica itself
	packets    *net.UDPConn
	ports      [2]net.Listener
}

func newMesh(process func(string) *process) *mesh {
	m := &mesh{process: process, whole: make(chan struct{})}
	close(m.whole)
	return m
}

// join opens the ports of a replica.
func (m *mesh) join(name string) (*meshEnd, error) {
	e := &meshEnd{mesh: m, name: name, advertised: freePair(), listens: freePair()}
	var err error
	if e.packets, err = net.ListenUDP("udp", e.advertised); err != nil {
		return nil, err
	}
	for i := range e.ports {
		if e.ports[i], err = net.Listen("tcp", addressOf(e.advertised, i)); err != nil {
			return nil, err
		}
		go e.accept(e.ports[i], addressOf(e.listens, i))
	}
	go e.receive()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ends = append(m.ends, e)
	return e, nil
}

// freePair returns an address of this machine where nothing listens, nor at the next port.
func freePair() *net.UDPAddr {
	for {
		a, err := net.ResolveUDPAddr("udp", freeAddress())
		if err != nil {
			continue
		}
		next := addressOf(a, 1)
		if _, given := givenAddresses.LoadOrStore(next, true); given {
			continue
		}
		if l, err := net.Listen("tcp", next); err == nil {
			l.Close()
			return a
		}
	}
}

func addressOf(a *net.UDPAddr, next int) string { return fmt.Sprintf("%v:%d", a.IP, a.Port+next) }

// split splits off a replica for a time.
func (m *mesh) split(name string, d time.Duration) {
	whole := make(chan struct{})
	m.mu.Lock()
	m.alone, m.whole = name, whole
	m.mu.Unlock()
	time.Sleep(d)
	m.mu.Lock()
	m.alone = ""
	m.mu.Unlock()
	close(whole)
}

// between returns what is closed while two replicas reach each other.
func (m *mesh) between(one, other string) (whole <-chan struct{}, reached bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.whole, m.alone == "" || one != other && m.alone != one && m.alone != other
}

// receive passes packets on. A replica sends them from where it listens.
func (e *meshEnd) receive() {
	packet := make([]byte, 1<<16)
	for {
		n, from, err := e.packets.ReadFromUDP(packet)
		if err != nil {
			return
		}
		if _, reached := e.between(e.name, e.sender(from.Port)); reached {
			_, _ = e.packets.WriteToUDP(packet[:n], e.listens) // as lost as any other
		}
	}
}

func (e *meshEnd) sender(port int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.ends {
		if other.listens.Port == port {
			return other.name
		}
	}
	return ""
}

func (e *meshEnd) accept(l net.Listener, to string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go e.carry(in.(*net.TCPConn), to)
	}
}

// carry carries a connection to the replica, as long as that has it.
func (e *meshEnd) carry(in *net.TCPConn, to string) {
	defer in.Close()
	from := e.dialler(in.RemoteAddr().(*net.TCPAddr).Port)
	e.await(from)
	conn, err := net.Dial("tcp", to)
	if err != nil {
		_ = in.SetLinger(0)
		return
	}
	out := conn.(*net.TCPConn)
	defer out.Close()
	var both sync.WaitGroup
	both.Go(func() { e.copy(out, in, from) })
	both.Go(func() { e.copy(in, out, from) })
	both.Wait()
}

func (e *meshEnd) await(from string) {
	if whole, reached := e.between(e.name, from); !reached {
		<-whole
	}
}

// copy carries one direction, and its end.
func (e *meshEnd) copy(to, from *net.TCPConn, who string) {
	some := make([]byte, 1<<16)
	for {
		n, err := from.Read(some)
		e.await(who)
		if n > 0 {
			if _, err := to.Write(some[:n]); err != nil {
				from.Close()
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite()
			return
		default: // it was reset, as when its process was killed
			_ = to.SetLinger(0)
			to.Close()
			from.Close()
			return
		}
	}
}

// dialler returns which replica has made the connection from a port of this machine; "" for none. The kernel knows.
func (e *meshEnd) dialler(port int) string {
	socket := socketOf(port)
	e.mu.Lock()
	ends := e.ends
	e.mu.Unlock()
	for _, other := range ends {
		p := e.process(other.name)
		if p == nil || socket == "" {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd/", p.cmd.Process.Pid)
		open, _ := os.ReadDir(dir) // one that has ended has none
		for _, fd := range open {
			if name, _ := os.Readlink(dir + fd.Name()); name == "socket:["+socket+"]" {
				return other.name
			}
		}
	}
	return ""
}

// socketOf returns the inode of the TCP socket at a local port that is connected; "" if it is gone.
func socketOf(port int) string {
	text, _ := os.ReadFile("/proc/net/tcp")
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.Fields(lines.Text()) // sl local remote st queues tr retrnsmt uid timeout inode
		const listening = "0A"
		if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] != listening && f[9] != strconv.Itoa(0) {
			return f[9]
		}
	}
	return ""
}

func (m *mesh) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.ends {
		e.packets.Close()
		for _, l := range e.ports {
			l.Close()
		}
	}
}
