package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/viper"

	"github.com/mcp-proxy/mcp-proxy/config/forms"
	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// Load reads, completes and validates a configuration. It also returns warnings, one line
// each. The error is a [Problems] with every mistake; then the Config has only File and Read.
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

// Read is Load, except that in spite of mistakes the Config has all that could be read. Such a
// Config may be inspected, but must not be served.
func Read(o Options) (*Config, []string, Problems) {
	l := &loader{reader: reader{ignored: make(map[string]bool)}}
	setDefaults(reflect.ValueOf(&l.cfg).Elem())
	v := l.layered()
	if l.find(o) {
		l.read(v)
	}
	l.flags(v, o)
	l.settle(v, &l.cfg)

	c := &l.cfg
	c.File, c.Read, c.Given = l.source, l.files, o.given()
	c.TLS.override(o.TLS)
	l.direct(c, o)
	l.complete(c, o)
	return c, l.warnings, l.problems
}

// A loader is the state of one Load.
type loader struct {
	reader
	cfg    Config // first from the file; then settle sets the settings of other layers
	format string // of the file, for Decode
}

// formats maps the extensions of files to their formats. JSON may have comments and trailing
// commas.
var formats = map[string]string{".yaml": "yaml", ".yml": "yml", ".json": "json", ".jsonc": "json", ".toml": "toml"}

// extensions are the file name extensions that find looks for.
var extensions = []string{".yaml", ".yml", ".json", ".toml"}

// find sets the file to read. It reports false if there is none.
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
		nowhere := "is neither in the working directory nor in " + userDir()
		if userDir() == "" {
			nowhere = "is not in the working directory, and there is no other place without HOME"
		}
		l.fail("", "", "no configuration: mcp-proxy.yaml (.yml, .json, .toml) %s; give %s", nowhere, o.ways())
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

// ways lists what can be given to a command without a configuration.
func (o *Options) ways() string {
	ways := append([]string{"--config FILE"}, o.Instead...)
	last := len(ways) - 1
	if last == 0 {
		return ways[0]
	}
	return strings.Join(ways[:last], ", ") + " or " + ways[last]
}

// search returns the configuration file in dir, or "". A file that cannot be inspected counts, too: reading it
// reports why.
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
	if !filepath.IsAbs(base) { // the specification says to ignore relative ones
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "mcp-proxy")
}

