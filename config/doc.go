// Package config loads and validates the configuration of mcp-proxy.
//
//	      file ──► tree ──► forms (if another program has written it) ──► decode ─┐
//	                                                                │             ├─► Config
//	flags, MCP_PROXY_*, defaults ──► viper ◄── top-level settings, typed ─────────┘
//
// [Load] reads a configuration; [HostLink.Check] checks the flags of mcp-proxy host, which no
// file has. Both report every mistake, not only the first: their error is a [Problems], one line
// each, with the file, the path of the key and what is wrong.
//
// # A key is declared once
//
// The tags of a struct's field declare a key. The decoder, [Schema] and the tables of
// docs/configuration.md are made from them:
//
//	key      its name in a file
//	default  its value if it is not there
//	doc      what it is, in Markdown with 'quotes' for code; shown: the default, in words
//	is       the name of the rule for its text; enum, min and max: other rules
//	keys     the rule for the names in a map with any names
//	min      of a list: it must not be empty; empty: why it must not be
//	or       of a list: one text will do, too
//	needed   it must be there
//	foreign  only other programs' entries have it
//	table    of a top-level key: the table of the docs
//
// A list of structs that have a Name without a key is a map by that name. Their fields Name and
// Key get the name and the path. What concerns several keys is in the method check of a struct,
// which the decoder calls.
//
// # Layers
//
// viper layers the top-level settings: flag over environment over file over default. It gets
// only those, typed by us, since it lower-cases the keys of maps and guesses types.
//
// # Variables
//
// In every string value ${NAME} stands for an environment variable, which must be set, and
// ${NAME:-default} for one that may be unset or empty. What editors write is known, too:
// ${env:NAME}, ${input:ID}, ${workspaceFolder}. $${ is a literal ${. Keys are never expanded. Variables
// are expanded after parsing, so a value can never change the structure of the file. A key that
// wants a number or true or false takes a string made of variables, too.
//
// # Invariants
//
//   - Nothing is started or looked up on a network, and only the files that hold values are
//     opened: a Config is a value.
//   - Relative paths count from the directory of the file that holds them; those
//     from the environment or the command line, from the working directory.
//   - Error lines and warnings never hold the value of a variable, nor a URL,
//     which may have a password in it.
//   - What restricts is obeyed or a mistake, never dropped: a rule that never applies, an
//     empty list of rules, credentials beside others. What may be intended, such as a glob
//     that matches nothing, is a warning.
//
// The package starts no goroutines.
package config
