// Package admin is how operators look into a proxy or a host: probes, metrics, and what it
// does now. It only looks. Nothing here changes anything, and every path is read with GET.
//
//	operator ──► Unix socket, or TCP ──► Server ──► Snapshot, Ready, Metrics ◄── Hooks
//
// Who can use a Unix socket may see everything: its mode says who that is. On TCP probes,
// metrics and the page, which has no data of its own, are open, and all else needs the token. Hooks fill atomics, which a scrape
// reads. A Server starts no goroutines.
package ops
