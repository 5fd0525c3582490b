package mcp

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Method is a row of the table of all methods: everything that the proxy has to know to route,
// translate and end a request. All decisions about a method depend on its row, so a new method is a
// new row.
type Method struct {
	Name  string // "" in the rows for unknown methods
	From  Side
	Eras  Eras
	Owner Owner

	// Key is the member of params that says what the message is about, "" for none.
	Key string

	Cacheable bool // its result says how long it may be cached (2026-07-28 server/utilities/caching)
	Asks      bool // its result may ask the client for input (2026-07-28 basic/patterns/mrtr)
	Safe      bool // it changes nothing, so it may be sent again even if it may have run
	Works     bool // the server may ask the client for something before it answers
	OnListen  bool // in the modern era it comes on subscriptions/listen

	Mirrors bool // headers repeat arguments of it (2026-07-28 server/tools, "x-mcp-header")

	notifies bool     // is a notification
	reads    []Member // the members of params that matter
	keys     []string
}

// A Side is a sender of messages.
type Side byte

// The sides. Both send some of the notifications.
const (
	FromClient Side = 1 << iota
	FromServer
)

// Eras is the set of eras in which a method exists.
type Eras byte

// The elements of Eras. A method of a modern extension exists only for those who declare the
// extension.
const (
	InLegacy Eras = 1 << iota
	InModern
	InExtension
)

// An Owner is how to find the upstream that a message is for.
type Owner byte

// The owners.
const (
	Nobody    Owner = iota // unknown: the only upstream, if there is just one
	Here                   // this hop, or the proxy answers for all
	Everybody              // all upstreams, merged
	ByName                 // the upstream that offers the tool or prompt of that name
	ByURI                  // the upstream that has the resource
	ByRef                  // the upstream that has the referenced prompt or resource
	ByTask                 // the upstream that runs the task
	ByRequest              // the receiver or the sender of the request that it belongs to
	ByListed               // the upstream whose extension lists its Key
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

// The requests of extensions.
const (
	MethodSkillsList        = "skills/list"
	MethodSkillsGet         = "skills/get"
	MethodDirectoryRead     = "resources/directory/read"
	MethodEventsList        = "events/list"
	MethodEventsPoll        = "events/poll"
	MethodEventsStream      = "events/stream"
	MethodEventsSubscribe   = "events/subscribe"
	MethodEventsUnsubscribe = "events/unsubscribe"
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

// Short names for the rows.
const (
	both      = InLegacy | InModern
	extension = both | InExtension // in either era
	anywhere  = FromClient | FromServer
)

// The table, first half. In the modern era servers ask only in results.
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
	{Name: MethodSkillsList, From: FromClient, Eras: extension, Owner: Everybody, Cacheable: true, Safe: true},
	{Name: MethodSkillsGet, From: FromClient, Eras: extension, Owner: ByListed, Key: "uri", Cacheable: true, Safe: true},
	{Name: MethodDirectoryRead, From: FromClient, Eras: extension, Owner: ByListed, Key: "uri", Safe: true},
	{Name: MethodEventsList, From: FromClient, Eras: extension, Owner: Everybody, Safe: true},
	{Name: MethodEventsPoll, From: FromClient, Eras: extension, Owner: ByListed, Key: "name"},
	{Name: MethodEventsStream, From: FromClient, Eras: extension, Owner: ByListed, Key: "name"},
	{Name: MethodEventsSubscribe, From: FromClient, Eras: extension, Owner: ByListed, Key: "name"},
	{Name: MethodEventsUnsubscribe, From: FromClient, Eras: extension, Owner: ByListed, Key: "name"},
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

// prepare sets the members of params that matter.
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
	add(row.Name == "", ParamToken, "progressToken")
}

// The rows for unknown methods, which depend on the name alone.
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

// routesBy reports whether a member of the params decides the route of a message.
func (row *Method) routesBy(m Member) bool {
	switch m {
	case Key:
		return row.Owner == ByName || row.Owner == ByURI || row.Owner == ByTask || row.Owner == ByListed
	case Cursor, RefType, RefName, RefURI, RelatedTaskID, Token, ParamToken:
		return true
	}
	return false
}

// In reports whether the method exists in an era, including its extensions. An unknown method may
// exist in both.
func (row *Method) In(e Era) bool {
	if e == Modern {
		return row.Eras == 0 || row.Eras&(InModern|InExtension) != 0
	}
	return row.Eras == 0 || row.Eras&InLegacy != 0
}

// IsRequestOf reports whether the method is known, and a request that side sends.
func (row *Method) IsRequestOf(side Side) bool { return row.From&side != 0 && !row.notifies }

// IsNotification reports whether the method is known, and a notification.
func (row *Method) IsNotification() bool { return row.notifies }

// IsRequest reports whether the method is known, and a request.
func (row *Method) IsRequest() bool { return row.Name != "" && !row.notifies }

// OfExtension reports whether an extension defines the method, in the same way for both eras.
func (row *Method) OfExtension() bool { return row.Eras == extension }

// MaybeOfExtension reports whether an extension defines the method, or may define it since we do not
// know it.
func (row *Method) MaybeOfExtension() bool { return row.Name == "" || row.OfExtension() }

// ModernOnly reports whether only the core of the modern era has the method, so that its name tells
// the era.
func (row *Method) ModernOnly() bool { return row.Eras == InModern }

// Bridged reports whether the method is the same in both eras. Methods that differ, such as those
// of tasks, cannot be translated.
func (row *Method) Bridged() bool { return row.Eras&both == both }

// Foreign reports whether the method is known and cannot be translated.
func (row *Method) Foreign() bool { return row.Eras != 0 && !row.Bridged() }

// HeaderKey returns the member of params that Mcp-Name repeats, "" for none (2026-07-28
// basic/transports/streamable-http).
func (row *Method) HeaderKey() string {
	switch row.Owner {
	case ByName, ByURI, ByTask:
		if row.In(Modern) && row.IsRequestOf(FromClient) {
			return row.Key
		}
	}
	return ""
}

// Cancellation returns the notification that cancels a request, with a reason unless that is "".
func Cancellation(id jsonrpc.ID, reason string) *jsonrpc.Message {
	params := slices.Concat([]byte(`{"requestId":`), id.Raw())
	if reason != "" {
		params = slices.Concat(params, []byte(`,"reason":`), jsonrpc.Quote(reason))
	}
	return jsonrpc.NewNotification(MethodCancelled, append(params, '}'))
}

// NameOf returns the name of a known method, and "other" for all others, because their number is
// unbounded.
func NameOf(method string) string {
	if method == MethodToolsCall { // the commonest method needs no look-up
		return MethodToolsCall
	}
	return cmp.Or(MethodOf(method).Name, "other")
}
