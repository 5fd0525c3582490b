// Package remote holds sessions with MCP servers elsewhere, each a
// [jsonrpc.Conn].
package remote
