package mcp

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Method is a row of the table of all methods: what the proxy has to know of one to
// route it, to translate it and to end it. Whoever decides something by a method reads
// it here, so that a new method is a new row.
type Method struct {
	Name  string // "" in the rows for methods that nobody here knows
	From  Side
	Eras  Eras
	Owner Owner

	// Key is the member of params that says for whom or for what it is, "" for none.
	Key string

	Cacheable bool // its result says how long it may be kept (2026-07-28 server/utilities/caching)
	Asks      bool // its result may ask the client for input (2026-07-28 basic/patterns/mrtr)
	Safe      bool // it changes nothing, so that it may be sent again though it may have run
	Works     bool // a server works on something for it, and may ask the client about that
	OnListen  bool // comes on subscriptions/listen in the modern era

	Mirrors bool // headers repeat arguments of it (2026-07-28 server/tools, "x-mcp-header")

	notifies bool     // is a notification
	reads    []Member // that matter in params, of keys
	keys     []string
}

// A Side is who sends a method.
type Side byte

// The sides. Some notifications come from both.
const (
	FromClient Side = 1 << iota
	FromServer
)

// Eras says in which eras a method exists.
type Eras byte

// Where a method may be defined. A method of an extension of the modern era exists
// only for those who declare that.
const (
	InLegacy Eras = 1 << iota
	InModern
	InExtension
)

// An Owner is how it is found for whom a message is, among several upstreams.
type Owner byte

// The owners.
const (
	Nobody    Owner = iota // nobody knows: the only upstream, if there is only one
	Here                   // it is about this hop, or answered here for all
	Everybody              // all upstreams, merged
	ByName                 // who offers a tool or prompt of that name
	ByURI                  // who has the resource
	ByRef                  // who has the prompt or the resource that is referred to
	ByTask                 // who runs the task
	ByRequest              // who has, or has made, the request that it belongs to
)

// The requests.
const (
	MethodInitialize    = "initialize"
	MethodPing          = "ping"
	MethodDiscover      = "server/discover"
	MethodListen        = "subscriptions/listen"
	MethodSetLevel      = "logging/setLevel"
	MethodToolsList     = "tools/list"
	MethodToolsCall     = "tools/call"
	MethodPromptsList   = "prompts/list"
	MethodPromptsGet    = "prompts/get"
	MethodResourcesList = "resources/list"
	MethodTemplatesList = "resources/templates/list"
	MethodResourcesRead = "resources/read"
	MethodSubscribe     = "resources/subscribe"
	MethodUnsubscribe   = "resources/unsubscribe"
	MethodComplete      = "completion/complete"
	MethodTasksList     = "tasks/list"
	MethodTasksGet      = "tasks/get"
	MethodTasksResult   = "tasks/result"
	MethodTasksUpdate   = "tasks/update"
	MethodTasksCancel   = "tasks/cancel"
	MethodRootsList     = "roots/list"
	MethodSample        = "sampling/createMessage"
	MethodElicit        = "elicitation/create"
)

// The notifications.
const (
	MethodInitialized      = "notifications/initialized"
	MethodCancelled        = "notifications/cancelled"
	MethodProgress         = "notifications/progress"
	MethodLog              = "notifications/message"
	MethodToolsChanged     = "notifications/tools/list_changed"
	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodRootsChanged     = "notifications/roots/list_changed"
	MethodResourceUpdated  = "notifications/resources/updated"
	MethodTaskStatus       = "notifications/tasks/status" // legacy
	MethodTask             = "notifications/tasks"        // of the extension
	MethodElicited         = "notifications/elicitation/complete"
	MethodAcknowledged     = "notifications/subscriptions/acknowledged"
)

// Short names for columns.
const (
	both     = InLegacy | InModern
	anywhere = FromClient | FromServer
)

