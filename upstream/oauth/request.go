package oauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// maxToken bounds the bytes of a token: servers bound headers.
const maxToken = 16 << 10

// tokenErrors are the errors of token endpoints (RFC 6749, 5.2; RFC 8707, 2) that are
// told: nothing else of what they say is. Their value is whether only a change of the
// configuration helps.
var tokenErrors = map[string]bool{
	"invalid_request": true, "invalid_client": true, "invalid_grant": true, "unauthorized_client": true,
	"unsupported_grant_type": true, "invalid_scope": true, "invalid_target": true,
	"temporarily_unavailable": false, "server_error": false,
}

// requestToken asks a token endpoint for a token. Its error is that of noToken. Redirects are
// not followed: they would take what we prove ourselves with elsewhere.
func requestToken(ctx context.Context, client *http.Client, request *clientcredentials.Config) (*access, error) {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := request.Token(context.WithValue(ctx, oauth2.HTTPClient, &own))
	if err != nil {
		return nil, tokenRefused(err)
	}
	text := answer.AccessToken
	switch {
	case !strings.EqualFold(answer.TokenType, "Bearer"):
		err = errors.New("the token is none of the kind bearer")
	case len(text) > maxToken:
		err = fmt.Errorf("the token has more than %d bytes", maxToken)
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = errors.New("the token has characters that no header can have")
	default:
		var lifetime time.Duration
		if !answer.Expiry.IsZero() {
			lifetime = max(time.Until(answer.Expiry), minLifetime)
		}
		return newAccess(text, request.Scopes, lifetime), nil
	}
	return nil, noToken("its authorization server gives us no token that can be used (no token)", true, err)
}

// tokenRefused returns the error of a request for a token that failed.
func tokenRefused(err error) error {
	answer, answered := errors.AsType[*oauth2.RetrieveError](err)
	if !answered {
		return unreachable(err)
	}
	lasting, known := tokenErrors[answer.ErrorCode]
	status := answer.Response.StatusCode
	said := fmt.Sprintf("HTTP %d", status)
	if known {
		said += " " + answer.ErrorCode
	}
	why := errRefused
	switch answer.ErrorCode {
	case "invalid_scope":
		why = errScopes
	case "invalid_target", "invalid_request":
		why = errResource
	}
	refused := fmt.Errorf("%w: %s", why, said)
	if status >= 500 || status == http.StatusTooManyRequests || known && !lasting {
		return noToken("its authorization server answered with "+said, false, refused)
	}
	return noToken("its authorization server refuses our credentials ("+said+")", true, refused)
}

// What the log says of a token endpoint's answer.
var (
	errRefused = errors.New("no token from the authorization server")
	errScopes  = errors.New("no token for these scopes from the authorization server")

	errResource = errors.New("no token for this request from the authorization server") // perhaps because of the resource
)

// unreachable returns the error of an authorization server that could not be asked.
func unreachable(err error) error {
	why := "no token"
	var network net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		why = "timeout"
	}
	if _, transport := errors.AsType[*url.Error](err); !transport { // it may quote the answer
		err = errors.New("the answer of the authorization server cannot be read")
	}
	return noToken("its authorization server is out of reach ("+why+")", false, withoutURL(err))
}

// authStyle returns how a client with a secret proves itself to an authorization server
// (RFC 8414, 2).
func authStyle(methods []string) oauth2.AuthStyle {
	if slices.Contains(methods, "client_secret_post") && !slices.Contains(methods, "client_secret_basic") {
		return oauth2.AuthStyleInParams
	}
	return oauth2.AuthStyleInHeader
}
