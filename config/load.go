package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/viper"
)

// Options say where a configuration comes from. The zero value searches for a
// file.
type Options struct {
	// File is a .yaml, .yml, .json or .toml file. Without it, and without
	// Command, mcp-proxy.yaml (.yml, .json, .toml) is searched for in the
	// working directory, then in $XDG_CONFIG_HOME/mcp-proxy (by default
	// ~/.config/mcp-proxy).
	File string

	// Command is what came after "--": one upstream named main. It gets the whole
	// environment, as a command does that is started from a shell. No file is
	// searched for then, and a given file must not have upstreams.
	Command []string

	// Servers are upstreams as NAME=COMMAND LINE or NAME=URL, in the place of a file, too.
	Servers []string

	// Env (NAME=VALUE), Cwd and Shared are for the commands that are given here.
	Env    []string
	Cwd    string
	Shared bool

	// URL is one upstream named main, a remote server: http, https, ws or wss.
	// As with Command, no file is searched for, and a given file must not have
	// upstreams. It excludes Command.
	URL string

	// Headers go with URL, each "Name: value"; variables in values are expanded.
	Headers []string

	// Listen, AllowedOrigins, TokenFile, Insecure, TLS and PublicURL override every other
	// source of the setting, where they are set. Paths count from the working directory.
	Listen         []string
	AllowedOrigins []string
	TokenFile      string
	Insecure       *bool
	TLS            ListenTLS // each file by itself
	PublicURL      string

	// Host is set for mcp-proxy host: there can be no links, and the settings about
	// listening for clients are read but not checked.
	Host bool
}

// Load reads, completes and validates a configuration. It returns warnings with it,
// one line each. The error is a [Problems] with every mistake; then the Config has no more
// than File and Read.
//
// Top-level settings come from flags, else from the environment (MCP_PROXY_
// and the key in upper case, its words joined by _, lists with commas), else
// from the file, else from the defaults.
func Load(o Options) (*Config, []string, error) {
	c, warnings, problems := Read(o)
	if len(problems) > 0 {
		return &Config{File: c.File, Read: c.Read}, warnings, problems
	}
	return c, warnings, nil
}

// Read is Load, but with mistakes its Config is as much as could be read: what that names can be
// looked at, and must not be served.
func Read(o Options) (*Config, []string, Problems) {
	l := &loader{cfg: Config{Limits: defaultLimits()}}
	v := layered(l)
	if l.find(o) {
		l.read(v)
	}
	l.flags(v, o)
	l.environment(v)

	return l.config(v, o), l.warnings, l.problems
}

var extensions = []string{".yaml", ".yml", ".json", ".toml"}

// formats are those of files by their extensions. JSON may have comments and trailing
// commas.
var formats = map[string]string{".yaml": "yaml", ".yml": "yml", ".json": "json", ".jsonc": "json", ".toml": "toml"}

// find sets the file to read, if there is one.
func (l *loader) find(o Options) bool {
	l.source = o.File
	if l.source == "" {
		if len(o.Command)+len(o.Servers) > 0 || o.URL != "" {
			return false
		}
		if l.source = search("."); l.source == "" {
			l.source = search(userDir())
		}
	}
	if l.source == "" {
		l.fail("", "", "no configuration: mcp-proxy.yaml (.yml, .json, .toml) is neither in the working directory nor in %s; give --config FILE, --server NAME=COMMAND or -- CMD ARGS", userDir())
		return false
	}
	dir, err := filepath.Abs(filepath.Dir(l.source))
	if err != nil {
		l.fail(l.source, "", "has no directory: %v", err)
		return false
	}
	l.dir = dir
	return true
}

// search finds a file in dir. A file that cannot be looked at counts: reading it will
// say why.
func search(dir string) string {
	if dir == "" {
		return ""
	}
	for _, ext := range extensions {
		name := filepath.Join(dir, "mcp-proxy"+ext)
		if info, err := os.Stat(name); err == nil && !info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return name
		}
	}
	return ""
}

func userDir() string {
	base := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) { // its specification: relative ones are ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "mcp-proxy")
}

