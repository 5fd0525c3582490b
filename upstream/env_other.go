//go:build !windows

package upstream

var inheritedHere []string

func sameName(a, b string) bool { return a == b }
