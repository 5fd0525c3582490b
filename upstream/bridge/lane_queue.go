package bridge

// holds reports whether so many messages, or so many bytes, wait to be sent.
func (q *sendQueue) holds(messages, bytes int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) >= messages || q.bytes >= bytes
}
