package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// rotating are credentials whose token has a number, which a refusal may raise.
type rotating struct {
	number  atomic.Int64
	refused atomic.Int64
	refuse  func(resp *http.Response) (bool, error)
}

func (c *rotating) Authorize(_ context.Context, header http.Header) error {
	header.Set("Authorization", fmt.Sprint("Bearer t", c.number.Load()))
	return nil
}

func (c *rotating) Refused(_ context.Context, resp *http.Response, sent http.Header) (bool, error) {
	c.refused.Add(1)
	if sent.Get("Authorization") != fmt.Sprint("Bearer t", c.number.Load()) {
		return false, errors.New("another token was sent")
	}
	return c.refuse(resp)
}

// A dial shows credentials, and better ones when it is refused: also when a link is
// dialled anew.
func TestCredentialsOfLinks(t *testing.T) {
	var good atomic.Value
	good.Store("t1")
	token := func() (string, error) { return good.Load().(string), nil }
	creds := &rotating{}
	creds.refuse = func(resp *http.Response) (bool, error) {
		if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(resp.Header.Get("WWW-Authenticate"), "invalid_token") {
			t.Errorf("refused with %d, %q", resp.StatusCode, resp.Header)
		}
		creds.number.Add(1)
		return true, nil
	}
	l, e := listenAt(t, Endpoint{URL: "ws://127.0.0.1:0/link", Token: token}, Endpoint{URL: "ws://127.0.0.1:0/link"})
	defer l.Close()
	e.Token = func() (string, error) { return "", errors.New("is not asked") }
	e.Credentials = creds
	for round, want := range []string{"t1", "t3"} {
		good.Store(want)
		c, err := e.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		far.Close()
		if got, want := creds.refused.Load(), int64(1+2*round); got != want {
			t.Errorf("refused %d times, want %d", got, want)
		}
	}

	good.Store("none")
	before := creds.refused.Load()
	if _, err := e.Dial(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "HTTP 401") || creds.refused.Load()-before != maxProofs {
		t.Errorf("got %v after %d times", err, creds.refused.Load()-before)
	}
	lacking := errors.New("no token")
	creds.refuse = func(*http.Response) (bool, error) { return false, lacking }
	if _, err := e.Dial(t.Context()); !errors.Is(err, lacking) {
		t.Errorf("got %v", err)
	}
	gone := &jsonrpc.ClosedError{Cause: jsonrpc.CauseNoToken, Says: "authentication failed", Err: &net.OpError{Op: "dial", Err: errors.New("nobody there")}}
	creds.refuse = func(*http.Response) (bool, error) { return false, gone }
	if _, err := e.Dial(t.Context()); err == nil || !strings.HasSuffix(err.Error(), ": the other end: authentication failed: dial: nobody there") {
		t.Errorf("got %v", err)
	}
	creds.refuse = func(*http.Response) (bool, error) { return false, nil }
	if _, err := e.Dial(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "HTTP 401") {
		t.Errorf("got %v", err)
	}
}

// TestRefusedAreLogged has a host that refuses who dials it over a WebSocket: its own log says why, too.
func TestRefusedAreLogged(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	config := &tls.Config{Certificates: ca.certificate(t, soon()), ClientCAs: ca.pool}
	for _, tt := range []struct {
		name   string
		listen Endpoint
		dial   Endpoint
		want   string
	}{
		{
			"a wrong token", Endpoint{URL: "ws://127.0.0.1:0/link", Token: secret("s3cret")},
			Endpoint{URL: "ws://127.0.0.1:0/link", Token: secret("an older one")}, "the bearer token is wrong",
		},
		{
			"no certificate", Endpoint{URL: "wss://127.0.0.1:0/link", TLS: config},
			Endpoint{URL: "wss://127.0.0.1:0/link", TLS: &tls.Config{RootCAs: ca.pool}}, "didn't provide a certificate",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l, dial := listenAt(t, tt.listen, tt.dial)
			var log syncBuffer
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- (&Server{Handle: echo, Log: slog.New(slog.NewTextHandler(&log, nil))}).Accept(ctx, l)
			}()
			conntest.Eventually(t, tt.want+" in the log", func() bool {
				if c, err := dial.Dial(t.Context()); err == nil {
					c.Close() // with TLS 1.3 the refusal comes later
				}
				return strings.Contains(log.String(), tt.want)
			})
			stop()
			await(t, ended)
			if n := strings.Count(log.String(), "level=WARN msg=\"link failed\""); n != 1 {
				t.Errorf("%d warnings, want one:\n%s", n, log.String())
			}
		})
	}
}
