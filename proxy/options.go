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

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/metrics"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"golang.org/x/time/rate"
)

// Options say what a configuration does not. The zero value is fit for use.
type Options struct {
	Log   *slog.Logger // nil discards
	Hooks Hooks        // called for what happens; nil ones are off

	// Stdio is set when the only client is that of [Proxy.ServeStdio], which is
	// whoever runs this program. Errors about a command that did not start then have
	// its last line on stderr, and a link that waits for its host to dial is a
	// mistake, since nothing listens.
	Stdio bool

	// AdminSocket is the path of a Unix socket for operators, which gets mode 0600, besides
	// the addresses in the configuration. If nobody can listen there the log has a debug line. "" is
	// none.
	AdminSocket string

	// Listeners are opened already at the addresses that Config.Listen names, by systemd for
	// example. [Proxy.Listen] takes them, and opens none; the proxy closes them when it ends.
	Listeners []net.Listener

	// Patience is how long an upstream that starts may hold a client's initialize, if its
	// startTimeout is longer. Zero means 8 s: most clients give up after 10 s.
	Patience time.Duration

	// AskLogin is called when a server wants a person to log in, with the page to open; a
	// browser was opened with it if there is one. It must not wait. Only a program whose
	// operator sits in front of it sets this: with nil nobody is asked, and what needs a
	// login fails until somebody has run "mcp-proxy login".
	AskLogin func(LoginPrompt)

	anonymous *anonymousLog    // set by setDefaults
	metrics   *metrics.Metrics // set by observe; nil if nobody can look in
	history   *ops.History     // likewise, and then empty
}

// LogClientLeft is the message of the log for what the hook SessionEnded tells, too.
const LogClientLeft = session.LogClientLeft

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.anonymous = newAnonymousLog(o.Log)
}

// What can be seen of a proxy; package observe says what each is.
type (
	Hooks       = observe.Hooks
	Request     = observe.Request
	Call        = observe.Call
	End         = observe.End
	Outcome     = observe.Outcome
	Snapshot    = observe.Snapshot
	Session     = observe.Session
	Upstream    = observe.Upstream
	Link        = observe.Link
	Rejection   = observe.Rejection
	ConnectInfo = observe.ConnectInfo
	Offered     = observe.Offered
	Process     = observe.Process
	Traffic     = observe.Traffic
	Failure     = observe.Failure
	Health      = observe.Health
	Calls       = observe.Calls
	OpenRequest = observe.OpenRequest
	Wait        = observe.Wait

	Passed       = observe.Passed
	PassedError  = observe.PassedError
	LeftOut      = observe.LeftOut
	Recording    = observe.Recording
	RecordingEnd = observe.RecordingEnd

	Event       = observe.Event
	EventLine   = observe.EventLine
	EventKind   = observe.EventKind
	Events      = observe.Events
	LostRequest = observe.LostRequest
	Told        = observe.Told
	Loss        = observe.Loss

	Explanation = ops.Explanation
	Trial       = ops.Trial
	ListSize    = ops.ListSize
	Diagnosis   = ops.Diagnosis
	Finding     = ops.Finding
	Ruling      = ops.Ruling
	Servers     = ops.Servers

	Follower     = observe.Follower
	Trace        = observe.Trace
	CallTrace    = observe.CallTrace
	TraceContext = observe.TraceContext
	Arrival      = observe.Arrival
)

// What calls wait for.
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
	HeardOf        = observe.HeardOf
)

// Answers and a kind of an [Explanation].
const (
	AnswerAllowed   = ops.AnswerAllowed
	AnswerDenied    = ops.AnswerDenied
	AnswerScopes    = ops.AnswerScopes
	AnswerDepends   = ops.AnswerDepends
	AnswerUnknown   = ops.AnswerUnknown
	AnswerElsewhere = ops.AnswerElsewhere
	KindUpstream    = ops.KindUpstream
)

// Levels of a [Finding].
const (
	LevelError   = ops.LevelError
	LevelWarning = ops.LevelWarning
	LevelNote    = ops.LevelNote
)

// IsEvent reports whether a text looks as the ids of events do: "k3v9x2ma".
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

// version is set when a release is built.
var version = ""

const module = "github.com/mcp-proxy/mcp-proxy"

// Version returns the version of this module in the program that runs: that of a
// release, or what the build knows.
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

// A Build is the program that runs.
type Build struct {
	Version  string `json:"version"`           // as [Version]
	Revision string `json:"revision,omitzero"` // of the source, if the build knows that
	Modified bool   `json:"modified,omitzero"` // the source was not quite that
	Time     string `json:"time,omitzero"`     // of the revision
	Go       string `json:"go"`                // that has built it
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// BuildOf returns what the program knows of its build.
func BuildOf() Build {
	b := Build{Version: Version(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Path != module { // the source is that of a program that embeds this
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

// ReapOrphans waits, until ctx ends, for processes whose parents have left them to this
// one, as the first process of a container has to. It does nothing in any other. Only
// the program can know that nobody else waits for them.
func ReapOrphans(ctx context.Context) { process.ReapOrphans(ctx) }

// anonymousLog is the log of what peers can cause that have proved nothing: requests that are
// refused, handshakes that fail, links that never come up. Of each message it writes a few
// lines, and then how many were left out, so that nobody can fill a disk or hide a line among
// thousands. Everything of that kind is logged here.
type anonymousLog struct {
	log *slog.Logger // for them

	base  slog.Handler
	mu    sync.Mutex // guards the fields below
	lines map[string]*anonymousLine
	ended bool
}

// A anonymousLine is one message, which is a constant of the program.
type anonymousLine struct {
	limit   *rate.Limiter
	level   slog.Level
	leftOut int
	tells   *time.Timer // of how many were left out; nil if none were
}

const (
	anonymousBurst = 10               // lines of one message at once
	anonymousEvery = 10 * time.Second // another line, and how many were left out
)

func newAnonymousLog(to *slog.Logger) *anonymousLog {
	s := &anonymousLog{base: to.Handler(), lines: make(map[string]*anonymousLine)}
	s.log = slog.New(anonymousHandler{s.base, s})
	return s
}

// An anonymousHandler writes what its anonymousLog admits.
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

// admit reports whether a line is written, and counts it if not.
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

// tell writes how many lines of a message were left out.
func (s *anonymousLog) tell(message string) {
	s.mu.Lock()
	l := s.lines[message]
	level, n := l.level, l.leftOut
	l.leftOut, l.tells = 0, nil
	s.mu.Unlock()
	if n == 0 { // end has told
		return
	}
	r := slog.NewRecord(time.Now(), level, message+": … and more", 0)
	r.Add("left_out", n)
	_ = s.base.Handle(context.Background(), r)
}

// end tells at once what is still to be told. Nothing is left out any more.
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

// httpErrors is what net/http writes its errors to: connections that end in a TLS handshake,
// or that are none.
func (s *anonymousLog) httpErrors() *log.Logger { return log.New(httpErrors{s.log}, "", 0) }

type httpErrors struct{ log *slog.Logger }

// Write implements [io.Writer].
func (e httpErrors) Write(line []byte) (int, error) {
	e.log.Debug("HTTP connection failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}

// A LoginPrompt is what a person has to do to log in to a server.
type LoginPrompt = oauth.Prompt
