package config

import (
	"cmp"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/spf13/viper"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

const envPrefix = "MCP_PROXY_"

// settings are the top-level keys that are also variables of the environment: scalars and lists
// of scalars. viper holds their layers. Values from files, defaults and flags are typed, so a
// string is from the environment, or the setting is a string.
var settings = sync.OnceValue(func() (all []field) {
	for _, f := range fieldsOf(reflect.TypeFor[Config]()) {
		if f.rule != nil {
			all = append(all, f)
		}
	}
	return all
})

// variable returns the environment variable of a setting: MCP_PROXY_SHUTDOWN_GRACE,
// MCP_PROXY_PUBLIC_URL.
func (f field) variable() string {
	var b strings.Builder
	b.WriteString(envPrefix)
	lower := false // whether the letter before is
	for _, r := range f.key {
		if lower && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
		lower = unicode.IsLower(r)
	}
	return b.String()
}

// fromEnv reads the text of a variable. If the text is invalid, what says what it must be, else it is "". A
// path counts from the working directory.
func (f field) fromEnv(text string) (typed any, what string) {
	if f.typ.Kind() != reflect.Slice {
		typed, ok := f.rule.parse(text)
		if !ok {
			what = f.rule.what
		}
		return typed, what
	}
	items := strings.Split(text, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
		if _, ok := f.rule.parse(items[i]); !ok {
			return nil, "a comma-separated list, each " + f.rule.what
		}
	}
	return items, ""
}

// flags sets the values of flags, which override all other layers.
func (r *reader) flags(v *viper.Viper, o Options) {
	for _, list := range []struct {
		flag, key, is string
		given         []string
	}{
		{"--listen", "listen", "address", o.Listen},
		{"--cors", "allowedOrigins", "origin", o.AllowedOrigins},
	} {
		for _, s := range list.given {
			if !takes(list.is, s) {
				r.fail(list.flag, "", "must be %s, not %s", rules[list.is].what, tree.Quote(s))
			}
		}
		if len(list.given) > 0 {
			v.Set(list.key, list.given)
		}
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
	if !takes("publicURL", o.PublicURL) {
		r.fail("--public-url", "", "must be %s", rules["publicURL"].what)
		v.Set("publicURL", "")
	}
}

// given returns the flag or the variable of each setting that is not left to the file.
func (o *Options) given() map[string]string {
	all := make(map[string]string)
	for _, s := range settings() {
		if os.Getenv(s.variable()) != "" {
			all[s.key] = s.variable()
		}
	}
	for _, f := range []struct {
		key, flag string
		given     bool
	}{
		{"listen", "--listen", len(o.Listen) > 0},
		{"allowedOrigins", "--cors", len(o.AllowedOrigins) > 0},
		{"tokenFile", "--token-file", o.TokenFile != ""},
		{"publicURL", "--public-url", o.PublicURL != ""},
		{"insecure", "--insecure", o.Insecure != nil},
		{"tls.cert", "--tls-cert", o.TLS.Cert != ""},
		{"tls.key", "--tls-key", o.TLS.Key != ""},
		{"tls.clientCA", "--tls-client-ca", o.TLS.ClientCA != ""},
	} {
		if f.given {
			all[f.key] = f.flag
		}
	}
	return all
}

// settle sets each setting of the configuration to its uppermost layer, and warns about
// variables that are not settings.
func (r *reader) settle(v *viper.Viper, c *Config) {
	known := make(map[string]bool)
	for _, s := range settings() {
		known[s.variable()] = true
		layer := v.Get(s.key)
		if text, ok := layer.(string); ok {
			typed, what := s.fromEnv(text)
			switch {
			case what == "":
				layer = typed
			case s.rule.secret:
				r.fail(s.variable(), "", "must be %s", what)
				continue
			default:
				r.fail(s.variable(), "", "must be %s, not %s", what, tree.Quote(text))
				continue
			}
		}
		if layer != nil {
			reflect.ValueOf(c).Elem().FieldByIndex(s.index).Set(reflect.ValueOf(layer))
		}
	}
	for _, name := range environNames() {
		if strings.HasPrefix(name, envPrefix) && !known[name] {
			r.warn(name, "", "is not a setting and is ignored")
		}
	}
}

func environNames() []string {
	var names []string
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// override replaces each file for which serve has a flag.
func (t *ListenTLS) override(o ListenTLS) {
	*t = ListenTLS{cmp.Or(o.Cert, t.Cert), cmp.Or(o.Key, t.Key), cmp.Or(o.ClientCA, t.ClientCA)}
}
