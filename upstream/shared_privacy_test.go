//go:build unix

package upstream

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An attack is a world in which a tries to see anything of b's, or to touch it.
type attack struct {
	w    *sharedWorld
	a, b *sharedClient
	s    *sharedServer
	ids  map[string]string // what the server calls a request of b's, by method
}

// secret stands in all that is b's.
const secret = "SECRET"

// begin gives b one of everything. Before that a asks for all that the server logs.
func (x *attack) begin() {
	x.a.say(`{"id":"level","method":"logging/setLevel","params":{"level":"debug"}}`)
	x.s.hears(`{"id":2,"method":"logging/setLevel","params":{"level":"debug"}}`)
	x.s.say(`{"id":2,"result":{}}`)
	x.a.hears(`{"id":"level","result":{}}`)
	x.ids = make(map[string]string)
	x.b.say(`{"id":1,"method":"tools/call","params":{"name":"SECRET","_meta":{"progressToken":1}}}`,
		`{"id":2,"method":"prompts/get","params":{"name":"SECRET","task":{},"_meta":{"progressToken":2}}}`,
		`{"id":3,"method":"resources/subscribe","params":{"uri":"x:SECRET"}}`,
		`{"id":4,"method":"completion/complete","params":{"SECRET":1}}`)
	for _, text := range x.s.heard() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		json.Unmarshal([]byte(text), &m)
		x.ids[m.Method] = string(m.ID)
	}
	x.s.say(`{"id":`+x.ids["prompts/get"]+`,"result":{"task":{"taskId":"SECRET","status":"working"}}}`,
		`{"id":`+x.ids["resources/subscribe"]+`,"result":{}}`,
		`{"id":`+x.ids["completion/complete"]+`,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"elicitationId":"SECRET"}]}}}`,
		`@`+x.ids["tools/call"]+` {"id":1,"method":"elicitation/create","params":{"message":"SECRET","_meta":{"progressToken":1}}}`)
	x.b.heard()
}

// attacks are what a may say, %s a guess at an id or a token.
var attacks = []string{
	`{"method":"notifications/cancelled","params":{"requestId":%s}}`,
	`{"id":%s,"result":{"action":"accept"}}`,
	`{"id":%s,"error":{"code":1,"message":"m"}}`,
	`{"method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`,
	`{"id":"t1","method":"tasks/get","params":{"taskId":%s}}`,
	`{"id":"t2","method":"tasks/result","params":{"taskId":%s}}`,
	`{"id":"t3","method":"tasks/cancel","params":{"taskId":%s}}`,
	`{"id":"t4","method":"tasks/list","params":{"cursor":%s}}`,
	`{"id":"t5","method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":%s}}}}`,
	`{"id":"t6","method":"resources/subscribe","params":{"uri":"x:y","_meta":{"io.modelcontextprotocol/related-task":{"taskId":%s}}}}`,
	`{"method":"vendor/x","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":%s}}}}`,
	`{"method":"notifications/tasks/status","params":{"taskId":%s,"status":"completed"}}`,
	`{"id":"u1","method":"resources/unsubscribe","params":{"uri":%s}}`,
}

// act lets a try them all. None may reach the server: what did not come from a
// client of this id, token or task is nobody's.
func (x *attack) act() {
	guesses := []string{`"SECRET"`, `"x:SECRET"`, `"1"`, `null`, `true`, `1.0`, `-1`, `"tok"`}
	for i := range 20 {
		guesses = append(guesses, fmt.Sprint(i))
	}
	for _, text := range attacks {
		for _, guess := range guesses {
			message := strings.Replace(fmt.Sprintf(text, guess), "{", `{"jsonrpc":"2.0",`, 1)
			if m, err := jsonrpc.Decode([]byte(message)); err == nil { // else it would not come so far
				x.a.conn.Send(m)
			}
		}
	}
	for _, text := range x.s.heard() {
		x.w.t.Errorf("the server got %s", text)
	}
}

