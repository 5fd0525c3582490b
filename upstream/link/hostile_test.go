package link

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// tcpPair returns both ends of a TCP connection.
func tcpPair(t *testing.T) (near, far net.Conn) {
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	near, far = connect(t, l, dial)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// strangers are peers that are no end of a link, at least not a good one.
var strangers = []struct {
	name string
	talk func(c net.Conn)
	want string
}{
	{"HTTP", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") }, "not an mcp-proxy link"},
	{"SSH", func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n") }, "not an mcp-proxy link"},
	{"a frame of another type", func(c net.Conn) { c.Write([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) }, "not an mcp-proxy link"},
	{"hangs up", func(c net.Conn) { c.Close() }, "closed before the hello"},
	{"half a frame", func(c net.Conn) { c.Write([]byte{0, 1}); c.Close() }, "closed before the hello"},
	{"silent", func(net.Conn) {}, "hello"},
	{"pings", func(c net.Conn) { c.Write([]byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}) }, "ping"},
}

// drop reads what comes until the end.
func drop(c net.Conn) { io.Copy(io.Discard, c) }

func TestStrangerAsHost(t *testing.T) {
	for _, s := range strangers {
		t.Run(s.name, func(t *testing.T) {
			near, far := tcpPair(t)
			go drop(far)
			s.talk(far)
			err := (&Client{HelloTimeout: 100 * time.Millisecond}).Serve(t.Context(), near)
			wantEndOf(t, err, s.want)
		})
	}
}

func TestStrangerAsProxy(t *testing.T) {
	for _, s := range strangers {
		t.Run(s.name, func(t *testing.T) {
			near, far := tcpPair(t)
			go drop(near)
			s.talk(near)
			err := (&Server{Handle: echo, HelloTimeout: 100 * time.Millisecond}).Serve(t.Context(), far)
			wantEndOf(t, err, s.want)
		})
	}
}

func wantEndOf(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("ended with %v, want %q", err, want)
	}
}

// TestRandomBytes has peers that send anything, to both ends.
func TestRandomBytes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
		noise := make([]byte, 4096)
		source.Read(noise)
		if seed%2 == 0 { // a valid version, and often a valid type
			for i := 0; i+12 < len(noise); i += 12 {
				noise[i], noise[i+1], noise[i+8], noise[i+9] = 0, noise[i+1]%2, 0, 0
			}
		}
		near, far := tcpPair(t)
		go drop(near)
		near.Write(noise)
		near.(*net.TCPConn).CloseWrite()
		if err := (&Server{Handle: echo}).Serve(t.Context(), far); err == nil {
			t.Error("no cause")
		}
		near, far = tcpPair(t)
		go drop(far)
		far.Write(noise)
		far.(*net.TCPConn).CloseWrite()
		if err := (&Client{}).Serve(t.Context(), near); err == nil {
			t.Error("no cause")
		}
	}
}

// rawHost answers a proxy's control hello with answer, and then sends lines.
func rawHost(t *testing.T, carrier net.Conn, answer string, lines ...string) {
	session, err := yamux.Server(carrier, newConfig(orDiscard(nil)))
	if err != nil {
		t.Error(err)
		return
	}
	defer session.Close()
	y, err := answerControl(session, answer)
	if err != nil {
		t.Error(err)
		return
	}
	for _, line := range lines {
		io.WriteString(y, line+"\n")
	}
	io.Copy(io.Discard, y) // until the proxy has left
}

// answerControl accepts the control stream of a proxy, and answers its hello.
func answerControl(session *yamux.Session, answer string) (*yamux.Stream, error) {
	y, err := session.AcceptStream()
	if err != nil {
		return nil, err
	}
	if _, err := readHello(&stream{y: y, link: &link{}}); err != nil {
		return nil, err
	}
	io.WriteString(y, answer)
	return y, nil
}

