//go:build unix

package upstream

import (
	"strings"
	"testing"
	"time"
)

// These are the parts of a notification that names a call: as subscription, and by its token in two places.
func ofStream(id string) string {
	return `{"method":"notifications/events/event","params":{"of":1,"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `,"k":1}}}`
}

func withToken(token string) string {
	return `{"method":"acme/told","params":{"progressToken":` + token + `,"k":7}}`
}

func withMetaToken(token string) string {
	return `{"method":"acme/told","params":{"_meta":{"progressToken":` + token + `},"k":7}}`
}

const plain = `{"method":"acme/told","params":{"k":7}}`

// What names a request of any method goes to its client alone, under the client's own id and token, also in the
// final result or error.
func TestModernNotificationsOfAnyRequest(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a.a"), w.attach("b.b")
		s := w.server()
		a.say(`{"id":"e1","method":"events/stream","params":{"_meta":{"progressToken":"ta"}}}`, `{"id":"e2","method":"events/stream"}`)
		b.say(`{"id":"e1","method":"events/stream","params":{"_meta":{"progressToken":3}}}`)
		s.heard() // as 2, 3 and 4
		s.say(ofStream("2"), ofStream("3"), ofStream(`"4"`), withToken("2"), withMetaToken("2"), withToken("4"), withMetaToken("4"),
			`{"method":"notifications/progress","params":{"progress":1,"progressToken":2,"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`)
		a.hears(`@"e1" `+ofStream(`"e1"`), `@"e2" `+ofStream(`"e2"`), `@"e1" `+withToken(`"ta"`), `@"e1" `+withMetaToken(`"ta"`),
			`@"e1" {"method":"notifications/progress","params":{"progress":1,"progressToken":"ta","_meta":{"io.modelcontextprotocol/subscriptionId":"e1"}}}`)
		b.hears(`@"e1" `+ofStream(`"e1"`), `@"e1" `+withToken(`3`), `@"e1" `+withMetaToken(`3`))

		s.say(withToken("3"), // a call without a token
			ofStream("9"), ofStream("1"), ofStream("null"), ofStream(`"e1"`), // nobody's, our own, and none
			`{"method":"acme/told","params":{"progressToken":4,"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`, // two
			`{"method":"notifications/progress","params":{"progress":1,"progressToken":2,"_meta":{"io.modelcontextprotocol/subscriptionId":4}}}`,
			`{"method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`) // no listen
		a.hears()
		b.hears()

		s.say(`{"id":2,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":2},"resultType":"acme"}}`,
			`{"id":3,"error":{"code":-1,"message":"m","data":{"_meta":{"io.modelcontextprotocol/subscriptionId":3}}}}`,
			ofStream("2"), ofStream("3"), withToken("2")) // late
		a.hears(`{"id":"e1","result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"e1"},"resultType":"acme"}}`,
			`{"id":"e2","error":{"code":-1,"message":"m","data":{"_meta":{"io.modelcontextprotocol/subscriptionId":"e2"}}}}`)
		b.hears()
	})
}

// A client names its own requests to the server, and cannot name another's.
func TestSharedClientsNameTheirOwnRequests(t *testing.T) {
	const sub = `"io.modelcontextprotocol/subscriptionId":`
	test := func(w *sharedWorld, a, evil *sharedClient) {
		s := w.server()
		a.say(`{"id":"e","method":"events/stream","params":{"_meta":{"progressToken":"ta"}}}`)
		evil.say(`{"id":"e","method":"events/stream"}`)
		s.heard() // as 2 and 3
		tell := func(params string) string { return `{"method":"acme/tell","params":` + params + `}` }
		a.say(tell(`{"progressToken":"ta","_meta":{`+sub+`"e"}}`), tell(`{"_meta":{"progressToken":"ta"}}`), tell(`{"progressToken":"its own"}`),
			`{"id":"x","method":"events/renew","params":{"_meta":{`+sub+`"e","progressToken":"ta"}}}`)
		s.hears(tell(`{"progressToken":2,"_meta":{`+sub+`2}}`), tell(`{"_meta":{"progressToken":2}}`), tell(`{"progressToken":"its own"}`),
			`{"id":4,"method":"events/renew","params":{"_meta":{`+sub+`2,"progressToken":4}}}`)
		evil.say(tell(`{"_meta":{`+sub+`2}}`), tell(`{"_meta":{`+sub+`"2"}}`), tell(`{"_meta":{`+sub+`2,`+sub+`"e"}}`),
			`{"id":"y","method":"events/renew","params":{"_meta":{`+sub+`2}}}`, `{"id":"z","method":"events/poll","params":{"name":"n","_meta":{`+sub+`2}}}`)
		s.hears()
		evil.hears(`{"id":"y","error":{"code":-32602,"message":"Invalid params: unknown subscription"}}`,
			`{"id":"z","error":{"code":-32602,"message":"Invalid params: unknown subscription"}}`)
	}
	inModernWorld(t, func(w *sharedWorld) { test(w, w.attach("a.a"), w.attach("b.b")) })
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) { test(w, w.start("a.a"), w.start("b.b")) })
}

