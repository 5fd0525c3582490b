package owners

import (
	"maps"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// maxReaders bounds how many answered reads of one session are remembered.
const maxReaders = 10000

// Readers record which upstream answered a client's last read of a resource. A retry of that read
// is sent there.
type Readers[U Upstream] struct {
	mu sync.Mutex // guards of; nothing else is locked under it
	of map[catalog.Digest]U
}

// Add records u. When it is full it forgets all others; then retries find their upstream by asking.
func (r *Readers[U]) Add(key catalog.Digest, u U) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.IsHungUp() { // its answer was on the way when it was hung up
		return
	}
	if len(r.of) >= maxReaders {
		clear(r.of)
	}
	if r.of == nil {
		r.of = make(map[catalog.Digest]U)
	}
	r.of[key] = u
}

func (r *Readers[U]) Get(key catalog.Digest) U {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[key]
}

// Forget forgets an upstream that was hung up.
func (r *Readers[U]) Forget(u U) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.of, func(_ catalog.Digest, reader U) bool { return reader == u })
}
