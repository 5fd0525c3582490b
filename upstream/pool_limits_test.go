package upstream

import "time"

// Bounds of upstream/pool, as its streams show them.
const (
	fadeFor    = 30 * time.Second
	lingering  = time.Second
	flushTime  = 5 * time.Second
	modernIdle = time.Minute
	probeTime  = 5 * time.Second

	maxOut             = 8192
	maxReplies         = 1024
	maxSharedCalls     = 4096
	maxSharedQuestions = 1024
	maxSharerSubs      = 1024
	maxSharerTasks     = 1024
	maxSharerURLs      = 1024
	maxSharerCursors   = 1024
)
