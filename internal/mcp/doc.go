// Package mcp is the vocabulary of the protocol's two eras, as far as more than
// one part of the proxy needs it: versions, the reserved keys of _meta, error
// codes, what a client can be asked, and the headers of Streamable HTTP that repeat
// what a body says.
//
// What is to be known of a method is a row of one table ([MethodOf]). The row says
// which members of params matter. They are looked for once, when a message arrives
// ([Read]), and everybody reads the [Notes].
//
// In the legacy era (2024-11-05 to 2025-11-25) a client says initialize once and a
// session remembers it. In the modern era (2026-07-28) there is no session: every
// request carries in _meta what initialize used to say. Each message is of one era,
// which [Notes.Claim] tells.
//
// The package holds no state and does no I/O. Everything it reads stays raw bytes.
package mcp
