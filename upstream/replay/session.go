package replay

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A replaySession is the recorded server of one client.
type replaySession struct {
	recording   *Recording
	client      jsonrpc.Conn
	played      map[string]int           // number of requests, by question.key
	playing     map[jsonrpc.ID]*playback // unfinished ones, by id of the client's request
	asked       map[jsonrpc.ID]*playback // by id of a server's request that the client has not answered
	initialized bool                     // the client has sent notifications/initialized
	ids         int64                    // last id of a server's request
}

// A playback is an exchange that is played for a request.
type playback struct {
	request  *jsonrpc.Message
	steps    []step                    // still to be played
	minted   map[jsonrpc.ID]jsonrpc.ID // ids of the server's requests in this session, by recorded id
	answered bool
}

// Serve serves one client, from the beginning of the recording. It owns c, and returns its
// end.
func (r *Recording) Serve(c jsonrpc.Conn) error {
	defer c.Close()
	s := &replaySession{
		recording: r, client: c,
		played: make(map[string]int), playing: make(map[jsonrpc.ID]*playback), asked: make(map[jsonrpc.ID]*playback),
	}
	for {
		m, err := c.Recv()
		if bad, ok := errors.AsType[*jsonrpc.InvalidError](err); ok {
			m, err = nil, c.Send(jsonrpc.NewError(bad.ID, bad.Wire()))
		}
		if err == nil && m != nil {
			err = s.receive(m)
		}
		if err != nil {
			return err
		}
	}
}

// receive plays the steps for m.
func (s *replaySession) receive(m *jsonrpc.Message) error {
	for e := range m.Each {
		if err := s.take(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *replaySession) take(m *jsonrpc.Message) error {
	switch {
	case m.IsRequest():
		p := &playback{request: m, steps: s.stepsFor(m), minted: make(map[jsonrpc.ID]jsonrpc.ID)}
		s.playing[m.ID] = p
		return s.play(p)
	case m.IsResponse():
		p := s.asked[m.ID]
		delete(s.asked, m.ID)
		if p != nil {
			return s.play(p)
		}
	case m.Method == mcp.MethodInitialized:
		s.initialized = true
		for _, p := range s.playing { // only initialize
			if err := s.play(p); err != nil {
				return err
			}
		}
	case m.Method == mcp.MethodCancelled:
		id, _ := mcp.Read(m).ID(mcp.Key)
		if p := s.playing[id]; p != nil && !p.answered {
			s.stop(p)
		}
	}
	return nil
}

// stop ends a playback.
func (s *replaySession) stop(p *playback) {
	delete(s.playing, p.request.ID)
	for _, id := range p.minted {
		delete(s.asked, id)
	}
}

// play plays the steps of a playback, until one waits for the client.
func (s *replaySession) play(p *playback) error {
	for len(p.steps) > 0 {
		next := p.steps[0]
		if s.waits(p, next) {
			return nil
		}
		p.steps = p.steps[1:]
		if m := s.made(p, next.send); m != nil {
			if err := s.client.Send(m); err != nil {
				return err
			}
		}
	}
	if p.answered {
		s.stop(p)
	}
	return nil
}

func (s *replaySession) waits(p *playback, next step) bool {
	return next.initialized && !s.initialized || !next.reply.IsZero() && s.asked[p.minted[next.reply]] == p
}

// made returns a recorded message of the server with the ids and the progress token of this
// session. It is nil if the message has no meaning in this session.
func (s *replaySession) made(p *playback, recorded *jsonrpc.Message) *jsonrpc.Message {
	if recorded == nil {
		return nil
	}
	m := *recorded
	m.Notes = nil
	switch {
	case m.IsResponse():
		p.answered = true
		m.ID = p.request.ID
		m.Result = subscribed(m.Result, p.request.ID)
		return &m
	case m.IsRequest():
		s.ids++
		id := jsonrpc.IntID(s.ids)
		p.minted[m.ID], s.asked[id] = id, p
		m.ID = id
		return &m
	}
	n := mcp.Read(recorded)
	switch m.Method {
	case mcp.MethodProgress:
		token := mcp.Read(p.request).Raw(mcp.Token)
		if token == nil {
			return nil
		}
		m.Params = jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: n.At(mcp.Key), With: token})
	case mcp.MethodCancelled:
		asked, _ := n.ID(mcp.Key)
		id := p.minted[asked]
		if s.asked[id] != p {
			return nil
		}
		delete(s.asked, id)
		m.Params = jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: n.At(mcp.Key), With: id.Raw()})
	default:
		m.Params = jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: n.At(mcp.Subscription), With: p.request.ID.Raw()})
	}
	return &m
}

