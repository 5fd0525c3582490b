// Package config loads and validates the configuration of mcp-proxy.
//
//	       file ──► YAML, JSON or TOML ──► tree of nodes ──► typed upstreams, links, rules … ─┐
//	                                            │                                             ├─► Config
//	flags, MCP_PROXY_*, defaults ──► viper ◄────┘ top-level settings, already typed ──────────┘
//
// [Load] is the way in; [HostLink.Check] is that of the flags of mcp-proxy host,
// which no file has. Both report every mistake, not only the first: their error
// is a [Problems], one line each, naming the file, the key and what is wrong.
//
// # Why a tree of our own
//
// The three formats meet in one ordered tree that keeps what matters here and
// what general decoders lose: the order of upstreams (lists merge in it), the
// case of keys (names of upstreams, variables and headers), duplicate keys (a
// mistake), and scalars as they were written (010 is not 8, and a version 1.10
// given as an argument is not 1.1). Variables are expanded in it, after parsing,
// so a value can never change the structure of the file.
//
// viper layers the top-level settings: flag over environment over file over
// default. It sees only those, typed by us before it gets them, since it
// lower-cases the keys of maps and guesses at types.
//
// # Variables
//
// In every string value ${NAME} stands for an environment variable, which must
// be set, and ${NAME:-default} for one that may be unset or empty. What editors
// write is known too: ${env:NAME}, ${input:ID}, ${workspaceFolder}. $${ is a
// literal ${. Keys are never expanded. A key that wants a number or true or
// false takes a string made of variables too.
//
// # Files of other programs
//
// A file of another program has its servers in a section. Its entries are first
// brought into the form of mcpServers, which is then read like ours, but that unknown
// keys are warnings and names are made fit.
//
// # Invariants
//
//   - Nothing is started or looked up on a network, and no file is opened but those of
//     which values come: a Config is a value.
//   - Relative paths count from the directory of the file that holds them; those
//     from the environment or the command line, from the working directory.
//   - Error lines and warnings never hold the value of a variable, nor a URL,
//     which may have a password in it.
//   - What restricts is obeyed or a mistake, never dropped: a rule that never counts, an
//     empty list of rules, credentials beside others. What may be meant so, such as a glob
//     that matches nothing, is a warning.
//   - Input is bounded (size, depth, number of nodes), so that aliases cannot
//     grow a small file into a big tree.
//
// The package starts no goroutines.
package config
