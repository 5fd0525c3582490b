package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// history makes one of lines "BY WHAT OF TEXT", a millisecond apart; "-" is for no operation.
func history(lines string) (events []Event) {
	for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		f := append(strings.SplitN(strings.TrimSpace(line), " ", 4), "", "")
		events = append(events, Event{int64(i+1) * 1e6, f[0], What(f[1]), strings.TrimPrefix(f[2], "-"), f[3]})
	}
	return events
}

func TestJudge(t *testing.T) {
	const (
		join       = "c0 join - WebSocket\nc1 join - stdio\n"
		sent       = "c0 sent a " + `{"server":"common","nonce":"a"}` + "\n"
		follow     = "c0 sent a " + `{"server":"common","nonce":"a","progress":1}` + "\n"
		starts     = "c0 progress a -1 starting common\n"
		asks       = "c0 sent a " + `{"server":"common","nonce":"a","ask":"sampling/createMessage"}` + "\n"
		farAsks    = "c.0 sent a " + `{"server":"far","nonce":"a","ask":"sampling/createMessage"}` + "\nfar/1 began a\n"
		expired    = "c.0 failed a " + `{"code":-32602,"data":{"reason":"request_state_expired"}}`
		task       = "c0 sent a " + `{"server":"common","nonce":"a","task":"cancel"}` + "\n"
		ended      = "c0 result a " + `{"taskId":"task-a","status":"cancelled"}` + "\n"
		theirs     = "c1 sent b " + `{"method":"tasks/get","theirs":"task-a"}` + "\nc1 GOT\n"
		told       = "c0 result a " + `{"nonce":"a","server":"common/1","reply":"a"}` + "\n"
		runs       = "common/1 began a\ncommon/1 effect a\ncommon/1 ended a\n"
		good       = "c0 result a " + `{"nonce":"a","server":"common/1"}` + "\n"
		lost       = "c0 failed a " + `{"code":-32603,"data":{"reason":"connection_closed","upstream":"common","cause":"signal: killed","phase":"%s","event":"e1"}}` + "\n"
		slow       = "c0 sent a " + `{"server":"common","nonce":"a","cancelAfter":1}` + "\ncommon/1 began a\nc0 cancel a\nc0 cancel a sent\n"
		closing    = `{"code":-32000,"data":{"reason":"connection_closed"}}` + "\n"
		crosses    = asks + "common/1 began a\nc0 cancel a\nc0 cancel a sent\n"
		refused    = "common/1 refused a " + `{"message":"cannot attribute server request"}` + "\n"
		over       = "common/1 refused a " + `{"message":"the call has ended"}` + "\n"
		modern     = "c0 join - modern WebSocket\nc1 join - stdio\n"
		unanswered = "c0 failed a " + `{"code":-32603,"message":"the question was refused"}` + "\n"
		touch      = "c0 sent a " + `{"server":"common","nonce":"a","do":"touch"}` + "\n" + runs
		logs       = "c0 sent a " + `{"server":"own","nonce":"a","log":1}` + "\nown/1 began a\nown/1 effect a\n"
		says       = "c0 sent a " + `{"server":"common","nonce":"a","log":1}` + "\n" + runs
		logged     = `c0 result a {"nonce":"a","server":"own/1"}` + "\n"
		listed     = "c1 sent b {}\nc1 result b []\nc1 follows - tools\n"
		grow       = "c0 sent a " + `{"server":"common","nonce":"a","do":"grow"}` + "\n" + runs + "c0 result a " + `{"nonce":"a","server":"common/1","value":1}` + "\n"
		lists      = `[{"name":"common__do"},{"name":"common__v1"}]`
		denies     = "nemesis denies - anna common *\n"
		unknown    = `c0 failed a {"code":-32602,"message":"Unknown tool: common__do"}` + "\n"
		next       = "c0 sent b " + `{"server":"common","nonce":"b"}` + "\ncommon/1 began b\ncommon/1 effect b\nc0 result b " + `{"nonce":"b","server":"common/1"}` + "\n"
	)
	const principal = "%[1]s join - modern HTTP\n%[2]s join - modern HTTP\n%[1]s sent a {\"server\":\"own\"}\n%[2]s sent b {\"server\":\"own\"}\n" +
		"own/1 began a\nown/1 began b\n%[1]s left - vanish\n%[2]s left - vanish"
	wait := strings.Repeat("c1 started -\n", 1100) // more than a second
	lostIn, lostBefore := fmt.Sprintf(lost, "in_flight"), fmt.Sprintf(lost, "not_sent")
	for _, tt := range []struct {
		name, events string
		want         []int // the promises that are broken
	}{
		{"a call", join + sent + runs + good, nil},
		{"no outcome", join + sent + runs, []int{1}},
		{"no outcome for a client that left", join + sent + runs + "c0 left - close", nil},
		{"no outcome for a client that lost it", join + sent + runs + "c0 lost a", nil},
		{"two outcomes for a client that lost them", join + sent + runs + "c0 lost a\n" + good + good, []int{1}},
		{"cancelled, though it was only lost", join + sent + "common/1 began a\nc0 lost a\ncommon/1 cancelled a", []int{4}},
		{"no outcome at a half-close", join + strings.ReplaceAll(sent, "c0", "c1") + runs + "c1 left - close", []int{1}},
		{"sent after a half-close", join + "c1 left - close\n" + strings.ReplaceAll(sent, "c0", "c1"), nil},
		{"two outcomes", join + sent + runs + good + good, []int{1}},
		{"a connection that ends", join + sent + runs + good + "c0 broken - EOF", []int{1}},
		{"a connection that a fault ends", join + "nemesis fault - kill proxy proxy\n" + sent + "c0 broken - EOF", nil},
		{"a connection that does not begin", join + "c0 broken - initialize failed", []int{1}},
		{"a connection to one server that does not begin", "own/1 started -\n" + join + "nemesis fault - kill server own\nc0 broken - initialize failed", nil},
		{"a connection to two servers that does not begin", "own/1 started -\nfar/1 started -\n" + join + "nemesis fault - kill server own\nc0 broken - initialize failed", []int{1}},
		{"no outcome at a half-close in memory", join + strings.ReplaceAll(sent, "c0", "c1") + runs + "c1 left - half-close", []int{1}},
		{"no outcome at a half-close in memory as the proxy ends", join + strings.ReplaceAll(sent, "c0", "c1") + runs + "nemesis fault - restart proxy proxy\nc1 left - half-close", nil},
		{"a result of nothing", join + sent + good, []int{2}},
		{"executed twice", join + sent + runs + "common/1 effect a\n" + good, []int{2}},
		{"killed", join + sent + "common/1 began a\nnemesis fault - kill server common\n" + lostIn, nil},
		{"executed, not sent", join + sent + runs + "nemesis fault - kill server common\n" + lostBefore, []int{2}},
		{"an error that nothing explains", join + sent + "common/1 began a\n" + lostIn, []int{6}},
		{"an event that no log has", join + sent + "nemesis fault - kill server common\n" + strings.Replace(lostIn, "e1", "e2", 1), []int{6}},
		{"another's result", join + sent + runs + strings.Replace(good, `"a"`, `"b"`, 1), []int{3}},
		{"another server's result", join + sent + runs + strings.Replace(good, "common/1", "own/1", 1), []int{3}},
		{"a question", join + asks + "c0 question a sampling/createMessage\ncommon/1 replied a a\n" + runs + told, nil},
		{"a question that is refused", join + asks + "common/1 began a\ncommon/1 refused a " + `{"message":"cannot attribute server request"}` + "\n" + unanswered, nil},
		{"a question that is refused because of a reload", join + "nemesis fault - reload configuration\n" + asks + "common/1 began a\ncommon/1 refused a " + closing + unanswered, nil},
		{"a question whose answer was corrupted", join + "nemesis fault - corrupt link\n" + asks + "common/1 began a\ncommon/1 refused a " + `{"code":-32603,"data":{"reason":"invalid_response"}}` + "\n" + unanswered, nil},
		{"a question whose answer is invalid without a fault", join + asks + "common/1 began a\ncommon/1 refused a " + `{"code":-32603,"data":{"reason":"invalid_response"}}` + "\n" + unanswered, []int{6}},
		{"a question that is refused without a reason", join + asks + "common/1 began a\ncommon/1 refused a " + closing + unanswered, []int{6}},
		{"a question that nobody refused", join + asks + "common/1 began a\n" + unanswered, []int{6}},
		{"a cancelled call whose question is refused", join + asks + "common/1 began a\nc0 cancel a\nc0 cancel a sent\ncommon/1 refused a " + closing + "common/1 cancelled a", []int{4}},
		{"a question that crosses the cancellation of its call", join + crosses + "common/1 cancelled a\n" + refused, nil},
		{"a question that crosses the cancellation of its call, since its client left", join + asks + "common/1 began a\nc0 left - close\ncommon/1 cancelled a\n" + refused, nil},
		{"a question that crosses the cancellation of its call, to a server of its own", join + strings.ReplaceAll(crosses+"common/1 cancelled a\n"+refused, "common", "own"), []int{4}},
		{"a question of a translated call that crosses its cancellation, to a server of its own", modern + strings.ReplaceAll(crosses+"common/1 cancelled a\n"+over, "common", "own"), nil},
		{"a question of a translated call that is refused before its cancellation, to a server of its own", modern + strings.ReplaceAll(crosses+over+"common/1 cancelled a\n", "common", "own"), []int{4}},
		{"a question that is refused before the cancellation of its call", join + crosses + refused + "common/1 cancelled a", nil},
		{"a question that is refused, and then its call is cancelled", join + asks + "common/1 began a\n" + refused + "c0 cancel a\nc0 cancel a sent\ncommon/1 cancelled a", nil},
		{"a question that is refused, and then its call is cancelled twice", join + crosses + refused + "common/1 cancelled a\ncommon/1 cancelled a", []int{4}},
		{"a question that is refused, and then its call is cancelled, since its client left", join + asks + "common/1 began a\n" + refused + "c0 left - close\ncommon/1 cancelled a", nil},
		{"a question that is refused, and then its call is cancelled, since its upstream was changed", join + asks + "common/1 began a\n" + refused + "nemesis fault - reload configuration\ncommon/1 cancelled a\n" + strings.Replace(lostIn, "signal: killed", "upstream changed", 1), nil},
		{"a question that is refused, and then a modern client over HTTP leaves, which cancels its call", strings.Replace(join, "WebSocket", "modern HTTP", 1) + asks + "common/1 began a\n" + refused + "c0 left - vanish\ncommon/1 cancelled a", nil},
		{"a question that is refused, and then its call is cancelled by the proxy", join + asks + "common/1 began a\n" + refused + "common/1 cancelled a\nc0 cancel a\nc0 cancel a sent", []int{4}},
		{"a question that is refused after the cancellation of its call since the connection is closed", join + crosses + "common/1 cancelled a\ncommon/1 refused a " + closing, []int{4}},
		{"a question that crosses two cancellations of its call", join + crosses + "common/1 cancelled a\ncommon/1 cancelled a\n" + refused, []int{4}},
		{"a question that is forgotten as a link is lost", "c.0 join - modern stdio\n" + farAsks + "nemesis fault - cut link\n" + expired, nil},
		{"a question that is forgotten", "c.0 join - modern stdio\n" + farAsks + expired, []int{6}},
		{"a question of a principal that is forgotten as a link is lost", "c.0 join - modern HTTP\n" + farAsks + "nemesis fault - cut link\n" + expired, []int{6}},
		{"another question", join + asks + "c0 question a elicitation/create\ncommon/1 replied a a\n" + runs + told, []int{3}},
		{"another's reply", join + asks + "c0 question a sampling/createMessage\ncommon/1 replied a b\n" + runs + told, []int{3}},
		{"a reply that nobody gave", join + asks + "common/1 replied a a\n" + runs + told, []int{3}},
		{"a task", join + task + runs + good, nil},
		{"a task that was cancelled", join + task + "common/1 began a\ncommon/1 cancelled a\n" + ended, nil},
		{"a task that was cancelled and executed", join + task + runs + ended, []int{4}},
		{"a task that somebody cancelled", join + strings.Replace(task, "cancel", "result", 1) + "common/1 began a\ncommon/1 cancelled a\n" + ended, []int{4}},
		{"a task that ran twice", join + task + runs + runs + good, []int{2}},
		{"another's task", join + strings.Replace(theirs, "GOT", `result b {"taskId":"task-a"}`, 1), []int{3}},
		{"another's task, refused", join + strings.Replace(theirs, "GOT", `failed b {"code":-32602}`, 1), nil},
		{"another's task in a list", "c.1 join - stdio\n" + join + task + runs + good + "c.1 sent b {\"method\":\"tasks/list\"}\n" +
			`c.1 result b {"tasks":[{"taskId":"common__task-a"}]}`, []int{3}},
		{"a task that is unknown", join + task + `c0 failed a {"code":-32602}`, []int{6}},
		{"progress of another", join + sent + "c1 progress a 1 a\n" + runs + good, []int{3}},
		{"progress after the answer", join + strings.Replace(sent, `"a"}`, `"a","progress":1}`, 1) + runs + good + "c0 progress a 1 a", []int{5}},
		{"progress of a start", join + follow + starts + "c0 progress a 1 a\n" + runs + good, nil},
		{"progress of a start in place of that of the call", join + follow + starts + runs + good, []int{5}},
		{"progress of a start, twice", join + follow + starts + starts + "c0 progress a 1 a\n" + runs + good, []int{3, 5}},
		{"progress of a start, late", join + follow + "c0 progress a 1 a\n" + starts + runs + good, []int{3, 5}},
		{"progress of the start of another server", join + follow + strings.Replace(starts, "common", "own", 1) + "c0 progress a 1 a\n" + runs + good, []int{3, 5}},
		{"progress of a start, not asked for", join + sent + starts + runs + good, []int{3, 5}},
		{"progress that is missing", join + strings.Replace(sent, `"a"}`, `"a","progress":1}`, 1) + runs + good, []int{5}},
		{"cancelled", join + slow + "common/1 cancelled a\n" + next, nil},
		{"cancelled, and its server was not told", join + slow + next, []int{4}},
		{"cancelled after it had left", join + strings.Replace(slow, "c0 cancel a\n", "c0 left - die\nc0 cancel a\n", 1) + "common/1 ended a\n", nil},
		{"cancelled over HTTP before the call began", strings.Replace(join, "WebSocket", "HTTP", 1) + "c0 sent a {\"server\":\"common\"}\nc0 cancel a\nc0 cancel a sent\ncommon/1 began a\ncommon/1 ended a\nc0 left - close", nil},
		{"cancelled over HTTP after the call began", strings.Replace(join, "WebSocket", "HTTP", 1) + "c0 sent a {\"server\":\"common\"}\ncommon/1 began a\nc0 cancel a\nc0 cancel a sent\ncommon/1 ended a\nc0 left - close", []int{4}},
		{"cancelled, and its server was told late", join + slow + next + "common/1 cancelled a", []int{4}},
		{"cancelled by nobody", join + sent + "common/1 began a\ncommon/1 cancelled a\n" + lostIn, []int{4, 6}},
		{"an update", join + "c1 follows - common\n" + touch + "c1 updated a common\n" + good, nil},
		{"an update that is missing", join + "c1 follows - common\n" + touch + good, []int{5}},
		{"another list of tools", join + listed + grow + "c1 updated - tools\n" + "c1 sent c {}\nc1 result c []\n", nil},
		{"another list of tools, untold", join + listed + grow + wait + "c1 sent c {}\nc1 result c " + lists, []int{5}},
		{"an old list of tools", join + listed + grow + "c1 updated - tools\n" + wait + "c1 sent c {}\nc1 result c []\n", []int{3}},
		{"a new list of tools", join + listed + grow + "c1 updated - tools\n" + wait + "c1 sent c {}\nc1 result c " + lists, nil},
		{"log messages", join + logs + "c0 logged a\n" + logged, nil},
		{"a log message that is missing", join + logs + logged, []int{5}},
		{"a log message after the result", join + logs + logged + "c0 logged a", []int{5}},
		{"another's log message, as its link is corrupted", join + "nemesis fault - corrupt link\n" + strings.ReplaceAll(says, "common", "far") + "c1 logged a\n" + strings.ReplaceAll(good, "common", "far"), nil},
		{"another's log message, of another server as a link is corrupted", join + "nemesis fault - corrupt link\n" + strings.ReplaceAll(says, "common", "own") + "c1 logged a\n" + strings.ReplaceAll(good, "common", "own"), []int{3, 5}},
		{"another's log message, long after a link was corrupted", join + "nemesis fault - corrupt link\n" + wait + strings.ReplaceAll(says, "common", "far") + "c1 logged a\n" + strings.ReplaceAll(good, "common", "far"), []int{3}},
		{"another's log message, of the same principal", join + says + "c1 logged a\n" + good, nil},
		{"another's log message, of the same principal, on a process of two", "c.1 join - stdio\nc.1 sent b {\"server\":\"common\"}\ncommon/1 began b\nc.1 left - vanish\n" +
			join + says + "c1 logged a\n" + good, []int{3}},
		{"a log message twice, of two sessions of a translation", "c1.0 join - modern stdio\n" + strings.ReplaceAll(says, "c0", "c1.0") + "c1.0 logged a\nc1.0 logged a\n" + strings.ReplaceAll(good, "c0", "c1.0"), nil},
		{"a log message twice", "c1.0 join - stdio\n" + strings.ReplaceAll(says, "c0", "c1.0") + "c1.0 logged a\nc1.0 logged a\n" + strings.ReplaceAll(good, "c0", "c1.0"), []int{3}},
		{"another principal's log message", "c.1 join - stdio\n" + join + says + "c.1 logged a\n" + good, []int{3}},
		{"another's log message", join + logs + "c0 logged a\nc1 logged a\n" + logged, []int{3}},
		{"an update of nothing that was asked for", join + touch + "c1 updated a own\n" + good, []int{3}},
		{"a shared process", join + "c0 sent a {\"server\":\"own\"}\nc1 sent b {\"server\":\"own\"}\nown/1 began a\nown/1 began b\nc0 left - vanish\nc1 left - vanish", []int{3}},
		{"a process of a principal", fmt.Sprintf(principal, "c.0", fmt.Sprint("c.", len(principals))), nil},
		{"a process of two principals", fmt.Sprintf(principal, "c.0", "c.1"), []int{3}},
		{"a call that is denied", join + denies + sent + unknown, nil},
		{"a call that is denied to another", join + strings.Replace(denies, "anna", "bert", 1) + sent + unknown, []int{6}},
		{"a call that is denied, and executed", join + denies + sent + runs + good, []int{3}},
		{"a tool that is denied, in a list", join + denies + "c0 sent b {}\nc0 result b " + lists, []int{3}},
		{"a tool that is denied to another, in a list", join + strings.Replace(denies, "anna", "bert", 1) + "c0 sent b {}\nc0 result b " + lists, nil},
		{"a resource that is denied", "c.1 join - stdio\n" + join + denies + strings.ReplaceAll(touch+good, "c0", "c.1") + "c0 updated a common\n", []int{3}},
		{"a call while its server is removed", join + "nemesis removes - common\n" + sent + unknown, nil},
		{"a call after its server is added again", join + "nemesis removes - common\nnemesis removes - common done\nnemesis adds - common\nnemesis adds - common done\n" + sent + unknown, []int{6}},
		{"a call that is executed after its server was removed", join + "nemesis removes - common\nnemesis removes - common done\n" + sent + runs + good, []int{3}},
		{"a call that is sent before its server is removed", join + "nemesis removes - common\n" + sent + "nemesis removes - common done\n" + runs + good, nil},
		{"a list of a server that was removed", join + "nemesis removes - common\nnemesis removes - common done\nc0 sent b {}\nc0 result b " + lists, []int{3}},
		{"a list of a server that is added", join + "nemesis removes - common\nnemesis removes - common done\nc0 sent b {}\nnemesis adds - common\nc0 result b " + lists, nil},
		{"a call that the proxy leaves open when it ends", join + "nemesis fault - restart proxy proxy\n" + sent + "common/1 began a\nc0 broken - EOF", []int{1}},
		{"a call that the proxy has not read when it ends", join + "nemesis fault - restart proxy proxy\n" + sent + "c0 broken - EOF", nil},
		{"a call that is open when the proxy is killed", join + "nemesis fault - kill proxy proxy\n" + sent + "common/1 began a\nc0 broken - EOF", nil},
		{"a stale read", join + "c0 sent a " + `{"server":"common","do":"set","key":"x","value":1}` + "\n" + runs +
			"c0 result a " + `{"nonce":"a","server":"common/1","value":1}` + "\nc0 sent b " + `{"server":"common","do":"get","key":"x"}` + "\n" +
			"common/1 began b\ncommon/1 effect b\nc0 result b " + `{"nonce":"b","server":"common/1","value":0}`, []int{7}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var rules []int
			found := judgeHistory(history(tt.events), []byte("e1"))
			for _, a := range found {
				if !slices.Contains(rules, a.Rule) {
					rules = append(rules, a.Rule)
				}
			}
			if !slices.Equal(rules, tt.want) {
				t.Errorf("broken promises %v, want %v: %+v", rules, tt.want, found)
			}
		})
	}
}
