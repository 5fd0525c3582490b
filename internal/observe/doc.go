// Package observe says what can be seen of a proxy: a [Snapshot] of what it does at one
// time. All are plain values, which package proxy hands to the programs that embed it.
package observe