// The table, first half. In the modern era a server asks by its results alone.
var requests = []Method{
	{Name: MethodInitialize, From: FromClient, Eras: InLegacy, Owner: Here, Key: "protocolVersion"},
	{Name: MethodPing, From: anywhere, Eras: InLegacy, Owner: Here},
	{Name: MethodDiscover, From: FromClient, Eras: InModern, Owner: Here, Cacheable: true, Safe: true},
	{Name: MethodListen, From: FromClient, Eras: InModern, Owner: Here, Key: "notifications", Works: true},
	{Name: MethodSetLevel, From: FromClient, Eras: InLegacy, Owner: Everybody, Key: "level"},
	{Name: MethodToolsList, From: FromClient, Eras: both, Owner: Everybody, Cacheable: true, Safe: true},
	{Name: MethodPromptsList, From: FromClient, Eras: both, Owner: Everybody, Cacheable: true, Safe: true},
	{Name: MethodResourcesList, From: FromClient, Eras: both, Owner: Everybody, Cacheable: true, Safe: true},
	{Name: MethodTemplatesList, From: FromClient, Eras: both, Owner: Everybody, Cacheable: true, Safe: true},
	{Name: MethodToolsCall, From: FromClient, Eras: both, Owner: ByName, Key: "name", Asks: true, Works: true, Mirrors: true},
	{Name: MethodPromptsGet, From: FromClient, Eras: both, Owner: ByName, Key: "name", Asks: true, Works: true},
	{Name: MethodResourcesRead, From: FromClient, Eras: both, Owner: ByURI, Key: "uri", Cacheable: true, Asks: true, Safe: true, Works: true},
	{Name: MethodSubscribe, From: FromClient, Eras: InLegacy, Owner: ByURI, Key: "uri"},
	{Name: MethodUnsubscribe, From: FromClient, Eras: InLegacy, Owner: ByURI, Key: "uri"},
	{Name: MethodComplete, From: FromClient, Eras: both, Owner: ByRef, Key: "ref", Safe: true, Works: true},
	{Name: MethodTasksList, From: anywhere, Eras: InLegacy, Owner: Everybody},
	{Name: MethodTasksGet, From: anywhere, Eras: InLegacy | InExtension, Owner: ByTask, Key: "taskId"},
	{Name: MethodTasksResult, From: anywhere, Eras: InLegacy, Owner: ByTask, Key: "taskId", Works: true},
	{Name: MethodTasksUpdate, From: FromClient, Eras: InExtension, Owner: ByTask, Key: "taskId", Works: true},
	{Name: MethodTasksCancel, From: anywhere, Eras: InLegacy | InExtension, Owner: ByTask, Key: "taskId"},
	{Name: MethodRootsList, From: FromServer, Eras: InLegacy, Owner: ByRequest},
	{Name: MethodSample, From: FromServer, Eras: InLegacy, Owner: ByRequest, Works: true},
	{Name: MethodElicit, From: FromServer, Eras: InLegacy, Owner: ByRequest, Key: "elicitationId", Works: true},
}

// The second half.
var notifications = []Method{
	{Name: MethodInitialized, From: FromClient, Eras: InLegacy, Owner: Here},
	{Name: MethodCancelled, From: anywhere, Eras: both, Owner: ByRequest, Key: "requestId"},
	{Name: MethodProgress, From: anywhere, Eras: both, Owner: ByRequest, Key: "progressToken"},
	{Name: MethodLog, From: FromServer, Eras: both, Owner: ByRequest, Key: "level"},
	{Name: MethodToolsChanged, From: FromServer, Eras: both, Owner: Here, OnListen: true},
	{Name: MethodPromptsChanged, From: FromServer, Eras: both, Owner: Here, OnListen: true},
	{Name: MethodResourcesChanged, From: FromServer, Eras: both, Owner: Here, OnListen: true},
	{Name: MethodRootsChanged, From: FromClient, Eras: InLegacy, Owner: Everybody},
	{Name: MethodResourceUpdated, From: FromServer, Eras: both, Owner: ByURI, Key: "uri", OnListen: true},
	{Name: MethodTaskStatus, From: anywhere, Eras: InLegacy, Owner: ByTask, Key: "taskId"},
	{Name: MethodTask, From: FromServer, Eras: InExtension, Owner: ByTask, Key: "taskId", OnListen: true},
	{Name: MethodElicited, From: FromServer, Eras: InLegacy, Owner: ByRequest, Key: "elicitationId"},
	{Name: MethodAcknowledged, From: FromServer, Eras: InModern, Owner: ByRequest, Key: "notifications", OnListen: true},
}

