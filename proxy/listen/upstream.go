package listen

// An Upstream is a session's connection to one upstream server. Its values are compared.
type Upstream interface {
	Done() <-chan struct{} // closed when it was hung up, after which nothing is remembered of it
}