// read passes the file to viper, which passes it back to Decode.
func (l *loader) read(v *viper.Viper) {
	format, ok := formats[strings.ToLower(filepath.Ext(l.source))]
	if !ok {
		l.fail(l.source, "", "has an unknown format: its name must end in .yaml, .yml, .json, .jsonc or .toml")
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
	l.format = format
	return l, nil
}

// Decode gives viper the top-level settings, typed. Everything else stays in the loader, since
// viper would lower-case its keys. Mistakes in the file are added to the problems; the error is
// about a file that cannot be parsed.
func (l *loader) Decode(data []byte, top map[string]any) error {
	root, duplicates, err := tree.Parse(l.format, data)
	if err != nil {
		return err
	}
	for _, key := range duplicates {
		l.fail(l.source, key, "duplicate key")
	}
	if !l.convert(root) && strange(root) {
		l.fail(l.source, "", "has no servers: they are in upstreams, or in mcpServers and the like if another program has written it")
		return nil
	}
	root.Take("$schema") // for editors
	cfg := reflect.ValueOf(&l.cfg).Elem()
	value{&l.reader, root}.structure(cfg)
	for _, s := range settings() {
		if root.Has(s.key) {
			top[s.key] = cfg.FieldByIndex(s.index).Interface()
		}
	}
	return nil
}

// convert brings a file of another program into our form, and reports whether it is one.
func (l *loader) convert(root *tree.Node) bool {
	f := &forms.File{Path: l.source, Dir: forms.Folder(l.dir), Node: root}
	inputs := slices.Concat(root.Get("inputs").All(), root.Get("mcp").Get("inputs").All())
	problems, ok := forms.Convert(f)
	if !ok {
		return false
	}
	l.dir, l.inputs = f.Dir, inputs
	for _, p := range problems {
		if p.Warning {
			l.warn(l.source, p.Key, "%s", p.Text)
		} else {
			l.fail(l.source, p.Key, "%s", p.Text)
		}
	}
	l.others(root)
	return true
}

// others removes the keys of a file of another program that are not ours, with a warning. A key
// that may be a misspelt one that restricts what is served is a mistake.
func (l *loader) others(root *tree.Node) {
	var others []string
	names := keysOf(reflect.TypeFor[Config]())
	guarding := append([]string{"tokenFile", "policies", "limits", "allowedHosts", "allowedOrigins"}, forms.Guarding...)
	for _, m := range slices.Clone(root.Members) {
		v := value{&l.reader, m.Value}
		switch {
		case m.Key == "$schema" || slices.ContainsFunc(names, func(key string) bool { return strings.EqualFold(key, m.Key) }):
			continue
		case Nearest(m.Key, guarding) != "":
			v.wrong("unknown key; did you mean %s?", Nearest(m.Key, guarding))
		case Nearest(m.Key, names) != "" && !slices.Contains(forms.Own, m.Key):
			v.caution("unknown key, ignored%s", DidYouMean(m.Key, names))
		default:
			others = append(others, tree.Printable(m.Key))
		}
		root.Take(m.Key)
	}
	const most = 5
	if n := len(others) - most; n > 1 {
		others = append(others[:most-1], fmt.Sprintf("%s and %d others", others[most-1], n))
	}
	if len(others) > 0 {
		l.warn(l.source, "", "other settings, ignored: %s", strings.Join(others, ", "))
	}
}

// strange reports whether a file has keys, but none that is ours or resembles ours.
func strange(root *tree.Node) bool {
	names := keysOf(reflect.TypeFor[Config]())
	for _, m := range root.Members {
		if m.Key != "$schema" && (slices.Contains(names, m.Key) || Nearest(strings.ToLower(m.Key), names) != "") {
			return false
		}
	}
	return len(root.Members) > 0
}

// oneLine brings the message of a parser into one line of printable text.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// sections are the top-level keys whose mistakes spoil only the check about them.
var sections = []string{"limits", "upstreams", "links", "policies", "traces", "logs", "admin", "cluster"}

// spoilt reports whether a mistake is in a section or outside of all sections: then the check about that section
// would report mistakes that follow from it. A check about no section has "".
func spoilt(ps Problems, section string) bool {
	return slices.ContainsFunc(ps, func(p Problem) bool {
		key := p.Key[:strings.IndexAny(p.Key+".", ".[")]
		return key == section || !slices.Contains(sections, key)
	})
}

// complete runs the checks that need the whole configuration. It skips those for which there are
// mistakes in what they read: no mistake is reported that follows from another.
func (l *loader) complete(c *Config, o Options) {
	read := l.problems
	if o.Host && len(c.Links) > 0 {
		l.fail(l.source, "links", "are only valid for a proxy: a host serves its own upstreams")
	} else if len(c.Upstreams)+len(c.Links) == 0 && len(read) == 0 {
		l.fail(l.source, "upstreams", "none is configured (disabled ones do not count)")
	}
	for _, u := range c.Upstreams {
		l.cleartext(u)
	}
	l.distinctNames(c.Upstreams)
	if !spoilt(read, "admin") {
		l.operators(c)
	}
	if !spoilt(read, "upstreams") {
		l.forwarding(c, o)
	}
	if o.Host {
		if len(c.Policies) > 0 {
			l.fail(l.source, "policies", "are only valid for a proxy: a host does not know its clients")
		}
		if c.Cluster.KeyFile != "" {
			l.fail(l.source, "cluster", "is only valid for a proxy: a host serves its own upstreams")
		}
		return
	}
	if !spoilt(read, "links") {
		l.clients(c, o)
	}
	if !spoilt(read, "policies") {
		l.rules(c)
	}
	if !spoilt(read, "") {
		l.listening(c)
	}
}

// layered returns a viper with the default and the variable of every setting. An empty
// variable counts as unset.
func (l *loader) layered() *viper.Viper {
	v := viper.NewWithOptions(viper.WithDecoderRegistry(l))
	for _, s := range settings() {
		v.SetDefault(s.key, reflect.ValueOf(l.cfg).FieldByIndex(s.index).Interface())
		_ = v.BindEnv(s.key, s.variable()) // fails only without a key
	}
	return v
}
