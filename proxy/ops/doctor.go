package ops

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A Diagnosis is the result of starting each server of a configuration once.
type Diagnosis struct {
	File      string    `json:"file"` // of the configuration; "" for none
	Upstreams []Trial   `json:"upstreams"`
	Findings  []Finding `json:"findings"` // errors first
}

// A Finding is something wrong or suspicious.
type Finding struct {
	Level    string `json:"level"`             // error: must be fixed; warning: should be; note
	Code     string `json:"code"`              // stable identifier
	Upstream string `json:"upstream,omitzero"` // "" if it is about none, or several
	What     string `json:"what"`              // in one sentence
	Do       string `json:"do"`                // advice
}

// Levels of a [Finding].
const (
	LevelError   = "error"
	LevelWarning = "warning"
	LevelNote    = "note"
)

// Ill reports whether there is an error.
func (d *Diagnosis) Ill() bool {
	return slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Level == LevelError })
}

// Judge returns what is wrong or suspicious. The problems are those of [config.Config] and of the files and
// commands that it names. more is what others have found.
func Judge(cfg *config.Config, trials []Trial, problems config.Problems, more ...Finding) *Diagnosis {
	d := &Diagnosis{File: cfg.File, Upstreams: trials, Findings: append([]Finding{}, more...)}
	for _, p := range problems {
		d.found(LevelError, "configuration", "", "fix it there; mcp-proxy check finds the same", "%v", p)
	}
	for i := range trials {
		t := &trials[i]
		d.started(cfg, t, problems)
		d.spoke(t)
		d.listed(t)
		d.kept(t)
	}
	d.commands(cfg)
	for _, l := range cfg.Links {
		if l.Accept {
			d.found(LevelNote, "link", "", "ask the proxy that runs: mcp-proxy status", "link %s was not tried: its host dials serve, and nothing listens here", l.Name)
		}
	}
	d.access(cfg)
	d.names(cfg)
	d.sort()
	return d
}

// sort puts errors first.
func (d *Diagnosis) sort() {
	rank := map[string]int{LevelError: 0, LevelWarning: 1, LevelNote: 2}
	slices.SortStableFunc(d.Findings, func(a, b Finding) int { return rank[a.Level] - rank[b.Level] })
}

// Running adds what a proxy with the configuration, which runs, knows of other replicas.
func (d *Diagnosis) Running(now *observe.Snapshot) {
	for _, m := range now.Replicas {
		if m.Differs {
			d.found(LevelWarning, "replica-differs", "", "give all replicas the same; if two clusters were meant, give each a key of its own",
				"the replica %s (%s) has another configuration than this one: what a client gets depends on where its request arrives", m.Instance, m.Address)
		}
		if m.Unreachable {
			d.found(LevelError, "replica-unreachable", "", "let replicas connect to the TCP port after that of cluster.listen",
				"the replica %s (%s) is a member, but cannot be reached to pass requests on", m.Instance, m.Address)
		}
	}
	if len(now.Replicas) == 1 {
		d.found(LevelWarning, "replica-alone", "", "compare the keys, what the names of cluster.join lead to, and the firewall: TCP and UDP at cluster.listen, and TCP at the next port",
			"process %d, which has this configuration, has found no other replica", now.Process.PID)
	}
	d.sort()
}

func (d *Diagnosis) found(level, code, upstream, do, what string, args ...any) {
	d.Findings = append(d.Findings, Finding{level, code, upstream, fmt.Sprintf(what, args...), do})
}

// explains reports whether one of the problems is why an upstream did not start.
func explains(problems config.Problems, cfg *config.Config, upstream string) bool {
	for _, u := range cfg.Upstreams {
		about := func(p config.Problem) bool {
			return strings.HasPrefix(p.Key, u.Key+".") || u.Key == "--" && p.Key == "command"
		}
		if u.Name == upstream && slices.ContainsFunc(problems, about) {
			return true
		}
	}
	return false
}

