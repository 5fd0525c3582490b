package traces

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// An exporter posts spans to a collector. It logs the first lost spans and the first success after that. The exporters of
// OpenTelemetry import gRPC, which is a tenth of the memory of an idle proxy, and log unusable headers with their values.
type exporter struct {
	// Static after construction.
	settings Settings
	files    map[string]*secretfile.File // of HeadersFrom
	client   *http.Client
	ctx      context.Context // of all POSTs
	abort    context.CancelFunc

	lost int // spans since the last success; owned by ExportSpans, which the SDK calls from one goroutine at a time
}

func newExporter(s Settings) *exporter {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = s.TLS
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true) // on HTTP/2 net/http repeats a request whose stream is reset, without a bound
	e := &exporter{
		settings: s, files: make(map[string]*secretfile.File),
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	for name, path := range s.HeadersFrom {
		e.files[name] = &secretfile.File{Path: path}
	}
	e.ctx, e.abort = context.WithCancel(context.Background())
	return e
}

// Shutdown implements [sdk.SpanExporter].
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// ExportSpans implements [sdk.SpanExporter]. It returns no errors, because the SDK would print them to stderr.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.upload(ctx, encode(spans))
	switch {
	case err == nil && e.lost > 0:
		e.settings.Log.Info("traces are exported again", "lost", e.lost)
		e.lost = 0
	case err != nil:
		level := slog.LevelDebug
		if e.lost == 0 {
			level = slog.LevelWarn
		}
		e.lost += len(spans)
		e.settings.Log.Log(ctx, level, "traces cannot be exported", "err", plain(err), "lost", e.lost)
	}
	return nil
}

// tries bounds the attempts for the same spans, because later spans wait in a bounded queue.
const tries = 3

// upload posts an ExportTraceServiceRequest. It retries as the OTLP specification requires ("Retryable Response Codes").
func (e *exporter) upload(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	if e.settings.Gzip {
		body = zipped(body)
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, e.post(ctx, body) }, backoff.WithMaxTries(tries))
	return err
}

// post posts once. The error is a [backoff.PermanentError] if a retry would not help.
func (e *exporter) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(e.settings.Timeout, 10*time.Second))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.settings.Endpoint, bytes.NewReader(body))
	if err == nil {
		err = e.addHeaders(r.Header)
	}
	if err != nil {
		return backoff.Permanent(err)
	}
	resp, err := e.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // to reuse the connection
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
			return backoff.RetryAfter(min(seconds, 10))
		}
		return fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	for _, file := range e.files {
		file.Forget() // read it again for the next POST
	}
	return backoff.Permanent(fmt.Errorf("HTTP %d", resp.StatusCode))
}

func (e *exporter) addHeaders(h http.Header) error {
	h.Set("Content-Type", "application/x-protobuf")
	h.Set("User-Agent", "mcp-proxy")
	if e.settings.Gzip {
		h.Set("Content-Encoding", "gzip")
	}
	for name, value := range e.settings.Headers {
		h.Set(name, value)
	}
	for name, file := range e.files {
		value, err := file.Read()
		if err != nil {
			return fmt.Errorf("header %s from file %s: %w", name, file.Path, err)
		}
		h.Set(name, value)
	}
	return nil
}

func zipped(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b) // neither fails
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// plain returns the text of an error without the URL, which may have a password or a key.
func plain(err error) string {
	if e, ok := errors.AsType[*backoff.RetryAfterError](err); ok {
		return "the collector asks to wait " + e.Duration.String()
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return err.Error()
}

// Settings say where traces go. Endpoint must be set.
type Settings struct {
	Endpoint    string            // URL for POSTs of traces
	Headers     map[string]string // of the POSTs
	HeadersFrom map[string]string // files with values of headers, read again when they change; they override Headers
	TLS         *tls.Config       // for an https URL; nil means the system's roots
	Timeout     time.Duration     // of a POST; zero means 10 s
	Gzip        bool              // compress the body

	// Sample is the recorded part of traces without a parent. Nil means OTEL_TRACES_SAMPLER, else all.
	// The parent decides for other traces.
	Sample *float64

	Version string       // of the program
	Log     *slog.Logger // nil discards
}
