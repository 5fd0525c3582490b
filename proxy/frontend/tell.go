package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
)

// replicaPath is the path under which replicas serve each other:
//
//	POST /replica/sessions           takes over the session in the body, a record
//	POST /replica/sessions/again     replaces the record of a session that was taken over, until that begins
//	PUT  /replica/sessions           keeps records, see keeping
//	POST /replica/sessions/claims    compares which sessions both have, see claims
//	GET  /replica/sessions/ID        204 if the session is there, else 404; or a whereabouts if that is accepted
const replicaPath = "/replica/sessions"

// maxClaims bounds the sessions in a request to compare them, and so the body of each answer.
const maxClaims = 10_000

// tell sends a request to another replica, and returns the answer; via is nil if it cannot be reached.
func tell(ctx context.Context, via http.RoundTripper, method, path string, body []byte) (status int, text []byte, err error) {
	if via == nil {
		return 0, nil, errAway
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://replica"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if method == http.MethodGet {
		r.Header.Set("Accept", typeJSON)
	}
	resp, err := via.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxClaims*256))
	return resp.StatusCode, text, err
}

var errAway = errors.New(ownerAway)
