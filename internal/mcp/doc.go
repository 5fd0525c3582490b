// Package mcp has the vocabulary of both eras of the protocol that several parts of the proxy need:
// versions, reserved keys of _meta, error codes, client capabilities, and the headers of Streamable
// HTTP that repeat parts of a body.
//
// One table ([MethodOf]) says what the proxy knows of each method, including the members of params
// that matter. [Read] finds them once, when a message arrives, and everybody reads its [Notes].
//
// In the legacy era (2024-11-05 to 2025-11-25) a client sends initialize once and a session
// remembers it. In the modern era (2026-07-28) there are no sessions: every request carries in
// _meta what initialize used to say. Each message belongs to one era; [Notes.Claim] tells which.
//
// The package has no state and does no I/O. Everything that it reads stays raw bytes.
package mcp
