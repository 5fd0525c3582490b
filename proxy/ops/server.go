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

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/tap"
)

// A Server answers operators:
//
//	/          the page for browsers, with what belongs to it
//	/livez     200 while the program runs: nothing but its own death makes it fail
//	/readyz    200, or 503 with what is not ready, by name for who may read the status; ?verbose
//	           lists all checks
//	/metrics   if there are any
//	/status    the Snapshot as JSON
//	/calls     what is in flight, as JSON
//	/events    what has ended though nobody wanted it to, as JSON; /events/ID is all about one
//	/explain/NAME   where a name leads, and what ?as=CLIENT may do with it, as JSON
//	/tap       messages as they pass, as lines of JSON
//
// It is an [http.Handler]. Its fields must not change once it serves.
type Server struct {
	Snapshot func() observe.Snapshot
	Ready    func() []Check       // what has to be well before clients should come
	Calls    func() observe.Calls // what is in flight

	History *History // of events

	// Explain says where a name leads, and what the client as may do with it, if that is not
	// "". The error is about the question.
	Explain  func(name, as string) (*Explanation, error)
	Taps     *tap.Taps // at /tap; nil: there is none
	Payloads bool      // taps on a Unix socket may show what is in messages
	Version  string    // of the program, for recordings

	// Metrics is at /metrics. On TCP everybody may read it who is Named. Nil: there is none.
	Metrics http.Handler

	// Admit refuses requests whose Host is not ours, and returns why. A page of another site must not
	// read what is here, under whatever name it reaches us.
	Admit func(w http.ResponseWriter, r *http.Request) error

	// FromOtherSite reports whether a browser sends a request for a page that is not ours.
	FromOtherSite func(r *http.Request) bool

	// Named reports whether a request that Admit lets pass has a Host of ours, and not just
	// any, which may be another site's. Nil: all have.
	Named func(r *http.Request) bool

	// Token returns the bearer token that requests over TCP need, except for probes and metrics. Nil
	// refuses them all.
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
		case s.Token == nil: // no token will do, so none is asked for
			http.Error(w, why, http.StatusForbidden)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, why, http.StatusUnauthorized)
		}
	}
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

// isVisit reports whether a browser follows a link to the page. The page has no data: it fetches that from its own
// site.
func isVisit(r *http.Request) bool {
	return r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// onSocket reports whether r came over a Unix socket.
func onSocket(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at != nil && at.Network() == "unix"
}

// isHere reports whether a Host names this machine only. A forwarded port leads browsers to a Unix socket: a page
// whose own name leads to that port must not read what needs no token here.
func isHere(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "" || strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// refusal returns why r, which needs the token, is refused; "" if it carries the token.
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

// serveStatus is /status: the Snapshot as JSON, with empty arrays instead of null.
func (s *Server) serveStatus(w http.ResponseWriter) {
	now := s.Snapshot()
	now.Traffic = append([]observe.Traffic{}, now.Traffic...)
	now.Upstreams = append([]observe.Upstream{}, now.Upstreams...)
	now.Sessions = append([]observe.Session{}, now.Sessions...)
	now.Links = append([]observe.Link{}, now.Links...)
	sayJSON(w, now)
}

// serveCalls is /calls.
func (s *Server) serveCalls(w http.ResponseWriter) {
	now := s.Calls()
	now.Calls = append([]observe.OpenRequest{}, now.Calls...)
	sayJSON(w, now)
}

// sayJSON answers with a value as JSON.
func sayJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // that the operator went is his business
}

// usualEvents is the default limit of a list.
const usualEvents = 100

// serveEvents is /events: a list, newest first. ?since=ID leaves out that event and those before it, ?limit=N
// those beyond the newest N.
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

// serveEvent is /events/ID: one event with all details.
func (s *Server) serveEvent(w http.ResponseWriter, id string) {
	e, ok := s.History.Find(id)
	if !ok {
		http.Error(w, fmt.Sprintf("no such event: a process keeps its last %d events until it stops", mostEvents), http.StatusNotFound)
		return
	}
	sayJSON(w, e)
}

// longestQuestion bounds the requested name, in bytes.
const longestQuestion = 4 << 10

// serveExplanation is /explain/NAME.
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
