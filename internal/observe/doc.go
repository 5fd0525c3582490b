// Package observe has what operators can see of a proxy, as plain values: a proxy calls [Hooks]
// when something happens, and a [Snapshot] is its current state. Package proxy hands both to
// programs that embed it.
//
//	client ──► Request ──► session ──► Call ──► upstream
//	          Session                          Upstream, Link
package observe
