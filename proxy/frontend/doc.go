// Package frontend is how clients reach the proxy: it turns stdin and stdout, a
// WebSocket, or an HTTP session into a [jsonrpc.Conn] and hands it to a Serve
// function, one Conn for each client.
package frontend
