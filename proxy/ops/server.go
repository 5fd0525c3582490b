package ops

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/tap"
)

// A Server answers operators:
//
//	/          the page for browsers, with what belongs to it
//	/livez     200 while the program runs
//	/readyz    200, or 503 with the checks that fail, with names for requests that may read the
//	           status; ?verbose lists all checks
//	/metrics   for Prometheus
//	/status    the Snapshot as JSON
//	/calls     requests of clients in flight, as JSON
//	/events    unexpected ends, as JSON; /events/ID has all details of one
//	/explain/NAME   where a name leads, and what ?as=CLIENT may do with it, as JSON
//	/tap       messages as they pass, as lines of JSON
//
// It is an [http.Handler]. Its fields must not change once it serves.
type Server struct {
	Snapshot func() observe.Snapshot
	Ready    func() []Check // checks of readiness
	Calls    func() observe.Calls

	History *History // of events

	// Explain says where a name leads, and what the client as may do with it, unless that is "". The
	// error is about as.
	Explain  func(name, as string) (*Explanation, error)
	Taps     *tap.Taps // at /tap; nil for none
	Payloads bool      // taps on a Unix socket may show the content of messages
	Version  string    // of the program, for recordings

	// Metrics is at /metrics; nil for none. On TCP requests that are Named need no token for it.
	Metrics http.Handler

	// Admit answers requests for a wrong Host with an error, and returns it. A page of another site
	// must not read this server under a name of its own.
	Admit func(w http.ResponseWriter, r *http.Request) error

	// FromOtherSite reports whether a browser sends a request for a page of another site.
	FromOtherSite func(r *http.Request) bool

	// Named reports whether the Host of an admitted request is one of ours, and not just any, which
	// may be another site's. Nil means that all are.
	Named func(r *http.Request) bool

	// Token returns the bearer token that requests over TCP need, except for probes and metrics. Nil
	// refuses all such requests.
	Token func() (string, error)
}

// isOpen reports whether r needs no token. The page needs none either.
func (s *Server) isOpen(r *http.Request) bool {
	switch r.URL.Path {
	case "/livez", "/readyz":
		return true
	case "/metrics":
		return s.Named == nil || s.Named(r)
	}
	return false
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mustRead(w)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case s.Admit(w, r) != nil:
	case onSocket(r) && !isHere(r.Host):
		http.Error(w, "Host is not allowed: use localhost at a Unix socket", http.StatusForbidden)
	case s.FromOtherSite(r) && !isVisit(r):
		http.Error(w, "Origin is not allowed", http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
	case operatorsPage.has(r.URL.Path):
		operatorsPage.serve(w, r, http.StatusOK)
	case onSocket(r) || s.isOpen(r):
		s.route(w, r)
	default:
		switch why := s.refusal(r); {
		case why == "":
			s.route(w, r)
		case s.Token == nil: // there is no token to ask for
			http.Error(w, why, http.StatusForbidden)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, why, http.StatusUnauthorized)
		}
	}
}

// readTime is the time in which whoever asked must read a response, or the next part of a tap. Otherwise the
// connection ends: it would stay for ever.
const readTime = 30 * time.Second

func mustRead(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTime)) // it fails for tests only, which read
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == "/livez":
		say(w, http.StatusOK, "ok")
	case path == "/readyz":
		s.serveReady(w, r)
	case path == "/metrics" && s.Metrics != nil:
		s.Metrics.ServeHTTP(w, r)
	case path == "/status":
		s.serveStatus(w)
	case strings.HasPrefix(path, "/explain/"):
		s.serveExplanation(w, r, strings.TrimPrefix(path, "/explain/"))
	case path == "/events":
		s.serveEvents(w, r)
	case strings.HasPrefix(path, "/events/"):
		s.serveEvent(w, strings.TrimPrefix(path, "/events/"))
	case path == "/calls" && s.Calls != nil:
		s.serveCalls(w)
	case path == "/tap" && s.Taps != nil:
		s.serveTap(w, r)
	default:
		http.NotFound(w, r)
	}
}

// mayRead reports whether r may read everything.
func (s *Server) mayRead(r *http.Request) bool { return onSocket(r) || s.refusal(r) == "" }

// isVisit reports whether a browser follows a link to the page. The page has no data and fetches it from its own site.
func isVisit(r *http.Request) bool {
	return r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// onSocket reports whether r came over a Unix socket.
func onSocket(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at != nil && at.Network() == "unix"
}

// isHere reports whether a Host names only this machine. A forwarded port leads browsers to a Unix socket, which needs
// no token, so a page of another site must not reach it under the site's own name.
func isHere(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "" || strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// refusal returns why r, which needs the token, is refused, "" if it carries the token.
func (s *Server) refusal(r *http.Request) string {
	switch {
	case s.Token == nil && r.URL.Path == "/metrics":
		return "metrics at this Host need a token, but admin.tokenFile is not set; or name the host in allowedHosts beside \"*\""
	case s.Token == nil:
		return "without admin.tokenFile only probes and metrics are served here: set it to a file with a token and restart, or use the Unix socket, which has everything (mcp-proxy status)"
	}
	token, err := s.Token()
	if err != nil || token == "" {
		return "the file of admin.tokenFile cannot be used: mcp-proxy check says why"
	}
	scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(sent), []byte(token)) != 1 {
		return "needs the token of admin.tokenFile"
	}
	return ""
}

// serveStatus serves /status: the Snapshot as JSON, with empty arrays instead of null.
func (s *Server) serveStatus(w http.ResponseWriter) {
	now := s.Snapshot()
	now.Traffic = append([]observe.Traffic{}, now.Traffic...)
	now.Upstreams = append([]observe.Upstream{}, now.Upstreams...)
	now.Sessions = append([]observe.Session{}, now.Sessions...)
	now.Links = append([]observe.Link{}, now.Links...)
	sayJSON(w, now)
}

// serveCalls serves /calls.
func (s *Server) serveCalls(w http.ResponseWriter) {
	now := s.Calls()
	now.Calls = append([]observe.OpenRequest{}, now.Calls...)
	sayJSON(w, now)
}

// sayJSON answers with a value as JSON.
func sayJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the operator may have disconnected
}

// usualEvents is the default limit of a list.
const usualEvents = 100

// serveEvents serves /events: a list, the newest first. ?since=ID leaves out that event and older ones, ?limit=N
// all but the newest N.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	limit := usualEvents
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > mostEvents {
			http.Error(w, fmt.Sprintf("limit must be a number from 1 to %d", mostEvents), http.StatusBadRequest)
			return
		}
	}
	sayJSON(w, s.History.List(r.URL.Query().Get("since"), limit))
}

// serveEvent serves /events/ID: one event with all details.
func (s *Server) serveEvent(w http.ResponseWriter, id string) {
	e, ok := s.History.Find(id)
	if !ok {
		http.Error(w, fmt.Sprintf("no such event: a process keeps its last %d events until it stops", mostEvents), http.StatusNotFound)
		return
	}
	sayJSON(w, e)
}

// longestQuestion bounds a requested name in bytes.
const longestQuestion = 4 << 10

// serveExplanation serves /explain/NAME.
func (s *Server) serveExplanation(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" || len(name) > longestQuestion {
		http.Error(w, fmt.Sprintf("a name must have 1 to %d bytes", longestQuestion), http.StatusBadRequest)
		return
	}
	answer, err := s.Explain(name, r.URL.Query().Get("as"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sayJSON(w, answer)
}
