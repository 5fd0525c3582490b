package frontend

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A record is a session that moves to another replica, or that another one keeps, without what is in
// flight. The other one begins it anew with its servers: it says again what the client has said.
// Replicas of other versions may write members that this one ignores.
type record struct {
	Version  int              `json:"v"`
	ID       string           `json:"id"`
	Of       string           `json:"of,omitempty"`  // instance of the replica that has written it
	Seq      int64            `json:"seq,omitempty"` // orders the records that a replica sends of it to be kept, or to be moved
	Kind     identity.Kind    `json:"kind"`          // the principal
	Issuer   string           `json:"issuer,omitempty"`
	Name     string           `json:"name,omitempty"`
	Upstream string           `json:"upstream,omitempty"` // in the path, "" for all
	User     string           `json:"user,omitempty"`     // as in caller
	Moves    int64            `json:"moves"`              // how often the session has moved
	Protocol string           `json:"protocol"`           // version
	Digest   string           `json:"digest"`             // as of Replicas
	Adopted  bool             `json:"-"`                  // the replica that had it has died
	Said     saidOnce         `json:"said"`
	Last     int              `json:"last,omitempty"` // number of the last numbered stream
	Streams  []recordedStream `json:"streams,omitempty"`
}

const (
	recordVersion = 1
	maxRecord     = 1 << 20 // bytes
)

// A recordedStream has the events that a client may still fetch.
type recordedStream struct {
	Number int      `json:"n"`     // 0 is the standalone stream
	First  int      `json:"first"` // number of the first event
	Sent   int      `json:"sent"`  // number of the last one that the client got
	Events [][]byte `json:"events,omitempty"`
}

// maxRecorded bounds the bytes of events in a record. Older ones are left out.
const maxRecorded = 64 << 10

// encode returns the record as JSON, in which the client's values are as they came.
func (r *record) encode() []byte { return encode(r) }

// over returns text, the record as another replica has written it, with what changes when its session moves on.
// Members that another version has written stay.
func (r *record) over(text []byte) []byte {
	var all map[string]json.RawMessage
	if json.Unmarshal(text, &all) != nil {
		return r.encode()
	}
	all["of"], all["moves"], all["last"] = jsonrpc.Quote(r.Of), strconv.AppendInt(nil, r.Moves, 10), strconv.AppendInt(nil, int64(r.Last), 10)
	all["streams"] = encode(r.Streams)
	return encode(all)
}

func encode(r any) []byte {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	if err := to.Encode(r); err != nil {
		return nil // the client's values are valid, or it would not be here
	}
	return text.Bytes()
}

func (r *record) key() connKey {
	return connKey{identity.Principal{Kind: r.Kind, Issuer: r.Issuer, Name: r.Name}, r.Upstream, r.User}
}

// saidOnce is what a client says once, and what holds until its session ends. It belongs to the lock
// of the session.
type saidOnce struct {
	Initialize  json.RawMessage            `json:"initialize"`            // params
	Initialized json.RawMessage            `json:"initialized,omitempty"` // params; {} for none
	Level       json.RawMessage            `json:"level,omitempty"`       // params of logging/setLevel
	Subscribed  map[string]json.RawMessage `json:"subscribed,omitempty"`  // params of resources/subscribe, by URI

	size    int  // bytes of all
	tooMuch bool // for maxSaid; then nothing is remembered
}

// maxSaid bounds what a client says once, in bytes. A session that exceeds it does not move.
const maxSaid = 512 << 10

// note remembers m if it is of that kind, and reports whether it is. Whether its server accepts it does
// not matter: a server that refuses it will refuse it again.
func (s *saidOnce) note(m *jsonrpc.Message) (is bool) {
	switch m.Method {
	case mcp.MethodInitialize:
		s.Initialize = s.keep(s.Initialize, m.Params)
	case mcp.MethodInitialized:
		if s.Initialized = s.keep(s.Initialized, m.Params); s.Initialized == nil {
			s.Initialized = json.RawMessage("{}")
		}
	case mcp.MethodSetLevel:
		s.Level = s.keep(s.Level, m.Params)
	case mcp.MethodSubscribe:
		if uri, ok := mcp.KeyOf(m); ok {
			if s.Subscribed == nil {
				s.Subscribed = make(map[string]json.RawMessage)
			}
			s.Subscribed[uri] = s.keep(s.Subscribed[uri], m.Params)
		}
	case mcp.MethodUnsubscribe:
		if uri, ok := mcp.KeyOf(m); ok {
			s.size -= len(s.Subscribed[uri])
			delete(s.Subscribed, uri)
		}
	default:
		return false
	}
	if s.size > maxSaid {
		*s = saidOnce{tooMuch: true}
	}
	return true
}

// keep returns a copy of params that replaces other ones.
func (s *saidOnce) keep(before, params json.RawMessage) json.RawMessage {
	if s.tooMuch {
		return nil
	}
	s.size += len(params) - len(before)
	return bytes.Clone(params)
}

