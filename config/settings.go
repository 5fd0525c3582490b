package config

import (
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/viper"
)

const envPrefix = "MCP_PROXY_"

// A setting is a top-level key that the environment can give as well. viper
// holds its layers: values from the file, the default and the flag are typed, so
// that a string found there came from the environment.
type setting struct {
	key      string
	standard any
	file     func(value) (any, bool)
	env      func(string) (typed any, what string) // what it must be, if it is not
	secret   bool                                  // its text may be one: error lines do not repeat it
}

// settings are all of them, in the order of the contract; Config has a field of
// the same name for each.
var settings = []setting{
	many("listen", address, "127.0.0.1:8080"),
	tokenFile(),
	one("insecure", truth, false),
	many("allowedHosts", hostName),
	many("allowedOrigins", origin),
	one("sessionIdle", duration1, 30*time.Minute),
	one("sessionGone", duration1, 5*time.Minute),
	one("listTimeout", duration1, 10*time.Second),
	one("drain", duration, 5*time.Second),
	one("drainDelay", duration, time.Duration(0)),
	one("shutdownGrace", duration, 8*time.Second),
	one("prefix", prefixMode, "auto"),
	one("publicURL", ownURL, ""),
	one("tokenStore", store, "file"),
}

func one[T any](key string, s scalar[T], standard T) setting {
	return setting{
		key:      key,
		standard: standard,
		file:     func(v value) (any, bool) { return s.read(v) },
		env: func(from string) (any, string) {
			t, ok := s.parse(from)
			return t, unless(ok, s.what)
		},
		secret: s.secret,
	}
}

// many is a list: a comma-separated one in the environment, never in a file.
func many(key string, s scalar[string], standard ...string) setting {
	return setting{
		key:      key,
		standard: standard,
		file:     func(v value) (any, bool) { return s.list(v) },
		env: func(from string) (any, string) {
			items := strings.Split(from, ",")
			for i := range items {
				items[i] = strings.TrimSpace(items[i])
				if _, ok := s.parse(items[i]); !ok {
					return nil, "a comma-separated list, each " + s.what
				}
			}
			return items, ""
		},
	}
}

// tokenFile counts from the file's directory in a file, and from the working
// directory in the environment.
func tokenFile() setting {
	s := one("tokenFile", str, "")
	s.file = func(v value) (any, bool) { return v.path() }
	return s
}

func unless(ok bool, what string) string {
	if ok {
		return ""
	}
	return what
}

// variable is the environment variable of a setting: MCP_PROXY_SHUTDOWN_GRACE,
// MCP_PROXY_PUBLIC_URL.
func (s setting) variable() string {
	var b strings.Builder
	b.WriteString(envPrefix)
	lower := false // the letter before
	for _, r := range s.key {
		if lower && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
		lower = unicode.IsLower(r)
	}
	return b.String()
}

// layered is a viper that knows every setting, its default and its variable. An
// empty variable counts as unset.
func layered(file viper.DecoderRegistry) *viper.Viper {
	v := viper.NewWithOptions(viper.WithDecoderRegistry(file))
	for _, s := range settings {
		v.SetDefault(s.key, s.standard)
		// It fails only without a key.
		_ = v.BindEnv(s.key, s.variable())
	}
	return v
}

// environment gives the settings that come from the environment their types,
// and warns of variables that are none.
func (l *loader) environment(v *viper.Viper) {
	known := make(map[string]bool)
	for _, s := range settings {
		known[s.variable()] = true
		from, ok := v.Get(s.key).(string)
		if !ok {
			continue
		}
		typed, what := s.env(from)
		switch {
		case what == "":
			v.Set(s.key, typed)
		case s.secret:
			l.fail(s.variable(), "", "must be %s", what)
		default:
			l.fail(s.variable(), "", "must be %s, not %s", what, quote(from))
		}
	}
	for _, name := range environNames() {
		if strings.HasPrefix(name, envPrefix) && !known[name] {
			l.warn(name, "", "is no setting and is ignored")
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
