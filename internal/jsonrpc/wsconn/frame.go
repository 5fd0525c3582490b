package wsconn

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"math/bits"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// writePiece is how many bytes the peer must take within the write timeout, so
// that a huge message may take longer on a slow line.
const writePiece = 256 << 10

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

	ended   atomic.Pointer[error]  // the first reason, set once
	saidBye atomic.Bool            // a close frame was written, or none can be: nothing may follow
	pong    atomic.Pointer[[]byte] // what is to be answered to the last ping

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

// abort closes the socket without taking leave: TLS would wait for a peer that
// does not read.
func (f *framer) abort() {
	if t, ok := f.socket.(*tls.Conn); ok {
		t.NetConn().Close()
	}
	f.socket.Close()
}

// leaving is the code of a close frame that this side sends of its own accord.
func (f *framer) leaving() int {
	if f.masks {
		return websocket.CloseNormalClosure
	}
	return websocket.CloseGoingAway
}

// write writes whole frames. Who calls it holds writing.
func (f *framer) write(frames []byte) error {
	for piece := range slices.Chunk(frames, writePiece) {
		if f.writeTimeout > 0 {
			f.socket.SetWriteDeadline(time.Now().Add(f.writeTimeout))
		}
		if f.err() != nil { // so soon that sayBye's deadline may just have been undone
			f.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
		}
		if _, err := f.socket.Write(piece); err != nil {
			f.saidBye.Store(true) // the frame that broke off is never continued
			err = f.end(err)
			f.abort() // unblocks the reader
			return err
		}
	}
	return nil
}

// doneWriting gives writing back, after the answer to a ping that came while it
// was held. Whoever gives it back looks once more, so no ping is overlooked.
func (f *framer) doneWriting() {
	for {
		if payload := f.pong.Swap(nil); payload != nil && !f.saidBye.Load() {
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

// sayBye writes a close frame, unless one was written. The connection has ended:
// a write that is in the way is given up after the time for a close.
func (f *framer) sayBye(code int) {
	f.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
	f.writing.Lock()
	defer f.doneWriting()
	f.sayByeLocked(code)
}

func (f *framer) sayByeLocked(code int) {
	if !f.saidBye.Swap(true) {
		f.write(f.appendFrame(nil, websocket.CloseMessage, websocket.FormatCloseMessage(code, "")))
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