// started finds upstreams that did not start.
func (d *Diagnosis) started(cfg *config.Config, t *Trial, problems config.Problems) {
	switch {
	case t.OK():
		d.took(cfg, t)
	case t.Upstream == "":
		d.found(LevelError, "link", "", "start its host, and compare links."+t.Link+".dial with the URL that it prints", "link %s: %s", t.Link, t.Failed)
	case t.Cause == jsonrpc.CauseNotOffered:
		d.found(LevelError, "not-offered", t.Upstream, "rename it or its prefix at its host, or change the order or the upstreams of links", "link %s: %s", t.Link, t.Failed)
	case !explains(problems, cfg, t.Upstream):
		do := t.Advice()
		if len(t.Stderr) > 0 {
			do += "; its last words on stderr are shown"
		}
		d.found(LevelError, "failed", t.Upstream, do, "%s", t.Failed)
	}
}

// took finds slow upstreams.
func (d *Diagnosis) took(cfg *config.Config, t *Trial) {
	shared := slices.ContainsFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Name == t.Upstream && t.Link == "" && u.Shared })
	const install = "install it once rather than on each start (npx, uvx), or start it once for all with session: shared"
	switch {
	case t.StartMs > tooSlow && !shared:
		d.found(LevelWarning, "slow-start", t.Upstream, install+" and required: true", "takes %s to start on its own; clients wait 8 s and then continue without it", seconds(t.StartMs))
	case t.StartMs > Slow && !shared:
		d.found(LevelNote, "slow-start", t.Upstream, install, "takes %s to start on its own, for each client again", seconds(t.StartMs))
	}
	switch limit := millis(cfg.ListTimeout); {
	case limit > 0 && t.ListMs > limit:
		d.found(LevelError, "slow-list", t.Upstream, "raise listTimeout, or find out what it waits for", "takes %s for its lists, and is left out after listTimeout, %v", seconds(t.ListMs), cfg.ListTimeout)
	case t.ListMs > Slow:
		d.found(LevelWarning, "slow-list", t.Upstream, "find out what it waits for when it lists", "takes %s for its lists", seconds(t.ListMs))
	}
	if grace := millis(t.StopGrace); grace > 0 && t.StopMs > grace {
		d.found(LevelWarning, "slow-stop", t.Upstream, "it should exit when stdin is closed; until then each stop takes stopGrace",
			"does not exit when stdin is closed, only on a signal: %s", seconds(t.StopMs))
	}
}

// Clients do not wait longer than tooSlow milliseconds. More than Slow is reported.
const (
	tooSlow = 8000
	Slow    = 3000
)

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func seconds(ms float64) string { return fmt.Sprintf("%.1f s", ms/1000) }

// spoke finds violations of the protocol.
func (d *Diagnosis) spoke(t *Trial) {
	if t.Unusable > 0 {
		d.found(LevelWarning, "stdout", t.Upstream, "make it log to stderr: only messages belong on stdout, and other clients disconnect",
			"wrote %d %s on stdout that %s no message", t.Unusable, plural(t.Unusable, "line", "lines"), plural(t.Unusable, "is", "are"))
	}
	if t.Transport == "http+sse" {
		d.found(LevelWarning, "old-transport", t.Upstream, "use its Streamable HTTP endpoint if it has one: most end in /mcp", "speaks HTTP+SSE, which MCP has deprecated since 2025-03-26")
	}
	if t.Version != "" && t.Version < "2025-03-26" {
		d.found(LevelNote, "old-version", t.Upstream, "update it", "speaks version %s of the protocol, and nothing newer", t.Version)
	}
}

// listed finds mistakes in lists.
func (d *Diagnosis) listed(t *Trial) {
	if !t.OK() {
		return
	}
	if t.Tools.Count+t.Prompts.Count+t.Resources.Count+t.Templates.Count == 0 {
		d.found(LevelWarning, "empty", t.Upstream, "check whether it needs an argument, a token or a login", "offers nothing: no tools, prompts or resources")
	}
	seen := make(map[string]bool)
	for _, tool := range readTools(t.Lists["tools"]) {
		switch {
		case tool.Name == "":
			d.found(LevelError, "bad-tool", t.Upstream, "report it to its author; clients may reject the whole list", "lists a tool without a name")
		case seen[tool.Name]:
			d.found(LevelError, "twice", t.Upstream, "report it to its author", "lists the tool %s twice", quoted(tool.Name))
		case !strings.Contains(string(tool.InputSchema), `"object"`):
			d.found(LevelError, "bad-tool", t.Upstream, "report it to its author; clients may reject the whole list", "the tool %s has no inputSchema of type object", quoted(tool.Name))
		}
		seen[tool.Name] = true
	}
}

