package wsconn

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Why a connection ended, besides what the kernel and gorilla say.
var (
	// ErrSilent is the end of a peer that answered no pings.
	ErrSilent = errors.New("no answer to pings")

	// ErrTooLarge is the end after a message or frame over the limit.
	ErrTooLarge = errors.New("message over the limit")

	// ErrNoSlot is the end of a peer whose large message found no place, ErrSlow of one
	// whose message had one and did not come in time.
	ErrNoSlot = errors.New("too many large messages")
	ErrSlow   = errors.New("the message did not come in time")

	errBinary = errors.New("binary frame")
	errText   = errors.New("text frame")
	errUTF8   = errors.New("text frame is not UTF-8")
)

// A CloseError is the close frame of the peer, as the cause of an end.
type CloseError struct {
	Code int // 1005 if the frame carried none
}

// Error implements error.
func (e *CloseError) Error() string { return "WebSocket closed " + strconv.Itoa(e.Code) }

const closeTimeout = time.Second // for the close handshake

// writePiece is how many bytes the peer must take within the write timeout, so
// that a huge message may take longer on a slow line.
const writePiece = 256 << 10

// largeWrite is how many bytes of messages go out with one write, and the largest
// buffer that is used again.
const largeWrite = 64 << 10

// A write buffer is needed only while messages go out.
var writeBuffers = sync.Pool{New: func() any { return new([]byte) }}

// A framer is a WebSocket in either role. gorilla reads its frames; they are
// written here, so that what is ready together goes out with one write, without
// a buffer for each connection. The only frames that gorilla writes are close
// frames, after which a half-written frame matters no more.
type framer struct {
	// Static after construction.
	frames       *websocket.Conn
	socket       net.Conn      // below frames
	masks        bool          // the client's role
	writeTimeout time.Duration // zero: no bound

	ended     atomic.Pointer[error]   // the first reason, set once
	closeSent atomic.Bool             // a close frame was written, or none can be: nothing may follow
	pong      atomic.Pointer[[]byte]  // what is to be answered to the last ping
	goodbye   atomic.Pointer[goodbye] // set by CloseAs; nil: what is usual

	writing sync.Mutex // held across every write
}

// end records why the connection ended, unless that is known, and returns what
// is.
func (f *framer) end(cause error) error {
	err := jsonrpc.Closed(cause)
	f.ended.CompareAndSwap(nil, &err)
	return *f.ended.Load()
}

