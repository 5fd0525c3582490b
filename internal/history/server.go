package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// A server is the MCP server of one process. It speaks one era, and has one tool, which does what its
// arguments say and journals that.
type server struct {
	name     string
	modern   bool
	journal  *journal
	register register
	fault    string // what it does wrong, one of plants; "" for nothing

	mu    sync.Mutex       // guards the field below, and the tasks
	tasks map[string]*task // by id
}

// runServer is the program of a server: on stdin and stdout, or at an address.
func runServer(args []string) error {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	name := flags.String("name", "server", "its `name` in the journal")
	dir := flags.String("journal", ".", "`directory` of the journal and the register")
	era := flags.String("era", "legacy", "legacy or modern")
	listen := flags.String("listen", "", "serve Streamable HTTP at this `address`, not stdin")
	fault := flags.String("plant", "", "the planted `fault`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	j, err := openJournal(*dir, *name)
	if err != nil {
		return err
	}
	s := &server{name: *name, modern: *era == "modern", journal: j, register: registerFile(*dir + "/" + *name + ".register"),
		fault: *fault, tasks: map[string]*task{}}
	j.add(Started, "", "")
	if s.fault == "leave a process" {
		if err := startDetached(*dir); err != nil {
			return err
		}
	}
	if *listen != "" {
		return s.serveHTTP(*listen)
	}
	return s.serveStdio()
}

func (s *server) serveStdio() error {
	var mu sync.Mutex
	c := newConnection(s, func(_ string, m *message) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = os.Stdout.Write(append(m.bytes(), '\n')) // whoever is gone will not read it
	})
	lines := linesOf(os.Stdin)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("%s: %w", lines.Bytes(), err)
		}
		c.handle(context.Background(), &m)
	}
	s.journal.add(Stopped, "", "")
	return lines.Err()
}

// A connection is what one client has: a session of the legacy era, or a pair of pipes.
type connection struct {
	*server
	send func(request string, m *message) // that belongs to a request, by its id; it may be called by many goroutines

	mu        sync.Mutex
	running   map[string]*running      // by the id of the request
	questions map[string]question      // by the id of the question; each takes one reply
	follows   bool                     // legacy: the client is subscribed to the resource
	listens   map[string]notifications // modern: by the id of the listen
	asked     int
}

type running struct {
	nonce string
	stop  context.CancelFunc
}

func newConnection(s *server, send func(string, *message)) *connection {
	return &connection{server: s, send: send, running: map[string]*running{}, questions: map[string]question{},
		listens: map[string]notifications{}}
}

// handle takes a message. A request is answered by a goroutine of its own; done is closed then.
func (c *connection) handle(ctx context.Context, m *message) (done <-chan struct{}) {
	p, err := m.params()
	if err != nil {
		c.reply(m, nil, object{"code": -32602, "message": err.Error()})
		return closed
	}
	switch {
	case m.isResponse():
		c.replied(m)
	case m.Method == "notifications/cancelled":
		c.cancel(string(p.RequestID))
	case m.Method == "tools/call" && p.mayTask():
		c.startTask(m, p.Arguments)
	case strings.HasPrefix(m.Method, "tasks/"):
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.aboutTask(m, p)
		}()
		return ended
	case m.Method == "tools/call":
		ctx, stop := context.WithCancel(ctx)
		c.mu.Lock()
		c.running[string(m.ID)] = &running{p.Arguments.Nonce, stop}
		c.mu.Unlock()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer stop()
			c.call(ctx, m, p)
			c.mu.Lock()
			delete(c.running, string(m.ID))
			c.mu.Unlock()
		}()
		return ended
	case m.isRequest():
		c.answer(m, p)
	}
	return closed
}

// closed is the done of what is done at once.
var closed = func() chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}()

func (c *connection) reply(m *message, result any, failure object) {
	r := &message{ID: m.ID}
	if failure != nil {
		r.Error = encode(failure)
	} else {
		r.Result = encode(result)
	}
	c.send(string(m.ID), r)
}