// again returns the messages that say all of it again, the first one alone, and the URIs of the
// subscriptions among them. Their ids are none that a client would use.
func (s *saidOnce) again() (first *jsonrpc.Message, rest []*jsonrpc.Message, uris map[jsonrpc.ID]string) {
	stem, n := rand.Text()+".", 0
	request := func(method string, params json.RawMessage) *jsonrpc.Message {
		n++
		id, _ := jsonrpc.ParseID(jsonrpc.Quote(stem + strconv.Itoa(n)))
		return jsonrpc.NewRequest(id, method, params)
	}
	first = request(mcp.MethodInitialize, s.Initialize)
	if s.Initialized != nil {
		rest = append(rest, jsonrpc.NewNotification(mcp.MethodInitialized, s.Initialized))
	}
	if s.Level != nil {
		rest = append(rest, request(mcp.MethodSetLevel, s.Level))
	}
	uris = make(map[jsonrpc.ID]string)
	for uri, params := range s.Subscribed {
		m := request(mcp.MethodSubscribe, params)
		uris[m.ID] = uri
		rest = append(rest, m)
	}
	return first, rest, uris
}

// goOn makes the record one of the next generation. Nobody knows how many events its client has got, and
// how many streams there were: their numbers go on where none of the generation before comes.
func (r *record) goOn() {
	r.Adopted = true
	r.Moves++
	r.Last = int(r.Moves) << 32
	r.Streams = []recordedStream{{First: r.Last + 1, Sent: r.Last}}
}

// valid reports whether a session can go on with the record.
func (r *record) valid() bool { return r.Version >= 1 && r.ID != "" && r.Said.Initialize != nil }

// movableLocked reports whether another replica could continue s.
func (s *httpSession) movableLocked() bool {
	return s.said != nil && (s.established || s.resuming != nil) && !s.said.tooMuch
}

// movingLocked returns the record of s, which is frozen, for the replica that it moves to.
func (s *httpSession) movingLocked(of, digest string) *record {
	r := s.recordLocked(of, digest)
	s.records++
	r.Moves, r.Seq = r.Moves+1, s.records
	r.Last, r.Streams = s.out.last, s.out.record()
	return r
}

// recordLocked returns what s is without its events. of is this replica, and digest as of Replicas.
func (s *httpSession) recordLocked(of, digest string) *record {
	who := s.of.who.Principal
	return &record{
		Version: recordVersion, ID: s.id, Of: of, Kind: who.Kind, Issuer: who.Issuer, Name: who.Name, Upstream: s.of.upstream,
		User: s.of.user, Moves: s.moves, Protocol: s.version, Digest: digest, Said: *s.said,
	}
}

// record returns the events that a client may still fetch: those that it has not got, and then, as far
// as there is room, those before them.
func (o *eventStreams) record() (all []recordedStream) {
	streams := []*eventStream{o.standalone}
	for _, st := range o.numbered {
		if len(st.events) > 0 {
			streams = append(streams, st)
		}
	}
	left := maxRecorded
	for _, st := range streams {
		all = append(all, recordedStream{Number: st.number, First: st.first + st.got(), Sent: st.sent, Events: st.unread(&left)})
	}
	for i, st := range streams {
		r := &all[i]
		for _, e := range slices.Backward(st.events[:st.got()]) {
			if left -= len(e.data); left < 0 {
				return all
			}
			r.First--
			r.Events = slices.Insert(r.Events, 0, e.data)
		}
	}
	return all
}

// got returns how many of the events the client has got.
func (st *eventStream) got() int { return min(max(st.sent-st.first+1, 0), len(st.events)) }

// unread returns the events that the client has not got, as far as there is room: the newest. Their
// numbers do not matter. A response that is too large becomes an error. Nobody waits any more for the
// answers to questions.
func (st *eventStream) unread(left *int) (events [][]byte) {
	for _, e := range slices.Backward(st.events[st.got():]) {
		data := e.data
		switch fits := len(data) <= *left; {
		case !e.response && (!fits || !e.id.IsZero()):
			continue
		case !fits:
			data = jsonrpc.NewError(e.id, unreadable()).Text()
		}
		*left -= len(data)
		events = append(events, data)
	}
	slices.Reverse(events)
	return events
}

// restore adds a recorded stream. It belongs to a session that nobody uses yet.
func (o *eventStreams) restore(r recordedStream) {
	st := o.standalone
	if r.Number > 0 {
		st = o.newStream(&eventStream{number: r.Number})
		o.numbered[r.Number] = st
	}
	st.first = max(r.First, 1)
	st.sent = min(max(r.Sent, 0), st.lastEvent()+len(r.Events))
	for _, data := range r.Events {
		e := event{data: data}
		if m, err := jsonrpc.DecodeOwn(data); err == nil {
			e.id, e.response = m.ID, m.IsResponse()
		}
		st.events = append(st.events, e)
		st.queued += len(data)
		if st.lastEvent() > st.sent {
			st.backlog.add(len(data))
		} else {
			o.read.add(len(data))
		}
	}
	o.keepTo(st, st.lastEvent())
}