// kept finds lists that differ from those that clients get before the server starts.
func (d *Diagnosis) kept(t *Trial) {
	if !t.OK() {
		return
	}
	var all []string
	for k := range catalog.Kinds {
		if before, known := t.Kept[k.Member()]; known {
			all = append(all, differences(k, before, t.Lists[k.Member()])...)
		}
	}
	if len(all) > 0 {
		d.found(LevelNote, "kept-lists", t.Upstream, "run mcp-proxy tools --refresh, or wait: clients get a list_changed when it next starts",
			"its lists differ from those that were kept on %s: %s", t.KeptSince.Format("2006-01-02 15:04"), strings.Join(all, "; "))
	}
}

// differences says which names a list has gained and lost, and which elements are others now.
func differences(k catalog.Kind, before, now []json.RawMessage) (all []string) {
	old, current := byName(k, before), byName(k, now)
	var came, went, changed []string
	for name, text := range current {
		if was, known := old[name]; !known {
			came = append(came, name)
		} else if was != text {
			changed = append(changed, name)
		}
	}
	for name := range old {
		if _, remains := current[name]; !remains {
			went = append(went, name)
		}
	}
	for _, of := range []struct {
		what  string
		names []string
	}{{"new", came}, {"gone", went}, {"changed", changed}} {
		if len(of.names) > 0 {
			all = append(all, fmt.Sprintf("%s %s %s", of.what, k.Member(), someOf(of.names)))
		}
	}
	return all
}

// byName returns the texts of the elements of a list.
func byName(k catalog.Kind, elements []json.RawMessage) map[string]string {
	all := make(map[string]string, len(elements))
	for _, e := range elements {
		raw, _ := jsonrpc.Member(e, k.Key())
		if name, ok := jsonrpc.Unquote(raw); ok {
			all[name] = string(e)
		}
	}
	return all
}

// someOf returns the first names in order, and the number of the others.
func someOf(names []string) string {
	const most = 5
	slices.Sort(names)
	more := ""
	if n := len(names) - most; n > 0 {
		names, more = names[:most], fmt.Sprintf(" and %d more", n)
	}
	for i, name := range names {
		names[i] = quoted(name)
	}
	return strings.Join(names, ", ") + more
}

// commands finds command lines that do not work with pipes.
func (d *Diagnosis) commands(cfg *config.Config) {
	for _, u := range cfg.Upstreams {
		has := func(flags ...string) bool {
			return slices.ContainsFunc(u.Args, func(a string) bool { return slices.Contains(flags, a) })
		}
		switch strings.TrimSuffix(filepath.Base(u.Command), ".cmd") {
		case "npx":
			if !has("-y", "--yes", "--no", "--no-install") {
				d.found(LevelWarning, "npx", u.Name, "put -y first in args", "npx without -y asks before it installs anything, and waits for the answer on stdin")
			}
		case "docker", "podman":
			switch {
			case !has("run"):
			case has("-t", "-it", "-ti", "--tty"):
				d.found(LevelError, "docker", u.Name, "take -t out of args, and leave -i", "docker run -t makes a terminal of stdin and stdout")
			case !has("-i", "--interactive"):
				d.found(LevelError, "docker", u.Name, "put -i behind run in args", "docker run without -i gives the server no stdin")
			}
		}
	}
}

// access finds missing access control.
func (d *Diagnosis) access(cfg *config.Config) {
	for _, address := range cfg.Open() {
		d.found(LevelWarning, "no-token", "", "set tokenFile, auth or tls.clientCA, or listen on 127.0.0.1", "listens on %s, where others can reach it, without authentication: anyone can call every tool", address)
	}
	if !cfg.Proves() && slices.Contains(cfg.AllowedHosts, "*") {
		d.found(LevelWarning, "any-host", "", "name the hosts in allowedHosts, or set tokenFile", `allowedHosts is "*" and no token is needed: any web page can reach the tools by DNS rebinding`)
	}
	for _, u := range cfg.Upstreams {
		if u.Exposed() {
			d.found(LevelWarning, "plain", u.Name, "use its https or wss URL", "is reached without TLS: everything, tokens included, can be read on the way")
		}
	}
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
