// Package process runs one MCP server as a subprocess.
//
//	Send ──► stdin ──► ┌──────────────────┐
//	Recv ◄── stdout ◄─ │ a process group  │
//	log  ◄── stderr ◄─ └──────────────────┘
//
// [Start] gets a [Command] and a function for its failure, and returns a [Server].
// The package does not know what messages mean, who they are from, or whether the
// server is started again.
//
// Goroutines of a server: watch, which waits for the exit and reaps; readStderr; for
// moments stdin's drain, while the pipe is full, and one that tells a failure of
// stdin. Stop waits for them all. On Linux one more starts all processes of the
// program. It ends with the last of them (group_linux.go).
//
// Invariants:
//   - A process is in a group of its own. The group is killed after every end, a
//     clean one too, before its leader is reaped (on Linux), so that the group id
//     cannot be another group's by then.
//   - What a server wrote before it ended is read before its end is told.
//   - A child of ours is known as such before [ReapOrphans] looks for orphans, and
//     until it is reaped.
//   - Everything is bounded: a message by Limits, what a full stdin pipe holds up by
//     maxBacklog, the log of stderr by a rate, the last words after an exit by 250 ms
//     of silence.
//
// A grandchild that leaves the process group (setsid) is unreachable.
package process
