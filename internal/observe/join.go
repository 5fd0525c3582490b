package observe

// Join returns hooks that call those of a, and then those of b. What neither wants to know
// stays nil, and so off. If both want to follow calls, a does.
func Join(a, b Hooks) Hooks {
	follows := a
	if a.Follow == nil && a.FollowRequest == nil {
		follows = b
	}
	return Hooks{
		SessionBegan:    both(a.SessionBegan, b.SessionBegan),
		SessionEnded:    bothEnds(a.SessionEnded, b.SessionEnded),
		CallBegan:       both(a.CallBegan, b.CallBegan),
		CallEnded:       bothEnds(a.CallEnded, b.CallEnded),
		RequestBegan:    both(a.RequestBegan, b.RequestBegan),
		RequestEnded:    bothEnds(a.RequestEnded, b.RequestEnded),
		Follow:          follows.Follow,
		FollowRequest:   follows.FollowRequest,
		UpstreamStarted: both(a.UpstreamStarted, b.UpstreamStarted),
		UpstreamEnded:   bothEnds(a.UpstreamEnded, b.UpstreamEnded),
		LinkUp:          both(a.LinkUp, b.LinkUp),
		LinkLost:        bothEnds(a.LinkLost, b.LinkLost),
		Happened:        both(a.Happened, b.Happened),
		CallLost:        both(a.CallLost, b.CallLost),
		Refused:         both(a.Refused, b.Refused),
	}
}

func both[T any](a, b func(T)) func(T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(seen T) {
		a(seen)
		b(seen)
	}
}

func bothEnds[T any](a, b func(T, End)) func(T, End) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(seen T, end End) {
		a(seen, end)
		b(seen, end)
	}
}
