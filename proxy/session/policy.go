package session

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// How policies apply. A request is decided when its target is known, whatever name the
// client used: the upstream with its own name of a tool or prompt, or a URI as the client wrote it.
// Denied things look unknown:
//
//   - An upstream that has nothing for the client is left out of the client's upstream sets
//     (visibleTo). So it is not started, introduced or asked for the client.
//   - Names do not resolve to denied things (offersTo), lists omit them (visible), and calls of them
//     are refused (denied).
//   - A denied URI is sent to no upstream. Its updates do not reach the client.
//   - A task follows its tool. Unknown methods are denied wherever anything is restricted, but for
//     those that a rule allows by name.

// ruleName returns the name of a listed thing in rules. A URI has no upstream.
func ruleName(k catalog.Kind, u *upstreamConn, name string) string {
	if !k.IsNamed() {
		return name
	}
	return lists.RuleName(k, u.up.Name, name)
}

// denied reports whether the client must not use the target of a request. If only scopes are
// missing it answers the request, and answered is true.
func (s *session) denied(r *request, k catalog.Kind, u *upstreamConn, name string) (denied, answered bool) {
	if r.grant == nil {
		return false, false
	}
	d := r.grant.Decide(lists.KindOf(k), ruleName(k, u, name))
	if d.Allowed && k.IsNamed() && r.maybeFormer(k, u, name) {
		d.Allowed = r.grant.May(lists.KindOf(k), name)
	}
	switch {
	case !d.Allowed:
		return true, false
	case d.Missing != nil:
		s.needsScopes(r, d.Needs)
		return false, true
	}
	return false, false
}

// maybeFormer reports whether a name that a sole upstream does not list could, for its client, be
// one from when there were several: <upstream>__<name>. If a rule denies that, the name is unknown,
// whether or not it exists.
func (r *request) maybeFormer(k catalog.Kind, u *upstreamConn, name string) bool {
	return r.upstreams.only() == u && r.upstreams.prefixes[0] == "" && catalog.MayBeFormer(u.up.Name, name) && !u.lists.Table(r.caps, k).Has(name)
}

// deniedTask is denied for a task of an upstream, by its own id. Rules for its tool decide, or for
// its upstream if the tool is unknown.
func (s *session) deniedTask(r *request, u *upstreamConn, id string) (denied, answered bool) {
	if r.grant == nil {
		return false, false
	}
	if tool := s.toolOf(u, id); tool != "" {
		return s.denied(r, catalog.Tools, u, tool)
	}
	return !r.grant.Sees(u.up.Name), false
}

// confine removes everything that the client must not see from the filter of a subscription. If
// only scopes are missing it answers the request and returns false.
func (s *session) confine(r *request, f *mcp.Filter) bool {
	if r.grant == nil {
		return true
	}
	var needs []string
	before := len(f.URIs) + len(f.Tasks)
	missing := false
	f.URIs = slices.DeleteFunc(f.URIs, func(uri string) bool {
		d := r.grant.Decide(policy.Resource, uri)
		needs, missing = append(needs, d.Needs...), missing || d.Missing != nil
		return !d.Allowed
	})
	f.Tasks = slices.DeleteFunc(f.Tasks, func(name string) bool {
		u, id := r.upstreams.runner(name)
		return u != nil && !s.mayTask(u, r.grant, id)
	})
	switch {
	case missing:
		slices.Sort(needs)
		s.needsScopes(r, slices.Compact(needs))
		return false
	case !r.grant.MayExtend():
		f.As = nil
	case len(f.URIs)+len(f.Tasks) < before:
		f.As = f.On(f.As)
	}
	if len(f.URIs)+len(f.Tasks) < before {
		s.noteDenial(r, "")
	}
	return true
}

// admits counts a request that begins. If it exceeds a limit, admits answers it and returns false.
// Pings are not counted.
func (s *session) admits(r *request) bool {
	if r.grant == nil || r.Method == mcp.MethodPing {
		return true
	}
	use, refused := r.grant.Begin()
	if refused != nil {
		s.logBeyond(r.grant, refused)
		err := jsonrpc.Overloaded("")
		err.Message = strings.ToUpper(refused.Text[:1]) + refused.Text[1:]
		s.refuseWith(r, err, refused)
		return false
	}
	r.count(use)
	return true
}

// admitsNotification counts a notification of the client, and returns false if it exceeds the rate:
// then it is dropped. Cancellations and initialized are not counted, because they cost little, and
// roots/list_changed is held back instead.
func (s *session) admitsNotification(m *jsonrpc.Message) bool {
	if s.router.Policies == nil || m.Method == mcp.MethodInitialized || m.Method == mcp.MethodRootsChanged {
		return true
	}
	g := s.grantOf(m.From)
	refused := g.Notify()
	if refused == nil {
		return true
	}
	s.logBeyond(g, refused)
	s.overRate.Add(1)
	s.observeRefused(refused)
	return false
}

// logBeyond logs refusals of a sender that exceeds its limits, at a bounded rate.
func (s *session) logBeyond(g *policy.Grant, refused *identity.Refusal) {
	level := slog.LevelDebug
	if refused.Log {
		level = slog.LevelInfo
	}
	s.log.Log(context.Background(), level, "client exceeds its limits", "principal", g.Who.String(), "rule", g.Rule(), "cause", refused.Text)
}

// needsScopes answers a request for which the client lacks scopes with all that it needs, so that
// the client can ask for them at once.
func (s *session) needsScopes(r *request, all []string) {
	s.log.Debug("client lacks scopes", "method", mcp.NameOf(r.Method), "principal", r.grant.Who.String(), "rule", r.grant.Rule(), "scopes", all)
	text := "insufficient scope: this needs " + strings.Join(all, " ")
	s.refuseWith(r, jsonrpc.InsufficientScope(all), &identity.Refusal{Status: 403, Code: "insufficient_scope", Text: text, Scopes: all})
}

// refuseWith answers a request with an error, and gives front ends the reason.
func (s *session) refuseWith(r *request, err *jsonrpc.Error, why *identity.Refusal) {
	m := jsonrpc.NewError(r.ID, err)
	m.Refused = why
	s.observeRefused(why)
	s.settleNow(r, m)
}

func (s *session) observeRefused(why *identity.Refusal) {
	if tell := s.router.Hooks.Refused; tell != nil {
		tell(why.Reason())
	}
}

// noteDenial logs the rule that denied a request, and the target if it has a name. The client only
// learns that the target does not exist.
func (s *session) noteDenial(r *request, name string) {
	s.log.Debug("denied by a policy", "method", mcp.NameOf(r.Method), "name", name[:min(len(name), maxName)],
		"principal", r.grant.Who.String(), "rule", cmp.Or(r.grant.Rule(), "none"))
}
