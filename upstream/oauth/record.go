package oauth

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

// A key is what a login is for: a server, and the client id that was configured, so that
// two accounts at one server do not mix.
type key struct{ server, clientID string }

// name is that of the file: the host, so that people find it, and what nobody else has.
func (k key) name() string {
	sum := sha256.Sum256([]byte(k.server + "\n" + k.clientID))
	host := ""
	if u, err := url.Parse(k.server); err == nil {
		host = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
				return r
			}
			return '_'
		}, u.Host)
	}
	return host[:min(len(host), 80)] + "-" + hex.EncodeToString(sum[:8])
}

// version is that of records. A program reads those of others as far as it knows them, so
// it only changes when what an older one would understand is wrong.
const version = 1

// A record is what is kept of the login at one server. Everything in it belongs to one
// issuer and resource: another issuer gets nothing of it (2026-07-28 basic/authorization).
type record struct {
	Version  int       `json:"version"`
	Server   string    `json:"server"` // these two are for people
	ClientID string    `json:"clientId,omitempty"`
	Issuer   string    `json:"issuer,omitempty"`
	Resource string    `json:"resource,omitempty"`
	Client   *client   `json:"client,omitempty"`
	Token    *token    `json:"token,omitempty"`
	Failed   *setback  `json:"failed,omitempty"` // how the last login ended; nil: well
	Changed  time.Time `json:"changed,omitzero"`
}

// A token is what a login gave us.
type token struct {
	Access  string    `json:"access"`
	Refresh string    `json:"refresh,omitempty"`
	Granted time.Time `json:"granted"`
	Expires time.Time `json:"expires,omitzero"` // zero: not known
	Asked   []string  `json:"asked,omitempty"`  // the scopes that were asked for
	Scopes  []string  `json:"scopes,omitempty"` // those that were granted
}

// A setback is a login that failed. Whoever waited for it does not try it again.
type setback struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"` // our own words
}

// readRecord reads what was kept. text is nil for nothing.
func readRecord(text []byte) (*record, error) {
	if text == nil {
		return &record{}, nil
	}
	var r record
	var of struct {
		Version int `json:"version"`
	}
	switch {
	case json.Unmarshal(text, &of) == nil && of.Version > version:
		return nil, errors.New("was written by a later version of mcp-proxy")
	case json.Unmarshal(text, &r) != nil || r.Version != version: // the error may quote it
		return nil, errors.New("is damaged: delete it, and log in again")
	}
	return &r, nil
}

// of reports whether the record is about the issuer and resource of a place.
func (r *record) of(p *Place) bool { return r.Issuer == p.Issuer.Issuer && r.Resource == p.Resource }

// adopt makes the record that of a place. What belongs to another is forgotten.
func (r *record) adopt(p *Place) {
	if !r.of(p) {
		r.Issuer, r.Resource, r.Client, r.Token = p.Issuer.Issuer, p.Resource, nil, nil
	}
}

// newToken returns what was granted after some scopes were asked for. A refresh keeps what
// it does not renew (RFC 6749, 6); old is nil for a login.
func newToken(t *oauth2.Token, asked []string, old *token) *token {
	n := &token{Access: t.AccessToken, Refresh: t.RefreshToken, Granted: time.Now(), Expires: t.Expiry, Asked: asked, Scopes: asked}
	if old != nil {
		n.Asked, n.Scopes = old.Asked, old.Scopes
		if n.Refresh == "" {
			n.Refresh = old.Refresh
		}
	}
	if scope, ok := t.Extra("scope").(string); ok && scope != "" {
		n.Scopes = Union(strings.Fields(scope))
	}
	return n
}

// good reports whether the server may take the token.
func (t *token) good() bool {
	return t != nil && (t.Expires.IsZero() || time.Now().Before(t.Expires))
}

// due reports whether it is time for another token: a minute before the end, or earlier in
// its last fifth if it does not live long.
func (t *token) due() bool {
	if t.Expires.IsZero() {
		return false
	}
	return time.Until(t.Expires) < min(time.Minute, t.Expires.Sub(t.Granted)/5)
}
