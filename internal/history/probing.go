package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
)

// probing is a session of Streamable HTTP that a fault uses.
type probing struct {
	world   *world
	session string
}

// ask sends a request on a new connection, so that the balancer chooses the next replica, and returns the status.
func (p *probing) ask(method string) (status int, err error) {
	m := message{ID: json.RawMessage("1"), Method: method}
	if method == "initialize" {
		m.Params = encode(object{"protocolVersion": legacyVersion, "capabilities": object{}, "clientInfo": object{"name": "probe", "version": "1"}})
	}
	req, err := http.NewRequest(http.MethodPost, p.world.url()+"/mcp", bytes.NewReader(m.bytes()))
	if err != nil {
		return 0, err
	}
	req.Close = true
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Authorization": {"Bearer " + p.world.token(0)}}
	if p.session != "" {
		req.Header.Set("Mcp-Session-Id", p.session)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		p.session = id
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
