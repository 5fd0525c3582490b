// Package traces records what clients ask for as traces of OpenTelemetry, and sends them to
// a collector (OTLP over HTTP, as protobuf).
//
//	client ──► server span: tools/call get-weather ──► client span ──► upstream
//	  its context                                        its context in params._meta
//
// The context of a call is that in its params._meta (SEP-414), else that of its HTTP request;
// with both, the latter is a link. Where a trace is not recorded nothing is followed, and what
// upstreams get stays as it came. A sampler decides, by the parent if there is one.
//
// A span has names that are configured, that upstreams list, or that the protocol has. It
// never has params, results, URIs, headers or tokens. Of what a client says there is its
// name and the id of its request, cut.
//
// Names of spans and attributes are those of the semantic conventions for MCP, which are in
// development and may change.
//
// The one goroutine is that of the batch processor of the SDK: it has a bounded queue and
// drops what finds no room. It ends with [Traces.Shutdown]. Calls never wait for it, and a
// collector that fails is a line in the log.
//
// From the top down: traces.go follows calls; span.go has what follows one; attributes.go
// names; exporter.go and upload.go send; environment.go reads the variables of OpenTelemetry.
package traces