// read hands the file to viper, which hands it back to Decode.
func (l *loader) read(v *viper.Viper) {
	ext := strings.ToLower(filepath.Ext(l.source))
	format, ok := formats[ext]
	if !ok {
		l.fail(l.source, "", "is of no known format: its name must end in .yaml, .yml, .json, .jsonc or .toml")
		return
	}
	data, err := l.readFile(l.source)
	if err == nil {
		v.SetConfigType(format)
		err = v.ReadConfig(bytes.NewReader(data))
	}
	if pe, ok := errors.AsType[viper.ConfigParseError](err); ok {
		err = pe.Unwrap()
	}
	if err != nil {
		l.fail(l.source, "", "%s", oneLine(err.Error()))
	}
}

// Decoder makes the loader viper's codec for every format.
func (l *loader) Decoder(format string) (viper.Decoder, error) {
	return decoder{l, format}, nil
}

// A decoder reads one file into the loader.
type decoder struct {
	*loader
	format string
}

// Decode gives viper the top-level settings, typed, and keeps all else, whose
// keys viper would lower-case. Mistakes within the file go to the problems; an
// error is a file that could not be parsed at all.
func (d decoder) Decode(data []byte, top map[string]any) error {
	root, err := parse(d.format, data)
	if err != nil {
		return err
	}
	dropDuplicates(root, "", func(key string) { d.fail(d.source, key, "duplicate key") })

	known := d.fields(top)
	file := value{&d.reader, root, ""}
	if f := d.foreignIn(root); f != nil {
		f.read(file, known)
		return nil
	}
	if d.strange(root, known) {
		d.fail(d.source, "", "has no servers: they are in upstreams, or in mcpServers and the like if another program has written it")
		return nil
	}
	file.strict(known)
	return nil
}

// strange reports whether not one key of a file is ours, or meant to be.
func (l *loader) strange(root *node, known fields) bool {
	for _, m := range root.members {
		if _, ours := known[m.key]; m.key != "$schema" && (ours || Nearest(strings.ToLower(m.key), known.keys()) != "") {
			return false
		}
	}
	return len(root.members) > 0
}

// fields are the keys of a file. Settings that viper layers go to top.
func (l *loader) fields(top map[string]any) fields {
	known := fields{
		"$schema":   func(value) {}, // for editors
		"limits":    l.readLimits,
		"tls":       into(&l.cfg.TLS, value.listenTLS),
		"logs":      func(v value) { v.strict(fields{"calls": into(&l.cfg.Logs.Calls, truth.read)}) },
		"auth":      l.readAuth,
		"traces":    l.readTraces,
		"policies":  l.readPolicies,
		"admin":     l.readAdmin,
		"upstreams": l.readUpstreams,
		"links":     l.readLinks,
	}
	for _, s := range settings {
		known[s.key] = func(v value) {
			if typed, ok := s.file(v); ok {
				top[s.key] = typed
			}
		}
	}
	return known
}

func (l *loader) readLimits(v value) {
	v.strict(fields{
		"message":  into(&l.cfg.Limits.Message, size.read),
		"depth":    into(&l.cfg.Limits.Depth, levels.read),
		"inFlight": into(&l.cfg.Limits.InFlight, positive.read),
		"sessions": into(&l.cfg.Limits.Sessions, positive.read),
	})
}

// parse reads one file into a tree. An empty file is null.
func parse(format string, data []byte) (*node, error) {
	if len(data) > maxBytes {
		return nil, errTooLarge
	}
	if !utf8.Valid(data) {
		return nil, errNotUTF8
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // editors on Windows write it
	switch format {
	case "json":
		return parseJSON(data)
	case "toml":
		return parseTOML(data)
	default:
		return parseYAML(data)
	}
}

// readFile reads one byte more than a file may have.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	return data, cause(err)
}

// cause drops the file's name, which the error line has already.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}

