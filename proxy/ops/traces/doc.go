// Package traces records requests of clients as traces of OpenTelemetry, and sends them to
// a collector (OTLP over HTTP, as protobuf).
//
//	client ──► server span: tools/call get-weather ──► client span ──► upstream
//	  its context                                        its context in params._meta
//
// The context of a request is that in its params._meta (SEP-414), else that of its HTTP request;
// with both, the latter is a link. Requests that are not recorded reach upstreams unchanged.
// A sampler decides, by the parent if there is one.
//
// A span has names from the configuration, from the lists of upstreams, or from the protocol. It
// never has params, results, URIs, headers or tokens. From a client it has only the client's name
// and the id of the request, cut.
//
// Names of spans and attributes are those of the semantic conventions for MCP, which are in
// development and may change.
//
// The only goroutine is that of the SDK's batch processor, which has a bounded queue and drops
// spans when that is full. It ends with [Traces.Shutdown]. Requests never wait for it, and the
// log reports a failing collector.
//
// From the top down: traces.go has the spans of requests and calls;
// attributes.go names; upload.go sends what encode.go encodes; environment.go reads the variables of OpenTelemetry.
package traces
