package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// adminTime is how long an answer for an operator may take.
const adminTime = 5 * time.Second

// adminAnswer is the most that is read of one.
const adminAnswer = 64 << 20

// An adminClient asks a proxy or a host that runs.
type adminClient struct {
	http *http.Client
	base string // http://HOST:PORT
}

// adminAt returns the client of the process that --admin chooses: the path of a socket, with or
// without unix://, HOST:PORT, or a URL. "" is the only one of this user.
func adminAt(where string) (*adminClient, error) {
	if where == "" {
		found, err := onlySocket()
		if err != nil {
			return nil, err
		}
		where = found
	}
	path, onSocket := strings.CutPrefix(where, "unix://")
	switch {
	case onSocket || strings.ContainsRune(path, filepath.Separator) && !strings.Contains(path, "://"):
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return &adminClient{&http.Client{Timeout: adminTime, Transport: &http.Transport{DialContext: dial}}, "http://localhost"}, nil
	case !strings.Contains(where, "://"):
		where = "http://" + where
	}
	return &adminClient{&http.Client{Timeout: adminTime, Transport: &http.Transport{}}, strings.TrimSuffix(where, "/")}, nil
}

// onlySocket finds the socket of the only process of this user.
func onlySocket() (string, error) {
	dir, err := adminDir()
	if err != nil {
		return "", fmt.Errorf("%w: say with --admin where the proxy listens for operators", err)
	}
	all := slices.DeleteFunc(sockets(dir), isDead)
	switch {
	case len(all) == 0:
		return "", fmt.Errorf("no proxy or host of this user runs: there is no socket in %s; if it is elsewhere, say so with --admin", dir)
	case len(all) > 1:
		return "", fmt.Errorf("several run: choose one with --admin %s", strings.Join(all, ", or --admin "))
	}
	return all[0], nil
}

// get asks for a path. The status is what the process says; an error is that it says nothing.
func (c *adminClient) get(ctx context.Context, path string) (status int, body string, err error) {
	defer c.http.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, "", notThere(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, adminAnswer))
	return resp.StatusCode, string(text), err
}

// notThere says what to do if nobody answers.
func notThere(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: nothing has ever listened there, or it has stopped", err)
	}
	return err
}
