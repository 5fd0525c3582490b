package wsconn

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// A wsServer upgrades all requests, and gives the Conns to the test.
type wsServer struct {
	t     *testing.T
	url   string
	tls   *tls.Config // what clients need
	conns chan jsonrpc.Conn
}

func newWSServer(t *testing.T, cfg Config) *wsServer {
	return startWSServer(t, cfg, (*httptest.Server).Start)
}

func newTLSServer(t *testing.T, cfg Config) *wsServer {
	return startWSServer(t, cfg, (*httptest.Server).StartTLS)
}

func startWSServer(t *testing.T, cfg Config, start func(*httptest.Server)) *wsServer {
	t.Helper()
	s := &wsServer{t: t, conns: make(chan jsonrpc.Conn, 16)}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := cfg.Accept(w, r, nil); err == nil {
			s.conns <- c
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // for refused certificates
	server.EnableHTTP2 = true
	start(server)
	t.Cleanup(server.Close)
	s.url, s.tls = "ws"+strings.TrimPrefix(server.URL, "http"), trusting(server)
	return s
}

// trusting returns the TLS configuration of a client, nil without TLS.
func trusting(server *httptest.Server) *tls.Config {
	if server.TLS == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &tls.Config{RootCAs: roots}
}

// dial returns both ends of a new connection.
func (s *wsServer) dial() (*websocket.Conn, jsonrpc.Conn) {
	s.t.Helper()
	client := dialWS(s.t, s.url)
	c := conntest.Await(s.t, "upgraded connection", s.conns)
	s.t.Cleanup(func() { client.Close(); c.Close() })
	return client, c
}

func dialWS(t *testing.T, url string) *websocket.Conn {
	t.Helper()
	client, resp, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil {
		t.Fatalf("dial: %v %v", resp, err)
	}
	t.Cleanup(func() { client.Close() })
	client.SetReadDeadline(time.Now().Add(conntest.Patience))
	return client
}

// A wsClient makes a Conn of a client's end.
type wsClient struct {
	*websocket.Conn
	sending sync.Mutex
	closed  atomic.Bool
}

func (c *wsClient) Recv() (*jsonrpc.Message, error) {
	if c.closed.Load() {
		return nil, jsonrpc.ErrClosed
	}
	_, text, err := c.ReadMessage()
	if err != nil {
		c.closed.Store(true)
		return nil, jsonrpc.Closed(err)
	}
	return jsonrpc.Decode(text)
}

func (c *wsClient) Send(m *jsonrpc.Message) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.closed.Load() {
		return jsonrpc.ErrClosed
	}
	if err := c.WriteMessage(websocket.TextMessage, m.Append(nil)); err != nil {
		return jsonrpc.Closed(err)
	}
	return nil
}

func (c *wsClient) Close() error {
	c.closed.Store(true)
	c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(100*time.Millisecond))
	return c.Conn.Close()
}

func TestConnOfGorillaClient(t *testing.T) {
	t.Parallel()
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		client, c := newWSServer(t, Config{}).dial()
		return &wsClient{Conn: client}, c
	})
}

func wantGone(t *testing.T, c jsonrpc.Conn) {
	t.Helper()
	for range 2 {
		if m, err := conntest.RecvOrEnd(t, c); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Recv returned %v, %v, want an error wrapping ErrClosed", m, err)
		}
	}
	if err := c.Send(jsonrpc.NewNotification("late", nil)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send returned %v, want an error wrapping ErrClosed", err)
	}
}

// wantCode reads until the server's close frame, and returns the messages before it.
func wantCode(t *testing.T, client *websocket.Conn, code int) (texts []string) {
	t.Helper()
	for {
		_, text, err := client.ReadMessage()
		if err == nil {
			texts = append(texts, string(text))
			continue
		}
		if !websocket.IsCloseError(err, code) {
			t.Errorf("client reads %v, want close code %d", err, code)
		}
		return texts
	}
}

