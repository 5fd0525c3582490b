package frontend

import "sync"

// Changes are the sessions of which the replica that keeps their record should get a newer one, or forget it. A nil
// changes notes nothing.
type changes struct {
	mu  sync.Mutex
	ids map[string]bool // guarded by mu; true: the session has ended; nil: none yet
}

// note notes that the record of a session has changed.
func (c *changes) note(id string) { c.add(id, false) }

// noteEnd notes that a session has ended here. One that ends because this process stops is not noted: another
// replica may continue it.
func (c *changes) noteEnd(id string) { c.add(id, true) }

func (c *changes) add(id string, ended bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = make(map[string]bool)
	}
	c.ids[id] = c.ids[id] || ended
}

// take returns what was noted since the last call; true for sessions that have ended.
func (c *changes) take() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.ids
	c.ids = nil
	return all
}
