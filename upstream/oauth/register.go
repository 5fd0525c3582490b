package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

const grantDevice = "urn:ietf:params:oauth:grant-type:device_code"

// A registration is what a client says of itself (RFC 7591, 2).
type registration struct {
	Name      string   `json:"client_name"`
	Returns   []string `json:"redirect_uris"`
	Grants    []string `json:"grant_types"`
	Responses []string `json:"response_types"`
	Method    string   `json:"token_endpoint_auth_method"`
	Kind      string   `json:"application_type"`
	Scope     string   `json:"scope,omitempty"`
}

// A registered is what the authorization server says then (RFC 7591, 3.2.1).
type registered struct {
	ID      string `json:"client_id"`
	Secret  string `json:"client_secret"`
	Expires int64  `json:"client_secret_expires_at"` // zero: never
	Method  string `json:"token_endpoint_auth_method"`
}

var errNoRegistration = errors.New("the authorization server knows no client of ours: give it a client id (oauth.clientId)")

// register makes us known to an authorization server, which may send browsers back to one of
// returns. What it answers is remembered, and never shown.
func register(ctx context.Context, hc *http.Client, i *Issuer, returns, scopes []string) (*client, error) {
	if i.RegistrationEndpoint == "" {
		return nil, errNoRegistration
	}
	ask := registration{
		Name: "mcp-proxy", Returns: returns, Kind: "native", Method: methodFor(i, false), Scope: strings.Join(scopes, " "),
		Grants: []string{"authorization_code", "refresh_token"}, Responses: []string{"code"},
	}
	if slices.Contains(i.GrantTypes, grantDevice) {
		ask.Grants = append(ask.Grants, grantDevice)
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.RegistrationEndpoint, bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("the registration endpoint cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := unredirected(hc).Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	var said struct {
		registered
		Error string `json:"error"`
	}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxMetadata)).Decode(&said)
	switch {
	case resp.StatusCode/100 != 2:
		return nil, &refusal{resp.StatusCode, errorCode(said.Error)}
	case said.ID == "":
		return nil, errors.New("the authorization server registered us without a client id")
	}
	return said.client(ask), nil
}

func (r *registered) client(asked registration) *client {
	c := &client{ID: r.ID, Secret: r.Secret, Method: r.Method, Made: time.Now(), Returns: asked.Returns}
	if c.Method == "" {
		c.Method = asked.Method
	}
	if c.Method == methodNone {
		c.Secret = ""
	}
	if r.Expires > 0 && c.Secret != "" {
		c.Expires = time.Unix(r.Expires, 0)
	}
	return c
}

// good reports whether a registration can still be used, and lets browsers come back to at.
// An empty at is for a device.
func (c *client) good(at string) bool {
	return c != nil && !c.Made.IsZero() && (c.Expires.IsZero() || time.Until(c.Expires) > time.Minute) &&
		(at == "" || slices.Contains(c.Returns, at))
}
