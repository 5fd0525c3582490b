// Package config loads and validates the configuration of mcp-proxy.
//
//	      file ──► tree ──► forms (if another program has written it) ──► decode ─┐
//	                                                                │             ├─► Config
//	flags, MCP_PROXY_*, defaults ──► viper ◄── top-level settings, typed ─────────┘
//
// [Load] reads a configuration; [HostLink.Check] checks the flags of mcp-proxy host, which have
// no keys in a file. Both report every mistake, not only the first: their error is a [Problems],
// one line each, with the file, the path of the key and what is wrong.
//
// # A key is declared once
//
// The tags of a struct's field declare a key. The decoder, [Schema] and the tables of
// docs/configuration.md are made from them:
//
//	key      its name in a file
//	default  its value if the file does not have it
//	doc      its description, in Markdown with 'quotes' for code; shown: the default, in words
//	is       the name of the rule for its text; enum, min and max: other rules
//	keys     the rule for the keys of a map with free keys
//	min      of a list: it must not be empty; empty: why it must not be
//	or       of a list: a single text is allowed, too
//	needed   the key is required
//	foreign  only other programs' entries have it
//	table    of a top-level key: the table of the docs
//
// A list of structs with a field Name that has no key is a map by that name in the file. The decoder
// sets their fields Name and Key to the name and the path. Rules about several keys are in the
// method check of a struct, which the decoder calls.
//
// # Layers
//
// viper layers the top-level settings: flag over environment over file over default. It gets
// nothing else, and values that are typed already, since it lower-cases the keys of maps and
// guesses types.
//
// # Variables
//
// In every string value ${NAME} is replaced by an environment variable, which must be set, and
// ${NAME:-default} by one that may be unset or empty. The variables of editors work, too:
// ${env:NAME}, ${input:ID}, ${workspaceFolder}. $${ is a literal ${. Keys are never expanded.
// Variables are expanded after parsing, so a value can never change the structure of the file. A
// key for a number or a boolean also takes a string made of variables.
//
// # Invariants
//
//   - Nothing is started or looked up on a network, and only files that hold values are
//     opened: a Config is a value.
//   - Relative paths count from the directory of the file that has them; those
//     from the environment or the command line, from the working directory.
//   - Error lines and warnings never contain the value of a variable, nor a URL,
//     which may have a password in it.
//   - A restriction is obeyed or is a mistake; it is never ignored. Mistakes are a rule that never applies, an
//     empty list of rules, two credentials for one thing. What may be intended, such as a glob
//     that matches nothing, is a warning.
//
// # Files
//
// References between the files run downwards: load.go, layers.go and direct.go, the checks of one part each
// (clients.go, policies.go, upstream.go, forward.go, links.go, host.go), schema.go, config.go with the keys, decode.go, and at
// the bottom reader.go, rules.go and nearest.go.
//
// The package starts no goroutines.
package config
