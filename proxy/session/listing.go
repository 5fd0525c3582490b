package session

import (
	"strings"
	"sync"
)

// A listing is who listed what, of one kind, in one upstream set. The zero listing is empty.
type listing struct {
	mu    sync.Mutex
	owner map[string]*upstreamConn // the last complete merge
}

func (li *listing) set(owner map[string]*upstreamConn) {
	li.mu.Lock()
	defer li.mu.Unlock()
	li.owner = owner
}

// of returns who listed a key. A directory belongs to who listed something in it or above it.
func (li *listing) of(key string, isDirectory bool) *upstreamConn {
	li.mu.Lock()
	defer li.mu.Unlock()
	if u := li.owner[key]; u != nil || !isDirectory {
		return u
	}
	var found *upstreamConn
	longest := 0
	for listed, u := range li.owner {
		dir := listed[:strings.LastIndexByte(listed, '/')+1]
		if len(dir) > longest && (strings.HasPrefix(key+"/", dir) || strings.HasPrefix(dir, strings.TrimSuffix(key, "/")+"/")) {
			found, longest = u, len(dir)
		}
	}
	return found
}
