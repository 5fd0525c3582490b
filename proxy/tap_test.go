package proxy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// tapLines are the types of lines of /tap.
var tapLines = map[string]any{
	"tap.json": proxy.Passed{}, "tap-left-out.json": proxy.LeftOut{},
	"recording.json": observe.Recording{}, "recording-end.json": proxy.RecordingEnd{},
}

// A tap reads /tap.
type tap struct {
	t    *testing.T
	conn *net.UnixConn
	resp *http.Response
	*bufio.Scanner
}

// openTap begins to tap at a Unix socket.
func openTap(t *testing.T, socket, query string) *tap {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /tap?%s HTTP/1.1\r\nHost: localhost\r\n\r\n", query)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	return &tap{t, conn, resp, lines}
}

// next returns the next line that contains a text.
func (x *tap) next(part string) (line proxy.Passed) {
	x.t.Helper()
	for x.Scan() {
		if strings.Contains(x.Text(), part) {
			if err := json.Unmarshal(x.Bytes(), &line); err != nil {
				x.t.Error(err)
			}
			return line
		}
	}
	x.t.Fatalf("there is no %s: %v", part, x.Err())
	return line
}

// rest ends the tap and returns its remaining lines.
func (x *tap) rest() (lines []string) {
	x.t.Helper()
	if err := x.conn.CloseWrite(); err != nil {
		x.t.Error(err)
	}
	for x.Scan() {
		lines = append(lines, x.Text())
	}
	if x.Err() != nil {
		x.t.Error(x.Err())
	}
	return lines
}

// Each line of a tap has a schema in docs. A recording that is ended by its reader has
// everything that passed before, from its first line to its last.
func TestTapSchemas(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	_, url := serveWith(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}, Admin: config.Admin{Payloads: true}}, proxy.Options{AdminSocket: socket})
	client := connect(url)
	defer client.Close()
	recording, slow := openTap(t, socket, "record=1"), openTap(t, socket, "rate=1")
	for range 3 {
		if _, err := client.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	all := recording.rest()
	if len(all) < 2+3*4 {
		t.Fatalf("a recording of\n%s", strings.Join(all, "\n"))
	}
	obeys(t, "recording.json", all[0])
	obeys(t, "recording-end.json", all[len(all)-1])
	if want := fmt.Sprintf(`{"end":true,"messages":%d}`, len(all)-2); all[len(all)-1] != want {
		t.Errorf("it ends with %s, want %s", all[len(all)-1], want)
	}
	for _, line := range all[1 : len(all)-1] {
		obeys(t, "tap.json", line)
	}
	leftOut := ""
	for leftOut == "" && slow.Scan() {
		if strings.Contains(slow.Text(), "leftOut") {
			leftOut = slow.Text()
		}
	}
	obeys(t, "tap-left-out.json", leftOut)
}

// obeys checks a line against its schema, and that against its type.
func obeys(t *testing.T, name, line string) {
	t.Helper()
	schema := schemaOf(t, reflect.TypeOf(tapLines[name]))
	agrees(t, filepath.Join("../docs/schemas", name), schema)
	rules, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal([]byte(line), &value); err != nil {
		t.Errorf("%v in %s", err, line)
	} else if err := rules.Validate(value); err != nil {
		t.Errorf("%v in %s", err, line)
	}
}

