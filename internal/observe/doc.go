// Package observe says what can be seen of a proxy: [Hooks] are called for what happens,
// and a [Snapshot] is what it does at one time. All are plain values, which package proxy
// hands to the programs that embed it.
//
//	client ──► Request ──► session ──► Call ──► upstream
//	       Session                         Upstream, Link
package observe
