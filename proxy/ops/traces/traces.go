package traces

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Traces record requests and calls. New makes them.
type Traces struct {
	exporter *exporter // static after construction

	// Set by Start.
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns traces with these settings. They record nothing before Start.
func New(s Settings) *Traces {
	s.Log = cmp.Or(s.Log, slog.New(slog.DiscardHandler))
	return &Traces{exporter: newExporter(s)}
}

// Start starts recording until Shutdown. It must be called before Follow.
func (t *Traces) Start() {
	s := t.exporter.settings
	options := []sdk.TracerProviderOption{sdk.WithBatcher(t.exporter), sdk.WithResource(resourceOf(s.Version))}
	if s.Sample != nil {
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(*s.Sample))))
	}
	t.provider = sdk.NewTracerProvider(options...)
	t.tracer = t.provider.Tracer(scope, trace.WithInstrumentationVersion(s.Version))
}

// scope is the name of the instrumentation.
const scope = "github.com/mcp-proxy/mcp-proxy"

// resourceOf describes this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it; invalid ones are
// ignored.
func resourceOf(version string) *resource.Resource {
	r, _ := resource.New(context.Background(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "mcp-proxy"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	return r
}

// Shutdown sends the ended spans, until ctx is done. Nothing runs afterwards.
func (t *Traces) Shutdown(ctx context.Context) {
	if t.provider == nil {
		return
	}
	stop := context.AfterFunc(ctx, t.exporter.abort)
	defer stop()
	_ = t.provider.Shutdown(context.Background()) // ends with the POSTs, which end with ctx; the exporter has logged failures
	t.exporter.abort()
}

var w3c propagation.TraceContext

// parentOf returns the span that a context names, an invalid one for none.
func parentOf(c observe.TraceContext) trace.SpanContext {
	if c.Parent == "" {
		return trace.SpanContext{}
	}
	ctx := w3c.Extract(context.Background(), propagation.MapCarrier{"traceparent": c.Parent, "tracestate": c.State})
	return trace.SpanContextFromContext(ctx)
}

// contextOf returns the context of a span for upstreams.
func contextOf(ctx context.Context, baggage string) observe.TraceContext {
	m := make(propagation.MapCarrier, 2)
	w3c.Inject(ctx, m)
	return observe.TraceContext{Parent: m["traceparent"], State: m["tracestate"], Baggage: baggage}
}

// maxBaggage bounds the baggage for upstreams in bytes (W3C Baggage, 3.3.2).
const maxBaggage = 8192

// The kinds of spans. Attributes follow only on recorded ones.
var (
	server = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	client = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
)

// start begins a span; nil if it is not recorded.
func (t *Traces) start(ctx context.Context, name string, of ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(ctx, name, of...)
	if !span.IsRecording() || !span.SpanContext().IsSampled() {
		return nil, nil
	}
	return ctx, span
}

// below returns the context for a span with a remote parent, or with none.
func below(parent trace.SpanContext) context.Context {
	if !parent.IsValid() {
		return context.Background()
	}
	return trace.ContextWithRemoteSpanContext(context.Background(), parent)
}

// Follow begins the span of a request, and returns nil if it is not recorded.
func (t *Traces) Follow(c observe.Request, from observe.Arrival) observe.Trace {
	parent, around, with := parentOf(from.Meta), parentOf(from.HTTP), from.Meta.Baggage
	options := server
	switch {
	case !parent.IsValid():
		if parent = around; parent.IsValid() {
			with = from.HTTP.Baggage
		}
	case around.IsValid() && !around.Equal(parent):
		options = append(slices.Clip(options), trace.WithLinks(trace.Link{SpanContext: around}))
	}
	ctx, span := t.start(below(parent), observe.MethodOf(c.Method), options...)
	if span == nil {
		return nil
	}
	span.SetAttributes(arrived(c, from)...)
	return &requestSpan{t: t, ctx: ctx, span: span, baggage: usable(with), open: make(map[*callSpan]struct{})}
}

// usable returns a valid baggage of bounded size, "" for any other.
func usable(with string) string {
	if with == "" || len(with) > maxBaggage {
		return ""
	}
	if _, err := baggage.Parse(with); err != nil {
		return ""
	}
	return with
}

// FollowCall begins the span of a call that belongs to no request, and returns nil if it is not recorded.
func (t *Traces) FollowCall(q observe.Call, own observe.TraceContext) observe.CallTrace {
	if r := t.begin(below(parentOf(own)), q, "", own.Baggage); r != nil {
		return r
	}
	return nil
}

// begin begins the span of a call, and returns nil if it is not recorded.
func (t *Traces) begin(ctx context.Context, q observe.Call, target, baggage string) *callSpan {
	ctx, span := t.start(ctx, nameOf(q.Method, target), client...)
	if span == nil {
		return nil
	}
	span.SetAttributes(asked(q, target)...)
	return &callSpan{span: span, context: contextOf(ctx, baggage), began: time.Now()}
}

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
