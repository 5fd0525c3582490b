package ops

import (
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Trial is the result of starting one upstream, asking it for its lists, and stopping it.
type Trial struct {
	Upstream  string `json:"upstream"`
	Link      string `json:"link,omitzero"` // that leads to its host; "" for one that was started here
	Transport string `json:"transport"`     // stdio, http, http+sse, websocket or link

	// Failed says in one sentence why it did not start or which list failed; "" for success. Cause is the
	// same in a few words, as in errors.
	Failed string        `json:"failed,omitzero"`
	Cause  jsonrpc.Cause `json:"cause,omitzero"`
	Event  string        `json:"event,omitzero"` // of the failure, as in the log; "" for none

	Server  string   `json:"server,omitzero"`  // its own name and version
	Version string   `json:"version,omitzero"` // of the protocol, as negotiated
	Speaks  []string `json:"speaks,omitzero"`  // its eras: legacy, modern; empty if not known

	StartMs float64 `json:"startMs"` // until it answered initialize; a slow start is repeated with nothing else starting
	ListMs  float64 `json:"listMs"`  // for all lists
	StopMs  float64 `json:"stopMs"`  // of a process: from the end of its stdin to its exit; 0 if not known

	Tools     ListSize `json:"tools"`
	Prompts   ListSize `json:"prompts"`
	Resources ListSize `json:"resources"`
	Templates ListSize `json:"templates"`

	Unusable int      `json:"unusable"`        // lines on its stdout that were no message
	Stderr   []string `json:"stderr,omitzero"` // its last lines, after a failure

	Hint      string                       `json:"-"` // advice about a command that could not be started; "" for other failures
	StopGrace time.Duration                `json:"-"`
	Lists     map[string][]json.RawMessage `json:"-"` // by member of the result
	Kept      map[string][]json.RawMessage `json:"-"` // those that clients get before it starts; without those that are not known
	KeptSince time.Time                    `json:"-"`
}

// A ListSize is the length of a list.
type ListSize struct {
	Count int `json:"count"`
	Bytes int `json:"bytes"`
}

// OK reports whether the upstream started and gave its lists.
func (t *Trial) OK() bool { return t.Failed == "" }

// Advice says in one sentence what to do about an upstream that failed.
func (t *Trial) Advice() string {
	if t.Hint != "" {
		return t.Hint
	}
	if do := causeAdvice[t.Cause]; do != "" {
		return do
	}
	switch class := t.Cause.Kind; {
	case class == jsonrpc.KindUnreachable, class == jsonrpc.KindBroken && t.Transport != "stdio":
		return "start it, and compare host and port of its url"
	case class == jsonrpc.KindTimeout:
		return tooLate
	case t.Transport == "stdio":
		return "run its command by hand: it may lack arguments, env or inheritEnv"
	case t.Transport == "link":
		return "run mcp-proxy doctor on its host, with the host's configuration"
	}
	return "run mcp-proxy doctor --log-level debug"
}

const (
	giveCredential = "configure its credentials: headersFrom or auth"
	comparePath    = "compare the path of its url with its documentation: most end in /mcp"
	tooLate        = "run its command by hand once: it may ask something or download packages; else raise startTimeout"
)

// causeAdvice is advice for causes that need no more context.
var causeAdvice = map[jsonrpc.Cause]string{
	jsonrpc.CauseLogin:         "run the command that it names, once",
	jsonrpc.CauseStartTimeout:  tooLate,
	jsonrpc.CauseTLS:           "compare the scheme of its url (http or https), and set tls.ca if a private authority signed its certificate",
	jsonrpc.CauseBadHeaderFile: "fix the file that headersFrom names; mcp-proxy check finds the same",
	jsonrpc.CauseNoToken:       "fix auth: its authorization server says why in the log",
	jsonrpc.HTTPCause(400):     "compare the scheme of its url (http or https) and the path; its own log says why",
	jsonrpc.HTTPCause(401):     giveCredential,
	jsonrpc.HTTPCause(403):     "its log says why: it may not allow the Host of its url (allowedHosts of another mcp-proxy), or want other credentials (headersFrom or auth)",
	jsonrpc.HTTPCause(404):     comparePath,
	jsonrpc.HTTPCause(405):     comparePath,
}
