// Package process runs one MCP server as a subprocess.
//
//	Send ──► stdin ──► ┌──────────────────┐
//	Recv ◄── stdout ◄─ │ a process group  │
//	log  ◄── stderr ◄─ └──────────────────┘
//
// [Start] starts a [Command] and returns a [Server]. The package does not interpret
// messages, and does not restart servers.
//
// Goroutines of a server: watch, which waits for the exit and reaps; readStderr; stdin's
// drain, while the pipe is full; and one that reports a failure of stdin. Stop waits for
// them all. On Linux one more goroutine starts all processes of the program, and ends
// with the last of them (group_linux.go).
//
// Invariants:
//   - A process has a group of its own. The group is killed after every end, also a clean
//     one. On Linux this happens before the leader is reaped, so that the group id cannot
//     belong to another group yet.
//   - Everything that a server wrote before its end is read before Recv returns the end.
//   - [ReapOrphans] does not take our children for orphans: they are registered from
//     their start until they are reaped.
//   - Everything is bounded: a message by Limits, the backlog of a full stdin pipe by
//     maxBacklog, the log of stderr by a rate, reading after an exit by 250 ms of
//     silence, and by a second for the rest of the group.
//
// A grandchild that leaves the process group (setsid) is unreachable. It may hold the pipes and
// write to them, but nothing waits for it longer than 250 ms after the end of the group.
package process