// However a client leaves, the Conn ends, and the client gets only an answer to its close frame.
func TestD37_WebSocketEnds(t *testing.T) {
	s := newWSServer(t, Config{})
	for _, code := range []int{1000, 1001, 1005, 1011, 4000} {
		t.Run(fmt.Sprint("Code", code), func(t *testing.T) {
			client, c := s.dial()
			client.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"last"}`))
			client.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, "bye"), time.Time{})
			if m := conntest.Recv(t, c); m.Method != "last" {
				t.Errorf("received %s", m.Append(nil))
			}
			wantGone(t, c)
			c.Close()
			if texts := wantCode(t, client, code); texts != nil {
				t.Errorf("a client that left was told %s", texts)
			}
		})
	}
	breaks := map[string]func(*net.TCPConn){
		"FIN":         func(tcp *net.TCPConn) { tcp.Close() },
		"FINMidFrame": func(tcp *net.TCPConn) { tcp.Write([]byte{0x81, 0xff, 0, 0, 0}); tcp.Close() },
		"RST":         func(tcp *net.TCPConn) { tcp.SetLinger(0); tcp.Close() },
		"RSTMidFrame": func(tcp *net.TCPConn) {
			tcp.Write([]byte{0x81, 0xfe, 1, 0, 9, 9, 9, 9, 'x'})
			tcp.SetLinger(0)
			tcp.Close()
		},
		"NotMasked":    func(tcp *net.TCPConn) { tcp.Write([]byte{0x81, 0x02, '{', '}'}) },
		"ReservedBits": func(tcp *net.TCPConn) { tcp.Write([]byte{0xf1, 0x80, 0, 0, 0, 0}) },
		"Code1006":     func(tcp *net.TCPConn) { tcp.Write([]byte{0x88, 0x82, 0, 0, 0, 0, 0x03, 0xee}) },
	}
	for name, act := range breaks {
		t.Run(name, func(t *testing.T) {
			client, c := s.dial()
			act(client.NetConn().(*net.TCPConn))
			wantGone(t, c)
			client.Close()
			c.Close()
		})
	}
}

// A client that sent a close frame reads the end of the connection, whenever Close is called.
func TestD37_BothSaidGoodbye(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	client.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Time{})
	wantGone(t, c)
	wantCode(t, client, 1000)
	if n, err := client.NetConn().Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("behind the close frame: %d bytes, %v", n, err)
	}
}

// A client that never answers the close frame does not block Close.
func TestD37_CloseWaitsNotLong(t *testing.T) {
	t.Parallel()
	_, c := newWSServer(t, Config{}).dial()
	conntest.During(t, func() { wantGone(t, c) }, func() { c.Close() })
}

func TestD38_WebSocketRejects(t *testing.T) {
	const limit = 10_000
	s := newWSServer(t, Config{Limits: jsonrpc.Limits{Message: limit}})
	allowed := sized(limit - len(sized(0).Append(nil))).Append(nil)
	long := string(append(allowed, ' '))
	tests := []struct {
		name string
		send func(*websocket.Conn)
		code int
	}{
		{"Binary", func(c *websocket.Conn) {
			c.WriteMessage(websocket.BinaryMessage, []byte(`{"jsonrpc":"2.0","method":"a"}`))
		}, 1003},
		{"UTF8", func(c *websocket.Conn) {
			c.WriteMessage(websocket.TextMessage, []byte("{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}"))
		}, 1007},
		{"Oversize", func(c *websocket.Conn) { c.WriteMessage(websocket.TextMessage, []byte(long)) }, 1009},
		{"OversizeInPieces", func(c *websocket.Conn) { writePieces(c, long) }, 1009},
		{"OversizeByItsHeader", func(c *websocket.Conn) {
			c.NetConn().Write([]byte{0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
		}, 1009},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, c := s.dial()
			client.WriteMessage(websocket.TextMessage, allowed)
			wantText(t, conntest.Recv(t, c), string(allowed))
			tt.send(client)
			wantGone(t, c)
			conntest.During(t, func() { wantCode(t, client, tt.code); client.Close() }, func() { c.Close() })
		})
	}
}

// writePieces writes a message as frames of a few bytes, with pings in between.
func writePieces(c *websocket.Conn, text string) {
	header := byte(websocket.TextMessage)
	for len(text) > 0 {
		piece := text[:min(50, len(text))]
		text = text[len(piece):]
		if text == "" {
			header |= 0x80
		}
		frame := append([]byte{header, 0x80 | byte(len(piece)), 0, 0, 0, 0}, piece...)
		ping := []byte{0x89, 0x80, 0, 0, 0, 0}
		c.NetConn().Write(append(frame, ping...))
		header = 0
	}
}

func TestConnFragments(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	want := `{"jsonrpc":"2.0","id":1,"method":"x","params":{"x":"é😀` + strings.Repeat("x", 10_000) + `"}}`
	writePieces(client, want)
	wantText(t, conntest.Recv(t, c), want)
}

// Only the invalid message is lost.
func TestD44_WebSocketInvalidMessage(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	for text, code := range map[string]int{
		"garbage": -32700, "": -32700, `{"jsonrpc":"2.0"`: -32700, `{}`: -32600, "{\"a\":\"\\ud800\"}": -32600,
	} {
		client.WriteMessage(websocket.TextMessage, []byte(text))
		_, err := conntest.RecvOrEnd(t, c)
		if invalid, ok := errors.AsType[*jsonrpc.InvalidError](err); !ok || invalid.Code != code {
			t.Errorf("%q: Recv returned %v, want an InvalidError of %d", text, err, code)
		}
	}
	client.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"next"}`))
	if m := conntest.Recv(t, c); m.Method != "next" {
		t.Errorf("received %s", m.Append(nil))
	}
}

// Frames have three forms of header; all work.
func TestConnSizes(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	empty := len(sized(0).Append(nil))
	var messages []*jsonrpc.Message
	for _, size := range []int{empty, 125, 126, 127, 4096, 65535, 65536, 65537, 1 << 20, 125} {
		messages = append(messages, sized(size-empty))
	}
	conntest.During(t, func() {
		for range 2 {
			for _, m := range messages {
				if _, text, err := client.ReadMessage(); err != nil || string(text) != string(m.Append(nil)) {
					t.Fatalf("read %d bytes, %v, want %d", len(text), err, len(m.Append(nil)))
				}
			}
		}
	}, func() {
		jsonrpc.SendAll(c, messages)
		for _, m := range messages {
			c.Send(m)
		}
	})
}

// sized returns a message that is size bytes longer than the shortest.
func sized(size int) *jsonrpc.Message {
	return jsonrpc.NewNotification("a", json.RawMessage(`["`+strings.Repeat("x", size)+`"]`))
}

// Messages that were sent before Close are read before the close frame, even if the client was sending too.
func TestConnCloseIs1001(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	client.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"unread"}`))
	c.Send(jsonrpc.NewNotification("last", nil))
	conntest.During(t, func() {
		if texts := wantCode(t, client, 1001); len(texts) != 1 || !strings.Contains(texts[0], "last") {
			t.Errorf("before the close frame: %s", texts)
		}
		client.Close()
	}, func() { c.Close() })
	wantGone(t, c)
}

// CloseAs sends its code and reason.
func TestConnCloseAs(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	c.(*Conn).CloseAs(PolicyViolation, "token expired")
	conntest.During(t, func() {
		_, _, err := client.ReadMessage()
		if end, ok := errors.AsType[*websocket.CloseError](err); !ok || end.Code != 1008 || end.Text != "token expired" {
			t.Errorf("client reads %v, want close code 1008", err)
		}
		client.Close()
	}, func() { c.Close() })
}

func TestConnSilentClient(t *testing.T) {
	_, c := newWSServer(t, Config{Ping: 10 * time.Millisecond}).dial()
	_, err := conntest.RecvOrEnd(t, c) // the client does not read, so it answers no ping
	if !errors.Is(err, jsonrpc.ErrClosed) || !errors.Is(err, ErrSilent) {
		t.Errorf("Recv returned %v", err)
	}
	wantGone(t, c)
}

// A process that was stopped for long reads pending input before it ends a silent client.
func TestConnAfterAStop(t *testing.T) {
	client, c := newWSServer(t, Config{Ping: time.Hour}).dial()
	conn := c.(*Conn)
	conn.heard.Store(int64(-9 * time.Hour)) // as if the clock had gone on
	client.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"waits"}`))
	conn.tick()
	if m, err := conntest.RecvOrEnd(t, c); err != nil || m.Method != "waits" {
		t.Errorf("received %v, %v", m, err)
	}
	conn.tick()
	if err := conn.err(); err != nil {
		t.Error("it was given up:", err)
	}
}

