package ops

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// decide sets the answer of the policies.
func (e *Explanation) decide(cfg *config.Config, policies *policy.Policies, who *identity.Identity, kind policy.Kind) {
	if who == nil && len(cfg.Policies) > 0 {
		e.decideForAll(cfg, policies, kind)
		return
	}
	g := policies.For(who)
	d := g.Decide(kind, e.Matched)
	e.Glob, e.Needs, e.Missing = d.Glob, d.Needs, d.Missing
	e.Answer = answerOf(d)
	e.because(g, cfg.File)
	if d.Unclear {
		e.Why = fmt.Sprintf("%s: %s is about resources, and servers could read this URI as another one", fileOf(cfg.File), e.Rule)
	}
}

// decideForAll answers with the ruling of each policy, for a question without a client.
func (e *Explanation) decideForAll(cfg *config.Config, policies *policy.Policies, kind policy.Kind) {
	for i, g := range policies.Grants() {
		d := g.Decide(kind, e.Matched)
		r := Ruling{Rule: g.Rule(), Who: whoText(cfg.Policies[i].Who), Answer: answerOf(d), Glob: d.Glob, Needs: d.Needs}
		e.Rules = append(e.Rules, r)
	}
	e.Answer = AnswerDepends
	e.Why = fmt.Sprintf("%s: the first policy that matches a client applies, and a client without one may do nothing", fileOf(cfg.File))
	if last := cfg.Policies[len(cfg.Policies)-1]; last.Who.Any && !slices.ContainsFunc(e.Rules, func(r Ruling) bool { return r.Answer != e.Rules[0].Answer }) {
		e.Answer, e.Why = e.Rules[0].Answer, fileOf(cfg.File)+": all policies agree"
	}
}

func answerOf(d policy.Decision) string {
	switch {
	case !d.Allowed:
		return AnswerDenied
	case d.Missing != nil:
		return AnswerScopes
	}
	return AnswerAllowed
}

// whoText describes the clients that a policy is about.
func whoText(w config.Who) string {
	var parts []string
	for _, p := range []struct{ what, name string }{
		{"token", w.Token}, {"user", w.User}, {"certificate", w.Certificate}, {"issuer", w.Issuer}, {"principal", w.Principal},
	} {
		if p.name != "" {
			parts = append(parts, p.what+" "+p.name)
		}
	}
	for _, claim := range slices.Sorted(maps.Keys(w.Claims)) {
		parts = append(parts, "with "+claim+" "+w.Claims[claim])
	}
	switch {
	case w.Any:
		return "any client"
	case w.Anonymous:
		return "anonymous"
	case w.Operator:
		return "operator"
	}
	return strings.Join(parts, ", ")
}

func fileOf(file string) string {
	if file == "" {
		return "the configuration"
	}
	return file
}

// because sets the deciding rule and its reason.
func (e *Explanation) because(g *policy.Grant, file string) {
	if g == nil {
		e.Why = fmt.Sprintf("%s has no policies: everything is allowed", fileOf(file))
		return
	}
	e.Rule = g.Rule()
	at := fileOf(file) + ": " + e.Rule
	switch {
	case e.Rule == "":
		e.Why = fmt.Sprintf("%s: no policy matches this client, so it may do nothing", fileOf(file))
		return
	case e.Answer == AnswerScopes:
		e.Why = fmt.Sprintf("%s.scopes requires scopes that the client lacks", at)
	case e.Answer == AnswerAllowed && e.Glob != "":
		e.Why = fmt.Sprintf("%s.%ss.allow has %q", at, e.Kind, e.Glob)
	case e.Answer == AnswerAllowed:
		e.Why = fmt.Sprintf("%s matches this client, allows everything that it does not deny, and does not deny this", at)
	case e.Glob != "":
		e.Why = fmt.Sprintf("%s.%ss.deny has %q", at, e.Kind, e.Glob)
	default:
		e.Why = fmt.Sprintf("%s allows only what it lists, and lists no such %s", at, e.Kind)
	}
	e.Limits = limitsText(g.Limits())
}

func limitsText(l policy.Limits) string {
	var parts []string
	add := func(n float64, format string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, n))
		}
	}
	add(l.Rate, "rate %.4g/s")
	add(float64(l.InFlight), "inFlight %g")
	add(float64(l.Sessions), "sessions %g")
	return strings.Join(parts, ", ")
}

// isURI matches the beginning of a URI (RFC 3986 3.1), or of a path, which some servers have in place of one. No name
// that models read begins so.
var isURI = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*:|/)`)
