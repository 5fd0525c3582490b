package proxy_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// visited is an answer to a browser.
type visited struct {
	status int
	header http.Header
	body   string
}

// visit gets a URL, with headers as "Name: value"; "POST" among them makes it a POST.
func visit(t *testing.T, url string, header ...string) visited {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		switch name {
		case "POST":
			r.Method = name
		case "Host":
			r.Host = value
		default:
			r.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return visited{resp.StatusCode, resp.Header, string(body)}
}

// servePage serves a configuration, and returns where its page is.
func servePage(t *testing.T, cfg config.Config) string {
	t.Helper()
	_, url := serveWith(t, cfg, proxy.Options{})
	return strings.TrimSuffix(url, "mcp")
}

var asBrowser = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"

// The page at / is for browsers that ask for it by its own address. Pages of other sites cannot
// read it, even if their origins may use the proxy.
func TestWhoSeesThePage(t *testing.T) {
	url := servePage(t, config.Config{
		Upstreams: []config.Upstream{{Name: "files", Process: config.Process{Command: "/there/is/none"}}},
		Frontend:  config.Frontend{AllowedOrigins: []string{"https://friend.example"}},
	})
	for _, c := range []struct {
		path   string
		header []string
		want   int
	}{
		{"", []string{asBrowser, "Sec-Fetch-Site: none"}, 200},
		{"", nil, 200},
		{"page.js", []string{"Sec-Fetch-Site: same-origin"}, 200},
		{"connect.json", []string{"Sec-Fetch-Site: same-origin"}, 200},
		{"", []string{"POST"}, 404},
		{"operators.js", nil, 404},
		{"", []string{"Host: evil.example"}, 403},
		{"connect.json", []string{"Host: evil.example"}, 403},
		{"", []string{asBrowser, "Sec-Fetch-Site: cross-site"}, 403},
		{"connect.json", []string{"Sec-Fetch-Site: same-site"}, 403},
		{"connect.json", []string{"Origin: https://evil.example"}, 403},
		{"connect.json", []string{"Origin: https://friend.example"}, 403},
		{"connect.json", []string{"Origin: http://localhost:1"}, 403},
		{"connect.json", []string{"Origin: null"}, 403},
		{"page.js", []string{"Origin: https://friend.example"}, 403},
	} {
		got := visit(t, url+c.path, c.header...)
		if got.status != c.want {
			t.Errorf("/%s %q = %d, want %d", c.path, c.header, got.status, c.want)
		}
		if got.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("/%s %q lets pages read", c.path, c.header)
		}
		if c.want == 200 && got.header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("/%s may be used by other sites", c.path)
		}
	}
	any := servePage(t, config.Config{Frontend: config.Frontend{AllowedHosts: []string{"*"}}})
	for _, path := range []string{"", "connect.json", "page.js"} {
		if got := visit(t, any+path, asBrowser); got.status != 404 {
			t.Errorf("any Host: /%s = %d, want 404", path, got.status)
		}
	}
}

// Where clients need a token, so does the page: without one a browser gets a form, and a
// program what it gets everywhere.
func TestPageNeedsTheToken(t *testing.T) {
	url := servePage(t, config.Config{Frontend: config.Frontend{TokenFile: secretFile(t, "sesame")}, Upstreams: []config.Upstream{{Name: "files", Process: config.Process{Command: "/there/is/none"}}}})
	form := visit(t, url, asBrowser)
	if form.status != 401 || form.header.Get("WWW-Authenticate") == "" || !strings.Contains(form.body, `id="token"`) {
		t.Errorf("a browser gets %d %q", form.status, form.header)
	}
	for _, path := range []string{"", "connect.json"} {
		got := visit(t, url+path)
		if got.status != 401 || got.header.Get("WWW-Authenticate") == "" || strings.Contains(got.body, "files") || strings.Contains(got.body, "<html") {
			t.Errorf("/%s: %d %s", path, got.status, got.body)
		}
		if got := visit(t, url+path, "Authorization: Bearer wrong"); got.status != 401 {
			t.Errorf("/%s with a wrong token: %d", path, got.status)
		}
		if got := visit(t, url+path, "Authorization: Bearer sesame"); got.status != 200 {
			t.Errorf("/%s with the token: %d", path, got.status)
		}
	}
	if told := welcomed(t, url, "Authorization: Bearer sesame"); !slices.Equal(told.Proof, []string{"token"}) {
		t.Errorf("%+v", told)
	}
}

// welcomed returns the data of the page at a URL.
func welcomed(t *testing.T, url string, header ...string) (told observe.ConnectInfo) {
	t.Helper()
	got := visit(t, url+"connect.json", header...)
	if err := json.Unmarshal([]byte(got.body), &told); err != nil || got.status != 200 {
		t.Fatal(got.status, got.body, err)
	}
	return told
}

// A client sees only the upstreams that its policy allows.
func TestPageKeepsPolicies(t *testing.T) {
	tokens := []config.NamedToken{{Name: "ada", TokenFile: secretFile(t, "ada's")}, {Name: "ben", TokenFile: secretFile(t, "ben's")}}
	url := servePage(t, config.Config{
		Frontend:  config.Frontend{Auth: config.Auth{Tokens: tokens}},
		Upstreams: []config.Upstream{{Name: "files", Process: config.Process{Command: "/there/is/none"}}, {Name: "notes", Process: config.Process{Command: "/there/is/none"}}},
		Policies: []config.Policy{
			{Key: "policies[0]", Who: config.Who{Token: "ada"}, Tools: config.Tools{Allow: []string{"files__*"}}},
		},
	})
	if told := welcomed(t, url, "Authorization: Bearer ada's"); len(told.Upstreams) != 1 || told.Upstreams[0] != (observe.Offered{Name: "files", State: "idle"}) {
		t.Errorf("ada is told %+v", told)
	}
	if told := welcomed(t, url, "Authorization: Bearer ben's"); len(told.Upstreams) != 0 {
		t.Errorf("ben, who may nothing, is told %+v", told)
	}
}

// States are those of servers, and say where the page for operators is.
func TestPageTellsStates(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	cfg := config.Config{
		Frontend:  config.Frontend{PublicURL: "https://mcp.example.com"},
		Upstreams: []config.Upstream{{Name: "good", Remote: config.Remote{URL: server.URL}}, {Name: "bad", Process: config.Process{Command: "/there/is/none"}}},
		Admin:     config.Admin{Listen: []string{"127.0.0.1:0"}, TokenFile: secretFile(t, "secret")},
	}
	url := servePage(t, cfg)
	client := connect(url + "mcp/good")
	defer client.Close()
	all := connect(url + "mcp")
	defer all.Close()
	if _, err := all.CallTool(t.Context(), &mcp.CallToolParams{Name: "bad__tool"}); err == nil {
		t.Error("a server that is not there has answered")
	}
	told := welcomed(t, url)
	states := make(map[string]string)
	for _, u := range told.Upstreams {
		states[u.Name] = string(u.State)
	}
	if states["good"] != "running" || states["bad"] != "failing" || len(states) != 2 {
		t.Errorf("states %v", states)
	}
	if told.URL != cfg.PublicURL || len(told.Proof) != 0 || len(told.Operators) != 1 {
		t.Fatalf("%+v", told)
	}
	if full := visit(t, told.Operators[0], asBrowser); full.status != 200 || !strings.Contains(full.body, `id="tap"`) {
		t.Errorf("the page for operators: %d %s", full.status, full.body)
	}
}