// A client that reads slowly gets no ping while something is sent to it, and so cannot answer one.
func TestConnSlowClient(t *testing.T) {
	_, c := newWSServer(t, Config{Ping: time.Hour}).dial()
	conn := c.(*Conn)
	blocked := fill(t, c)
	conn.heard.Store(int64(-9 * time.Hour))
	for range 3 {
		conn.tick()
		if err := conn.err(); err != nil {
			t.Fatal("it was given up:", err)
		}
	}
	c.Close()
	<-blocked
}

func TestConnLivingClient(t *testing.T) {
	t.Parallel()
	client, c := newWSServer(t, Config{Ping: 500 * time.Millisecond}).dial()
	pings := make(chan struct{}, 100)
	client.SetPingHandler(func(data string) error {
		pings <- struct{}{}
		return client.WriteControl(websocket.PongMessage, []byte(data), time.Time{})
	})
	go client.ReadMessage()
	go c.Recv()
	for range 4 { // more than a silent client gets
		conntest.Await(t, "ping", pings)
	}
	if err := c.Send(jsonrpc.NewNotification("still there", nil)); err != nil {
		t.Error(err)
	}
}

func TestConnAnswersPings(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	go c.Recv()
	pongs := make(chan string, 1)
	client.SetPongHandler(func(data string) error { pongs <- data; return nil })
	client.WriteControl(websocket.PingMessage, []byte("are you there"), time.Time{})
	go client.ReadMessage()
	if data := conntest.Await(t, "pong", pongs); data != "are you there" {
		t.Errorf("pong carries %q", data)
	}
}

