package traces

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Settings say where traces go. Endpoint must be set.
type Settings struct {
	Endpoint    string            // the URL that traces are posted to
	Headers     map[string]string // of those POSTs
	HeadersFrom map[string]string // likewise, in files that are read again when they change; they win
	TLS         *tls.Config       // of an https URL; nil: the system's roots
	Timeout     time.Duration     // of a POST; zero means 10 s
	Gzip        bool              // compress what is posted

	// Sample is which part of traces that have no parent is recorded. Nil: what OTEL_TRACES_SAMPLER
	// says, else all. Where there is a parent it has decided.
	Sample *float64

	Version string       // of the program
	Log     *slog.Logger // nil discards
}

// Traces record calls. New makes them.
type Traces struct {
	// Static after construction.
	settings Settings
	uploads  *uploads

	// Set by Start.
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns traces that go where s says. Nothing is recorded before Start.
func New(s Settings) *Traces {
	s.Log = cmp.Or(s.Log, slog.New(slog.DiscardHandler))
	return &Traces{settings: s, uploads: newUploads(s)}
}

// Start begins to record, until Shutdown. It is called before anything is followed.
func (t *Traces) Start() {
	s := t.settings
	exporter := &exporter{SpanExporter: otlptrace.NewUnstarted(t.uploads), log: s.Log}
	options := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(resourceOf(s.Version))}
	if s.Sample != nil {
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(*s.Sample))))
	}
	t.provider = sdk.NewTracerProvider(options...)
	t.tracer = t.provider.Tracer(scope, trace.WithInstrumentationVersion(s.Version))
}

// scope names who has recorded a span.
const scope = "github.com/mcp-proxy/mcp-proxy"

// resourceOf describes this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win; invalid ones are left out.
func resourceOf(version string) *resource.Resource {
	r, _ := resource.New(context.Background(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "mcp-proxy"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	return r
}

// Shutdown sends the ended spans, and gives up when ctx is done. Nothing runs after that.
func (t *Traces) Shutdown(ctx context.Context) {
	if t.provider == nil {
		return
	}
	stop := context.AfterFunc(ctx, t.uploads.abort)
	defer stop()
	_ = t.provider.Shutdown(context.Background()) // uploads end with ctx, and so this; the exporter has logged what failed
	t.uploads.abort()
}

var w3c propagation.TraceContext

// parentOf is the span that a context names; invalid if it names none.
func parentOf(c observe.TraceContext) trace.SpanContext {
	if c.Parent == "" {
		return trace.SpanContext{}
	}
	ctx := w3c.Extract(context.Background(), propagation.MapCarrier{"traceparent": c.Parent, "tracestate": c.State})
	return trace.SpanContextFromContext(ctx)
}

// contextOf is the context of a span for upstreams.
func contextOf(ctx context.Context, baggage string) observe.TraceContext {
	m := make(propagation.MapCarrier, 2)
	w3c.Inject(ctx, m)
	return observe.TraceContext{Parent: m["traceparent"], State: m["tracestate"], Baggage: baggage}
}

// maxBaggage bounds the baggage that is passed on, in bytes (W3C Baggage, 3.3.2).
const maxBaggage = 8192

// What spans are; attributes follow when it is known that they are recorded.
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

// Follow begins the span of a call; nil if it is not recorded.
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

// usable returns a baggage that can be passed on, "" for any other.
func usable(with string) string {
	if with == "" || len(with) > maxBaggage {
		return ""
	}
	if _, err := baggage.Parse(with); err != nil {
		return ""
	}
	return with
}

// FollowCall begins the span of a request that belongs to no call; nil if it is not recorded.
func (t *Traces) FollowCall(q observe.Call, own observe.TraceContext) observe.CallTrace {
	if r := t.begin(below(parentOf(own)), q, "", own.Baggage); r != nil {
		return r
	}
	return nil
}

// begin begins the span of a request; nil if it is not recorded.
func (t *Traces) begin(ctx context.Context, q observe.Call, target, baggage string) *callSpan {
	ctx, span := t.start(ctx, nameOf(q.Method, target), client...)
	if span == nil {
		return nil
	}
	span.SetAttributes(asked(q, target)...)
	return &callSpan{span: span, context: contextOf(ctx, baggage), began: time.Now()}
}