// oneLine keeps the messages of parsers to one line of readable text.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// flags sets what flags say above all other layers.
func (l *loader) flags(v *viper.Viper, o Options) {
	for _, a := range o.Listen {
		if !isAddress(a) {
			l.fail("--listen", "", "must be %s, not %s", address.what, quote(a))
		}
	}
	if len(o.Listen) > 0 {
		v.Set("listen", o.Listen)
	}
	for _, s := range o.AllowedOrigins {
		if !isOrigin(s) {
			l.fail("--cors", "", "must be %s, not %s", origin.what, quote(s))
		}
	}
	if len(o.AllowedOrigins) > 0 {
		v.Set("allowedOrigins", o.AllowedOrigins)
	}
	if o.TokenFile != "" {
		v.Set("tokenFile", o.TokenFile)
	}
	if o.Insecure != nil {
		v.Set("insecure", *o.Insecure)
	}
	if o.PublicURL == "" {
		return
	}
	v.Set("publicURL", o.PublicURL)
	if _, ok := ownURL.parse(o.PublicURL); !ok {
		l.fail("--public-url", "", "must be %s", ownURL.what)
		v.Set("publicURL", "")
	}
}

// config puts the parts together and checks what concerns several of them.
func (l *loader) config(v *viper.Viper, o Options) *Config {
	c := &l.cfg
	c.File, c.Read = l.source, l.files
	c.TLS.flags(o.TLS)
	if err := v.Unmarshal(c); err != nil && len(l.problems) == 0 { // a mistake was told where it was found
		l.fail("", "", "%s", oneLine(err.Error()))
	}
	c.Upstreams = l.name(l.entries)
	l.direct(c, o)
	l.complete(c, o)
	return c
}

// onlyIn reports whether all mistakes are below these keys.
func (ps Problems) onlyIn(keys ...string) bool {
	return !slices.ContainsFunc(ps, func(p Problem) bool {
		return !slices.Contains(keys, p.Key[:strings.IndexAny(p.Key+".", ".[")])
	})
}

// complete reports what is missing, where what decides that is right so far: all mistakes are
// told at once, but none that is the consequence of another.
func (l *loader) complete(c *Config, o Options) {
	read := l.problems
	if o.Host && len(c.Links) > 0 {
		l.fail(l.source, "links", "are for a proxy: a host offers upstreams of its own")
	} else if len(c.Upstreams)+len(c.Links) == 0 && len(read) == 0 {
		l.fail(l.source, "upstreams", "none is configured (disabled ones do not count)")
	}
	for _, u := range c.Upstreams {
		l.careless(u)
	}
	if read.onlyIn("limits", "upstreams", "links", "policies", "traces", "logs") {
		l.operators(c)
	}
	if o.Host {
		if len(c.Policies) > 0 {
			l.fail(l.source, "policies", "are for a proxy: a host does not know its clients")
		}
		return
	}
	if read.onlyIn("limits", "upstreams", "policies", "traces", "logs", "admin") {
		l.clients(c, o)
	}
	if read.onlyIn("limits", "upstreams", "links", "traces", "logs", "admin") {
		l.rules(c)
	}
	if read.onlyIn("limits", "upstreams", "links", "policies", "traces", "logs", "admin") {
		l.listening(c, o)
	}
}

// listening checks who can reach us.
func (l *loader) listening(c *Config, o Options) {
	source, key := l.source, "listen"
	ways := map[string]string{
		source:               "tokenFile, auth or tls.clientCA), or set insecure: true",
		"--listen":           "--token-file, --tls-client-ca, or auth in a configuration), or give --insecure",
		envPrefix + "LISTEN": "MCP_PROXY_TOKEN_FILE, or auth or tls.clientCA in a configuration), or set MCP_PROXY_INSECURE=true",
	}
	switch {
	case len(o.Listen) > 0:
		source, key = "--listen", ""
	case os.Getenv(envPrefix+"LISTEN") != "":
		source, key = envPrefix+"LISTEN", ""
	}
	if len(c.Listen) == 0 {
		l.fail(source, key, "needs an address")
	}
	for _, a := range c.Listen {
		switch {
		case !isLocal(a) && !c.Proves() && !c.Insecure:
			l.fail(source, key, "%s can be reached from other machines: let clients prove who they are (%s", quote(a), ways[source])
		case c.overheard(a):
			l.warn(source, key, "tokens can be read on their way to %s: set tls, or an https publicURL if something before us ends TLS", quote(a))
		}
	}
}
