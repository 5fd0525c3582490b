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

// A requestSpan is the server span of a client's request, and has the spans of its calls.
type requestSpan struct {
	// Static after construction.
	t       *Traces
	ctx     context.Context // has span
	span    trace.Span
	baggage string // for upstreams

	mu   sync.Mutex // guards the fields below
	open map[*callSpan]struct{}
	told string // the event that the error of a call named; "" for none
	over bool
}

// ID implements [observe.Trace].
func (c *requestSpan) ID() string { return c.span.SpanContext().TraceID().String() }

// Call implements [observe.Trace].
func (c *requestSpan) Call(q observe.Call, target string) observe.CallTrace {
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
func (c *requestSpan) End(seen observe.Request, end observe.End) {
	c.mu.Lock()
	c.over = true
	left := c.open
	c.open = nil
	c.mu.Unlock()
	for r := range left { // never sent, or abandoned
		r.end(end)
	}
	if seen.Listed != nil {
		c.span.SetName(nameOf(seen.Method, seen.Tool+seen.Prompt))
	}
	c.span.SetAttributes(answered(seen)...)
	fail(c.span, end, end.RequestError(strconv.Itoa))
	c.mu.Lock()
	told := c.told == end.Event
	c.mu.Unlock()
	if end.Event != "" && !told {
		tell(c.span, end)
	}
	c.span.End()
}

// tells notes the end of a call, and the event that its error named.
func (c *requestSpan) tells(r *callSpan, event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, r)
	if event != "" {
		c.told = event
	}
}

// A callSpan is the client span of one call to an upstream.
type callSpan struct {
	// Static after construction.
	of      *requestSpan // nil if the session made the call for itself
	span    trace.Span
	context observe.TraceContext
	began   time.Time

	once sync.Once // end
}

// ID implements [observe.CallTrace].
func (r *callSpan) ID() string { return r.span.SpanContext().TraceID().String() }

// Context implements [observe.CallTrace].
func (r *callSpan) Context() observe.TraceContext { return r.context }

// waited is the shortest wait for an upstream that the span of a call shows.
const waited = time.Millisecond

// Sent implements [observe.CallTrace].
func (r *callSpan) Sent() {
	if time.Since(r.began) >= waited {
		r.span.AddEvent(eventSent)
	}
}

// End implements [observe.CallTrace].
func (r *callSpan) End(_ observe.Call, end observe.End) { r.end(end) }

func (r *callSpan) end(end observe.End) {
	r.once.Do(func() {
		fail(r.span, end, end.CallError(strconv.Itoa))
		if end.Event != "" {
			tell(r.span, end)
		}
		r.span.End()
		if r.of != nil {
			r.of.tells(r, end.Event)
		}
	})
}

// fail sets how a span ended. A cancellation is no error.
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

// tell adds the event of an error, whose id the log and "mcp-proxy explain" have, too.
func tell(span trace.Span, end observe.End) {
	span.AddEvent(eventError, trace.WithAttributes(attribute.String(keyEvent, end.Event), attribute.String(keyCause, end.Cause)))
}
