package frontend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// A reporting is an [http.RoundTripper] that reports each request when its response has ended.
type reporting struct {
	http.RoundTripper
	passed func(method string, took time.Duration, err error)
}

// RoundTrip implements [http.RoundTripper].
func (t *reporting) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	report := func(err error) {
		if r.Context().Err() != nil {
			err = context.Canceled
		}
		t.passed(r.Method, time.Since(began), err)
	}
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		report(err)
		return nil, err
	}
	resp.Body = &reportedBody{ReadCloser: resp.Body, report: report}
	return resp, nil
}

// A reportedBody reports its end, once: an error, nil for its own, or that it was not read to that.
type reportedBody struct {
	io.ReadCloser
	once   sync.Once
	report func(error)
}

// Read implements [io.Reader].
func (b *reportedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.once.Do(func() { b.report(nil) })
	case err != nil:
		b.once.Do(func() { b.report(err) })
	}
	return n, err
}

// Close implements [io.Closer].
func (b *reportedBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { b.report(context.Canceled) })
	return err
}
