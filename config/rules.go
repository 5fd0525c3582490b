package config

import (
	"maps"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// A rule says which scalars a key takes and how their text is read. It applies to files, the
// environment and flags.
type rule struct {
	what   string   // completes "must be"
	words  []string // all allowed texts; nil if they cannot be listed
	kinds  tree.Kind
	parse  func(string) (any, bool)
	secret bool // error lines do not show the text, which may be a secret
	path   bool // a path: relative to the directory of the file
}

const (
	anyScalar = tree.Text | tree.Number | tree.Boolean

	urlWhat   = "an https URL, or an http URL of this machine, without a user"
	localWhat = urlWhat + ", ? or #"
)

// rules are the rules for the tag "is". ruleOf makes those of other fields from their type and the
// tags enum, min and max.
var rules = map[string]rule{
	"":         {what: "a string", kinds: tree.Text, parse: check(isClean)},
	"nonEmpty": {what: "a non-empty string", kinds: tree.Text, parse: check(isText)},
	// Arguments, variables and headers may be numbers, which are used as written.
	"loose":     {what: "a string", kinds: anyScalar, parse: check(isClean), secret: true},
	"header":    {what: "a header value on one line, without control characters", kinds: anyScalar, parse: check(isHeaderValue), secret: true},
	"principal": {what: "a non-empty string", kinds: anyScalar, parse: check(isText)},

	"path":    {what: "a string", kinds: tree.Text, parse: check(isClean), path: true},
	"file":    {what: "a non-empty string", kinds: tree.Text, parse: check(isText), path: true},
	"command": {what: "a non-empty string", kinds: tree.Text, parse: check(isText)},

	"size":     {what: "a size from 1B to 1GiB such as 16MiB", kinds: tree.Text | tree.Number, parse: parseSize},
	"rate":     {what: "a rate such as 10/s, 600/m or 1000/h", kinds: tree.Text, parse: parseRate},
	"fraction": {what: "a number from 0 to 1 such as 0.1", kinds: tree.Number, parse: parseFraction},

	"address":     {what: "HOST:PORT (a port is at most 65535) or unix:///path", kinds: tree.Text, parse: check(isAddress)},
	"twoPorts":    {what: "HOST:PORT with a port from 1 to 65534 (links use the next one)", kinds: tree.Text, parse: check(isClusterAddress)},
	"member":      {what: "HOST or HOST:PORT", kinds: tree.Text, parse: check(isMember)},
	"host":        {what: `a host, HOST:PORT or "*"`, kinds: tree.Text, parse: check(isAllowedHost)},
	"origin":      {what: `an origin such as https://example.com or "*"`, kinds: tree.Text, parse: check(isOrigin)},
	"uri":         {what: "a URI such as file:///data", kinds: tree.Text, parse: check(isURI)},
	"url":         {what: "a URL such as https://example.com/mcp (it begins with http://, https://, ws:// or wss://, the last two without a user)", kinds: tree.Text, parse: check(isURL("http", "https", "ws", "wss")), secret: true},
	"dialURL":     {what: "unix:///path, tcp://HOST:PORT, tls://HOST:PORT, or a ws or wss URL without a user", kinds: tree.Text, parse: check(isURL(linkSchemes...)), secret: true},
	"collector":   {what: "an http or https URL such as http://127.0.0.1:4318, without a user, ? or #", kinds: tree.Text, parse: check(isCollector), secret: true},
	"issuer":      {what: localWhat, kinds: tree.Text, parse: check(isIssuer), secret: true},
	"publicURL":   {what: localWhat, kinds: tree.Text, parse: parsePublicURL, secret: true},
	"optionalURL": {what: urlWhat, kinds: tree.Text, parse: check(func(s string) bool { return s == "" || isSecureURL(s) }), secret: true},

	"glob":       {what: "a glob such as read_*", kinds: tree.Text, parse: check(isGlob)},
	"prefix":     {what: "at most 32 of A-Z a-z 0-9 _ -", kinds: tree.Text, parse: matching(`^[A-Za-z0-9_-]{0,32}$`)},
	"tokenName":  {what: "a name of 1 to 64 of A-Z a-z 0-9 . _ @ + -", kinds: tree.Text, parse: matching(`^[A-Za-z0-9._@+-]{1,64}$`)},
	"scope":      {what: "one scope, without spaces", kinds: tree.Text, parse: matching(`^[\x21\x23-\x5b\x5d-\x7e]+$`)}, // RFC 6749, 3.3
	"envName":    {what: "the name of a variable", kinds: tree.Text, parse: check(isEnvName), secret: true},
	"headerName": {what: "the name of a header", kinds: tree.Text, parse: check(headerToken.MatchString)},
	"claim":      {what: "the name of a claim", kinds: tree.Text, parse: check(isText)},

	"who":        wordOf("any, anonymous, operator or a map", "any", "anonymous", "operator"),
	"algorithm":  wordOf("one of "+strings.Join(algorithms, ", ")+" (never none or HS256: whoever can check such a token can make one)", algorithms...),
	"era":        wordOf("auto, legacy or modern", "auto", "legacy", "modern").becoming(map[string]any{"auto": ""}),
	"session":    wordOf("isolated or shared", "isolated", "shared").becoming(map[string]any{"isolated": false, "shared": true}),
	"serverType": wordOf("stdio, http, streamable-http, sse or ws", slices.Sorted(maps.Keys(serverTypes))...).becoming(serverTypes),
}

// serverTypes maps the names of transports, of other programs and ours, to ours.
var serverTypes = map[string]any{
	"stdio": "stdio", "local": "stdio",
	"http": "http", "streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "remote": "http",
	"sse": "sse",
	"ws":  "ws", "websocket": "ws",
}

// algorithms are the allowed signature algorithms. "none" and those with a shared secret are never
// allowed.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

var linkSchemes = []string{"unix", "tcp", "tls", "ws", "wss"}

// ruleOf returns the rule for scalars of a type with these tags.
func ruleOf(t reflect.Type, tag reflect.StructTag) rule {
	if words := tag.Get("enum"); words != "" {
		all := strings.Split(words, ",")
		last := len(all) - 1
		return wordOf(strings.Join(all[:last], ", ")+" or "+all[last], all...)
	}
	switch {
	case tag.Get("is") != "":
		r, ok := rules[tag.Get("is")]
		if !ok {
			panic("config: no rule " + tag.Get("is"))
		}
		return r
	case t == reflect.TypeFor[time.Duration]():
		return durationRule(tag)
	case t.Kind() == reflect.Int:
		return integerRule(tag)
	case t.Kind() == reflect.Bool:
		return rule{what: "true or false", kinds: tree.Boolean, parse: func(s string) (any, bool) {
			b, err := strconv.ParseBool(s)
			return b, err == nil
		}}
	}
	return rules[""]
}

func wordOf(what string, words ...string) rule {
	return rule{what: what, words: words, kinds: tree.Text, parse: check(func(s string) bool { return slices.Contains(words, s) })}
}

// becoming returns a rule that maps some words to other values.
func (r rule) becoming(values map[string]any) rule {
	valid := r.parse
	r.parse = func(s string) (any, bool) {
		word, ok := valid(s)
		if value, other := values[s]; other {
			word = value
		}
		return word, ok
	}
	return r
}

// integerRule accepts decimal numbers only: 010 is ten, 0x10 and 1e3 are mistakes.
func integerRule(tag reflect.StructTag) rule {
	least, _ := strconv.Atoi(tag.Get("min"))
	most, what := math.MaxInt32, "a whole number from "+strconv.Itoa(least)
	if m, err := strconv.Atoi(tag.Get("max")); err == nil {
		most, what = m, what+" to "+tag.Get("max")
	}
	return rule{what: what, kinds: tree.Number, parse: func(s string) (any, bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		return int(n), err == nil && n >= int64(least) && n <= int64(most)
	}}
}

func durationRule(tag reflect.StructTag) rule {
	least, _ := time.ParseDuration(tag.Get("min"))
	most, err := time.ParseDuration(tag.Get("max"))
	what := "a duration such as 500ms, 30s or 5m"
	switch {
	case err == nil:
		what = "a duration from " + least.String() + " to " + tag.Get("max")
	case least > 0:
		what = "a duration above zero such as 500ms, 30s or 5m"
	}
	return rule{what: what, kinds: tree.Text | tree.Number, parse: func(s string) (any, bool) {
		d, bad := time.ParseDuration(s)
		return d, bad == nil && d >= least && (err != nil || d <= most)
	}}
}

func check(valid func(string) bool) func(string) (any, bool) {
	return func(s string) (any, bool) { return s, valid(s) }
}

func matching(pattern string) func(string) (any, bool) {
	return check(lazyregexp.New(pattern).MatchString)
}

// takes reports whether a rule of this name accepts a text.
func takes(is, s string) bool {
	_, ok := rules[is].parse(s)
	return ok
}

// isClean refuses NUL, which neither processes nor file systems accept.
func isClean(s string) bool { return !strings.Contains(s, "\x00") }

func isText(s string) bool { return s != "" && isClean(s) }

var sizeText = lazyregexp.New(`^[0-9]+(\.[0-9]+)? ?(B|[KMG]B?|[KMG]iB)?$`)

// parseSize reads 16MiB as 2^24, 16MB as 16 million and 16 as 16 bytes.
func parseSize(s string) (any, bool) {
	if !sizeText.MatchString(s) {
		return 0, false
	}
	parse := units.FromHumanSize
	if strings.Contains(s, "i") {
		parse = units.RAMInBytes
	}
	n, err := parse(s)
	return n, err == nil && n >= 1 && n <= 1<<30
}

func parseFraction(s string) (any, bool) {
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && f >= 0 && f <= 1
}

var rateText = lazyregexp.New(`^([1-9][0-9]{0,8})/([smh])$`)

// parseRate returns the calls a second.
func parseRate(s string) (any, bool) {
	m := rateText.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	return n / map[string]float64{"s": 1, "m": 60, "h": 3600}[m[2]], err == nil
}

var hostText = lazyregexp.New(`^[A-Za-z0-9._-]+$`)

func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return hostText.MatchString(s)
}