func names(n int, each func(i int) string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"name":%q}`, each(i)))
	}
	return `{"mcp-proxy":1,"upstreams":[` + strings.Join(list, ",") + `]}`
}

// TestBadAnnouncement ends the link with an error that says what is wrong.
func TestBadAnnouncement(t *testing.T) {
	t.Parallel()
	const good = `{"mcp-proxy":1,"ok":true,"version":1}` + "\n"
	unique := func(i int) string { return fmt.Sprint("u", i) }
	for _, tt := range []struct{ name, answer, line, want string }{
		{"a name twice", good, names(2, func(int) string { return "files" }), `upstream "files" is announced twice`},
		{"10,000 names", good, names(10_000, unique), "10000 upstreams announced, at most 1000"},
		{"an invalid name", good, names(1, func(int) string { return "a__b" }), `bad upstream name "a__b"`},
		{"a long name", good, names(1, func(int) string { return strings.Repeat("x", 1000) }), `bad upstream name "xxx`},
		{"no name", good, `{"mcp-proxy":1,"upstreams":[{}]}`, "an upstream without a name"},
		{"no list", good, `{"mcp-proxy":1,"upstreams":7}`, "bad announcement"},
		{"two names in one", good, `{"mcp-proxy":1,"upstreams":[{"name":"a","Name":"b"}]}`, "bad announcement"},
		{"large settings", good, `{"mcp-proxy":1,"upstreams":[{"name":"a","settings":"` + strings.Repeat("x", maxSettings) + `"}]}`, "settings of more than"},
		{"an endless line", good, strings.Repeat("x", 2*maxAnnouncement), "announcement too long"},
		{"no note", good, `{"jsonrpc":"2.0","method":"n"}`, "not an mcp-proxy link"},
		{"broken JSON", good, `{"mcp-proxy":1,`, "not an mcp-proxy link"},
		{"a refusal", string(refusalLine("go away")), "", "refused by the host: go away"},
		{"another version", `{"mcp-proxy":1,"ok":true,"version":7}` + "\n", "", "version 7 of the link, the proxy speaks 1"},
		{"no version", okLine, "", "version 0 of the link"},
		{"a bad answer", "hello\n", "", "not an mcp-proxy link"},
		{"an endless answer", strings.Repeat("x", 2*maxHello), "", "not an mcp-proxy link"},
		{"leaves", good, string(closingLine(errClosed)), "ended by the other side: closed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := tcpPair(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				rawHost(t, far, tt.answer, tt.line)
			}()
			c := &Client{Announced: func(u []Upstream) { t.Errorf("announced %d upstreams", len(u)) }}
			wantEndOf(t, c.Serve(t.Context(), near), tt.want)
			await(t, done)
		})
	}
}

// TestLaterNotes ignores what a later version adds, and takes the most names.
func TestLaterNotes(t *testing.T) {
	near, far := tcpPair(t)
	go rawHost(t, far, `{"mcp-proxy":1,"ok":true,"version":1,"later":1}`+"\n", `{"mcp-proxy":1,"later":{}}`, names(1000, func(i int) string { return fmt.Sprint("u", i) }), string(closingLine(errClosed)))
	announced := make(chan []Upstream, 2)
	c := &Client{Announced: func(u []Upstream) { announced <- u }}
	wantEndOf(t, c.Serve(t.Context(), near), errLeft.Error())
	if u := await(t, announced); len(u) != 1000 {
		t.Errorf("%d upstreams, want 1000", len(u))
	}
}