// fill sends to a client that does not read until Send blocks, and returns the result of that Send.
func fill(t *testing.T, c jsonrpc.Conn) (blocked <-chan error) {
	t.Helper()
	var sent atomic.Int64
	end := make(chan error, 1)
	go func() {
		for {
			if err := c.Send(sized(256 << 10)); err != nil {
				end <- err
				return
			}
			sent.Add(1)
		}
	}()
	last, still := int64(-1), 0
	conntest.Eventually(t, "a blocked Send", func() bool {
		time.Sleep(50 * time.Millisecond)
		before := last
		if last = sent.Load(); last != before {
			still = 0
		}
		still++
		return still > 4 // once could be a busy machine
	})
	return end
}

// While a Send waits for a client that does not read, Recv works; a ping is answered as soon as the client reads.
func TestConnReadsWhileSendBlocks(t *testing.T) {
	client, c := newWSServer(t, Config{}).dial()
	pongs := make(chan string, 2)
	client.SetPongHandler(func(data string) error { pongs <- data; return nil })
	fill(t, c)
	client.WriteControl(websocket.PingMessage, []byte("1"), time.Time{})
	client.WriteControl(websocket.PingMessage, []byte("2"), time.Time{})
	client.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"cancel"}`))
	if m := conntest.Recv(t, c); m.Method != "cancel" {
		t.Errorf("received %s", m.Append(nil))
	}
	go func() {
		for {
			if _, _, err := client.ReadMessage(); err != nil {
				return
			}
		}
	}()
	data := conntest.Await(t, "pong", pongs)
	if data == "1" { // it was sent before the second ping came
		data = conntest.Await(t, "second pong", pongs)
	}
	if data != "2" {
		t.Errorf("pong carries %q, want the last ping's 2", data)
	}
}

func TestConnSlowClientIsGone(t *testing.T) {
	_, c := newWSServer(t, Config{WriteTimeout: 200 * time.Millisecond}).dial()
	blocked := fill(t, c)
	if err := conntest.Await(t, "end of the blocked Send", blocked); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send returned %v", err)
	}
	wantGone(t, c)
}

func TestConnSubprotocol(t *testing.T) {
	s := newWSServer(t, Config{})
	for _, tt := range []struct{ offered, chosen string }{{"", ""}, {"mcp", "mcp"}, {"x,mcp", "mcp"}, {"x", ""}} {
		dialer := websocket.Dialer{}
		if tt.offered != "" {
			dialer.Subprotocols = strings.Split(tt.offered, ",")
		}
		client, _, err := dialer.Dial(s.url, nil)
		if err != nil {
			t.Fatalf("offering %q: %v", tt.offered, err)
		}
		if got := client.Subprotocol(); got != tt.chosen {
			t.Errorf("offering %q chose %q, want %q", tt.offered, got, tt.chosen)
		}
		client.Close()
		conntest.Await(t, "connection", s.conns).Close()
	}
}

// noPlaces has a place for nobody.
type noPlaces struct{ asked chan struct{} }

func (p noPlaces) Enter(gone <-chan struct{}) error {
	close(p.asked)
	<-gone
	return errors.New("gone")
}

func (noPlaces) Leave() {}

// Close does not wait for a place that a large message has not got.
func TestConnCloseWithoutPlace(t *testing.T) {
	t.Parallel()
	places := noPlaces{make(chan struct{})}
	client, c := newWSServer(t, Config{Slots: places}).dial()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Recv()
		ended <- err
	}()
	go client.WriteMessage(websocket.TextMessage, make([]byte, 256<<10))
	<-places.asked
	c.Close()
	if err := conntest.Await(t, "the end of Recv", ended); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Error("Recv ended with", err)
	}
}
