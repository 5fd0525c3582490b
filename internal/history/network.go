package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
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

// The toxics of toxiproxy wait for ever when the connection that they write to has ended, and so does who removes them.
// These do not.
type (
	corruptToxic struct{} // changes one byte of each chunk
	sliceToxic   struct{} // makes chunks of few bytes
	delayToxic   struct{} // holds each chunk back
)

func (corruptToxic) Pipe(stub *toxics.ToxicStub) {
	pass(stub, func(c *chunks.StreamChunk) [][]byte {
		data := bytes.Clone(c.Data)
		if len(data) > 0 {
			data[len(data)/2] ^= 0x80
		}
		return [][]byte{data}
	})
}

func (sliceToxic) Pipe(stub *toxics.ToxicStub) {
	pass(stub, func(c *chunks.StreamChunk) [][]byte { return slices.Collect(slices.Chunk(c.Data, 20)) })
}

func (delayToxic) Pipe(stub *toxics.ToxicStub) {
	pass(stub, func(c *chunks.StreamChunk) [][]byte {
		time.Sleep(time.Until(c.Timestamp.Add(100*time.Millisecond + rand.N(200*time.Millisecond))))
		return [][]byte{c.Data}
	})
}

// pass writes what each chunk becomes, until the connection has ended; then it drops what still comes.
func pass(stub *toxics.ToxicStub, become func(*chunks.StreamChunk) [][]byte) {
	ended := false
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			for _, data := range become(c) {
				ended = ended || stub.WriteOutput(&chunks.StreamChunk{Data: data, Timestamp: c.Timestamp}, 5*time.Second) != nil
			}
		}
	}
}

func init() {
	toxics.Register("corrupt", new(corruptToxic))
	toxics.Register("slice", new(sliceToxic))
	toxics.Register("delay", new(delayToxic))
}
