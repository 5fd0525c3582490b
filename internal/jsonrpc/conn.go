package jsonrpc

// A Conn is one ordered, bidirectional sequence of messages. One goroutine may
// Recv while others Send. Close unblocks them all and may be called repeatedly.
//
// Recv returns io.EOF when the other side will send no more but may still
// receive (a half-close), an error wrapping [ErrClosed] when it is gone, and an
// [*InvalidError] for one message that cannot be used, after which the next Recv
// goes on. After io.EOF the next Recv either blocks until the Conn is gone, where
// that can be told, or returns io.EOF again. Send does not keep m or change it.
type Conn interface {
	Recv() (*Message, error)
	Send(m *Message) error
	Close() error
}

// CloseWith closes c and, if c can carry it, tells the other side why: a stream
// of a link sends the cause of a [*ClosedError] as its closing line. [ErrClosed] alone is no
// cause.
func CloseWith(c Conn, cause error) error {
	if cause == ErrClosed {
		return c.Close()
	}
	if c, ok := c.(interface{ CloseCause(error) error }); ok {
		return c.CloseCause(cause)
	}
	return c.Close()
}

// SendAll sends messages in order, with one write where c can do that.
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

// RecvAll waits for a message and appends it to batch, and with it those that
// have arrived behind it. Messages may come with an error: they were before it.
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

// maxAtOnce bounds what RecvAll returns at once.
const maxAtOnce = 64