var methodByName = func() map[string]*Method {
	rows := make(map[string]*Method, len(requests)+len(notifications))
	for i := range requests {
		rows[requests[i].Name] = &requests[i]
		requests[i].prepare()
	}
	for i := range notifications {
		rows[notifications[i].Name] = &notifications[i]
		notifications[i].notifies = true
		notifications[i].prepare()
	}
	for _, row := range []*Method{unknown, unknownList, unknownTask} {
		row.prepare()
	}
	return rows
}()

// prepare notes which members of params matter.
func (row *Method) prepare() {
	add := func(wanted bool, m Member, key string) {
		if wanted {
			row.reads, row.keys = append(row.reads, m), append(row.keys, key)
		}
	}
	add(row.Key != "", Key, row.Key)
	add(true, InMeta, "_meta")
	add(row.Owner == Everybody && row.Key == "", Cursor, "cursor")
	add(!row.notifies, Task, "task")
	add(row.Mirrors, Arguments, "arguments")
	add(row.notifies && row.Owner == ByTask, Status, "status")
	add(!row.notifies, Responses, "inputResponses")
	add(!row.notifies, RequestState, "requestState")
}

// The rows for methods that nobody here knows: their names are all there is to go by.
var (
	unknown     = &Method{Works: true}
	unknownList = &Method{}
	unknownTask = &Method{Works: true, Eras: InExtension}
)

// MethodOf returns the row of a method, never nil.
func MethodOf(name string) *Method {
	switch row := methodByName[name]; {
	case row != nil:
		return row
	case strings.HasPrefix(name, "tasks/"):
		return unknownTask
	case strings.HasSuffix(name, "/list"):
		return unknownList
	}
	return unknown
}

// MethodNames returns the names of all methods of the table.
func MethodNames() []string { return slices.Sorted(maps.Keys(methodByName)) }

// routesBy reports whether a member of its params says to whom or what a message goes.
func (row *Method) routesBy(m Member) bool {
	switch m {
	case Key:
		return row.Owner == ByName || row.Owner == ByURI || row.Owner == ByTask
	case Cursor, RefType, RefName, RefURI, RelatedTaskID, Token:
		return true
	}
	return false
}

// In reports whether the method exists in an era, be it in an extension. One that
// nobody here knows may exist in both.
func (row *Method) In(e Era) bool {
	if e == Modern {
		return row.Eras == 0 || row.Eras&(InModern|InExtension) != 0
	}
	return row.Eras == 0 || row.Eras&InLegacy != 0
}

// IsRequestOf reports whether the method is known, and one that a side asks.
func (row *Method) IsRequestOf(side Side) bool { return row.From&side != 0 && !row.notifies }

// ModernOnly reports whether the core of the modern era alone has the method: its name
// tells the era of a message.
func (row *Method) ModernOnly() bool { return row.Eras == InModern }

// Bridged reports whether the method is the same in both eras. What is not, or means
// something else in each, as tasks do, cannot be translated.
func (row *Method) Bridged() bool { return row.Eras&both == both }

// Foreign reports whether the method is known and cannot be translated.
func (row *Method) Foreign() bool { return row.Eras != 0 && !row.Bridged() }

// HeaderKey returns the member of params that Mcp-Name repeats, "" for none
// (2026-07-28 basic/transports/streamable-http).
func (row *Method) HeaderKey() string {
	switch row.Owner {
	case ByName, ByURI, ByTask:
		if row.In(Modern) && row.IsRequestOf(FromClient) {
			return row.Key
		}
	}
	return ""
}

// Cancellation returns the notification that cancels a request, with a reason if that is
// not "".
func Cancellation(id jsonrpc.ID, reason string) *jsonrpc.Message {
	params := slices.Concat([]byte(`{"requestId":`), id.Raw())
	if reason != "" {
		params = slices.Concat(params, []byte(`,"reason":`), jsonrpc.Quote(reason))
	}
	return jsonrpc.NewNotification(MethodCancelled, append(params, '}'))
}

// NameOf returns the name of a method that MCP has, and "other" for any else: there is no
// end of those that somebody can think of.
func NameOf(method string) string {
	if method == MethodToolsCall { // most are, and need not be looked up
		return MethodToolsCall
	}
	return cmp.Or(MethodOf(method).Name, "other")
}