// TestBadControlHello is what a host says to proxies of other versions, in the
// refusal and in its own log.
func TestBadControlHello(t *testing.T) {
	t.Parallel()
	const good = `{"mcp-proxy":1,"control":true,"versions":[1]}`
	for _, tt := range []struct{ name, hello, want string }{
		{"later versions", `{"mcp-proxy":1,"control":true,"versions":[2,3]}`, "no common version of the link: the proxy speaks 2,3, the host 1"},
		{"another hello", `{"mcp-proxy":2,"control":true}`, "unknown version 2 of the hello, the host speaks 1"},
		{"no versions", `{"mcp-proxy":1,"control":true}`, "bad hello"},
		{"many versions", `{"mcp-proxy":1,"control":true,"versions":[` + strings.Repeat("9,", 100) + `9]}`, "bad hello"},
		{"a stream", `{"mcp-proxy":1,"upstream":"files","key":"k","era":"legacy"}`, "the control stream must come first"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := tcpPair(t)
			var log syncBuffer
			ended := make(chan error, 1)
			s := &Server{Handle: echo, HelloTimeout: 5 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))}
			go func() { ended <- s.Serve(t.Context(), far) }()
			session, err := yamux.Client(near, newConfig(orDiscard(nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			y, err := session.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(y, tt.hello+"\n")
			line, _ := newControl(&link{y: session}, y).line(maxHello)
			if n, err := parseNote(line); err != nil || !strings.Contains(n.refused, tt.want) {
				t.Errorf("answered %q, want %q", line, tt.want)
			}
			if err := await(t, ended); !strings.Contains(err.Error()+log.String(), tt.want) {
				t.Errorf("Serve: %v; logged %s; want %q", err, log.String(), tt.want)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		near, far := tcpPair(t)
		go (&Server{Handle: echo}).Serve(t.Context(), far)
		session, err := yamux.Client(near, newConfig(orDiscard(nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		for _, want := range []string{"ok", "a second control stream"} {
			y, err := session.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(y, good+"\n")
			line, err := newControl(&link{y: session}, y).line(maxHello)
			if err != nil || !strings.Contains(string(line), want) {
				t.Errorf("answered %q, %v; want %q", line, err, want)
			}
		}
	})
}

// TestHostHangsInHello is given up, for a link and for a stream.
func TestHostHangsInHello(t *testing.T) {
	t.Parallel()
	near, far := tcpPair(t)
	go rawHost(t, far, string(pickedLine(1)))
	c := &Client{HelloTimeout: 3 * time.Second} // in which a busy machine brings the link up
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(context.Background(), near) }()
	_, err := c.Open(t.Context(), hello)
	wantNotOpened(t, err, "link lost")
	wantEndOf(t, await(t, ended), errNoOpen.Error())
}

// TestFloodOfUnanswered opens streams and neither says hello nor reads.
func TestFloodOfUnanswered(t *testing.T) {
	near, far := tcpPair(t)
	ended := make(chan error, 1)
	s := &Server{Handle: echo, Streams: 100}
	go func() { ended <- s.Serve(t.Context(), far) }()
	go drop(near)
	var flood []byte
	for id := uint32(1); id < 20_000; id += 2 {
		flood = append(flood, 0, 1, 0, 1) // window update, SYN
		flood = binary.BigEndian.AppendUint32(flood, id)
		flood = append(flood, 0, 0, 0, 0)
	}
	near.Write(flood)
	wantEndOf(t, await(t, ended), errFlood.Error())
}

// TestBadCertificates is what both ends say of them.
func TestBadCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	good := &tls.Config{Certificates: ca.certificate(t, soon()), ClientCAs: ca.pool}
	expired := &tls.Config{Certificates: ca.certificate(t, time.Now().Add(-time.Hour)), ClientCAs: ca.pool}
	for _, tt := range []struct {
		name         string
		host         *tls.Config
		proxy        *tls.Config
		want         string // of the proxy
		wantFromHost string
	}{
		{"unknown CA", good, &tls.Config{RootCAs: other.pool, Certificates: good.Certificates}, "unknown authority", "bad certificate"},
		{"expired host", expired, &tls.Config{RootCAs: ca.pool, Certificates: good.Certificates}, "expired", "bad certificate"},
		{"expired proxy", good, &tls.Config{RootCAs: ca.pool, Certificates: expired.Certificates}, "", "expired"},
		{"unknown proxy", good, &tls.Config{RootCAs: ca.pool, Certificates: other.certificate(t, soon())}, "", "certificate"},
		{"nameless proxy", good, &tls.Config{RootCAs: ca.pool}, "certificate required", "didn't provide a certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, dial := listenAt(t, Endpoint{URL: "tls://127.0.0.1:0", TLS: tt.host}, Endpoint{URL: "tls://127.0.0.1:0", TLS: tt.proxy})
			ended := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					err = (&Server{Handle: echo}).Serve(t.Context(), c)
				}
				ended <- err
			}()
			carrier, err := dial.Dial(t.Context())
			if err == nil {
				err = (&Client{}).Serve(t.Context(), carrier)
			}
			wantEndOf(t, err, tt.want)
			wantEndOf(t, await(t, ended), tt.wantFromHost)
		})
	}
}

