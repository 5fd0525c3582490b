package link

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// blip is how long Open waits for a lost link to come back.
const blip = time.Second

var errDown = errors.New("the link is down")

// A currentLink is the link that a Client uses: the one that came up last.
type currentLink struct {
	blip time.Duration // how long Open waits for a lost link; zero means blip. Static

	mu      sync.Mutex    // guards the fields below
	link    *link         // nil while there is none
	lost    time.Time     // when link became nil; zero before the first loss
	event   string        // of that loss
	changed chan struct{} // closed when link changes; made by state
	turn    chan struct{} // of the last link, closed after its last call of Announced or Lost; nil before the first
}

// attach makes l the current link, and ends the previous one. over is closed when l has made
// its last call of Announced or Lost. attach returns this channel of the previous link.
func (c *currentLink) attach(l *link, over chan struct{}) (before chan struct{}) {
	c.mu.Lock()
	old := c.link
	before, c.turn = c.turn, over
	c.setLocked(l)
	c.mu.Unlock()
	if old != nil {
		old.part(errReplaced, tellTimeout)
	}
	return before
}

// detach ends the use of l.
func (c *currentLink) detach(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.lost, c.event = time.Now(), l.event
		c.setLocked(nil)
	}
}

// end returns the event of the end of the link, or of the last one; "" before the first.
func (c *currentLink) end() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		return c.link.event
	}
	return c.event
}

func (c *currentLink) setLocked(l *link) {
	c.link = l
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// await returns the link as soon as there is one. Its error has the event of the last
// link's loss.
func (c *currentLink) await(ctx context.Context) (*link, error) {
	l, err := c.wait(ctx)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Event: c.event, Err: err}
	}
	return l, nil
}

func (c *currentLink) wait(ctx context.Context) (*link, error) {
	for ctx.Err() == nil {
		l, lost, changed := c.state()
		if l != nil {
			return l, nil
		}
		patience := ctx
		if !lost.IsZero() {
			var cancel context.CancelFunc
			patience, cancel = context.WithDeadlineCause(ctx, lost.Add(cmp.Or(c.blip, blip)), errDown)
			defer cancel()
		}
		select {
		case <-changed:
		case <-patience.Done():
			return nil, context.Cause(patience)
		}
	}
	return nil, context.Cause(ctx)
}

// state returns the link, or nil and when it was lost, and a channel that is closed when
// that changes. It returns no link that is about to end.
func (c *currentLink) state() (l *link, lost time.Time, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	if l = c.link; l != nil && l.over() {
		return nil, time.Time{}, c.changed // detach follows
	}
	return l, c.lost, c.changed
}
