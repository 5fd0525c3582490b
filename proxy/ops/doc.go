// Package ops is all that operators see of a proxy or a host: probes, metrics, what it does now, what has
// happened, where a name leads, and the pages for browsers. It only looks: nothing here changes anything,
// and every path is read with GET.
//
//	operator ──► Unix socket, or TCP ──► Server ──► Snapshot, Ready, Calls, Metrics, Taps
//	                                        ├─────► History ◄── Hooks
//	                                        └─────► Explainer
//	browser  ──► /, where clients connect ──► ConnectPage
//
// The mode of a Unix socket says who may use it, and whoever may can see everything. On TCP the probes, the
// metrics and the page, which has no data of its own, are open, and all else needs the token.
//
// The door hands it functions and snapshots, so it knows neither sessions nor hosts. A Server starts no
// goroutines.
package ops
