package traces

import (
	"context"
	"log/slog"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// An exporter logs when spans begin to be lost, and when that is over. It returns no errors: the SDK would print them to
// stderr. The SDK calls it from one goroutine at a time.
type exporter struct {
	sdk.SpanExporter
	log  *slog.Logger
	lost int // spans since all was well
}

// ExportSpans implements [sdk.SpanExporter].
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err == nil && e.lost > 0:
		e.log.Info("traces are exported again", "lost", e.lost)
		e.lost = 0
	case err != nil:
		level := slog.LevelDebug
		if e.lost == 0 {
			level = slog.LevelWarn
		}
		e.lost += len(spans)
		e.log.Log(ctx, level, "traces cannot be exported", "err", plain(err), "lost", e.lost)
	}
	return nil
}
