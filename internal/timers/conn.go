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
	read, write deadline
}

// Cheap returns c as a [Conn] if it is a TCP connection, and c itself if not. Closing the result closes c.
func Cheap(c net.Conn) net.Conn {
	socket, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	return &Conn{TCPConn: socket, read: deadline{set: socket.SetReadDeadline}, write: deadline{set: socket.SetWriteDeadline}}
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.read.move(t) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.write.move(t) }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.read.move(t); err != nil {
		return err
	}
	return c.write.move(t)
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.read.end()
	c.write.end()
	return c.TCPConn.Close()
}

// A deadline is that of reading from a socket, or of writing to it.
type deadline struct {
	set func(time.Time) error // at the socket

	mu     sync.Mutex
	at     time.Time // zero for none
	passed bool      // at the socket
	timer  *time.Timer
	fires  time.Time // the timer, not later than at; zero if it does not
	ended  bool      // the socket is closed
}

// move sets the deadline to t, or removes it if t is zero.
func (d *deadline) move(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return net.ErrClosed
	}
	d.at = t
	if t.IsZero() || !d.fires.IsZero() && !t.Before(d.fires) { // the timer will see t
		return d.pass(false)
	}
	return d.look()
}

// look sets the timer, or ends what the socket does if the deadline has passed.
func (d *deadline) look() error {
	left := time.Until(d.at)
	if left <= 0 {
		return d.pass(true)
	}
	d.fires = d.at
	if d.timer == nil {
		d.timer = time.AfterFunc(left, d.fired)
	} else {
		d.timer.Reset(left)
	}
	return d.pass(false)
}

func (d *deadline) fired() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fires = time.Time{}
	if !d.at.IsZero() && !d.ended {
		_ = d.look() // fails if the socket is closed, which ends its reads and writes, too
	}
}

// pass tells the socket whether the deadline has passed.
func (d *deadline) pass(passed bool) error {
	if d.passed == passed {
		return nil
	}
	d.passed = passed
	if passed {
		return d.set(time.Unix(1, 0))
	}
	return d.set(time.Time{})
}

// end stops the timer for ever.
func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