// answer answers a request that takes no time.
func (c *connection) answer(m *message, p params) {
	if modern := p.Meta.Version != ""; modern != c.modern {
		c.reply(m, nil, object{"code": -32601, "message": "Method not found"})
		return
	}
	capabilities := object{"logging": object{}, "tools": object{"listChanged": true}, "resources": object{"subscribe": true}}
	result := object{}
	if !c.modern {
		capabilities["tasks"] = object{"list": object{}, "cancel": object{}, "requests": object{"tools": object{"call": object{}}}}
	} else {
		capabilities["extensions"] = object{extensionTasks: object{}}
		result = object{"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
	}
	switch m.Method {
	case "initialize":
		result["protocolVersion"] = legacyVersion
		result["capabilities"] = capabilities
		result["serverInfo"] = object{"name": c.name, "version": "1"}
	case "server/discover":
		result["supportedVersions"] = []string{modernVersion}
		result["capabilities"] = capabilities
	case "tools/list":
		result["tools"] = c.tools()
	case "resources/list":
		result["resources"] = []object{{"uri": thingOf(c.name), "name": "thing"}}
	case "resources/templates/list":
		result["resourceTemplates"] = []object{}
	case "resources/subscribe", "resources/unsubscribe":
		c.journal.add(Subscription, "", m.Method+" "+p.URI)
		if p.URI != thingOf(c.name) {
			c.reply(m, nil, object{"code": -32002, "message": "Resource not found"})
			return
		}
		c.mu.Lock()
		c.follows = m.Method == "resources/subscribe"
		c.mu.Unlock()
	case "subscriptions/listen":
		c.listen(m, p)
		return // it ends when it is cancelled
	case "ping":
	default:
		c.reply(m, nil, object{"code": -32601, "message": "Method not found"})
		return
	}
	c.reply(m, result, nil)
}

// tool is the name of the tool.
const tool = "do"

// call runs the tool, and answers unless it is cancelled.
func (c *connection) call(ctx context.Context, m *message, p params) {
	a := p.Arguments
	id := string(m.ID)
	if p.RequestState == "" {
		c.journal.add(Began, a.Nonce, "")
		if !c.work(ctx, id, p) {
			return
		}
	}
	reply := ""
	if a.Ask != "" {
		var goes bool
		if reply, goes = c.ask(ctx, m, p); !goes {
			return
		}
	}
	value, err := c.effect(a)
	if err != nil {
		c.reply(m, nil, object{"code": -32603, "message": err.Error()})
		return
	}
	content := object{"content": []object{{"type": "text", "text": a.Nonce}},
		"structuredContent": answer{a.Nonce, c.journal.by, reply, value}}
	if c.modern {
		content["resultType"] = "complete"
	}
	c.journal.add(Ended, a.Nonce, "")
	c.reply(m, content, nil)
}

// work takes the time that the call wants, and sends its progress and log messages. It returns false if the call was cancelled.
func (c *connection) work(ctx context.Context, id string, p params) bool {
	a := p.Arguments
	steps := max(a.Progress, a.Log, 1)
	for i := range steps {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Duration(a.MS) * time.Millisecond / time.Duration(steps)):
		}
		if i < a.Log && (!c.modern || p.Meta.LogLevel != "") {
			c.send(id, &message{Method: "notifications/message", Params: encode(object{"level": "info", "data": a.Nonce})})
		}
		if i < a.Progress {
			c.send(id, &message{Method: "notifications/progress", Params: encode(object{
				"progressToken": p.Meta.ProgressToken, "progress": i + 1, "message": a.Nonce})})
		}
	}
	return ctx.Err() == nil
}

// effect does once what the call asks for.
func (c *connection) effect(a call) (int, error) {
	c.journal.add(Effect, a.Nonce, "")
	if c.fault == "execute twice" && planted(a.Nonce) {
		c.journal.add(Effect, a.Nonce, "")
	}
	if c.fault == "forget a write" && a.Do != "get" && planted(a.Nonce) {
		a.Do = "get"
	}
	switch a.Do {
	case "touch":
		c.update(a.Nonce)
		return 0, nil
	case "grow":
		n, err := c.register.apply(call{Do: "add", Key: "tools"})
		c.changed()
		return n, err
	}
	return c.register.apply(a)
}

// end cancels all requests.
func (c *connection) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.running {
		r.stop()
	}
}

// cancel cancels a request.
func (c *connection) cancel(id string) {
	c.mu.Lock()
	delete(c.listens, id)
	r := c.running[id]
	if c.fault == "cancel another" {
		for other := range c.running {
			r = c.running[other]
		}
	}
	c.mu.Unlock()
	if r != nil {
		c.journal.add(Cancelled, r.nonce, "")
		r.stop()
	}
}