func (f *framer) err() error {
	if err := f.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// failed ends the connection because of gorilla's err. If that was a matter of
// the protocol, gorilla has told the peer.
func (f *framer) failed(err error) error {
	if f.err() == nil {
		f.closeSent.Store(true)
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		err = ErrTooLarge
	}
	return f.end(err)
}

// reject ends the connection because of what the peer sent.
func (f *framer) reject(code int, cause error) error {
	err := f.end(cause)
	f.sendClose(goodbye{code: code})
	return err
}

// abort closes the socket without TLS's own close message, which would wait for a
// peer that does not read.
func (f *framer) abort() {
	if t, ok := f.socket.(*tls.Conn); ok {
		t.NetConn().Close()
	}
	f.socket.Close()
}

// A goodbye is what a close frame says.
type goodbye struct {
	code   int
	reason string // at most 123 bytes
}

// lastWords are those of a close frame that this side sends of its own accord.
func (f *framer) lastWords() goodbye {
	switch said := f.goodbye.Load(); {
	case said != nil:
		return *said
	case f.masks:
		return goodbye{code: websocket.CloseNormalClosure}
	}
	return goodbye{code: websocket.CloseGoingAway}
}

// write writes whole frames. The caller holds writing.
func (f *framer) write(frames []byte) error {
	for piece := range slices.Chunk(frames, writePiece) {
		if f.writeTimeout > 0 {
			f.socket.SetWriteDeadline(time.Now().Add(f.writeTimeout))
		}
		if f.err() != nil { // so soon that sendClose's deadline may just have been undone
			f.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
		}
		if _, err := f.socket.Write(piece); err != nil {
			f.closeSent.Store(true) // the frame that broke off is never continued
			err = f.end(err)
			f.abort() // unblocks the reader
			return err
		}
	}
	return nil
}

// doneWriting unlocks writing, after it has answered a ping that came meanwhile.
// It looks once more when it has unlocked it, so that no ping is overlooked.
func (f *framer) doneWriting() {
	for {
		if payload := f.pong.Swap(nil); payload != nil && !f.closeSent.Load() {
			f.write(f.appendFrame(nil, websocket.PongMessage, *payload))
		}
		f.writing.Unlock()
		if f.pong.Load() == nil || !f.writing.TryLock() {
			return
		}
	}
}

// onPing is called by NextReader. The reader must not wait for a write that waits
// for a slow peer, so it leaves the answer to that write.
func (f *framer) onPing(data string) error {
	payload := []byte(data)
	f.pong.Store(&payload)
	if f.writing.TryLock() {
		f.doneWriting()
	}
	return nil
}

// sendClose writes a close frame, unless one was written. The connection has ended,
// so a write that is under way gets no more than the time for a close.
func (f *framer) sendClose(g goodbye) {
	f.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
	f.writing.Lock()
	defer f.doneWriting()
	f.sendCloseLocked(g)
}

func (f *framer) sendCloseLocked(g goodbye) {
	if !f.closeSent.Swap(true) {
		f.write(f.appendFrame(nil, websocket.CloseMessage, websocket.FormatCloseMessage(g.code, g.reason)))
	}
}

// appendMessage appends m as a text frame. Most messages need the middle one of
// the three forms of a header, so room is left for that.
func (f *framer) appendMessage(b []byte, m *jsonrpc.Message) []byte {
	const usual, usualMasked = 4, 8
	room := usual
	if f.masks {
		room = usualMasked
	}
	start := len(b)
	b = append(slices.Grow(b, room+m.Size()), make([]byte, room)...)
	b = m.Append(b)
	var space [14]byte
	header := f.appendHeader(space[:0], websocket.TextMessage, len(b)-start-room)
	f.mask(b[start+room:], header)
	return slices.Replace(b, start, start+room, header...)
}

func (f *framer) appendFrame(b []byte, opcode int, payload []byte) []byte {
	start := len(b)
	b = f.appendHeader(b, opcode, len(payload))
	end := len(b)
	b = append(b, payload...)
	f.mask(b[end:], b[start:end])
	return b
}

// appendHeader appends the header of a frame that is a whole message. If it comes
// from a client it ends in the masking key, four bytes that nobody can foresee
// (RFC 6455, sections 5.2 and 5.3).
func (f *framer) appendHeader(b []byte, opcode, size int) []byte {
	const final, masked = 0x80, 0x80
	start := len(b)
	b = append(b, final|byte(opcode))
	switch {
	case size < 126:
		b = append(b, byte(size))
	case size < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(size))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(size))
	}
	if !f.masks {
		return b
	}
	b[start+1] |= masked
	b = append(b, 0, 0, 0, 0)
	rand.Read(b[len(b)-4:]) // never fails
	return b
}

// mask masks a payload, or a part of one that begins at a multiple of eight, in
// place, if its frame's header says so.
func (f *framer) mask(payload, header []byte) {
	if !f.masks {
		return
	}
	key := binary.LittleEndian.Uint32(header[len(header)-4:])
	for twice := uint64(key)<<32 | uint64(key); len(payload) >= 8; payload = payload[8:] {
		binary.LittleEndian.PutUint64(payload, binary.LittleEndian.Uint64(payload)^twice)
	}
	for i := range payload {
		payload[i] ^= byte(key)
		key = bits.RotateLeft32(key, -8)
	}
}