func isHostPort(s string, empty bool) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil && (isHost(host) || host == "" && empty)
}

// isAddress accepts an empty host, which means all interfaces.
func isAddress(s string) bool {
	if p, ok := strings.CutPrefix(s, "unix://"); ok {
		return strings.HasPrefix(p, "/") && len(p) > 1 && isClean(p)
	}
	return isHostPort(s, true)
}

// isClusterAddress reports whether an address leaves a port for links.
func isClusterAddress(s string) bool {
	if !isHostPort(s, true) {
		return false
	}
	_, port, _ := net.SplitHostPort(s)
	n, _ := strconv.Atoi(port)
	return 0 < n && n < 65535
}

// isMember accepts a host or an IP address without a port, too.
func isMember(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil || isHost(s) && !strings.Contains(s, ":") || isHostPort(s, false)
}

func isPath(command string) bool {
	return strings.ContainsRune(command, '/') || strings.ContainsRune(command, filepath.Separator)
}

// isLocal reports whether only this machine can reach an address.
func isLocal(s string) bool {
	if strings.HasPrefix(s, "unix://") {
		return true
	}
	host, _, err := net.SplitHostPort(s)
	return err == nil && isLoopback(host)
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

func isAllowedHost(s string) bool {
	bare := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	return s == "*" || isHost(bare) || isHostPort(s, false)
}

func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return s == "*" || err == nil && u.Scheme != "" && u.Host != "" && s == u.Scheme+"://"+u.Host
}

