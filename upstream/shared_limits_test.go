package upstream

import "time"

// Bounds of upstream/shared, as its streams show them.
const (
	fadeFor    = 30 * time.Second
	lingering  = time.Second
	flushTime  = 5 * time.Second
	modernIdle = time.Minute
	probeTime  = 5 * time.Second

	maxOut           = 8192
	maxReplies       = 1024
	maxMemberCalls   = 4096
	maxAsked         = 1024
	maxMemberSubs    = 1024
	maxMemberTasks   = 1024
	maxElicited      = 1024
	maxMemberCursors = 1024
)
