package config

// A group of keys is one table of docs/configuration.md. At the top of a file there are several,
// by what they are for.
type group struct {
	at   string // the path before its keys; a map has NAME, a list []
	keys []about
}

// about says what some keys are, for people. It is the source of docs/configuration.md and of
// the schema.
type about struct {
	keys     []string
	standard string // in Markdown; "" for none
	text     string // in Markdown; links lead from docs
}

// reference has every key of a file.
var reference = []group{
	{``, []about{
		{[]string{"upstreams"}, ``, `[servers](#upstreams), by name`},
		{[]string{"links"}, ``, `[hosts elsewhere](#links), by name`},
		{[]string{"prefix"}, "`auto`", "names as `upstream__name`: `auto` with several upstreams, `always`, `never`"},
		{[]string{"tokenStore"}, "`file`", "where the tokens of logins are kept: `file`, or the `keyring` of the system"},
	}},
	{``, []about{
		{[]string{"listen"}, "`[\"127.0.0.1:8080\"]`", "`HOST:PORT` or `unix:///path`. Beyond loopback only if clients prove who they are (`tokenFile`, `auth` or `tls.clientCA`), or with `insecure: true`"},
		{[]string{"insecure"}, "`false`", `listen beyond loopback though clients prove nothing`},
		{[]string{"tls.cert", "tls.key"}, ``, "PEM files of our certificate and its key: `serve` ends TLS itself"},
		{[]string{"publicURL"}, ``, "how clients reach us, such as `https://mcp.example.com`: `https`, or `http` for this machine. Its name is an allowed `Host`"},
		{[]string{"allowedHosts"}, "`[]`", "allowed values of `Host`, besides loopback names and the listen addresses; `\"*\"`: any"},
		{[]string{"allowedOrigins"}, "`[]`", `allowed web origins, besides loopback. All allowed origins get CORS headers`},
	}},
	{``, []about{
		{[]string{"tokenFile"}, ``, `file with the bearer token that clients must send; read again when it changes`},
		{[]string{"tls.clientCA"}, ``, `PEM file of authorities: clients are known by certificates of these`},
		{[]string{"auth"}, ``, `[who clients are](#who-clients-are)`},
		{[]string{"policies"}, ``, `[what they may do](#what-clients-may-do); without it everything`},
	}},
	{``, []about{
		{[]string{"limits.message"}, "`16MiB`", `one message, in either direction`},
		{[]string{"limits.depth"}, "`1000`", `levels of nesting in a message`},
		{[]string{"limits.inFlight"}, "`1024`", `requests in flight of one client`},
		{[]string{"limits.sessions"}, "`256`", "clients at a time; more get 503 with `Retry-After`. Each needs a descriptor (`ulimit -n`), and some memory for each upstream"},
		{[]string{"sessionIdle"}, "`30m`", `an HTTP session without traffic ends after this`},
		{[]string{"sessionGone"}, "`5m`", "an HTTP session whose GET stream closed ends after this, if its client does not return. A client returns when it opens the stream again, sends a request or receives a response. From then on `sessionIdle` counts, since some clients continue without the stream. Requests in flight and unfinished tasks keep the session, for `sessionIdle` at most"},
		{[]string{"listTimeout"}, "`10s`", `merged lists leave out an upstream that is slower than this. The next lists do not wait for it, until it has answered or no other can`},
		{[]string{"drain"}, "`5s`", `time for what is in flight when a stdio client closes stdin`},
		{[]string{"drainDelay"}, "`0s`", "after SIGTERM `/readyz` fails, and `serve` and `host` go on as before for so long. Then `shutdownGrace` begins. A second signal skips the rest of the delay"},
		{[]string{"shutdownGrace"}, "`8s`", `the whole time for a shutdown, the upstreams' included`},
	}},
	{``, []about{
		{[]string{"admin.listen"}, "`[]`", "`HOST:PORT` or `unix:///path`: [where operators look in](operations.md), besides the socket that each process has"},
		{[]string{"admin.tokenFile"}, ``, `file with the bearer token that operators on TCP send; without it they get probes and metrics alone`},
		{[]string{"admin.payloads"}, "`false`", "operators on a Unix socket may see what is in messages (`tap --payloads`, without what looks like a secret), and record all of it (`tap --record`)"},
		{[]string{"logs.calls"}, "`false`", "one info line for each call: who called what where, how long it took, how it ended. Beyond 100 lines a second calls are left out, and the next line says how many (`left_out`); those that failed have 100 lines for themselves"},
		{[]string{"traces.endpoint"}, ``, "base URL of a collector that gets [traces](operations.md#traces) of calls (OTLP over HTTP). Without it the variables of OpenTelemetry count, such as `OTEL_EXPORTER_OTLP_ENDPOINT`; without these there are no traces"},
		{[]string{"traces.sample"}, "`1`", "part of the traces without a parent that is recorded, from 0 to 1"},
		{[]string{"traces.headersFrom"}, "`{}`", "headers for the collector, with values from files that are read again when they change"},
		{[]string{"traces.tls.ca", "traces.tls.cert", "traces.tls.key"}, ``, "PEM files for an `https` endpoint: its authorities, our certificate and its key"},
	}},
	{`upstreams.NAME`, []about{
		{[]string{"command", "args"}, ``, "the server, which speaks MCP on stdin and stdout: only the program in `command`, its arguments in `args`"},
		{[]string{"url"}, ``, "instead of a command: a remote server, `http(s)://` or `ws(s)://`"},
		{[]string{"replay"}, ``, "instead of a command: a recording (`tap --record FILE`) that answers in the server's place"},
		{[]string{"headers"}, "`{}`", `for each HTTP request to it`},
		{[]string{"headersFrom"}, "`{}`", `the same with values from files, which are read again when they change. If a file is missing or empty, requests fail`},
		{[]string{"tls.ca", "tls.cert", "tls.key"}, `the system's`, "PEM files: the authority to trust, and our certificate. `HTTPS_PROXY` and the like are used"},
		{[]string{"auth"}, ``, "only with `url`: [how we prove who we are](#how-the-proxy-proves-who-it-is)"},
		{[]string{"maxConcurrent"}, "`0`", "only with `url`: requests to it at once, of all clients together. Others wait; `0`: no bound"},
		{[]string{"era"}, "`auto`", "what it speaks: `legacy` (until 2025-11-25), `modern` (2026-07-28), or `auto`: [the proxy finds out](eras.md)"},
		{[]string{"session"}, "`isolated`", "`isolated`: each client has its own process or session; `shared`: all have one"},
		{[]string{"roots"}, ``, "shared only: URIs that answer its `roots/list` outside of a call. Without them that is refused"},
		{[]string{"env"}, "`{}`", `variables for it`},
		{[]string{"inheritEnv"}, "`[]`", "our variables that it gets besides `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TERM`, `LANG`, `LC_*`, `TZ`, `TMPDIR`, proxy settings, `SSL_CERT_FILE`, `SSL_CERT_DIR`, `NODE_EXTRA_CA_CERTS` and `REQUESTS_CA_BUNDLE`. `AWS_*` means all that begin with `AWS_`, `[all]` means all"},
		{[]string{"cwd"}, `the proxy's own`, `working directory. It is relative to the config file, and so is a command with a slash`},
		{[]string{"required"}, "`false`", "[readiness](operations.md) waits for it. It is started with the proxy: a shared server stays, and is started again when it is gone. An isolated command, or a session with a remote server, is tried until it has answered `initialize` once"},
		{[]string{"startTimeout"}, "`30s`", "for the answer to `initialize`. A client's own `initialize` waits at most 8 s, and for a server that was late before only if no other answers. The start goes on"},
		{[]string{"requestTimeout"}, "`0s`", "for an answer or progress, without a maximum. It stops while the client is asked something; `0`: as long as the client waits"},
		{[]string{"writeTimeout"}, "`60s`", `a server that reads nothing from stdin for so long is ended`},
		{[]string{"stopGrace"}, "`2s`", `between closing stdin, SIGTERM and SIGKILL`},
		{[]string{"prefix"}, `its name`, "in place of the upstream's name in the names that clients see; `\"\"`: no prefix"},
		{[]string{"tools.allow", "tools.deny"}, "`[]`", `globs on the server's own tool names; deny wins. Calls are refused, too`},
	}},
	{`links.NAME`, []about{
		{[]string{"dial"}, ``, "where its host listens: `unix:///path`, `tcp://`, `tls://`, `ws://` or `wss://`"},
		{[]string{"accept"}, ``, "`true`: its host dials us, at `/link`"},
		{[]string{"tokenFile"}, ``, "file with the bearer token that the host must send (`accept`), or that we send (`ws`, `wss`). Each accepted host has its own. Read again when it changes"},
		{[]string{"tls.ca", "tls.cert", "tls.key"}, ``, "PEM files for `tls` and `wss`"},
		{[]string{"auth"}, ``, "[how we prove who we are](#how-the-proxy-proves-who-it-is), in place of `tokenFile` (`ws`, `wss` to dial)"},
		{[]string{"insecure"}, ``, "`true`: `tcp` or `ws` to another machine is intended"},
		{[]string{"upstreams"}, `any`, "globs on what the host may announce: names of upstreams, and prefixes where it sets some. No later link gets such a name, whether this one is up or not: [who has a name](#two-upstreams-with-one-name)"},
		{[]string{"required"}, ``, "`true`: [readiness](operations.md) waits until the link is up, and fails while it is lost"},
		{[]string{"heartbeat"}, ``, "`5s`: how often the host is asked for a sign of life. After three without an answer it is gone"},
	}},
	{`auth.jwt[]`, []about{
		{[]string{"issuer"}, ``, "its URL, as it stands in the claim `iss`: a slash at the end counts. `https`, or `http` of this machine"},
		{[]string{"audience"}, ``, "whom a token must be for (`aud`), one or a list. With `publicURL` the URL that a client asks for will do, too. It is never optional: without it a token for any other service would do"},
		{[]string{"jwksURL", "jwksFile"}, `discovered`, `where its keys are, at most one of the two`},
		{[]string{"algorithms"}, "`[RS256, ES256, EdDSA]`", "that tokens may be signed with: also `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES384`, `ES512`"},
		{[]string{"principal"}, "`sub`", `the claim that says who the client is`},
		{[]string{"scopes"}, "`[]`", `those that every token must have`},
		{[]string{"skew"}, "`30s`", "by how much clocks may differ, `5m` at most"},
	}},
	{`policies[]`, []about{
		{[]string{"who", "who.any", "who.anonymous", "who.operator"}, ``, "`any`, `anonymous` (who has proved nothing), `operator` (the client of `stdio`), or one of the next four. Each may also be a key with `true`"},
		{[]string{"who.token"}, ``, "the name of a token in `auth.tokens`, or `default`"},
		{[]string{"who.issuer", "who.principal", "who.claims"}, ``, `who has a JWT of that issuer; with that name; with those claims. A claim is that text, or a list or text of words with that one among them`},
		{[]string{"who.certificate"}, ``, "the common name in a client's certificate, else its first URI, DNS name or email address; beside it `who.issuer`, the common name of its authority"},
		{[]string{"who.user"}, ``, `a user of this system on the other end of a Unix socket, where no tokens are configured: the name, or the number if there is none`},
		{[]string{"tools.allow", "tools.deny", "prompts.allow", "prompts.deny", "resources.allow", "resources.deny"}, ``, "globs on `upstream__name`, whatever names the client sees, and on URIs. Deny wins. If any of the three has `allow`, all else is denied, of all three. What is denied looks as if it were not there"},
		{[]string{"scopes"}, ``, `globs as above, and the scopes that a client needs for what they match. All that match count. Only a JWT has scopes`},
		{[]string{"limits.rate"}, ``, "requests and notifications: `10/s`, `600/m` or `1000/h`. As many as in one second may come at once, or 10. Notifications beyond it are dropped and counted in the status; `initialized` and cancellations do not count"},
		{[]string{"limits.inFlight", "limits.sessions"}, ``, `requests and sessions at a time. With requests that were cancelled and that no server has answered, for 30 s, there may be four times as many. All limits are for each client by itself, whatever number of connections it has`},
	}},
	{"auth.tokens[]", []about{
		{[]string{"name"}, "", "who has the token; policies and logs call the client so"},
		{[]string{"tokenFile"}, "", "file with the token; read again when it changes"},
	}},
	{"upstreams.NAME.auth", []about{
		{[]string{"oauth"}, "", "a person logs in, with `mcp-proxy login`: `{}`, or with a client that is registered there"},
		{[]string{"oauth.clientId"}, "registered by us", "the client's id, or the `https` URL of its client id metadata document"},
		{[]string{"oauth.clientSecretFile"}, "", "file with the client's secret"},
		{[]string{"oauth.scopes"}, "those that the server names", "scopes to ask for"},
		{[]string{"clientCredentials"}, "", "a program logs in"},
		{[]string{"clientCredentials.clientId"}, "", "the client's id"},
		{[]string{"clientCredentials.clientSecretFile"}, "", "file with the client's secret"},
		{[]string{"clientCredentials.privateKeyFile"}, "", "PEM or JWK, signs an assertion"},
		{[]string{"clientCredentials.assertionFile"}, "", "an assertion that somebody else renews"},
		{[]string{"clientCredentials.tokenURL"}, "discovered", "where tokens come from"},
		{[]string{"clientCredentials.scopes"}, "those that the server names", "scopes to ask for"},
	}},
}
