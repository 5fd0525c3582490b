// Package auth says who the clients of a proxy on HTTP are. [Clients] is the Identifier of
// proxy/frontend.
package auth
