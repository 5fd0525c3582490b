package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A direct holds the flags of a command that starts servers itself, uses them and stops them.
type direct struct {
	config       string
	url          string
	headers      []string
	tokenFile    string
	startTimeout time.Duration
	logLevel     string
	json         bool
}

func (d *direct) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	addConfigFlag(cmd, &d.config)
	flags.StringVar(&d.url, "url", "", "`URL` of the server: http(s):// or ws(s)://; as an argument it is the same")
	flags.StringArrayVarP(&d.headers, "header", "H", nil, `with a URL: "Name: value" to send with each request, ${NAME} expanded; may be repeated`)
	flags.Func("token-file", "with a URL: `FILE` with the bearer token to send", given(&d.tokenFile))
	flags.DurationVar(&d.startTimeout, "start-timeout", 0, "how long each server may take to start (default: its startTimeout, 30s)")
	flags.StringVar(&d.logLevel, "log-level", "error", "debug, info, warn or error: what to log on stderr meanwhile")
	addJSONFlag(cmd, &d.json)
}

// urlAmong removes a URL from the name and the arguments of a tool, none of which can be one, and sets d.url.
func (d *direct) urlAmong(words []string) ([]string, error) {
	at := slices.IndexFunc(words, isURL)
	if at < 0 {
		return words, nil
	}
	if d.url != "" {
		return nil, errors.New("--url and a URL as an argument exclude each other")
	}
	d.url = words[at]
	words = slices.Delete(slices.Clone(words), at, at+1)
	if slices.ContainsFunc(words, isURL) {
		return nil, errors.New("call takes one URL")
	}
	return words, nil
}

// loadArgs is load for arguments that are one URL, or one command behind "--".
func (d *direct) loadArgs(cmd *cobra.Command, args []string) (*start, error) {
	before, command := cutDash(cmd, args)
	switch {
	case d.url != "" && len(args) > 0, len(before) > 1, len(before) == 1 && len(command) > 0:
		return nil, fmt.Errorf("%s takes one URL, or one command behind --", cmd.Name())
	case len(before) == 0:
	case isURL(before[0]):
		d.url = before[0]
	default:
		return nil, commandBehindDash(cmd, args)
	}
	return d.load(command)
}

// load reads the configuration, or makes one from the command or the URL.
func (d *direct) load(command []string) (*start, error) {
	log, err := newLogger(stderr, "auto", d.logLevel)
	if err != nil {
		return nil, err
	}
	headers := d.headers
	token, err := tokenOf("--token-file", d.tokenFile)
	if err != nil {
		return nil, err
	}
	if token != "" {
		headers = append(headers, "Authorization: Bearer "+strings.ReplaceAll(token, "${", "$${"))
	}
	cfg, warnings, err := config.Load(config.Options{
		File: d.config, Command: command, URL: d.url, Headers: headers, Instead: []string{"a URL", "-- CMD ARGS"},
	})
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	if len(headers) > 0 && d.url == "" {
		return nil, errors.New("--header and --token-file go with a URL: what upstreams are sent is in the configuration")
	}
	if len(cfg.Upstreams)+len(cfg.Links) == 0 {
		return nil, fmt.Errorf("%s has no upstreams and no links", cfg.File)
	}
	for i := range cfg.Upstreams {
		if d.startTimeout > 0 {
			cfg.Upstreams[i].StartTimeout = d.startTimeout
		}
	}
	return &start{cfg: cfg, log: log, url: d.url}, nil
}

// use runs f with a client of a proxy with that configuration, and then stops everything that was
// started. A signal cancels the context of f.
func (s *start) use(ctx context.Context, f func(context.Context, *proxy.Proxy, *proxy.Client) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	p, err := proxy.New(proxy.Quiet(s.cfg), proxy.Options{Log: s.log, Stdio: true, CacheDir: cacheDir(), Patience: s.patience()})
	if err != nil {
		return failedBy(err)
	}
	defer func() { _ = p.Shutdown(ctx) }() // it fails only if a signal forces it
	client, err := p.Client(ctx, "")
	answer, _ := errors.AsType[*proxy.AnswerError](err)
	switch {
	case answer == nil || ctx.Err() != nil:
	case answer.Status() > 0:
		return &runError{fmt.Errorf("%w%s", err, wrongPath(ctx, s.cfg, answer.Status()))}
	case answer.NeedsLogin() && s.url != "": // clients are never told a URL, but this is a terminal
		return &runError{fmt.Errorf("%w, where URL is %s", err, redacted(s.url))}
	}
	if err != nil {
		if mistakes := proxy.Check(s.cfg); len(mistakes) > 0 { // they say how to mend it
			err = fmt.Errorf("%w\n%s", err, mistakes.Error()) // not %w: the exit code is 1
		}
		return failed(ctx, err)
	}
	defer client.Close()
	return f(ctx, p, client)
}

// redacted returns a URL without its password.
func redacted(address string) string {
	at, err := url.Parse(address)
	if err != nil {
		return "what was given"
	}
	return at.Redacted()
}

// wrongPath returns a hint for a URL that was answered with an HTTP status: what its server says
// about an unknown path or another reason, and where MCP servers usually are.
func wrongPath(ctx context.Context, cfg *config.Config, status int) string {
	if len(cfg.Upstreams) == 0 { // the server is behind a link
		return ""
	}
	at, err := url.Parse(cfg.Upstreams[0].URL)
	if err != nil || at.Host == "" {
		return ""
	}
	hint := ""
	if status == http.StatusNotFound || status == http.StatusForbidden {
		hint = refusalOf(ctx, *at, cfg.Upstreams[0].Headers)
	}
	if hint != "" {
		hint = ": " + hint
	}
	path := "/mcp"
	if strings.HasPrefix(at.Scheme, "ws") {
		path = "/ws"
	}
	if !strings.Contains(at.Path, path) && (status == http.StatusNotFound || path == "/ws" || strings.Trim(at.Path, "/") == "") {
		hint += "; try " + at.Scheme + "://" + at.Host + path
	}
	if status == http.StatusBadRequest && (at.Scheme == "http" || at.Scheme == "ws" && hint == "") { // servers with TLS say that to plain HTTP
		hint += "; if it expects TLS, " + at.Scheme + "s://" + at.Host + at.Path
	}
	return hint
}

// refusalOf returns the message of the JSON-RPC error with which a server refuses a request of a URL; "" for any
// other answer, such as a page.
func refusalOf(ctx context.Context, at url.URL, headers map[string]string) string {
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	at.Scheme = strings.Replace(at.Scheme, "ws", "http", 1)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return ""
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	c := newAdminClient("", &http.Transport{Proxy: http.ProxyFromEnvironment}).http // follows no redirects
	defer c.CloseIdleConnections()
	resp, err := c.Do(r)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var body struct{ Error struct{ Message string } }
	_ = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&body)
	return oneLine(body.Error.Message, 2000)
}

// patience is how long the client waits for the servers to start.
func (s *start) patience() (longest time.Duration) {
	longest = time.Second
	for _, u := range s.cfg.Upstreams {
		longest = max(longest, u.StartTimeout)
	}
	return longest + time.Second // a server's own timeout comes first: its error says more
}
