package oauth

import (
	"context"
	"errors"
	"net/url"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	refreshTimeout = time.Minute     // of a refresh, including the wait for other processes
	refreshPause   = 5 * time.Second // after a failed refresh

	// At its end a process gives a refresh closePause to begin, and the answer to a refresh token that was sent
	// answerTimeout: it may be the only copy of the next one.
	closePause    = 500 * time.Millisecond
	answerTimeout = 5 * time.Second
)

var errStalled = errors.New("the authorization server has just failed to refresh the login")

// renew gets another token instead of old. Concurrent callers share one refresh. It goes on when they stop waiting:
// the refresh token is used up once it is sent, so its answer must be stored.
func (l *Login) renew(old *token) <-chan singleflight.Result {
	return l.start("refresh", func(ctx context.Context) error {
		if time.Since(l.stalled) < refreshPause {
			return errStalled
		}
		ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
		defer cancel()
		var now *token
		pending := l.config.Store.isUnsaved(l.key)
		err := l.config.Store.update(ctx, l.key, func(r *record) (err error) {
			if t := r.Token; t.good() && t.Access != old.Access { // another process was first
				now = t
				return nil
			}
			err = l.exchangeRefresh(ctx, r)
			now = r.Token
			return err
		})
		if errors.Is(err, errUnsaved) { // the issuer has used up the old token: use the new one all the same
			if !pending {
				l.config.Log.Warn("cannot store the refreshed token of a login; using it from memory", "err", err)
			}
			if err = nil; now == nil {
				err = errOver
			}
		}
		over := errors.Is(err, errOver)
		if err != nil && !over {
			l.config.Log.Warn("cannot refresh the token of a login", "err", err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			l.token = now
		case over:
			l.token = nil
		default:
			l.stalled = time.Now()
		}
		return err
	})
}

// save tries again to save a record that could not be saved.
func (l *Login) save(ctx context.Context) error {
	return l.config.Store.update(ctx, l.key, func(*record) error { return nil })
}

// exchangeRefresh sends the refresh token of a record to its issuer. If the issuer says that the token is used up, it
// is removed, and errOver returned.
func (l *Login) exchangeRefresh(ctx context.Context, r *record) error {
	if r.Token == nil || r.Token.Refresh == "" {
		return errOver
	}
	s, err := l.authServer(ctx, r.Issuer)
	if err != nil {
		return err
	}
	c, err := l.owner(r, s)
	if err != nil {
		return err
	}
	ctx, stop := outlive(ctx, answerTimeout)
	defer stop()
	t, err := c.request(ctx, l.config.Client, s.TokenEndpoint, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {r.Token.Refresh}, "resource": {r.Resource},
	})
	lostClient := r.Client != nil && refusedWith(err, "invalid_client", "unauthorized_client")
	switch {
	case lostClient, refusedWith(err, "invalid_grant"): // a configured client may get another secret
		if lostClient && !r.Client.Given {
			r.Client = nil // the next login registers again
		}
		l.config.Log.Warn("a login has ended: the authorization server does not refresh it", "err", err)
		r.Token, r.Scopes = nil, r.Token.Scopes
		return errOver
	case err != nil:
		return err
	}
	r.Token = newToken(t, r.Token.Asked, r.Token)
	return nil
}

// outlive returns a context that ends so long after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, func() { stop(); cancel() }
}

// owner returns the client that a token was granted to.
func (l *Login) owner(r *record, s *authServer) (*client, error) {
	switch {
	case r.Client != nil:
		return r.Client, nil
	case l.config.ClientID == "":
		return nil, errOver
	}
	return l.configured(s)
}

// authServer reads the metadata of the authorization server that issued a token.
func (l *Login) authServer(ctx context.Context, issuer string) (*authServer, error) {
	server, err := serverURL(l.config.Server)
	if err != nil {
		return nil, err
	}
	return authServerOf(ctx, l.config.Client, server, issuer, issuer == origin(server))
}
