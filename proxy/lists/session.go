package lists

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A Session is what one session knows of the lists of its upstreams, and what its client has seen of
// them.
type Session struct {
	Options // static

	client atomic.Pointer[legacyClient] // nil before initialize

	mu        sync.Mutex          // guards the fields below and Upstream.shown; nothing else is locked under it
	promised  [catalog.Kinds]bool // initialize has promised the client a list_changed for them
	wanted    [catalog.Kinds]bool // which lists the client has asked for
	shown     [catalog.Kinds]bool // which of them it has seen
	held      [catalog.Kinds]bool // list_changed that are held back
	announced int                 // counts what made the client ask again, see Announce
}

// Options are the surroundings of a Session.
type Options struct {
	Memory      *Memory
	Catalog     *Catalog
	CatalogAge  time.Duration                  // from which an entry is asked for again; zero means never
	ListTimeout time.Duration                  // for a list
	MaxBytes    int                            // of a list
	Context     context.Context                // ends with the session
	Goroutines  *sync.WaitGroup                // of the session
	Grant       func() *policy.Grant           // of the client of the legacy era, at present
	Tell        func(message *jsonrpc.Message) // sends a notification to that client; it may wait
}

// A legacyClient has the capabilities in the initialize of a client.
type legacyClient struct {
	digest       catalog.Digest
	capabilities json.RawMessage
}

// Initialized notes the params of the client's initialize.
func (s *Session) Initialized(params json.RawMessage) {
	c := &legacyClient{capabilities: NoCapabilities}
	if said, _ := jsonrpc.Member(params, "capabilities"); said != nil {
		c.capabilities = said
	}
	c.digest = DigestOf(c.capabilities)
	s.client.Store(c)
}

// Legacy returns for whom lists of the legacy era are asked.
func (s *Session) Legacy() Client { return Client{Grant: s.Grant()} }

// A Client is for whom upstreams are asked for lists.
type Client struct {
	Caps  catalog.Digest  // of its capabilities, compared byte for byte; zero in the legacy era
	Grant *policy.Grant   // what it may see; nil for everything
	Meta  json.RawMessage // _meta of such requests; nil in the legacy era
	Own   bool            // the session's own servers must say, not the catalog
}

// CapsOf returns the digest of the capabilities of a client. Its last bit tells whether they have extensions or
// experimental ones: servers may list something for these alone (SEP-2133).
func CapsOf(capabilities json.RawMessage) catalog.Digest {
	d := sha256.Sum256(capabilities)
	last := &d[len(d)-1]
	*last &^= 1
	if bytes.Contains(capabilities, []byte(`"extensions"`)) || bytes.Contains(capabilities, []byte(`"experimental"`)) {
		*last |= 1
	}
	return d
}

// isExtended reports whether the capabilities of a key have extensions or experimental ones.
func (k Key) isExtended() bool { return k.Caps[len(k.Caps)-1]&1 != 0 }

// NoCapabilities are those of a client without any.
var NoCapabilities = json.RawMessage(`{}`)

var capsOfNone = CapsOf(NoCapabilities)

// DigestOf returns the digest of capabilities for a [Key]. It is zero for a client without any.
func DigestOf(capabilities json.RawMessage) (d catalog.Digest) {
	if capabilities = bytes.TrimSpace(capabilities); len(capabilities) > 0 && string(capabilities) != "{}" {
		d = CapsOf(capabilities)
	}
	return d
}

// KindOf returns the kind of listed things in rules of policies.
func KindOf(k catalog.Kind) policy.Kind {
	switch k {
	case catalog.Tools:
		return policy.Tool
	case catalog.Prompts:
		return policy.Prompt
	case catalog.Templates:
		return policy.Template
	}
	return policy.Resource
}

// RuleName returns the name of a listed thing of an upstream in rules of policies.
func RuleName(k catalog.Kind, upstream, name string) string {
	if k.IsNamed() {
		return policy.Name(upstream, name)
	}
	return name
}
