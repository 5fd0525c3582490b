//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// hostile is text that controls a terminal: it sets the title and a colour (none of ours), reverses the
// direction of text, goes back and ends lines. It contains a word by which tests find it.
const hostile = "\x1b]0;title\a\x1b[35m\u009b36m\u202e\u2067\u061c\r\b\u2028\u0085\x7fhostile"

// hostileJSON is the same within a string of JSON.
var hostileJSON = strings.Trim(quoted(hostile), `"`)

// hostileServer is a server on stdio with hostile text everywhere.
func hostileServer() {
	fmt.Fprintf(os.Stderr, "stderr \x9b35m\xff%s\n", hostile)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name string
				Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
			}
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		if token := m.Params.Meta.ProgressToken; token != nil {
			fmt.Printf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":%s}}`+"\n", token, quoted(hostile))
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,%s}`+"\n", m.ID, strings.ReplaceAll(hostileAnswer(m.Method, m.Params.Name), "HOSTILE", hostileJSON))
	}
}

// quoted returns text as JSON, with as few escapes as possible.
func quoted(text string) string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(text)
	return strings.TrimSpace(strings.ReplaceAll(out.String(), `\u2028`, "\u2028"))
}

func hostileAnswer(method, tool string) string {
	switch method {
	case "initialize":
		return `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"HOSTILE","version":"HOSTILE"},"instructions":"HOSTILE"}`
	case "tools/list":
		return `"result":{"tools":[{"name":"HOSTILE","title":"HOSTILE","description":"HOSTILE","inputSchema":{"type":"object","properties":{"HOSTILE":{}}}},` +
			`{"name":"ok","inputSchema":{"type":"object"}},{"name":"err","inputSchema":{"type":"object"}},{"name":"no","inputSchema":{"type":"object"}}]}`
	case "prompts/list":
		return `"result":{"prompts":[{"name":"HOSTILE","description":"HOSTILE","arguments":[{"name":"HOSTILE"}]}]}`
	case "resources/list":
		return `"result":{"resources":[{"uri":"x://HOSTILE","name":"HOSTILE"}]}`
	case "resources/templates/list":
		return `"result":{"resourceTemplates":[{"uriTemplate":"x://{HOSTILE}","name":"HOSTILE"}]}`
	case "tools/call":
		switch tool {
		case "ok", "no":
			return fmt.Sprintf(`"result":{"isError":%t,"content":[{"type":"text","text":"HOSTILE"},{"type":"HOSTILE"},{"type":"image","mimeType":"HOSTILE"}]}`, tool == "no")
		}
	}
	return `"error":{"code":-32000,"message":"HOSTILE"}`
}

// hostileProcess imitates the address of a proxy for operators.
func hostileProcess(t *testing.T) (address string) {
	answers := map[string]any{
		"/status": new(proxy.Snapshot), "/calls": new(proxy.Calls), "/explain/": new(proxy.Explanation), "/events/": new(proxy.Event), "/tap": new(proxy.Passed),
	}
	for _, a := range answers {
		fill(reflect.ValueOf(a).Elem())
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for path, a := range answers {
			if text, _ := json.Marshal(a); strings.HasPrefix(r.URL.Path, path) {
				fmt.Fprintln(w, strings.ReplaceAll(string(text), `\u2028`, "\u2028"))
				return
			}
		}
		http.Error(w, hostile, http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// fill sets every text in a value to hostile text.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // JSON
			v.SetBytes([]byte(quoted(hostile)))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Now()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	}
}

// hostileIssuer imitates a server that requires a login, and its authorization server.
func hostileIssuer(t *testing.T) (url string) {
	s := httptest.NewServer(nil)
	t.Cleanup(s.Close)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		say := func(status int, text string) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprint(w, strings.NewReplacer("HERE", s.URL, "HOSTILE", hostileJSON).Replace(text))
		}
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/.well-known/oauth-protected-resource"):
			say(200, `{"resource":"HERE/mcp","authorization_servers":["HERE"]}`)
		case strings.HasPrefix(path, "/.well-known/"):
			say(200, `{"issuer":"HERE","authorization_endpoint":"HERE/authorize","token_endpoint":"HERE/token","device_authorization_endpoint":"HERE/device","registration_endpoint":"HERE/register",`+
				`"response_types_supported":["code"],"code_challenge_methods_supported":["S256"],"grant_types_supported":["authorization_code","urn:ietf:params:oauth:grant-type:device_code"]}`)
		case path == "/device":
			say(200, `{"device_code":"d","user_code":"HOSTILE","verification_uri":"HERE/page","expires_in":60,"interval":1}`)
		case path == "/mcp":
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+s.URL+`/.well-known/oauth-protected-resource/mcp"`)
			say(401, `{}`)
		default:
			say(400, `{"error":"HOSTILE","error_description":"HOSTILE"}`)
		}
	})
	return s.URL + "/mcp"
}
