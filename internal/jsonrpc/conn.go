package jsonrpc

// A Conn is one ordered, bidirectional sequence of messages. One goroutine may
// Recv while others Send. Close unblocks them all and may be called repeatedly.
//
// Recv returns io.EOF when the other side will send no more but may still receive (a half-close),
// an error wrapping [ErrClosed] when the connection has ended, and an [*InvalidError] for one
// unusable message, after which the next Recv continues. After io.EOF the next Recv either blocks
// until the Conn has ended, where it can detect that, or returns io.EOF again. Send does not keep
// or change m.
type Conn interface {
	Recv() (*Message, error)
	Send(m *Message) error
	Close() error
}

// A Direct is a Conn in memory whose reader need not be woken for each message.
type Direct interface {
	// OnSend sets a function that may handle a message in the goroutine that sends it, before Send
	// returns. It is called for one message at a time, in order, and while Recv or Rest waits, or the
	// reader rests. If it returns false, because it would have to wait, Recv returns the message.
	// OnSend(nil) ends that, and waits until the function has returned.
	OnSend(handle func(m *Message) bool)
}

// A Resting is a Conn in memory that needs no reader while nothing comes.
type Resting interface {
	// Rest waits until Recv would not wait, and returns false. If nothing comes for a while, it returns
	// true, and resume is called, in a goroutine of its own, as soon as Recv would not wait. It returns
	// false at once while the Conn needs its reader.
	Rest(resume func()) bool
}

// CloseWith closes c. If c can carry a cause, the other side learns it: a stream of a link sends
// the cause of a [*ClosedError] in its closing line. A bare [ErrClosed] is no cause.
func CloseWith(c Conn, cause error) error {
	if cause == ErrClosed {
		return c.Close()
	}
	if c, ok := c.(interface{ CloseCause(error) error }); ok {
		return c.CloseCause(cause)
	}
	return c.Close()
}

// SendAll sends messages in order, in one write if c supports that.
func SendAll(c Conn, messages []*Message) error {
	if c, ok := c.(interface{ SendAll([]*Message) error }); ok {
		return c.SendAll(messages)
	}
	for _, m := range messages {
		if err := c.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// RecvAll waits for a message and appends it to batch, along with messages that have already
// arrived behind it. It may return messages together with an error; they came before the error.
func RecvAll(c Conn, batch []*Message) ([]*Message, error) {
	if c, ok := c.(interface {
		RecvAll([]*Message) ([]*Message, error)
	}); ok {
		return c.RecvAll(batch)
	}
	m, err := c.Recv()
	if err != nil {
		return batch, err
	}
	return append(batch, m), nil
}

// maxAtOnce bounds the messages that RecvAll returns at once.
const maxAtOnce = 64
