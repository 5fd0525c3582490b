package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
)

func dialWebSocket(context.Context, string, http.Header, *tls.Config) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

func acceptWebSocket(w http.ResponseWriter, _ *http.Request) (net.Conn, error) {
	http.Error(w, "", http.StatusNotImplemented)
	return nil, errors.ErrUnsupported
}