// speak makes the server say all that is b's, as clumsily as it can, and also what
// is late for calls of a that had b's ids.
func (x *attack) speak() {
	related := "@" + x.ids["tools/call"] + " "
	if !x.w.host.Upstreams["u"].Relates {
		related = "" // the server cannot tell
	}
	x.speakOfNobody()
	x.s.say(
		`{"method":"notifications/progress","params":{"progressToken":`+x.ids["tools/call"]+`,"message":"SECRET"}}`,
		`{"method":"notifications/progress","params":{"progressToken":`+x.ids["prompts/get"]+`,"message":"SECRET"}}`,
		`{"method":"notifications/progress","params":{"progressToken":1,"message":"SECRET"}}`,
		`{"method":"notifications/progress","params":{"progressToken":99,"message":"SECRET"}}`,
		`{"method":"notifications/resources/updated","params":{"uri":"x:SECRET"}}`,
		`{"method":"notifications/tasks/status","params":{"taskId":"SECRET","status":"working"}}`,
		`{"method":"notifications/elicitation/complete","params":{"elicitationId":"SECRET"}}`,
		`{"method":"notifications/cancelled","params":{"requestId":1,"reason":"SECRET"}}`,
		`{"method":"notifications/message","params":{"level":"error","data":"SECRET","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"SECRET"}}}}`,
		related+`{"method":"vendor/secret","params":{"data":"SECRET"}}`,
		related+`{"id":2,"method":"roots/list","params":{"SECRET":1}}`,
		`{"id":3,"method":"sampling/createMessage","params":{"SECRET":1,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"SECRET"}}}}`,
		`{"id":1,"result":"SECRET"}`, `{"id":99,"result":"SECRET"}`, `{"id":"SECRET","result":"SECRET"}`,
		`{"id":`+x.ids["tools/call"]+`,"result":"SECRET"}`,
		`{"id":`+x.ids["tools/call"]+`,"result":"SECRET"}`,
		`{"id":`+x.ids["prompts/get"]+`,"result":"SECRET"}`)
	if related != "" {
		x.s.say(related + `{"method":"notifications/message","params":{"level":"error","data":"SECRET"}}`)
	}
}

// speakOfNobody makes the server say what is b's without a word of whose it is.
func (x *attack) speakOfNobody() {
	x.s.say(`{"method":"notifications/message","params":{"level":"error","data":"SECRET"}}`,
		`{"method":"vendor/log","params":{"data":"SECRET"}}`,
		`{"method":"notifications/tools/list_changed","params":{"_meta":{"because":"SECRET"}}}`)
}

// Nothing that is b's comes to a: while b is there, after it has left, also long after that,
// and when it has left while a has calls with the same ids.
func TestSharedPrivacy(t *testing.T) {
	for _, relates := range []bool{false, true} {
		for _, leaves := range []bool{false, true} {
			for _, calls := range []bool{false, true} {
				t.Run(fmt.Sprintf("relates=%v,leaves=%v,calls=%v", relates, leaves, calls), func(t *testing.T) {
					inSharedWorld(t, Upstream{Relates: relates}, func(w *sharedWorld) {
						x := &attack{w: w, a: w.start("a"), b: w.start("b")}
						x.s = w.server()
						x.begin()
						x.act()
						if calls {
							x.a.say(`{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`,
								`{"id":2,"method":"tools/call","params":{"_meta":{"progressToken":"1"}}}`)
						}
						if leaves {
							x.b.leave()
						}
						x.s.heard()
						x.speak()
						time.Sleep(time.Hour) // servers log late
						x.speakOfNobody()
						for _, text := range x.a.heard() {
							if strings.Contains(text, secret) {
								w.t.Errorf("a got %s", text)
							}
						}
					})
				})
			}
		}
	}
}

// And b has everything that is its own, untouched by a's attempts.
func TestSharedPrivacyKeepsWhatIsOwn(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		x := &attack{w: w, a: w.start("a"), b: w.start("b")}
		x.s = w.server()
		x.begin()
		x.act()
		x.speak()
		got := strings.Join(x.b.heard(), "\n")
		for _, want := range []string{`"progressToken":1,"message":"SECRET"`, `"progressToken":2,"message":"SECRET"`, `resources/updated`, `tasks/status`,
			`elicitation/complete`, `{"requestId":1,"reason":"SECRET"}`, `vendor/secret`, `roots/list`, `sampling/createMessage`,
			`{"id":1,"result":"SECRET"}`} {
			if !strings.Contains(got, want) {
				w.t.Errorf("b did not get %s", want)
			}
		}
		if n := strings.Count(got, "notifications/message"); n != 2 { // that of its task, and the one of nobody, since only b has told the server anything; the third came after its call
			w.t.Errorf("b got %d log messages", n)
		}
	})
}

// A modelClient makes random requests, each with a secret of its own, and checks
// all that comes.
type modelClient struct {
	t      testing.TB
	name   string
	conn   *jsonrpc.PipeConn
	random *rand.Rand

	mu        sync.Mutex
	open      map[string]string // secrets, by id
	cancelled map[string]bool   // ids
	answered  int
}

func (c *modelClient) secret(id string) string { return "<" + c.name + "/" + id + ">" }

// act makes n requests; now and then it cancels one or asks for its own list.
func (c *modelClient) act(n int) {
	for i := range n {
		id := fmt.Sprint(i)
		c.mu.Lock()
		c.open[id] = c.secret(id)
		c.mu.Unlock()
		params := fmt.Sprintf(`{"secret":%q,"_meta":{"progressToken":%s}}`, c.secret(id), id)
		c.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), "tools/call", json.RawMessage(params)))
		if c.random.IntN(4) == 0 {
			victim := fmt.Sprint(c.random.IntN(i + 1))
			c.mu.Lock()
			if c.open[victim] != "" {
				c.cancelled[victim] = true
			}
			c.mu.Unlock()
			c.conn.Send(jsonrpc.NewNotification("notifications/cancelled", json.RawMessage(`{"requestId":`+victim+`}`)))
		}
	}
}