// subscribed gives the result of a subscription the id of this session.
func subscribed(result json.RawMessage, id jsonrpc.ID) json.RawMessage {
	meta, _ := jsonrpc.Member(result, "_meta")
	if of, _ := jsonrpc.Member(meta, mcp.KeySubscription); of == nil {
		return result
	}
	return mcp.SetMeta(result, jsonrpc.Value{Key: mcp.KeySubscription, Text: id.Raw()})
}

// stepsFor returns the steps for a request.
func (s *replaySession) stepsFor(m *jsonrpc.Message) []step {
	q := questionOf(m)
	if x := s.next(q); x != nil {
		return x.steps
	}
	answer := s.madeUp(q)
	if answer == nil {
		answer = jsonrpc.NewError(m.ID, s.recording.refuse(q))
	}
	return []step{{send: answer}}
}

// next returns the exchange to play: the next of the equal ones, or the last again. For a
// handshake it returns the nearest if there is no equal one.
func (s *replaySession) next(q question) *exchange {
	equal := s.recording.equal[q.key()]
	if len(equal) == 0 {
		if x, _ := s.recording.nearest(q); x != nil && isHandshake(q.method) {
			return x
		}
		return nil
	}
	k := s.played[q.key()]
	s.played[q.key()]++
	return equal[min(k, len(equal)-1)]
}

func isHandshake(method string) bool {
	return method == mcp.MethodInitialize || method == mcp.MethodDiscover || method == mcp.MethodPing
}

// capabilityOf has the capabilities of a server by prefixes of the methods that it answered.
var capabilityOf = map[string]string{
	"tools/": "tools", "prompts/": "prompts", "resources/": "resources", "completion/": "completions", "logging/": "logging",
}

// madeUp returns the answer to a handshake, which is missing if the recording began later.
// It is nil for other requests, and in an era that was not recorded.
func (s *replaySession) madeUp(q question) *jsonrpc.Message {
	if !s.recording.speaks(q.era) {
		return nil
	}
	result := map[string]any{}
	switch q.method {
	case mcp.MethodInitialize:
		result["protocolVersion"] = q.params["protocolVersion"]
		result["serverInfo"] = s.info()
		result["capabilities"] = s.capabilities(q.era)
	case mcp.MethodDiscover:
		result["supportedVersions"] = mcp.ModernVersions
		result["capabilities"] = s.capabilities(q.era)
		result["_meta"] = map[string]any{mcp.KeyServerInfo: s.info()}
		result["resultType"], result["ttlMs"], result["cacheScope"] = "complete", 0, "private"
	case mcp.MethodPing:
	default:
		return nil
	}
	return &jsonrpc.Message{Result: json.RawMessage(textOf(result))}
}

func (s *replaySession) info() any {
	return map[string]any{"name": s.recording.upstream, "version": "recorded"}
}

func (s *replaySession) capabilities(era mcp.Era) any {
	all := map[string]any{}
	for _, method := range s.recording.methods(era) {
		for prefix, capability := range capabilityOf {
			if strings.HasPrefix(method, prefix) {
				all[capability] = map[string]any{}
			}
		}
	}
	return all
}
