package replay

import (
	"context"
	"io/fs"
	"os"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Server answers from a recording, for many sessions at once.
type Server struct {
	Name   string         // of the upstream, which is looked for in the recording
	File   string         // path of the recording
	Limits jsonrpc.Limits // of one recorded message

	mu   sync.Mutex // guards the fields below; held while the file is read, so that others wait for that
	read *recording
	info fs.FileInfo // of the file then
}

// Dial begins a session of the legacy era, at the beginning of the recording. It ends when
// it is closed, or ctx is done.
func (s *Server) Dial(ctx context.Context) (jsonrpc.Conn, error) { return s.dial(ctx, mcp.Legacy) }

// DialModern is Dial for the modern era, where the Conn needs no handshake.
func (s *Server) DialModern(ctx context.Context) (jsonrpc.Conn, error) {
	return s.dial(ctx, mcp.Modern)
}

// Probe reports whether the recorded server was spoken to in the modern era.
func (s *Server) Probe(context.Context) (bool, error) {
	r, err := s.recording()
	if err != nil {
		return false, err
	}
	return r.speaks(mcp.Modern), nil
}

// Check reads the recording, and says what is wrong with it.
func (s *Server) Check() error {
	_, err := readFile(s.File, s.Name, s.Limits)
	return err
}

func (s *Server) dial(ctx context.Context, era mcp.Era) (jsonrpc.Conn, error) {
	r, err := s.recording()
	if err != nil {
		return nil, err
	}
	return newSession(ctx, r, era, s.Name), nil
}

// recording returns what is in the file now. The error is a [*jsonrpc.ClosedError].
func (s *Server) recording() (*recording, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(s.File)
	if err == nil && s.info != nil && os.SameFile(info, s.info) && info.Size() == s.info.Size() && info.ModTime().Equal(s.info.ModTime()) {
		return s.read, nil
	}
	s.info = nil
	if err == nil {
		s.read, err = readFile(s.File, s.Name, s.Limits)
	}
	if err != nil {
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Says: "did not start: its recording cannot be used", Lasting: true, Err: withoutPath(err)}
	}
	s.info = info
	return s.read, nil
}
