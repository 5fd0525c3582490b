package peer

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A serving is the time in which a Peer serves a Conn.
type serving struct {
	*Peer
	c      jsonrpc.Conn
	over   func(error)
	unhook func() bool    // from ctx
	wg     sync.WaitGroup // of who sends, and who closes c

	once  sync.Once
	cause error         // of the end; written before ended is closed
	ended chan struct{} // the first call of end

	eof bool // the other side has half-closed c; owned by who reads
}

// Run serves c until it has ended, and returns the cause. If ctx ends, Run closes c. Open calls and
// requests stay open until [Peer.End].
func (p *Peer) Run(ctx context.Context, c jsonrpc.Conn) error {
	over := make(chan error, 1)
	p.begin(ctx, c, func(err error) { over <- err }).read()
	return <-over
}

// Start is Run, but returns at once. At the end over is called with the cause.
func (p *Peer) Start(ctx context.Context, c jsonrpc.Conn, over func(error)) {
	go p.begin(ctx, c, over).read()
}

// begin begins to send on c. The caller then calls read.
func (p *Peer) begin(ctx context.Context, c jsonrpc.Conn, over func(error)) *serving {
	s := &serving{Peer: p, c: c, over: over, ended: make(chan struct{})}
	p.pause(false)
	s.wg.Add(1)
	p.out.Start(c, s.wrote)
	s.unhook = context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
	return s
}

func (p *Peer) pause(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Pause(on)
}

// end ends s. The first cause counts.
func (s *serving) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.ended)
		s.wg.Go(func() { // unblocks Recv, Send and waits for room
			s.pause(true)
			jsonrpc.CloseWith(s.c, cause)
		})
	})
}

// wrote handles the end of sending.
func (s *serving) wrote(err error) {
	defer s.wg.Done()
	if err == nil {
		s.mu.Lock()
		cause, stays := s.out.Err(), s.halfClosed
		s.mu.Unlock()
		if half, ok := s.c.(interface{ CloseWrite() }); ok && stays {
			half.CloseWrite()
		}
		if cause != nil && !stays { // finished, not paused
			s.end(cause)
		}
		return
	}
	late := time.NewTimer(cmp.Or(s.o.OneWay, time.Second))
	defer late.Stop()
	select {
	case <-s.ended:
	case <-late.C:
		s.end(err)
	}
}

// read owns Recv of c. At the end it waits for all that s has started.
func (s *serving) read() {
	direct, _ := s.c.(jsonrpc.Direct)
	if direct != nil {
		direct.OnSend(s.receiveNow)
	}
	jsonrpc.Receive(s.c, nil, func(batch []*jsonrpc.Message, err error) bool {
		for _, m := range batch {
			s.receive(m)
		}
		if err == nil || s.survives(err) {
			return true
		}
		if direct != nil {
			direct.OnSend(nil)
		}
		if !s.unhook() { // ctx has ended before, and is the cause
			<-s.ended
		}
		s.end(jsonrpc.Closed(err))
		s.wg.Wait()
		s.over(jsonrpc.Closed(s.cause))
		return false
	})
}

// survives handles an error of Recv after which there may be more to read.
func (s *serving) survives(err error) bool {
	bad, invalid := errors.AsType[*jsonrpc.InvalidError](err)
	switch {
	case invalid:
		s.ready()
		s.invalid(bad, nil)
		return true
	case err != io.EOF || s.o.HalfClosed == nil: // the bare EOF only: the end of a connection may wrap it
		return false
	case s.eof: // Recv does not tell when the Conn ends
		<-s.ended
		return false
	}
	s.eof = true
	s.o.HalfClosed()
	return true
}
