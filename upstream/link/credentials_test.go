package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
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
