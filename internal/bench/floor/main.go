// Command floor is the least that a proxy of messages can do: it reads the id and the method of
// each, replaces the id by one of its own, and brings the answer back under the first one. There
// are no sessions, limits, cancellations or ends here. It is started as
//
//	floor stdio COMMAND…    stdin ─► yamux in memory ─► the process
//	floor batch COMMAND…    likewise, but messages that arrive together are written together
//	floor serve COMMAND…    /ws (gorilla/websocket) and /mcp (net/http) ─► yamux in memory ─► the process
//	floor forward URL       /mcp (net/http) ─► net/http ─► the remote server
//
// and measured beside the proxy, which does all of that besides what it promises.
package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

func run(mode string, args []string) error {
	if mode == "forward" {
		return listen(forwarder(args[0]))
	}
	cmd := exec.Command(args[0], args[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r, err := newRouter(in, out, mode == "batch")
	if err != nil {
		return err
	}
	switch mode {
	case "stdio", "batch":
		return errors.Join(r.stdio(os.Stdin, os.Stdout), in.Close(), cmd.Wait())
	case "serve":
		mux := http.NewServeMux()
		mux.HandleFunc("/ws", r.webSocket)
		mux.HandleFunc("/mcp", r.http)
		return listen(mux)
	}
	return errors.New("want stdio, batch, serve or forward")
}

// listen serves HTTP at a port of loopback, which it tells, until that fails.
func listen(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	io.WriteString(os.Stdout, "listening on http://"+l.Addr().String()+"/mcp\n")
	return http.Serve(l, h)
}
