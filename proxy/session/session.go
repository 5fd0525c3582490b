package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// errDrained is the cause of a session that ended by a drain.
var errDrained = errors.New("drained")

// A session is one client and its upstream connections.
type session struct {
	// Static after construction.
	router *Router
	log    *slog.Logger
	key    string // identifies this client to the hosts
	conn   jsonrpc.Conn
	client *peer.Peer // on conn; its Calls are server requests
	ended  chan struct{}
	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	began        time.Time
	surroundings surroundings // of its upstream connections
	clientIdentity
	forwarded *jsonrpc.Forwarded // headers of the request that began the session; nil for none
	owner     identity.Principal // of tasks and states; users that headers tell apart are different ones

	// Each has its own lock.
	upstreams     upstreamSets
	handshake     handshake
	lists         lists.Session        // what upstreams list, and pending notifications about that
	subscriptions listen.Subscriptions // in the modern era
	roots         rootsChanges         // pending notifications about the client's roots

	// Which upstream has which tasks and resources. Each has its own lock.
	tasks        owners.Tasks[*upstreamConn]   // that upstreams run
	clientTasks  owners.Tasks[*upstreamConn]   // that the client runs, for upstreams
	readers      owners.Readers[*upstreamConn] // of resources, in the modern era
	resourceSubs listen.Resources              // in the legacy era

	dropped  atomic.Int64 // late and unknown messages
	kept     atomic.Int64 // bytes of requests that the session keeps; see maxKept
	overRate atomic.Int64 // notifications that exceeded the rate of their sender

	// mu guards phase, and makes one step of its changes and those of the upstream sets. It is not
	// held while waiting for a Peer.
	mu    sync.Mutex
	phase phase // never decreases
}

// A clientIdentity says who sends the messages of a session.
type clientIdentity struct {
	who         *identity.Identity                // the default sender; static
	name        string                            // of who, for logs; static
	account     string                            // of who, for metrics; static
	transport   string                            // of the Conn, if it says so; static
	resumed     string                            // how the Conn came from another replica, if it says so; static
	ofPrincipal bool                              // it serves all clients of a principal, which are modern; static
	lastSender  atomic.Pointer[identity.Identity] // of the last request; nil before
	hello       atomic.Pointer[clientName]        // the client's name in initialize; nil before
	last        atomic.Pointer[clientName]        // the client's name in a modern request, if hooks are set; nil before
}

// A phase is the progress of a session.
type phase int

const (
	open       phase = iota
	draining         // refuses new requests; ends when none is open
	halfClosed       // draining, and the client can no longer answer server requests
	closing          // everything has been settled
)

const (
	clientMessages = 256     // messages queued for a client before upstreams wait
	clientBytes    = 4 << 20 // likewise
	clientSpare    = 8       // times as much room for the session's own messages

	// maxKept bounds the bytes of requests that a session keeps: subscriptions to resources,
	// subscriptions, and requests for which several upstreams may be asked.
	maxKept       = 1 << 20
	maxKeptMeta   = 4 << 10  // of _meta of requests that are repeated at restarted upstreams
	maxInitialize = 64 << 10 // of the params of initialize, which are sent to each upstream
	maxToken      = 1 << 10  // of a progress token, which is kept until the answer
)

// A goneError is the end of the client's connection by the client.
type goneError struct{ err error }

func (e *goneError) Error() string { return e.err.Error() }
func (e *goneError) Unwrap() error { return e.err }

func isGone(err error) bool {
	_, ok := errors.AsType[*goneError](err)
	return ok
}

// tell sends the client a message of an upstream when there is room, which slows the upstream's
// stream.
func (s *session) tell(m *jsonrpc.Message) {
	s.client.SendWhenRoom(m)
}

// drop counts a message without a receiver.
func (s *session) drop(what string, m *jsonrpc.Message) {
	n := s.dropped.Add(1)
	s.log.Debug("message dropped", "reason", what, "method", m.Method, "id", m.ID.String(), "dropped", n)
}

// rootsChanges limits how often upstreams are notified of a change of the client's roots: at once,
// and then once in rootsPause.
type rootsChanges struct {
	mu      sync.Mutex // guards the fields below; upstreamConn.mu may be taken with it held
	resting bool       // the upstreams were notified less than rootsPause ago
	held    *jsonrpc.Message
}

// id returns the session's name in logs. Hosts shorten its key in the same way.
func (s *session) id() string { return s.key[:8] }

// now returns the age of the session, which costs half as much as time.Now.
func (s *session) now() time.Duration { return time.Since(s.began) }

// grant returns the current grant of the last sender.
func (s *session) grant() *policy.Grant {
	return s.router.Policies.For(cmp.Or(s.lastSender.Load(), s.who))
}

// grantOf returns the grant of the sender of a message; nil without policies. The last sender
// decides about unsolicited messages of upstreams.
func (s *session) grantOf(from *identity.Identity) *policy.Grant {
	from = cmp.Or(from, s.who)
	if s.lastSender.Load() != from {
		s.lastSender.Store(from)
	}
	return s.router.Policies.For(from)
}

// sender returns the sender of a message of the client; nil means the session's client. It stores
// the notes of a request in the message.
func (s *session) sender(m *jsonrpc.Message) (client, principal string) {
	client, principal = s.hello.Load().text(), s.name
	if m == nil {
		return client, principal
	}
	if m.From != nil {
		principal = m.From.String()
	}
	switch {
	case m.Method == mcp.MethodInitialize:
		client = namedIn(m.Params).text()
	case client == "" && m.IsRequest(): // of the modern era
		n := mcp.Read(m)
		m.Notes = n
		client = nameIn(n.Raw(mcp.ClientInfo))
	}
	return client, principal
}

// A clientName is a client's name for itself, and its clientInfo.
type clientName struct {
	info json.RawMessage
	name string
}

func (n *clientName) text() string {
	if n == nil {
		return ""
	}
	return n.name
}

// maxName bounds the bytes of a client's name that are shown.
const maxName = 64

func nameIn(info json.RawMessage) string {
	raw, _ := jsonrpc.Member(info, "name")
	name, _ := jsonrpc.Unquote(raw)
	if len(name) > maxName {
		name = strings.Clone(name[:maxName]) // the rest may be large, and this is kept
	}
	return name
}

// namedIn returns the client's name in the params of initialize.
func namedIn(hello json.RawMessage) *clientName {
	info, _ := jsonrpc.Member(hello, "clientInfo")
	return &clientName{name: nameIn(info)}
}
