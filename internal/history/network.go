package main

import (
	"bytes"
	"context"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	chunks "github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// A network is what is between the proxy and a server or host on TCP.
type network struct {
	address string // where it listens
	target  string
	proxy   *toxiproxy.Proxy
}

func newNetwork(target string) (*network, error) {
	n := &network{address: freeAddress(), target: target}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n.proxy = toxiproxy.NewProxy(server, target, n.address, target)
	return n, n.proxy.Start()
}

// poison adds a toxic in one direction, "upstream" or "downstream".
func (n *network) poison(kind, direction string, attributes object) error {
	_, err := n.proxy.Toxics.AddToxicJson(bytes.NewReader(encode(object{
		"name": "it", "type": kind, "stream": direction, "attributes": attributes})))
	return err
}

// heal removes the toxic.
func (n *network) heal() { n.proxy.Toxics.ResetToxics(context.Background()) }

// cut ends all connections; new ones may be made at once.
func (n *network) cut() error {
	n.proxy.Stop()
	err := n.proxy.Start()
	for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); err = n.proxy.Start() {
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func (n *network) close() { n.proxy.Stop() }

// A corruptToxic changes bytes: one in each chunk.
type corruptToxic struct{}

func (corruptToxic) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			c = &chunks.StreamChunk{Data: bytes.Clone(c.Data), Timestamp: c.Timestamp}
			if len(c.Data) > 0 {
				c.Data[len(c.Data)/2] ^= 0x80
			}
			stub.Output <- c
		}
	}
}

func init() { toxics.Register("corrupt", new(corruptToxic)) }
