// Command history lets clients of all kinds use a proxy at random while its servers, hosts, networks and the
// proxy itself fail at random, and judges what everybody has seen:
//
//	go run . -duration 60s -seed 7      one history, with faults
//	go run . -plant all                 prove that the judge finds what it is for; two minutes
//	go run . -rolling                   restart a server, the host and the proxy under load: which calls fail
//	go run . -replicas                  three proxies behind HAProxy, with faults; -rolling restarts them ten times, too
//	go run . -soak 2h                   use one proxy for long, and draw what it holds each second
//	go run . -docs ../../docs …         the same as these, and put what was found into reliability.md
//	go run . -compare                   one server, and this proxy or others between it and clients: way.go has them
//
//	clients ──► proxy ──┬── pipes ─────────► servers   each server process appends what it does to its journal
//	                    ├── network ──► remote servers
//	                    └── network ──► host ──► servers
//
// The tests make such histories in memory, too, with the session, the host and the translation in a synctest bubble
// (simulation_test.go): hundreds a second, in virtual time, with random pauses at each message.
//
//	go test -run TestSimulation -seeds 10000
//
//	clients ──► session ──┬───────────► host ──► servers
//	                      └─ "link" ──► host ──► servers
//
// A seed gives the same plans of clients and faults again, and the same carrier of the link, not the same
// interleaving. -repeat says how often an anomaly comes again.
//
// The promises that are judged:
//
//  1. A request has exactly one outcome, unless its client cancelled it or left, or its connection was broken by a
//     fault; then it has one at most. A client on stdio that closes its end gets all outcomes, and so does one on a
//     WebSocket or stdio whose proxy ends in order, for what had reached a server.
//  2. A call is executed at most once, exactly once if it has a result, and never if its error says not_sent.
//  3. What a client gets belongs to what it asked for, and no two clients share a process of an isolated upstream.
//     Nobody gets, cancels or sees in a list a task of another principal, or sees or uses what the configuration
//     denies to it or does not have any more.
//  4. A cancellation reaches the call that was cancelled, before later calls on the same way, and no other call.
//     A task that was cancelled is not executed, and a response that is dropped on legacy HTTP cancels nothing.
//  5. Progress comes in order, before the answer, and all of it before a result, and so do log messages of a server
//     that nobody else has. Clients that follow a resource get
//     its updates. Clients that know lists are told of other ones, and what they ask for then has the change.
//  6. An error of the proxy names a cause that the faults explain, and an event that is in a log.
//  7. What clients do to a register behind a shared server is linearizable.
//  8. At the end there is no process left, and the proxy does not hold more and more from one quiet moment to the next.
//  9. With replicas: while no replica crashes, no call over Streamable HTTP fails, and none of its clients has to
//     initialize again. What is lost by a crash was in flight there, or was turned away before it ran. A session of
//     Streamable HTTP outlives one that kills its replica.
//
// A run prints its seed, and of an anomaly the shortest part of the history that shows it: what the operations did in
// all histories and journals, and the faults that overlap. Both are in the run's directory, as history.txt and
// anomaly-N.txt, and operations on a register that are not linearizable are drawn in anomaly-N.html.
//
// With replicas, the balancer chooses the next one for each request. Each replica reaches the others through a mesh of
// this program, which can split one off; see split.go. The first phase has no faults, each second one only those that no
// client may notice, and the others crashes, too. What servers on stdio share is in files, so that it does not matter
// which replica has started them. A register behind a shared server is linearizable over all replicas that way.
//
//	clients ──► HAProxy ──┬──► proxy-1 ──┐
//	                      ├──► proxy-2 ──┼── mesh
//	                      └──► proxy-3 ──┘
//
// A soak goes on in slices of a minute at most, each of which is judged as a history. Its clients use a third of the
// machine, the CPU time of the proxy, servers and clients together; their pauses are adjusted to that. There is a fault
// each few seconds, and a reload each half minute on average; nothing restarts the proxy, which runs with the
// environment of this program. What it holds and how long calls take must not grow: see quantities, trend and rates.
//
// All times are of the monotonic clock of the machine, so that the lines of all processes can be put in order.
package main
