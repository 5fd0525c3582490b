package jsonrpc

import "context"

// Forwarded are the headers of a client's HTTP request that upstreams get, by canonical names.
type Forwarded struct {
	From map[string][]string // as the client sent them. They never travel
	To   map[string][]string // as the upstream of this message gets them. They travel on links
}

type forwardedKey struct{}

// WithForwarded returns a ctx for streams to upstreams and requests to servers that have headers. They
// replace those of ctx.
func WithForwarded(ctx context.Context, headers map[string][]string) context.Context {
	if len(headers) == 0 {
		return ctx
	}
	return context.WithValue(ctx, forwardedKey{}, headers)
}

// ForwardedIn returns the headers in ctx, nil for none. They must not be changed.
func ForwardedIn(ctx context.Context) map[string][]string {
	headers, _ := ctx.Value(forwardedKey{}).(map[string][]string)
	return headers
}
