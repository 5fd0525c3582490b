package wsconn

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestMain puts a proxy into the environment before anything reads it. Loopback
// addresses, which are all other tests', do not go through it.
func TestMain(m *testing.M) {
	conntest.Parallel(8)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	os.Setenv("HTTP_PROXY", "http://user:secret@"+l.Addr().String())
	os.Setenv("HTTPS_PROXY", "http://user:secret@"+l.Addr().String())
	server := &http.Server{Handler: &connects}
	go server.Serve(l)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.Exit(code) }), goleak.IgnoreCurrent())
}

// connects is the proxy.
var connects connectProxy

// A connectProxy leads every CONNECT to the same address.
type connectProxy struct {
	mu    sync.Mutex // guards the fields below
	to    string
	asked []string // what the clients wanted, and with which credentials
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	to := p.to
	p.asked = append(p.asked, r.Method+" "+r.Host+" "+r.Header.Get("Proxy-Authorization"))
	p.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		io.Copy(out, in)
		out.Close()
	}()
	io.Copy(in, out)
}
