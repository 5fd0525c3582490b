// Package oauth proves to remote servers who we are, with tokens of their authorization
// servers (OAuth 2.1, as in the MCP specification, basic/authorization). What it offers are
// the Credentials of packages remote and link.
package oauth
