package proxy

import (
	"context"
	"log"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/metrics"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// Options are what a configuration does not have. The zero value is ready to use.
type Options struct {
	Log   *slog.Logger // nil discards
	Hooks Hooks

	// Stdio is set if [Proxy.ServeStdio] serves the only client, which belongs to the user of this program.
	// Errors about a command that did not start then have its last line on stderr. A link that waits for its
	// host to dial is a mistake, since nothing listens.
	Stdio bool

	// AdminSocket is the path of a Unix socket for operators with mode 0600, besides the addresses in the
	// configuration; "" is none. A failure to listen there is only logged, at debug level.
	AdminSocket string

	// Listeners are already open at the addresses of Config.Listen, for example by systemd. [Proxy.Listen]
	// uses them and opens none. The proxy closes them.
	Listeners []net.Listener

	// Patience bounds how long a starting upstream may delay a client's initialize, if its startTimeout is
	// longer. Zero means 8 s: most clients time out after 10 s.
	Patience time.Duration

	// CacheDir keeps what servers list between runs, if the configuration names no other directory. If it cannot
	// be written, the lists are kept in memory. "": in memory.
	CacheDir string

	// AskLogin is called when a server wants a person to log in, with the page to open, which a browser may
	// show already. It must not block. A program sets it only if its operator sits in front of it. With nil, a
	// request that needs a login fails until somebody runs "mcp-proxy login".
	AskLogin func(LoginPrompt)

	anonymous *anonymousLog    // set by setDefaults
	metrics   *metrics.Metrics // set by observe; nil if operators have no address
	history   *ops.History     // set by observe; stays empty if operators have no address
}

// LogClientLeft is the log message that belongs to the hook SessionEnded.
const LogClientLeft = session.LogClientLeft

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.anonymous = newAnonymousLog(o.Log)
}

// What a proxy shows: the arguments of [Hooks], a [Snapshot], and what operators get as JSON.
type (
	Hooks    = observe.Hooks
	Session  = observe.Session
	Request  = observe.Request
	Call     = observe.Call
	Upstream = observe.Upstream
	Link     = observe.Link
	Moves    = observe.Moves
	End      = observe.End
	Event    = observe.Event
	Loss     = observe.Loss

	Snapshot = observe.Snapshot
	Process  = observe.Process
	Traffic  = observe.Traffic
	Failure  = observe.Failure
	Health   = observe.Health
	Calls    = observe.Calls
	Wait     = observe.Wait

	Passed       = observe.Passed
	LeftOut      = observe.LeftOut
	RecordingEnd = observe.RecordingEnd
	EventKind    = observe.EventKind

	Explanation = ops.Explanation
	Ruling      = ops.Ruling
	Servers     = ops.Servers
	Trial       = ops.Trial
	Diagnosis   = ops.Diagnosis
	Finding     = ops.Finding
)

// What requests in flight wait for.
const (
	ForUpstream = observe.ForUpstream
	ForStart    = observe.ForStart
	ForBackOff  = observe.ForBackOff
	ForLink     = observe.ForLink
	ForLogin    = observe.ForLogin
	ForClient   = observe.ForClient
	ForRoom     = observe.ForRoom
	ForProxy    = observe.ForProxy
)

// Kinds of events.
const (
	ServerEnded    = observe.ServerEnded
	ServerNotBegun = observe.ServerNotBegun
	RequestsFailed = observe.RequestsFailed
	LoginRefused   = observe.LoginRefused
	ClientTooSlow  = observe.ClientTooSlow
	LinkEnded      = observe.LinkEnded
	StoppedInUse   = observe.StoppedInUse
	NotOffered     = observe.NotOffered
	ReplicaJoined  = observe.ReplicaJoined
	ReplicaLeft    = observe.ReplicaLeft
	ReplicaDied    = observe.ReplicaDied
	ReplicaLost    = observe.ReplicaLost

	SessionsMoved   = observe.SessionsMoved
	SessionsAdopted = observe.SessionsAdopted
	SessionsYielded = observe.SessionsYielded
	SessionsLost    = observe.SessionsLost
	HeardOf         = observe.HeardOf
)

// An answer and a kind of an [Explanation].
const (
	AnswerDepends = ops.AnswerDepends
	KindUpstream  = ops.KindUpstream
)

// IsEvent reports whether a text has the form of an event id: "k3v9x2ma".
func IsEvent(text string) bool { return jsonrpc.IsEvent(text) }

// Outcomes.
const (
	OK              = observe.OK
	Failed          = observe.Failed
	ToolFailed      = observe.ToolFailed
	Cancelled       = observe.Cancelled
	Closed          = observe.Closed
	Timeout         = observe.Timeout
	Overloaded      = observe.Overloaded
	InvalidResponse = observe.InvalidResponse
)

