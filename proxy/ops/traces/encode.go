package traces

import (
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// encode returns spans as an ExportTraceServiceRequest of OTLP. The files trace_service, trace, resource and common.proto
// of opentelemetry-proto 1.11 have the numbers of its fields. Code that is generated from these needs the reflection of
// protobuf, which is large. Neighbours of the same resource and scope share them: with one tracer, all do.
func encode(spans []sdk.ReadOnlySpan) []byte {
	var b buffer
	for len(spans) > 0 {
		first, n := spans[0], 1
		for n < len(spans) && spans[n].Resource().Equal(first.Resource()) && spans[n].InstrumentationScope() == first.InstrumentationScope() {
			n++
		}
		b.message(1, func() { b.resourceSpans(first, spans[:n]) })
		spans = spans[n:]
	}
	return b
}

// A buffer is a message. Its methods append fields, and leave out zeros as all encoders of proto3 do, except in a oneof.
type buffer []byte

// resourceSpans appends the fields of a ResourceSpans and of its only ScopeSpans.
func (b *buffer) resourceSpans(first sdk.ReadOnlySpan, all []sdk.ReadOnlySpan) {
	r, scope := first.Resource(), first.InstrumentationScope()
	b.message(1, func() { b.attributes(1, r.Attributes()) })
	b.message(2, func() {
		if scope != (instrumentation.Scope{}) {
			b.message(1, func() {
				b.text(1, scope.Name)
				b.text(2, scope.Version)
				b.attributes(3, scope.Attributes.ToSlice())
			})
		}
		for _, s := range all {
			b.message(2, func() { b.span(s) })
		}
		b.text(3, scope.SchemaURL)
	})
	b.text(3, r.SchemaURL())
}

// span appends the fields of a Span.
func (b *buffer) span(s sdk.ReadOnlySpan) {
	c, parent := s.SpanContext(), s.Parent()
	b.ids(c)
	b.text(3, c.TraceState().String())
	if id := parent.SpanID(); id.IsValid() {
		b.bytes(4, id[:])
	}
	b.text(5, s.Name())
	b.number(6, int(s.SpanKind())) // the SDK has the numbers of OTLP
	b.time(7, s.StartTime())
	b.time(8, s.EndTime())
	b.attributes(9, s.Attributes())
	b.number(10, s.DroppedAttributes())
	for _, e := range s.Events() {
		b.message(11, func() {
			b.time(1, e.Time)
			b.text(2, e.Name)
			b.attributes(3, e.Attributes)
			b.number(4, e.DroppedAttributeCount)
		})
	}
	b.number(12, s.DroppedEvents())
	for _, l := range s.Links() {
		b.message(13, func() {
			b.ids(l.SpanContext)
			b.attributes(4, l.Attributes)
			b.number(5, l.DroppedAttributeCount)
			b.flags(6, l.SpanContext.TraceFlags(), l.SpanContext)
		})
	}
	b.number(14, s.DroppedLinks())
	b.message(15, func() {
		b.text(2, s.Status().Description)
		b.number(3, [...]int{codes.Unset: 0, codes.Ok: 1, codes.Error: 2}[s.Status().Code])
	})
	b.flags(16, c.TraceFlags(), parent)
}

// ids appends the first two fields of a Span or a Link.
func (b *buffer) ids(c trace.SpanContext) {
	inTrace, span := c.TraceID(), c.SpanID()
	b.bytes(1, inTrace[:])
	b.bytes(2, span[:])
}

// flags appends SpanFlags. They say whether a context came from another process, and that this is known.
func (b *buffer) flags(field protowire.Number, f trace.TraceFlags, of trace.SpanContext) {
	all := uint32(f) | 0x100
	if of.IsRemote() {
		all |= 0x200
	}
	*b = protowire.AppendFixed32(protowire.AppendTag(*b, field, protowire.Fixed32Type), all)
}

// attributes appends KeyValues.
func (b *buffer) attributes(field protowire.Number, all []attribute.KeyValue) {
	for _, a := range all {
		b.message(field, func() {
			b.text(1, string(a.Key))
			b.message(2, func() { b.value(a.Value) })
		})
	}
}

// value appends the oneof of an AnyValue, nothing for an empty value.
func (b *buffer) value(v attribute.Value) {
	switch v.Type() {
	case attribute.STRING:
		b.bytes(1, []byte(v.AsString()))
	case attribute.BOOL:
		*b = protowire.AppendVarint(protowire.AppendTag(*b, 2, protowire.VarintType), protowire.EncodeBool(v.AsBool()))
	case attribute.INT64:
		*b = protowire.AppendVarint(protowire.AppendTag(*b, 3, protowire.VarintType), uint64(v.AsInt64()))
	case attribute.FLOAT64:
		*b = protowire.AppendFixed64(protowire.AppendTag(*b, 4, protowire.Fixed64Type), math.Float64bits(v.AsFloat64()))
	case attribute.SLICE:
		array(b, v.AsSlice(), func(v attribute.Value) attribute.Value { return v })
	case attribute.STRINGSLICE:
		array(b, v.AsStringSlice(), attribute.StringValue)
	case attribute.BOOLSLICE:
		array(b, v.AsBoolSlice(), attribute.BoolValue)
	case attribute.INT64SLICE:
		array(b, v.AsInt64Slice(), attribute.Int64Value)
	case attribute.FLOAT64SLICE:
		array(b, v.AsFloat64Slice(), attribute.Float64Value)
	case attribute.MAP:
		b.message(6, func() { b.attributes(1, v.AsMap()) })
	case attribute.BYTESLICE:
		b.bytes(7, v.AsByteSlice())
	}
}

// array appends an ArrayValue.
func array[V any](b *buffer, all []V, value func(V) attribute.Value) {
	b.message(5, func() {
		for _, v := range all {
			b.message(1, func() { b.value(value(v)) })
		}
	})
}

// message appends a message with the fields that fields appends.
func (b *buffer) message(field protowire.Number, fields func()) {
	*b = protowire.AppendTag(*b, field, protowire.BytesType)
	at := len(*b)
	fields()
	var size [10]byte
	*b = slices.Insert(*b, at, protowire.AppendVarint(size[:0], uint64(len(*b)-at))...)
}

func (b *buffer) bytes(field protowire.Number, v []byte) {
	*b = protowire.AppendBytes(protowire.AppendTag(*b, field, protowire.BytesType), v)
}

func (b *buffer) text(field protowire.Number, v string) {
	if v != "" {
		*b = protowire.AppendString(protowire.AppendTag(*b, field, protowire.BytesType), v)
	}
}

// number appends a uint32 or an enum.
func (b *buffer) number(field protowire.Number, v int) {
	if v > 0 {
		*b = protowire.AppendVarint(protowire.AppendTag(*b, field, protowire.VarintType), uint64(min(v, math.MaxUint32)))
	}
}

// time appends the nanoseconds since 1970.
func (b *buffer) time(field protowire.Number, v time.Time) {
	if ns := v.UnixNano(); ns > 0 {
		*b = protowire.AppendFixed64(protowire.AppendTag(*b, field, protowire.Fixed64Type), uint64(ns))
	}
}
