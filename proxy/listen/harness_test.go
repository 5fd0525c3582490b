package listen

import "context"

// A server is a scripted upstream.
type server struct {
	name   string
	done   <-chan struct{}
	hangUp context.CancelFunc
}

func newServer(name string) *server {
	ctx, cancel := context.WithCancel(context.Background())
	return &server{name: name, done: ctx.Done(), hangUp: cancel}
}

func (s *server) Done() <-chan struct{} { return s.done }
