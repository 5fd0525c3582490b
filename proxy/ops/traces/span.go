package traces

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A callSpan is the server span of one call, with those of its requests.
type callSpan struct {
	// Static after construction.
	t       *Traces
	ctx     context.Context // has span
	span    trace.Span
	baggage string // for upstreams

	mu   sync.Mutex // guards the fields below
	open map[*requestSpan]struct{}
	told string // the event that a request has told of; "" for none
	over bool
}

// ID implements [observe.Trace].
func (c *callSpan) ID() string { return c.span.SpanContext().TraceID().String() }

// Request implements [observe.Trace].
func (c *callSpan) Request(q observe.Request, target string) observe.RequestTrace {
	r := c.t.begin(c.ctx, q, target, c.baggage)
	if r == nil {
		return nil
	}
	r.of = c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.open[r] = struct{}{}
	}
	return r
}

// End implements [observe.Trace].
func (c *callSpan) End(seen observe.Call, end observe.End) {
	c.mu.Lock()
	c.over = true
	left := c.open
	c.open = nil
	c.mu.Unlock()
	for r := range left { // those that were never sent, or nobody waits for
		r.end(end)
	}
	if seen.Listed != nil {
		c.span.SetName(nameOf(seen.Method, seen.Tool+seen.Prompt))
	}
	c.span.SetAttributes(answered(seen)...)
	fail(c.span, end, end.CallError(strconv.Itoa))
	c.mu.Lock()
	told := c.told == end.Event
	c.mu.Unlock()
	if end.Event != "" && !told {
		tell(c.span, end)
	}
	c.span.End()
}

// tells notes that a request is over, and which event its error named.
func (c *callSpan) tells(r *requestSpan, event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, r)
	if event != "" {
		c.told = event
	}
}

// A requestSpan is the client span of one request to an upstream.
type requestSpan struct {
	// Static after construction.
	of      *callSpan // nil: for none
	span    trace.Span
	context observe.TraceContext
	began   time.Time

	once sync.Once // of the end
}

// ID implements [observe.RequestTrace].
func (r *requestSpan) ID() string { return r.span.SpanContext().TraceID().String() }

// Context implements [observe.RequestTrace].
func (r *requestSpan) Context() observe.TraceContext { return r.context }

// waited is how long a request waits for its upstream before its span says so.
const waited = time.Millisecond

// Sent implements [observe.RequestTrace].
func (r *requestSpan) Sent() {
	if time.Since(r.began) >= waited {
		r.span.AddEvent(eventSent)
	}
}

// End implements [observe.RequestTrace].
func (r *requestSpan) End(_ observe.Request, end observe.End) { r.end(end) }

func (r *requestSpan) end(end observe.End) {
	r.once.Do(func() {
		fail(r.span, end, end.RequestError(strconv.Itoa))
		if end.Event != "" {
			tell(r.span, end)
		}
		r.span.End()
		if r.of != nil {
			r.of.tells(r, end.Event)
		}
	})
}

// fail sets how a span ended. A cancelled one has not failed.
func fail(span trace.Span, end observe.End, errorType string) {
	if end.Outcome == observe.OK {
		return
	}
	span.SetAttributes(attribute.String(keyOutcome, string(end.Outcome)))
	if end.Outcome == observe.Cancelled {
		return
	}
	span.SetStatus(codes.Error, "")
	span.SetAttributes(attribute.String(keyErrorType, errorType))
	if end.Code != 0 {
		span.SetAttributes(attribute.String(keyStatusCode, strconv.Itoa(end.Code)))
	}
}

// tell adds the event of an error, which the log and "mcp-proxy explain" have under the same id.
func tell(span trace.Span, end observe.End) {
	span.AddEvent(eventError, trace.WithAttributes(attribute.String(keyEvent, end.Event), attribute.String(keyCause, end.Cause)))
}