// TestTokens is what a listener for WebSockets lets in.
func TestTokens(t *testing.T) {
	l, dial := listenAt(t, Endpoint{URL: "ws://127.0.0.1:0/link", Token: secret("right")}, Endpoint{URL: "ws://127.0.0.1:0/link", Token: secret("right")})
	near, far := connect(t, l, dial)
	near.Close()
	far.Close()
	for name, e := range map[string]Endpoint{
		"HTTP 401":   {URL: dial.URL, Token: secret("wrong")},
		"HTTP 401 ":  {URL: dial.URL},
		"HTTP 404":   {URL: strings.Replace(dial.URL, "/link", "/other", 1), Token: secret("right")},
		"no secrets": {URL: dial.URL, Token: func() (string, error) { return "", fmt.Errorf("no secrets") }},
	} {
		_, err := e.Dial(t.Context())
		wantEndOf(t, err, strings.TrimSpace(name))
		if strings.Contains(err.Error(), "wrong") {
			t.Errorf("%v tells the token", err)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(dial.URL, "ws://", "http://", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	good := http.Header{"Authorization": {"Bearer right"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"MDEyMzQ1Njc4OWFiY2RlZg=="}, "Sec-Websocket-Protocol": {"mcp-proxy-link"}}
	for header, tt := range map[string]struct {
		values []string
		want   int
	}{
		"X-Other":        {[]string{"http://localhost"}, http.StatusSwitchingProtocols},
		"Upgrade":        {nil, http.StatusBadRequest},
		"Origin":         {[]string{"http://localhost"}, http.StatusForbidden},
		"Sec-Fetch-Site": {[]string{"cross-site"}, http.StatusForbidden},
		"origin":         {[]string{"", "http://localhost"}, http.StatusBadRequest},
		"authorization":  {[]string{"Bearer right", "Bearer wrong"}, http.StatusBadRequest},
	} {
		r.Header = good.Clone()
		r.Header[http.CanonicalHeaderKey(header)] = tt.values
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("with %s %q: %d, want %d", header, tt.values, resp.StatusCode, tt.want)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// TestSilentPeersBlockNobody has peers that connect and say nothing, beside a
// good one.
func TestSilentPeersBlockNobody(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, dial Endpoint) {
		for range maxLinks + 10 {
			c, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		r := reach(t, &Client{}, &Server{Handle: echo, HelloTimeout: time.Hour}, l, dial.Dial)
		call(t, open(t, r.client), numbered(1))
	})
}

// TestTooManyLinks closes the one that is too many when all others are up.
func TestTooManyLinks(t *testing.T) {
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, maxLinks+1)
	go func() { ended <- (&Server{Handle: echo}).Accept(ctx, l) }()
	for range maxLinks {
		carrier, err := dial.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		up := make(chan struct{})
		c := &Client{Announced: func([]Upstream) { close(up) }}
		go func() { ended <- c.Serve(ctx, carrier) }()
		await(t, up)
	}
	one, err := dial.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one.SetReadDeadline(time.Now().Add(5 * time.Second)) // before the others are given up
	if n, err := one.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want the end", n, err)
	}
	stop()
	for range maxLinks + 1 {
		await(t, ended)
	}
}