// version is set by the build of a release.
var version = ""

const module = "github.com/mcp-proxy/mcp-proxy"

// Version returns the version of this module in the running program: of a release, or as
// recorded by the build.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	found := &info.Main
	for _, dep := range info.Deps {
		if dep.Path == module {
			found = dep
		}
	}
	if found.Version == "" {
		return "(devel)"
	}
	return found.Version
}

// A Build describes the running program.
type Build struct {
	Version  string `json:"version"`           // as [Version]
	Revision string `json:"revision,omitzero"` // of the source, if known
	Modified bool   `json:"modified,omitzero"` // the source had changes
	Time     string `json:"time,omitzero"`     // of the revision
	Go       string `json:"go"`                // the version of Go that built it
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// BuildOf returns the build of the running program.
func BuildOf() Build {
	b := Build{Version: Version(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Path != module { // the revision is that of a program that embeds this
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// ReapOrphans waits for orphaned processes until ctx ends, as the first process of a container
// must; in any other process it does nothing. The program calls it, because only the program
// knows that nothing else in it waits for them.
func ReapOrphans(ctx context.Context) { process.ReapOrphans(ctx) }

// An anonymousLog is the log of everything that unauthenticated peers can cause: refused
// requests, failed handshakes, links that never come up. It writes a few lines of each message
// and then a count of the rest, so that nobody can fill a disk or hide a line among thousands.
type anonymousLog struct {
	log *slog.Logger

	base  slog.Handler
	mu    sync.Mutex // guards the fields below
	lines map[string]*anonymousLine
	ended bool
}

// An anonymousLine is one message, which is a constant of the program.
type anonymousLine struct {
	limit   *rate.Limiter
	level   slog.Level
	leftOut int
	tells   *time.Timer // to write leftOut; nil if that is zero
}

const (
	anonymousBurst = 10               // lines of one message at once
	anonymousEvery = 10 * time.Second // interval of further lines, and of counts
)

func newAnonymousLog(to *slog.Logger) *anonymousLog {
	s := &anonymousLog{base: to.Handler(), lines: make(map[string]*anonymousLine)}
	s.log = slog.New(anonymousHandler{s.base, s})
	return s
}

// An anonymousHandler writes the lines that its anonymousLog admits.
type anonymousHandler struct {
	slog.Handler
	of *anonymousLog
}

// Handle implements [slog.Handler].
func (h anonymousHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.of.admit(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h anonymousHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return anonymousHandler{h.Handler.WithAttrs(attrs), h.of}
}

// WithGroup implements [slog.Handler].
func (h anonymousHandler) WithGroup(name string) slog.Handler {
	return anonymousHandler{h.Handler.WithGroup(name), h.of}
}

// admit reports whether to write a line, and counts the others.
func (s *anonymousLog) admit(r slog.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[r.Message]
	if l == nil {
		l = &anonymousLine{limit: rate.NewLimiter(rate.Every(anonymousEvery), anonymousBurst)}
		s.lines[r.Message] = l
	}
	if s.ended || l.limit.Allow() {
		return true
	}
	l.level = r.Level
	if l.leftOut++; l.tells == nil {
		l.tells = time.AfterFunc(anonymousEvery, func() { s.tell(r.Message) })
	}
	return false
}

// tell writes how many lines of a message it left out.
func (s *anonymousLog) tell(message string) {
	s.mu.Lock()
	l := s.lines[message]
	level, n := l.level, l.leftOut
	l.leftOut, l.tells = 0, nil
	s.mu.Unlock()
	if n == 0 { // end has written it
		return
	}
	r := slog.NewRecord(time.Now(), level, message+": … and more", 0)
	r.Add("left_out", n)
	_ = s.base.Handle(context.Background(), r)
}

// end writes the pending counts. From then on every line is written.
func (s *anonymousLog) end() {
	s.mu.Lock()
	s.ended = true
	var untold []string
	for message, l := range s.lines {
		if l.tells != nil && l.tells.Stop() {
			untold = append(untold, message)
		}
	}
	s.mu.Unlock()
	for _, message := range untold {
		s.tell(message)
	}
}

// httpErrors returns the log for the errors of net/http: failed TLS handshakes, and connections
// that do not speak HTTP.
func (s *anonymousLog) httpErrors() *log.Logger { return log.New(s, "", 0) }

// Write implements [io.Writer] for net/http, which writes one line at a time.
func (s *anonymousLog) Write(line []byte) (int, error) {
	s.log.Debug("HTTP connection failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}

// A LoginPrompt tells a person how to log in to a server.
type LoginPrompt = oauth.Prompt