// What is in messages is shown over a Unix socket alone, and only if the configuration says
// so. What is asked for in a wrong way is refused.
func TestTapRefuses(t *testing.T) {
	for _, payloads := range []bool{false, true} {
		socket, free := filepath.Join(t.TempDir(), "admin.sock"), freePort(t)
		serveWith(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Process: config.Process{Command: "/there/is/none"}}}, Admin: config.Admin{
			Listen: []string{free}, TokenFile: secretFile(t, "secret"), Payloads: payloads}}, proxy.Options{AdminSocket: socket})
		inSocket := map[bool]int{true: 200, false: 403}[payloads]
		for query, want := range map[string]int{
			"": 200, "upstream=a*&rate=0&errors=1": 200,
			"payloads=1": inSocket, "record=1": inSocket, "record=1&upstream=a": inSocket,
			"side=client": 400, "rate=-1": 400, "rate=x": 400, "errors=maybe": 400, "tool=[a": 400, "tools=a": 400, "tool=a&tool=b": 400,
			"record=1&tool=a": 400, "record=1&rate=0": 400,
		} {
			x := openTap(t, socket, query)
			x.conn.CloseWrite()
			if text, _ := io.ReadAll(x.resp.Body); x.resp.StatusCode != want {
				t.Errorf("payloads %t: %s is %d, want %d: %s", payloads, query, x.resp.StatusCode, want, text)
			}
		}
		for query, want := range map[string]int{"": 200, "payloads=1": 403, "record=1": 403} {
			if got := headTap(t, free, query, "secret"); got != want {
				t.Errorf("over TCP: %s is %d, want %d", query, got, want)
			}
		}
		if got := headTap(t, free, "", ""); got != 401 {
			t.Errorf("without the token: %d", got)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func headTap(t *testing.T, address, query, token string) int {
	t.Helper()
	r, _ := http.NewRequest(http.MethodHead, "http://"+address+"/tap?"+query, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A host shows what passes on the streams of its proxies, in the sessions of these, and a
// proxy shows the same.
func TestTapOfHost(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	link, near, far := "unix://"+filepath.Join(dir, "l.sock"), filepath.Join(dir, "near"), filepath.Join(dir, "far")
	host, err := proxy.NewHost(&config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}, Era: "legacy"}}},
		config.HostLink{Listen: link}, proxy.Options{AdminSocket: far})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- host.Serve() }()
	defer func() {
		host.Close()
		<-served
	}()
	_, url := serveWith(t, config.Config{Links: []config.Link{{Name: "l", Dial: link}}}, proxy.Options{AdminSocket: near})
	client := connect(url)
	defer client.Close()
	eventually(t, "socket", func() bool {
		c, err := net.Dial("unix", far)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	proxys, hosts := openTap(t, near, "upstream=a&method=tools/list"), openTap(t, far, "method=tools/list")
	if _, err := client.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"request", "response"} {
		a, b := proxys.next(`"a"`), hosts.next(`"a"`)
		if a.Kind != kind || a.Way != map[string]string{"request": "out", "response": "in"}[kind] || a.Principal != "anonymous" || b.Principal != "" {
			t.Errorf("%+v", a)
		}
		if b.Side != a.Side || b.Way != a.Way || b.Kind != a.Kind || b.Session != a.Session || !bytes.Equal(b.ID, a.ID) || b.Bytes != a.Bytes {
			t.Errorf("at the proxy %+v, and at the host %+v", a, b)
		}
	}
}

// Neither calls nor the end of the proxy wait for a tap that is not read. It is not parallel to others: after 30 s such
// a tap is ended.
func TestTapIsNotWaitedFor(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 1<<20 { // reading it takes seconds under the race detector
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		server.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	p, url := serveWith(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: front.URL}}}, Admin: config.Admin{Payloads: true}}, proxy.Options{AdminSocket: socket})
	stuck, _ := openTap(t, socket, "rate=0&payloads=1"), openTap(t, socket, "record=1")
	recording, recorded := openTap(t, socket, "record=1"), make(chan string, 1)
	go func() {
		last := ""
		for recording.Scan() {
			last = recording.Text()
		}
		recorded <- last
	}()
	client := connect(url)
	big := strings.Repeat("x", 1<<20)
	for range 12 { // each passes twice: more than there is room for
		if _, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "none", Arguments: big}); err == nil {
			t.Fatal("the server takes so much")
		}
	}
	client.Close()
	stuck.next("leftOut")
	p.Close()
	if last := <-recorded; !strings.HasPrefix(last, `{"end":true,"messages":`) {
		t.Errorf("the recording ends with %.100s", last)
	}
}
