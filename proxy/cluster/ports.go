package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// ports is where a member listens, and what it tells others of that.
type ports struct {
	host       string // an IP address, or "" for all
	port       int    // of membership, TCP and UDP
	links      net.Listener
	advertised net.TCPAddr // of membership
}

// openPorts opens the port for links, which is that after the port for membership. That one is free, and opened by the
// caller. Port 0 is for tests: some free pair.
func openPorts(listen, advertise string) (*ports, error) {
	host, port, err := splitListen(listen)
	if err != nil {
		return nil, fmt.Errorf("cluster.listen %s: %w", listen, err)
	}
	p := &ports{host: host}
	for range 32 {
		if err = p.open(port); err == nil || port != 0 {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cluster.listen %s: %w", listen, err)
	}
	if err := p.advertise(advertise); err != nil {
		p.links.Close()
		if advertise == "" {
			return nil, fmt.Errorf("cluster.listen %s: %w", listen, err)
		}
		return nil, fmt.Errorf("cluster.advertise %s: %w", advertise, err)
	}
	return p, nil
}

// splitListen returns the IP address and the port of HOST:PORT.
func splitListen(listen string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, errors.New("want HOST:PORT")
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port >= 65535 {
		return "", 0, errors.New("want a port below 65535, since links use the next one")
	}
	if host == "" {
		return "", port, nil
	}
	ip, err := lookup(host)
	return ip.String(), port, err
}

// lookup returns the first address of a host.
func lookup(host string) (net.IP, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// open tries the port of membership, because the errors of memberlist have only a text, and opens that of links.
func (p *ports) open(port int) error {
	tcp, err := net.Listen("tcp", net.JoinHostPort(p.host, strconv.Itoa(port)))
	if err != nil {
		return brief(err)
	}
	defer tcp.Close()
	p.port = tcp.Addr().(*net.TCPAddr).Port
	udp, err := net.ListenPacket("udp", net.JoinHostPort(p.host, strconv.Itoa(p.port)))
	if err != nil {
		return fmt.Errorf("UDP: %w", brief(err))
	}
	defer udp.Close()
	next := net.JoinHostPort(p.host, strconv.Itoa(p.port+1))
	if p.links, err = net.Listen("tcp", next); err != nil {
		return fmt.Errorf("the next port, for links: %w", brief(err))
	}
	return nil
}

// brief drops the address from an error of package net.
func brief(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return cmp.Or(op.Err, err)
	}
	return err
}

// advertise chooses the address for others: HOST[:PORT], or that of Listen, or one of this machine.
func (p *ports) advertise(address string) error {
	p.advertised.Port = p.port
	host := p.host
	if address != "" {
		var text string
		host, text = splitJoin(address, p.port)
		port, err := strconv.Atoi(text)
		if err != nil || port < 1 || port >= 65535 {
			return errors.New("want HOST or HOST:PORT, with a port below 65535")
		}
		p.advertised.Port = port
	}
	var err error
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		p.advertised.IP, err = lookup(host)
	} else {
		p.advertised.IP, err = ownAddress()
	}
	return err
}

// splitJoin returns host and port of HOST[:PORT]; an IPv6 address without a port needs no brackets.
func splitJoin(address string, port int) (host, text string) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return strings.Trim(address, "[]"), strconv.Itoa(port)
	}
	return host, text
}

// ownAddress returns the address of this machine that others most likely reach: the first private one, else the first
// that is not of the loopback interface, else that.
func ownAddress() (net.IP, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var best net.IP
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.IsPrivate():
			return n.IP, nil
		case best == nil:
			best = n.IP
		}
	}
	if best == nil {
		best = net.IPv4(127, 0, 0, 1)
	}
	return best, nil
}
