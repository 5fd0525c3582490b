package owners

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A conn is an upstream that may be hung up.
type conn struct{ hungUp bool }

func (c *conn) IsHungUp() bool { return c.hungUp }

func TestReadersAreBounded(t *testing.T) {
	var r Readers[*conn]
	u := new(conn)
	for n := range maxReaders {
		r.Add(catalog.Digest{byte(n), byte(n >> 8)}, u)
	}
	if len(r.of) != maxReaders {
		t.Errorf("%d are remembered", len(r.of))
	}
	r.Add(catalog.Digest{31: 1}, u)
	r.Add(catalog.Digest{31: 2}, &conn{hungUp: true})
	if len(r.of) != 1 || r.Get(catalog.Digest{31: 1}) != u {
		t.Errorf("%d are remembered", len(r.of))
	}
	if r.Forget(u); len(r.of) != 0 {
		t.Errorf("%d are left", len(r.of))
	}
}