// listen checks that every answer, progress and question is this client's, and
// answers the questions with what they ask for.
func (c *modelClient) listen() {
	for {
		m, err := c.conn.Recv()
		if err != nil {
			return
		}
		text := string(m.Append(nil))
		if strings.Contains(text, "<") && !strings.Contains(text, "<"+c.name+"/") {
			c.t.Errorf("%s got %s", c.name, text)
		}
		switch {
		case m.IsRequest():
			c.conn.Send(jsonrpc.NewResult(m.ID, m.Params))
		case m.Method == "notifications/progress":
			if token, _ := jsonrpc.Member(m.Params, "progressToken"); !strings.Contains(text, c.secret(string(token))) {
				c.t.Errorf("%s got %s", c.name, text)
			}
		case m.IsResponse() && m.ID.String() != `"init"`:
			c.settle(m, text)
		}
	}
}

func (c *modelClient) settle(m *jsonrpc.Message, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := m.ID.String()
	if c.open[id] == "" || !strings.Contains(text, c.open[id]) {
		c.t.Errorf("%s got %s", c.name, text)
	}
	delete(c.open, id)
	c.answered++
}

// A modelServer answers in any order, twice now and then, and asks questions.
type modelServer struct {
	s      *sharedServer
	random *rand.Rand
	open   []*jsonrpc.Message
	asked  map[string]string // secrets of the calls, by question
	count  int
}

func (x *modelServer) hand(m *jsonrpc.Message) {
	switch {
	case m.IsResponse():
		if want := x.asked[m.ID.String()]; m.Result != nil && !strings.Contains(string(m.Result), want) {
			x.s.w.t.Errorf("the answer to a question of %s is %s", want, m.Append(nil))
		}
	case m.Method == "tools/call":
		x.open = append(x.open, m)
		if x.random.IntN(3) == 0 {
			x.ask(m)
		}
	}
	for range x.random.IntN(3) {
		x.answer()
	}
}

func secretOf(m *jsonrpc.Message) string {
	text, _ := jsonrpc.Member(m.Params, "secret")
	s, _ := jsonrpc.Unquote(text)
	return s
}

func (x *modelServer) ask(m *jsonrpc.Message) {
	x.count++
	id := jsonrpc.IntID(int64(x.count))
	x.asked[id.String()] = secretOf(m)
	q := jsonrpc.NewRequest(id, "elicitation/create", json.RawMessage(fmt.Sprintf(`{"secret":%q}`, secretOf(m))))
	q.Related = m.ID
	x.s.conn.Send(q)
}

func (x *modelServer) answer() {
	if len(x.open) == 0 {
		return
	}
	i := x.random.IntN(len(x.open))
	m := x.open[i]
	if x.random.IntN(10) > 0 { // else it will be answered again
		x.open = append(x.open[:i], x.open[i+1:]...)
	}
	meta, _ := jsonrpc.Member(m.Params, "_meta")
	token, _ := jsonrpc.Member(meta, "progressToken")
	x.s.conn.Send(jsonrpc.NewNotification("notifications/progress", json.RawMessage(fmt.Sprintf(`{"progressToken":%s,"message":%q}`, token, secretOf(m)))))
	x.s.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(fmt.Sprintf(`{"secret":%q}`, secretOf(m)))))
}

// Whatever many clients do at once, each answer is that of its own request, and
// comes once, unless the client cancelled it.
func TestSharedModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
			first := w.start("first")
			s := w.server()
			x := &modelServer{s: s, random: rand.New(rand.NewPCG(seed, 0)), asked: make(map[string]string)}
			s.hand = x.hand
			var clients []*modelClient
			var wg sync.WaitGroup
			for i := range 8 {
				name := fmt.Sprint("c", i)
				c := &modelClient{t: w.t, name: name, conn: w.attachDeaf(name).conn, random: rand.New(rand.NewPCG(seed, uint64(i+1))),
					open: make(map[string]string), cancelled: make(map[string]bool)}
				clients = append(clients, c)
				c.conn.Send(parse(w.t, `{"id":"init","method":"initialize","params":{"capabilities":`+all+`}}`))
				wg.Go(c.listen)
				go func() {
					c.act(100)
					if i%3 == 0 { // it leaves in the middle
						c.conn.Close()
					}
				}()
			}
			synctest.Wait()
			for len(x.open) > 0 { // the clients are idle, and so is the server
				x.answer()
			}
			synctest.Wait()
			for i, c := range clients {
				for id := range c.open {
					if i%3 > 0 && !c.cancelled[id] {
						w.t.Errorf("seed %d: %s was not answered", seed, c.secret(id))
					}
				}
				c.conn.Close()
			}
			wg.Wait()
			x.open = nil
			s.mu.Lock()
			s.hand = nil
			s.mu.Unlock()
			s.heard()
			first.lives(s)
		})
	}
}
