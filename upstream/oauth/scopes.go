package oauth

import (
	"slices"
	"time"
)

// stepUp decides whether to ask for scopes: once for each set of them, and in a few rounds
// (2025-11-25 basic/authorization, "Step-Up Authorization Flow").
func (l *Login) stepUp(scopes []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.lastAsked) > stepUpPause {
		l.asked = nil
	}
	sorted := slices.Sorted(slices.Values(scopes))
	for _, asked := range l.asked {
		if slices.Equal(slices.Sorted(slices.Values(asked)), sorted) {
			return errPointless
		}
	}
	if len(l.asked) > maxStepUps {
		return errPointless
	}
	l.asked, l.lastAsked = append(l.asked, scopes), time.Now()
	return nil
}

// scopesFor returns what to ask for: what was configured, else what the server's challenge
// says, else what the resource has; nil leaves it to the authorization server (2025-11-25
// basic/authorization, "Scope Selection Strategy"). offline_access, for a refresh token, is
// asked for only where there is such a scope (2026-07-28, "Refresh Tokens").
func scopesFor(configured []string, c Challenge, p *Place) []string {
	scopes := configured
	if len(scopes) == 0 {
		scopes = c.Scopes
	}
	if len(scopes) == 0 {
		scopes = p.Scopes
	}
	if len(scopes) > 0 && slices.Contains(p.Issuer.Scopes, "offline_access") {
		scopes = Union(scopes, []string{"offline_access"})
	}
	return scopes
}
