package oauth

import (
	"context"
	"errors"
	"net/url"
	"time"
)

// refreshTimeout bounds a refresh, the wait for those of other processes included.
const refreshTimeout = time.Minute

// refreshPause is how long nothing is refreshed after that has failed.
const refreshPause = 5 * time.Second

var errStalled = errors.New("the authorization server has just failed to refresh the login")

// errOver is the error of a refresh when there is nothing to refresh any more.
var errOver = errors.New("the login is over")

func isOver(err error) bool { return errors.Is(err, errOver) }

// renew gets another token for old, once for all who want it. It does not depend on who
// asked first: a refresh token that was sent is used, whoever hears the answer.
func (l *Login) renew(old *token) *task {
	return l.begin(&l.refresh, func(ctx context.Context) error {
		if time.Since(l.stalled) < refreshPause {
			return errStalled
		}
		ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
		defer cancel()
		var now *token
		err := l.config.Store.update(ctx, l.key, func(r *record) (err error) {
			if t := r.Token; t.good() && t.Access != old.Access { // another process was first
				now = t
				return nil
			}
			err = l.exchangeRefresh(ctx, r)
			now = r.Token
			return err
		})
		if err != nil && !isOver(err) {
			l.config.Log.Warn("the token of a login could not be refreshed", "err", err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			l.token = now
		case isOver(err):
			l.token = nil
		default:
			l.stalled = time.Now()
		}
		return err
	})
}

// exchangeRefresh uses the refresh token of a record. It is sent to the issuer that has
// given it, and if that says that it is used up it is never sent again.
func (l *Login) exchangeRefresh(ctx context.Context, r *record) error {
	if r.Token == nil || r.Token.Refresh == "" {
		return errOver
	}
	i, err := l.issuer(ctx, r.Issuer)
	if err != nil {
		return err
	}
	c, err := l.owner(r, i)
	if err != nil {
		return err
	}
	t, err := c.request(ctx, l.config.Client, i.TokenEndpoint, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {r.Token.Refresh}, "resource": {r.Resource},
	})
	switch {
	case refusedWith(err, "invalid_grant", "invalid_client", "unauthorized_client"):
		if !refusedWith(err, "invalid_grant") {
			r.Client = nil // registered again
		}
		l.config.Log.Warn("a login is over: its authorization server refreshes it no more", "err", err)
		r.Token = nil
		return kept{errOver}
	case err != nil:
		return err
	}
	r.Token = newToken(t, r.Token.Asked, r.Token)
	return nil
}

// owner returns the client that a token was granted to.
func (l *Login) owner(r *record, i *Issuer) (*client, error) {
	switch {
	case r.Client != nil:
		return r.Client, nil
	case l.config.ClientID == "":
		return nil, errOver
	}
	return l.configured(i)
}

// issuer reads the metadata of the issuer that a token is from.
func (l *Login) issuer(ctx context.Context, issuer string) (*Issuer, error) {
	server, err := serverURL(l.config.Server)
	if err != nil {
		return nil, err
	}
	d := Discovery{Server: l.config.Server, Client: l.config.Client}
	return d.issuer(ctx, server, issuer, issuer == server.Scheme+"://"+server.Host)
}