func isGlob(s string) bool {
	_, err := path.Match(s, "")
	return err == nil && s != ""
}

func isEnvName(s string) bool { return s != "" && !strings.ContainsAny(s, "=\x00") }

var headerToken = lazyregexp.New("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// isHeaderValue accepts what net/http sends: no control characters but tabs.
func isHeaderValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && isClean(s)
}

// isURL requires an absolute path for unix, else a host. tcp and tls have a port
// and nothing else; a WebSocket URL must not have a user.
func isURL(schemes ...string) func(string) bool {
	return func(s string) bool {
		u, err := url.Parse(s)
		if err != nil || !slices.Contains(schemes, u.Scheme) {
			return false
		}
		switch u.Scheme {
		case "unix":
			return u.Host == "" && len(u.Path) > 1 && isClean(u.Path)
		case "tcp", "tls":
			return s == u.Scheme+"://"+u.Host && isHostPort(u.Host, false)
		case "ws", "wss":
			return u.Hostname() != "" && u.User == nil
		}
		return u.Hostname() != ""
	}
}

// isSecureURL allows http only for this machine: tokens and keys come from such URLs.
func isSecureURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL("http", "https")(s) && u.User == nil && !strings.Contains(s, "#") &&
		(u.Scheme == "https" || isLoopback(u.Hostname()))
}

// isIssuer follows RFC 8414, section 2: an issuer has neither query nor fragment.
func isIssuer(s string) bool { return isSecureURL(s) && !strings.Contains(s, "?") }

func isCollector(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL("http", "https")(s) && u.User == nil && !strings.ContainsAny(s, "?#")
}

// parsePublicURL removes slashes at the end. It accepts "".
func parsePublicURL(s string) (any, bool) { return strings.TrimRight(s, "/"), s == "" || isIssuer(s) }

// ReservedName cannot name an upstream.
const ReservedName = tree.Reserved

const reserved = "the name is reserved: /mcp/" + ReservedName + " has the server card"

const nameRule = "a name of 1 to 32 of A-Z a-z 0-9 _ -, without __"
