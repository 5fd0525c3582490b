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

// Why a connection ended, besides errors of the kernel and of gorilla.
var (
	// ErrSilent means that the peer answered no pings.
	ErrSilent = errors.New("no answer to pings")

	// ErrTooLarge means that a message or frame was over the limit.
	ErrTooLarge = errors.New("message over the limit")

	// ErrNoSlot means that there was no slot for a large message, ErrSlow that it had one and did not come in time.
	ErrNoSlot = errors.New("too many large messages")
	ErrSlow   = errors.New("the message did not arrive in time")

	errBinary = errors.New("binary frame")
	errText   = errors.New("text frame")
	errUTF8   = errors.New("text frame is not UTF-8")
)

// A CloseError is the close frame of the peer.
type CloseError struct {
	Code int // 1005 if the frame has none
}

// Error implements error.
func (e *CloseError) Error() string { return "WebSocket closed " + strconv.Itoa(e.Code) }

const closeTimeout = time.Second // for the close handshake

// maxPiece is how many bytes the peer must take within the write timeout: a huge message may take longer.
const maxPiece = 256 << 10

// largeWrite is how many bytes of messages are combined into one write, and the largest buffer that is reused.
const largeWrite = 64 << 10

// writeBuffers are used only during a write, so an idle connection has none.
var writeBuffers = sync.Pool{New: func() any { return new([]byte) }}

// A framer is either end of a WebSocket. gorilla reads its frames. It writes them itself, to combine messages into one
// write without a buffer for each connection. gorilla writes only close frames, after which a half-written frame does
// not matter.
type framer struct {
	// Static after construction.
	frames       *websocket.Conn
	socket       net.Conn      // below frames
	masks        bool          // the client's role
	writeTimeout time.Duration // zero: no bound

	ended     atomic.Pointer[error]  // the first reason, set once
	closeSent atomic.Bool            // a close frame was written, or cannot be: nothing may follow
	pong      atomic.Pointer[[]byte] // payload of the pong to send
	closeAs   atomic.Pointer[[]byte] // close message, set by CloseAs; nil: the default

	writing sync.Mutex // held across every write
}

// end records why the connection ended, and returns the first recorded reason.
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

// failed ends the connection because of an error of gorilla, which has told the peer about errors of the protocol.
func (f *framer) failed(err error) error {
	if f.err() == nil {
		f.closeSent.Store(true)
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		err = ErrTooLarge
	}
	return f.end(err)
}

// reject ends the connection because the peer sent something invalid.
func (f *framer) reject(code int, cause error) error {
	err := f.end(cause)
	f.sendClose(websocket.FormatCloseMessage(code, ""))
	return err
}

// abort closes the socket without the close message of TLS, which would wait for a peer that does not read.
func (f *framer) abort() {
	if t, ok := f.socket.(*tls.Conn); ok {
		t.NetConn().Close()
	}
	f.socket.Close()
}

// closeMessage returns the payload of a close frame that this end sends first.
func (f *framer) closeMessage() []byte {
	switch message := f.closeAs.Load(); {
	case message != nil:
		return *message
	case f.masks:
		return websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	}
	return websocket.FormatCloseMessage(websocket.CloseGoingAway, "")
}

// write writes whole frames. The caller holds writing.
func (f *framer) write(frames []byte) error {
	for piece := range slices.Chunk(frames, maxPiece) {
		if err := f.writePiece(piece); err != nil {
			return err
		}
	}
	return nil
}

// writePiece writes at most that many bytes, of one or several slices.
func (f *framer) writePiece(pieces ...[]byte) (err error) {
	if f.writeTimeout > 0 {
		f.socket.SetWriteDeadline(time.Now().Add(f.writeTimeout))
	}
	if f.err() != nil { // restore the deadline of sendClose, which the line above may have replaced
		f.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
	}
	if len(pieces) == 1 {
		_, err = f.socket.Write(pieces[0])
	} else {
		_, err = (*net.Buffers)(&pieces).WriteTo(f.socket)
	}
	if err != nil {
		f.closeSent.Store(true) // nothing can follow a partial frame
		err = f.end(err)
		f.abort() // unblocks the reader
	}
	return err
}

// writeLarge writes a message without a copy of its largest member, and reports whether it did: not if
// that is small, or has to be masked.
func (f *framer) writeLarge(m *jsonrpc.Message) (large bool, err error) {
	if f.masks || m.Size() < largeWrite {
		return false, nil
	}
	value, head := m.AppendHead(nil)
	if len(value) < largeWrite {
		return false, nil
	}
	head = append(f.appendHeader(nil, websocket.TextMessage, len(head)+len(value)+1), head...)
	for err == nil && len(value) > maxPiece {
		err = f.writePiece(head, value[:maxPiece])
		head, value = nil, value[maxPiece:]
	}
	if err == nil {
		err = f.writePiece(head, value, []byte{'}'})
	}
	return true, err
}

// doneWriting answers a ping that came during the write, and unlocks writing. It looks again afterwards, so that it
// misses no ping.
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

// onPing is called by NextReader. The reader must not wait for a slow write, so it leaves the pong to that write.
func (f *framer) onPing(data string) error {
	payload := []byte(data)
	f.pong.Store(&payload)
	if f.writing.TryLock() {
		f.doneWriting()
	}
	return nil
}

// sendClose writes a close frame, unless one was written. A write in progress gets closeTimeout to finish.
func (f *framer) sendClose(message []byte) {
	f.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
	f.writing.Lock()
	defer f.doneWriting()
	f.sendCloseLocked(message)
}

func (f *framer) sendCloseLocked(message []byte) {
	if !f.closeSent.Swap(true) {
		f.write(f.appendFrame(nil, websocket.CloseMessage, message))
	}
}

// appendMessage appends m as a text frame.
func (f *framer) appendMessage(b []byte, m *jsonrpc.Message) []byte {
	var space [14]byte
	size := m.Len()
	start := len(b)
	header := f.appendHeader(space[:0], websocket.TextMessage, size)
	b = append(slices.Grow(b, len(space)+size), header...)
	end := len(b)
	b = m.Append(b)
	if got := len(b) - end; got != size { // the method needs escapes
		header = f.appendHeader(space[:0], websocket.TextMessage, got)
		b = slices.Replace(b, start, end, header...)
		end = start + len(header)
	}
	f.mask(b[end:], header)
	return b
}

func (f *framer) appendFrame(b []byte, opcode int, payload []byte) []byte {
	start := len(b)
	b = f.appendHeader(b, opcode, len(payload))
	end := len(b)
	b = append(b, payload...)
	f.mask(b[end:], b[start:end])
	return b
}

// appendHeader appends the header of a frame that is a whole message. The header of a client's frame ends in the masking
// key, four unpredictable bytes (RFC 6455, sections 5.2 and 5.3).
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

// mask masks a payload in place, if this is the client's end. A part of a payload must begin at a multiple of eight.
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
