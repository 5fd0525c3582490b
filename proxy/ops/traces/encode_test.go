package traces

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A generator makes spans of which any part may be missing or extreme.
type generator struct{ *rand.Rand }

func pick[V any](g generator, of ...V) V { return of[g.IntN(len(of))] }

func (g generator) text() string { return pick(g, "", "a", "tools/call get-weather", "ü\n\x00") }

func (g generator) count() int { return pick(g, 0, 0, 1, 200, math.MaxUint32, math.MaxUint32+1, -1) }

func (g generator) time() time.Time {
	return pick(g, time.Time{}, time.Unix(0, 0), time.Unix(0, 1), time.Unix(1_800_000_000, 123_456_789))
}

func some[V any](g generator, one func() V) []V {
	all := make([]V, g.IntN(4))
	for i := range all {
		all[i] = one()
	}
	return all
}

func (g generator) integer() int64 { return pick[int64](g, 0, 1, -1, math.MinInt64, math.MaxInt64) }

func (g generator) float() float64 { return pick[float64](g, 0, 1.5, -1, math.Inf(1), math.MaxFloat64) }

func (g generator) value() attribute.Value {
	switch g.IntN(12) {
	case 0:
		return attribute.BoolValue(pick(g, true, false))
	case 1:
		return attribute.Int64Value(g.integer())
	case 2:
		return attribute.Float64Value(g.float())
	case 3:
		return attribute.BoolSliceValue(some(g, func() bool { return pick(g, true, false) }))
	case 4:
		return attribute.Int64SliceValue(some(g, g.integer))
	case 5:
		return attribute.Float64SliceValue(some(g, g.float))
	case 6:
		return attribute.StringSliceValue(some(g, g.text))
	case 7:
		return attribute.ByteSliceValue([]byte(g.text()))
	case 8:
		return attribute.SliceValue(some(g, g.value)...)
	case 9:
		return attribute.MapValue(g.attributes()...)
	case 10:
		return attribute.Value{}
	}
	return attribute.StringValue(g.text())
}

func (g generator) attributes() []attribute.KeyValue {
	return some(g, func() attribute.KeyValue {
		return attribute.KeyValue{Key: attribute.Key(pick(g, "a", "b", "error.type")), Value: g.value()}
	})
}

func (g generator) context() trace.SpanContext {
	state, _ := trace.ParseTraceState(pick(g, "", "vendor=1,other=2"))
	return pick(g, trace.SpanContext{}, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 15: byte(g.IntN(256))}, SpanID: trace.SpanID{7: byte(g.IntN(256))},
		TraceFlags: trace.TraceFlags(g.IntN(4)), TraceState: state, Remote: pick(g, true, false),
	}))
}

func (g generator) span() tracetest.SpanStub {
	return tracetest.SpanStub{
		Name: g.text(), SpanContext: g.context(), Parent: g.context(), SpanKind: trace.SpanKind(g.IntN(6)),
		StartTime: g.time(), EndTime: g.time(), Attributes: g.attributes(),
		Events: some(g, func() sdk.Event {
			return sdk.Event{Name: g.text(), Attributes: g.attributes(), DroppedAttributeCount: g.count(), Time: g.time()}
		}),
		Links: some(g, func() sdk.Link {
			return sdk.Link{SpanContext: g.context(), Attributes: g.attributes(), DroppedAttributeCount: g.count()}
		}),
		Status:            sdk.Status{Code: pick(g, codes.Unset, codes.Ok, codes.Error), Description: g.text()},
		DroppedAttributes: g.count(), DroppedEvents: g.count(), DroppedLinks: g.count(),
		Resource: resource.NewWithAttributes(pick(g, "", "https://opentelemetry.io/schemas/1.37.0"), g.attributes()...),
		InstrumentationScope: instrumentation.Scope{
			Name: g.text(), Version: g.text(), SchemaURL: g.text(), Attributes: attribute.NewSet(g.attributes()...),
		},
	}
}

// An official keeps what the exporter of OpenTelemetry makes of spans.
type official struct{ spans []*tracepb.ResourceSpans }

func (*official) Start(context.Context) error { return nil }

func (*official) Stop(context.Context) error { return nil }

func (o *official) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	o.spans = append(o.spans, spans...)
	return nil
}

// Whatever spans have, a collector reads what the exporter of OpenTelemetry would have sent.
func TestEncodeIsThatOfOpenTelemetry(t *testing.T) {
	seed := rand.Uint64()
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	for range 2000 {
		of := g.span()
		var spans tracetest.SpanStubs
		for range 1 + g.IntN(3) {
			next := g.span()
			next.Resource, next.InstrumentationScope = of.Resource, of.InstrumentationScope
			spans = append(spans, next)
		}
		var want official
		if err := otlptrace.NewUnstarted(&want).ExportSpans(t.Context(), spans.Snapshots()); err != nil {
			t.Fatal(err)
		}
		compare(t, spans.Snapshots(), want.spans)
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
}

// Spans of another resource or scope have that.
func TestEncodeOtherScopes(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	a, b, c := g.span(), g.span(), g.span()
	a.Resource, b.Resource, c.Resource = resource.NewSchemaless(attribute.Int("a", 1)), resource.NewSchemaless(attribute.Int("a", 2)), resource.NewSchemaless(attribute.Int("a", 2))
	b.InstrumentationScope.Name, c.InstrumentationScope.Name = "b", "c"
	var want official
	for _, s := range []tracetest.SpanStub{a, b, c} {
		if err := otlptrace.NewUnstarted(&want).ExportSpans(t.Context(), tracetest.SpanStubs{s}.Snapshots()); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, tracetest.SpanStubs{a, b, c}.Snapshots(), want.spans)
}

func compare(t *testing.T, spans []sdk.ReadOnlySpan, want []*tracepb.ResourceSpans) {
	t.Helper()
	body := encode(spans)
	var got tracepb.TracesData // as bytes an ExportTraceServiceRequest, whose package imports gRPC
	if err := proto.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	wanted := &tracepb.TracesData{ResourceSpans: want}
	if !proto.Equal(&got, wanted) || len(body) != proto.Size(wanted) {
		t.Errorf("in %d bytes\n%v\nwant in %d\n%v", len(body), &got, proto.Size(wanted), wanted)
	}
}