// A log message may name its call, too, and needs no guess then. It still needs a call that asked for its level.
func TestModernLogMessagesThatNameTheirCall(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a.a"), w.attach("b.b")
		s := w.server()
		a.say(`{"id":"a","method":"x","params":` + wantsLogs + `}`)
		b.say(`{"id":"b","method":"x"}`)
		s.heard()
		log := func(id string) string {
			return `{"method":"notifications/message","params":{"level":"info","_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}}}`
		}
		s.say(log("2"), log("3"))
		a.hears(`@"a" ` + log(`"a"`))
		b.hears()
	})
}

// What names no request is of the only call there is, while one principal alone has used the server.
func TestModernNotificationsThatNameNone(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a.a"), w.attach("b.b")
		s := w.server()
		dropped := 0
		drops := func(n int) {
			t.Helper()
			dropped += n
			if st := w.host.Status(); len(st) != 1 || st[0].Unattributed != dropped {
				t.Errorf("%+v, want %d messages dropped", st, dropped)
			}
			a.hears()
			b.hears()
		}
		s.say(plain)
		drops(1) // no call is open
		a.say(`{"id":"l","method":"subscriptions/listen"}`, `{"id":"a","method":"x"}`)
		s.heard()
		s.say(plain, withToken(`"its own"`))
		a.hears(`@"a" `+plain, `@"a" `+withToken(`"its own"`))
		a.say(`{"id":"a2","method":"x"}`)
		s.say(plain)
		drops(1)
		s.say(`{"id":4,"result":{}}`, plain)
		a.hears(`{"id":"a2","result":{}}`, `@"a" `+plain)

		b.say(`{"id":"b","method":"x"}`)
		s.say(plain)
		drops(1)
		s.say(`{"id":5,"result":{}}`)
		b.heard()
		time.Sleep(time.Hour)
		s.say(plain)
		drops(1) // it may be of what b has told it
	})
}

// The same on a legacy server. There a task goes on with the token of its call.
func TestSharedNotificationsThatNameACall(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		a, b := w.start("a.a"), w.start("b.b")
		s := w.server()
		a.say(`{"id":"a","method":"events/stream","params":{"_meta":{"progressToken":"ta"}}}`)
		b.say(`{"id":"b","method":"events/stream"}`,
			`{"id":"t","method":"tools/call","params":{"task":{},"_meta":{"progressToken":"tt"}}}`)
		s.heard() // as 2, 3 and 4
		s.say(ofStream("2"), ofStream("3"), withToken("2"), withMetaToken("2"), "@2 "+withToken("2"))
		a.hears(`@"a" `+ofStream(`"a"`), `@"a" `+withToken(`"ta"`), `@"a" `+withMetaToken(`"ta"`), `@"a" `+withToken(`"ta"`))
		b.hears(`@"b" ` + ofStream(`"b"`))

		s.say(withToken("3"), ofStream("9"), ofStream("1"), "@3 "+withToken("2"), `{"method":"acme/told","params":{"progressToken":2,"progressToken":2}}`,
			strings.Replace(ofStream("2"), `"k":1`, `"io.modelcontextprotocol/related-task":{"taskId":"T"}`, 1))
		a.hears()
		b.hears()

		s.say(`{"id":4,"result":{"task":{"taskId":"T","status":"working"}}}`, withToken("4"), ofStream("4"),
			`{"id":2,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`)
		b.hears(`{"id":"t","result":{"task":{"taskId":"T","status":"working"}}}`, withToken(`"tt"`))
		a.hears(`{"id":"a","result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"a"}}}`)
	})
}
