package timers

import (
	"net"
	"sync"
	"time"
)

// A Conn is a TCP connection whose deadlines can be moved for little. A server of net/http moves them six times for each
// request, hardly any of them passes, and each time costs a change of the runtime's timers. A Conn only notes the time,
// and looks at it when the deadline that was first would pass. The socket itself has only deadlines that have passed.
type Conn struct {
	*net.TCPConn
	deadlines deadlines
}

// Cheap returns c as a [Conn] if it is a TCP connection, and c itself if not. Closing the result closes c.
func Cheap(c net.Conn) net.Conn {
	socket, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	return &Conn{TCPConn: socket, deadlines: deadlines{socket: socket}}
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.deadlines.move(t, reading) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.deadlines.move(t, writing) }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error { return c.deadlines.move(t, reading, writing) }

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.deadlines.end()
	return c.TCPConn.Close()
}

// The indices of a connection's deadlines.
const (
	reading = iota
	writing
)

// deadlines are those of a socket.
type deadlines struct {
	socket interface {
		SetReadDeadline(t time.Time) error
		SetWriteDeadline(t time.Time) error
	}

	mu     sync.Mutex
	at     [2]time.Time // zero for none
	passed [2]bool      // at the socket
	timer  *time.Timer
	fires  time.Time // when timer does, not later than the first of at; zero if it does not
	ended  bool      // the socket is closed
}

// move sets some of the deadlines to t, or removes them if t is zero.
func (d *deadlines) move(t time.Time, which ...int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return net.ErrClosed
	}
	for _, i := range which {
		d.at[i] = t
		if err := d.look(i); err != nil {
			return err
		}
	}
	return nil
}

// look tells the socket if a deadline has passed, or passes no more, and has the timer look again in time.
func (d *deadlines) look(i int) error {
	t := d.at[i]
	if t.IsZero() || !d.fires.IsZero() && !t.Before(d.fires) {
		return d.pass(i, false)
	}
	left := time.Until(t)
	if left <= 0 {
		return d.pass(i, true)
	}
	d.fires = t
	if d.timer == nil {
		d.timer = time.AfterFunc(left, d.fired)
	} else {
		d.timer.Reset(left)
	}
	return d.pass(i, false)
}

func (d *deadlines) fired() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fires = time.Time{}
	for i := range d.at {
		if !d.ended {
			_ = d.look(i) // fails if the socket is closed, which ends its reads and writes, too
		}
	}
}

// pass tells the socket whether a deadline has passed.
func (d *deadlines) pass(i int, passed bool) error {
	if d.passed[i] == passed {
		return nil
	}
	d.passed[i] = passed
	set, t := d.socket.SetReadDeadline, time.Time{}
	if i == writing {
		set = d.socket.SetWriteDeadline
	}
	if passed {
		t = time.Unix(1, 0)
	}
	return set(t)
}

// end stops the timer for ever.
func (d *deadlines) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
