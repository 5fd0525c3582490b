package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// tokenFrom returns what reads the bearer token in a file, again when it changes,
// since tokens are rotated; nil for no file.
func tokenFrom(file string) func() (string, error) {
	if file == "" {
		return nil
	}
	f := &secretfile.File{Path: file}
	return func() (string, error) {
		text, err := f.Read()
		token := strings.TrimSpace(text)
		switch {
		case err != nil:
		case token == "":
			err = errors.New("is empty")
		case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }): // no client could send it
			err = errors.New("must hold one word of visible ASCII characters")
		default:
			return token, nil
		}
		return "", fmt.Errorf("%s: %w", file, err)
	}
}

// readToken returns the bearer token, "" for no file.
func readToken(file string) (string, error) {
	read := tokenFrom(file)
	if read == nil {
		return "", nil
	}
	return read()
}

// told is read, with a line in the log when it begins to fail and when that is over.
func told(read func() (string, error), log *slog.Logger) func() (string, error) {
	if read == nil {
		return nil
	}
	var failing atomic.Bool
	return func() (string, error) {
		token, err := read()
		switch bad := err != nil; {
		case failing.Swap(bad) == bad:
		case bad:
			log.Error("token file cannot be used, clients are refused", "err", err)
		default:
			log.Info("token file can be used again")
		}
		return token, err
	}
}

// A dialFunc makes a carrier for a link.
type dialFunc func(context.Context) (net.Conn, error)

// hinting is dial, whose errors say what to do when the other side refuses the token.
func (dial dialFunc) hinting(hint string) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if status, ok := errors.AsType[*wsconn.StatusError](err); ok && status.Code == http.StatusUnauthorized {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		return c, err
	}
}

// tokenHint tells a host what its proxy wants of it.
func tokenHint(tokenFile string) string {
	if tokenFile == "" {
		return "the proxy asks for a token: give --token-file with the token in links.NAME.tokenFile of the proxy"
	}
	return "the proxy refuses our token: that in --token-file must be the one in links.NAME.tokenFile of the proxy"
}
