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

	// Command is what stood after "--": one upstream named main, which gets the
	// whole environment, as any command started from a shell. No file is
	// searched for then; one that is given must not have upstreams.
	Command []string

	// URL is one upstream named main, a remote server: http, https, ws or wss.
	// As with Command, no file is searched for, and one that is given must not
	// have upstreams. It excludes Command.
	URL string

	// Headers go with URL, each "Name: value"; variables in values are expanded.
	Headers []string

	// Listen overrides every other source of the setting.
	Listen []string

	// Host is set for the far half of a link: there can be no links, and what
	// concerns listening for clients is read but not checked.
	Host bool
}

// Load reads, completes and validates a configuration, and returns it with
// warnings, one line each, that do not hinder. The error is a [Problems] with
// every mistake; then there is no Config.
//
// Top-level settings come from flags, else from the environment (MCP_PROXY_
// and the key in upper case, its words joined by _, lists with commas), else
// from the file, else from the defaults.
func Load(o Options) (*Config, []string, error) {
	l := &loader{limits: defaultLimits()}
	v := layered(l)
	if l.find(o) {
		l.read(v)
	}
	l.listen(v, o.Listen)
	l.environment(v)

	c := l.config(v, o)
	if len(l.problems) > 0 {
		return nil, l.warnings, l.problems
	}
	return c, l.warnings, nil
}

// A loader is the state of one Load.
type loader struct {
	reader
	entries []entry
	limits  Limits
	links   []Link
}

var extensions = []string{".yaml", ".yml", ".json", ".toml"}

// find sets the file to read, if there is one.
func (l *loader) find(o Options) bool {
	l.source = o.File
	if l.source == "" {
		if len(o.Command) > 0 || o.URL != "" {
			return false
		}
		if l.source = search("."); l.source == "" {
			l.source = search(userDir())
		}
	}
	if l.source == "" {
		l.fail("", "", "no configuration: mcp-proxy.yaml (.yml, .json, .toml) is neither in the working directory nor in %s; give --config FILE or -- CMD ARGS", userDir())
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

// search finds a file in dir. One that cannot be looked at counts: reading it
// tells why.
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
	if !slices.Contains(extensions, ext) {
		l.fail(l.source, "", "is of no known format: its name must end in .yaml, .yml, .json or .toml")
		return
	}
	data, err := readFile(l.source)
	if err == nil {
		v.SetConfigType(ext[1:])
		err = v.ReadConfig(bytes.NewReader(data))
	}
	if pe, ok := errors.AsType[viper.ConfigParseError](err); ok {
		err = pe.Unwrap()
	}
	if err != nil {
		l.fail(l.source, "", "%s", oneLine(err.Error()))
	}
}

// readFile reads no more than tells a file that is too large.
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

// listen sets the flag's addresses above all other layers.
func (l *loader) listen(v *viper.Viper, addrs []string) {
	for _, a := range addrs {
		if !isAddress(a) {
			l.fail("--listen", "", "must be %s, not %s", address.what, quote(a))
		}
	}
	if len(addrs) > 0 {
		v.Set("listen", addrs)
	}
}

// config puts the parts together and checks what concerns several of them.
func (l *loader) config(v *viper.Viper, o Options) *Config {
	c := &Config{File: l.source, Limits: l.limits, Links: l.links}
	if err := v.Unmarshal(c); err != nil && len(l.problems) == 0 { // a mistake was told where it was found
		l.fail("", "", "%s", oneLine(err.Error()))
	}
	c.Upstreams = l.name(l.entries)
	l.direct(c, o)
	if len(l.problems) == 0 {
		l.complete(c, o)
	}
	return c
}

// complete reports what is missing from a configuration that is right so far.
func (l *loader) complete(c *Config, o Options) {
	if o.Host && len(c.Links) > 0 {
		l.fail(l.source, "links", "are for a proxy: a host offers upstreams of its own")
	} else if len(c.Upstreams)+len(c.Links) == 0 {
		l.fail(l.source, "upstreams", "none is configured (disabled ones do not count)")
	}
	for _, u := range c.Upstreams {
		l.careless(u)
	}
	if !o.Host {
		l.listening(c, o)
	}
}

// listening checks who can reach us, and what they need to know.
func (l *loader) listening(c *Config, o Options) {
	for _, link := range c.Links {
		if link.Accept && c.TokenFile != "" && filepath.Clean(link.TokenFile) == filepath.Clean(c.TokenFile) {
			l.fail(l.source, join(link.Key, "tokenFile"), "is also that of the clients, who must not pass for a host")
		}
	}
	source, key := l.source, "listen"
	switch {
	case len(o.Listen) > 0:
		source, key = "--listen", ""
	case os.Getenv(envPrefix+"LISTEN") != "":
		source, key = envPrefix+"LISTEN", ""
	}
	if len(c.Listen) == 0 {
		l.fail(source, key, "needs an address")
	}
	if c.TokenFile != "" || c.Insecure {
		return
	}
	for _, a := range c.Listen {
		if !isLocal(a) {
			l.fail(source, key, "%s can be reached from other machines: set tokenFile, or insecure: true", quote(a))
		}
	}
}

func isPath(command string) bool {
	return strings.ContainsRune(command, '/') || strings.ContainsRune(command, filepath.Separator)
}
