package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerResume  = "Last-Event-Id"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
	headerParam   = "Mcp-Param-" // and a name that the server gave
)

// headers are the configured headers of each request.
type headers struct {
	values map[string]string
	files  map[string]*secretfile.File // override values
}

func newHeaders(values, from map[string]string) headers {
	h := headers{values: values, files: make(map[string]*secretfile.File, len(from))}
	for name, path := range from {
		h.files[name] = &secretfile.File{Path: path}
	}
	return h
}

// refused makes the next request read the files again, since the server rejected the
// credentials.
func (h headers) refused() {
	for _, file := range h.files {
		file.Forget()
	}
}

// read returns the configured headers that the protocol does not use. Its error, for a file
// that cannot be read or a value that cannot be sent, names header and file, never the
// content.
func (h headers) read() (http.Header, error) {
	header := make(http.Header, len(h.values)+len(h.files)+8)
	for name, value := range h.values {
		if !sendable(value) {
			return nil, fmt.Errorf("header %s: %w", name, errControl)
		}
		header.Set(name, value)
	}
	for name, file := range h.files {
		value, err := headerIn(file)
		if err != nil {
			return nil, fmt.Errorf("header %s from file %s: %w", name, file.Path, err)
		}
		header.Set(name, value)
	}
	maps.DeleteFunc(header, func(name string, _ []string) bool { return isProtocols(name) })
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "mcp-proxy")
	}
	return header, nil
}

// addForwarded adds the headers of a client in ctx. Those of the configuration override them.
func (t *transport) addForwarded(ctx context.Context, header http.Header) {
	if len(t.forward) == 0 {
		return
	}
	came := jsonrpc.ForwardedIn(ctx)
	for _, name := range t.forward {
		values := came[name]
		if values == nil || header[name] != nil && name != "User-Agent" || slices.ContainsFunc(values, func(v string) bool { return !sendable(v) }) {
			continue
		}
		header[name] = slices.Clone(values)
	}
}

// carrying returns ctx with the headers that came with m, for the requests that m causes.
func carrying(ctx context.Context, m *jsonrpc.Message) context.Context {
	if m.Forwarded == nil || len(m.Forwarded.To) == 0 {
		return ctx
	}
	all := maps.Clone(m.Forwarded.To)
	maps.Copy(all, jsonrpc.ForwardedIn(ctx))
	return jsonrpc.WithForwarded(ctx, all)
}

// isProtocols reports whether a header, named in canonical form, is the protocol's, which
// the configuration must not set.
func isProtocols(name string) bool {
	switch name {
	case headerSession, headerVersion, headerResume, headerMethod, headerName, "Accept-Encoding":
		return true
	}
	return strings.HasPrefix(name, headerParam)
}

var errControl = errors.New("the value has control characters")

func headerIn(file *secretfile.File) (string, error) {
	value, err := file.Read()
	if err == nil && !sendable(value) {
		err = errControl
	}
	return value, err
}

// CheckHeaderFile returns an error if a file cannot be used in [Server.HeadersFrom]. The
// error does not name the file.
func CheckHeaderFile(path string) error {
	_, err := headerIn(&secretfile.File{Path: path})
	return err
}

// sendable reports whether a header may have this value.
func sendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// visible reports whether s has only visible ASCII characters, as a session id must.
func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7e })
}
