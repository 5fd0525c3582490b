package config

import (
	"math"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
)

// The scalars that configurations are made of. Each is the whole rule of one
// kind of value; files, the environment and flags share them.
var (
	str      = scalar[string]{what: "a string", kinds: text, parse: check(isClean)}
	nonEmpty = scalar[string]{what: "a non-empty string", kinds: text, parse: check(isText)}
	// Arguments, variables and headers have no type: a number is taken as written.
	loose = scalar[string]{what: "a string", kinds: text | number | boolean, parse: check(isClean), secret: true}

	truth     = scalar[bool]{what: "true or false", kinds: boolean, parse: parsed(strconv.ParseBool)}
	count     = scalar[int]{what: "a whole number from 0", kinds: number, parse: between(0, math.MaxInt32)}
	positive  = scalar[int]{what: "a whole number from 1", kinds: number, parse: between(1, math.MaxInt32)}
	levels    = scalar[int]{what: "a whole number from 1 to 1000", kinds: number, parse: between(1, 1000)}
	size      = scalar[int64]{what: "a size from 1B to 1GiB such as 16MiB", kinds: text | number, parse: parseSize}
	duration  = scalar[time.Duration]{what: "a duration such as 500ms, 30s or 5m", kinds: text | number, parse: durationFrom(0)}
	duration1 = scalar[time.Duration]{what: "a duration above zero such as 500ms, 30s or 5m", kinds: text | number, parse: durationFrom(1)}

	address  = scalar[string]{what: "HOST:PORT or unix:///path", kinds: text, parse: check(isAddress)}
	hostName = scalar[string]{what: `a host, HOST:PORT or "*"`, kinds: text, parse: check(isAllowedHost)}
	origin   = scalar[string]{what: `an origin such as https://example.com or "*"`, kinds: text, parse: check(isOrigin)}
	glob     = scalar[string]{what: "a glob such as read_*", kinds: text, parse: check(isGlob)}
	envName  = scalar[string]{what: "the name of a variable", kinds: text, parse: check(isEnvName), secret: true}
	header   = scalar[string]{what: "a header value on one line", kinds: text | number | boolean, parse: check(isHeaderValue), secret: true}
	rootURI  = scalar[string]{what: "a URI such as file:///data", kinds: text, parse: check(isURI)}
	httpURL  = scalar[string]{what: "a URL such as https://example.com/mcp (it begins with http://, https://, ws:// or wss://, the last two without a user)", kinds: text, parse: check(isURL("http", "https", "ws", "wss")), secret: true}
	dialURL  = scalar[string]{what: "unix:///path, tcp://HOST:PORT, tls://HOST:PORT, or a ws or wss URL without a user", kinds: text, parse: check(isURL(linkSchemes...)), secret: true}

	secureURL = scalar[string]{what: "an https URL, or an http URL of this machine, without a user", kinds: text, parse: check(isSecureURL), secret: true}
	issuerURL = scalar[string]{what: "an https URL, or an http URL of this machine, without a user, ? or #", kinds: text, parse: check(isIssuer), secret: true}
	ownURL    = scalar[string]{what: issuerURL.what, kinds: text, parse: parseOwnURL, secret: true}
	tokenName = scalar[string]{what: "a name of 1 to 64 of A-Z a-z 0-9 . _ @ + -", kinds: text, parse: check(regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,64}$`).MatchString)}
	scope     = scalar[string]{what: "one scope, without spaces", kinds: text, parse: check(regexp.MustCompile(`^[\x21\x23-\x5b\x5d-\x7e]+$`).MatchString)} // RFC 6749, 3.3
	amount    = scalar[float64]{what: "a number above zero", kinds: number, parse: parseAmount}
	filter    = oneWord("allow or block", "allow", "block")
	skew      = scalar[time.Duration]{what: "a duration from 0s to 5m", kinds: text | number, parse: durationTo(5 * time.Minute)}
	rate      = scalar[float64]{what: "a rate such as 10/s, 600/m or 1000/h", kinds: text, parse: parseRate}
	algorithm = oneWord("one of "+strings.Join(algorithms, ", ")+" (never none or HS256: whoever can check such a token can make one)", algorithms...)
	whoWord   = oneWord("any, anonymous, operator or a map", "any", "anonymous", "operator")
	store     = oneWord("file or keyring", "file", "keyring")
	// Of principals and claims a number is taken as written, as a user's.
	principalName = scalar[string]{what: "a non-empty string", kinds: text | number | boolean, parse: check(isText)}

	prefixMode = oneWord("auto, always or never", "auto", "always", "never")
	prefixText = scalar[string]{what: "at most 32 of A-Z a-z 0-9 _ -", kinds: text, parse: check(regexp.MustCompile(`^[A-Za-z0-9_-]{0,32}$`).MatchString)}
	session    = oneWord("isolated or shared", "isolated", "shared")
	eraMode    = oneWord("auto, legacy or modern", "auto", "legacy", "modern")
)

// path reads the path of a file, relative to that of the configuration. Empty
// stays empty.
func (v value) path() (string, bool) {
	s, ok := str.read(v)
	return v.resolve(s), ok
}

// filePath is path for one that must not be empty.
func (v value) filePath() (string, bool) {
	s, ok := nonEmpty.read(v)
	return v.resolve(s), ok
}

func (r *reader) resolve(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.dir, path)
}

// algorithms are those of signatures that may be allowed. "none" and those with a shared
// secret never are.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

var linkSchemes = []string{"unix", "tcp", "tls", "ws", "wss"}

const nameRule = "a name of 1 to 32 of A-Z a-z 0-9 _ -, without __"

var upstreamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

func isName(s string) bool {
	return upstreamName.MatchString(s) && !strings.Contains(s, "__")
}

func parsed[T any](f func(string) (T, error)) func(string) (T, bool) {
	return func(s string) (T, bool) {
		t, err := f(s)
		return t, err == nil
	}
}

func check(valid func(string) bool) func(string) (string, bool) {
	return func(s string) (string, bool) { return s, valid(s) }
}

// oneWord is one of some words.
func oneWord(what string, words ...string) scalar[string] {
	return scalar[string]{what: what, words: words, kinds: text, parse: check(func(s string) bool { return slices.Contains(words, s) })}
}

// isClean refuses NUL, which neither a process nor a file system takes.
func isClean(s string) bool { return !strings.Contains(s, "\x00") }

func isText(s string) bool { return s != "" && isClean(s) }

// between reads decimal numbers only: 010 is ten, 0x10 and 1e3 are mistakes.
func between(least, most int) func(string) (int, bool) {
	return func(s string) (int, bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		return int(n), err == nil && n >= int64(least) && n <= int64(most)
	}
}

func durationFrom(least time.Duration) func(string) (time.Duration, bool) {
	return func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= least
	}
}

func durationTo(most time.Duration) func(string) (time.Duration, bool) {
	return func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= 0 && d <= most
	}
}

var sizeText = regexp.MustCompile(`^[0-9]+(\.[0-9]+)? ?(B|[KMG]B?|[KMG]iB)?$`)

// parseSize reads 16MiB as 2^24, 16MB as 16 million and 16 as bytes.
func parseSize(s string) (int64, bool) {
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

func parseAmount(s string) (float64, bool) {
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil && n > 0 && n < 1e9
}

var rateText = regexp.MustCompile(`^([1-9][0-9]{0,8})/([smh])$`)

// parseRate gives the calls of one second.
func parseRate(s string) (float64, bool) {
	m := rateText.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	return n / map[string]float64{"s": 1, "m": 60, "h": 3600}[m[2]], err == nil
}

var hostText = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

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

// isAddress takes an empty host: all interfaces.
func isAddress(s string) bool {
	if p, ok := strings.CutPrefix(s, "unix://"); ok {
		return strings.HasPrefix(p, "/") && len(p) > 1 && isClean(p)
	}
	return isHostPort(s, true)
}

func isPath(command string) bool {
	return strings.ContainsRune(command, '/') || strings.ContainsRune(command, filepath.Separator)
}

// isLocal tells whether an address can be reached from this machine alone.
func isLocal(s string) bool {
	if strings.HasPrefix(s, "unix://") {
		return true
	}
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	return isLoopback(host)
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

var headerToken = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func isHeaderValue(s string) bool { return !strings.ContainsAny(s, "\r\n\x00") }

func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && isClean(s)
}

// isURL takes an absolute path for unix, else a host. tcp and tls have a port
// and nothing else; a WebSocket has no place for a user.
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

// isSecureURL takes http of this machine alone: tokens and keys come from there.
func isSecureURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL("http", "https")(s) && u.User == nil && !strings.Contains(s, "#") &&
		(u.Scheme == "https" || isLoopback(u.Hostname()))
}

// isIssuer is RFC 8414, section 2: an issuer has neither query nor fragment.
func isIssuer(s string) bool { return isSecureURL(s) && !strings.Contains(s, "?") }

// parseOwnURL drops slashes at the end. Empty stays empty.
func parseOwnURL(s string) (string, bool) { return strings.TrimRight(s, "/"), s == "" || isIssuer(s) }
