// Package ops is what operators see of a proxy or a host: probes, metrics, its current state, past events,
// where a name leads, and the pages for browsers. It changes nothing, and every path is read with GET.
//
//	operator ──► Unix socket, or TCP ──► Server ──► Snapshot, Ready, Calls, Metrics, Taps
//	                                        ├─────► History ◄── Hooks
//	                                        └─────► Explainer
//	browser  ──► /, where clients connect ──► ConnectPage
//
// The mode of a Unix socket limits its users, and they can see everything. On TCP the probes, the metrics and
// the page, which has no data of its own, are open, and everything else needs the token.
//
// The door gives it functions and snapshots, so it knows neither sessions nor hosts. A Server starts no
// goroutines.
package ops
