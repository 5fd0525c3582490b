// Package catalog has the names and lists of upstreams, and the view that clients get of them. It
// sends no requests: it takes the messages of upstreams and clients as values, and returns values.
//
//	elements of a list ──Index──► Table ──┬─ Owner, OwnerOfURI ─► the upstream, and its own name
//	                                      ├─ Mirrors ──────────► the headers that repeat arguments
//	                                      └─ Merge ──► List ───► result
//
// Its parts:
//
//   - table.go: one list of one upstream, and the headers that repeat arguments of its tools. owner.go
//     finds an upstream by name or URI in the tables of all.
//   - name.go: which names have a prefix, and its form; which tools are allowed. task.go has the same
//     for ids of tasks.
//   - page.go reads an upstream's pages. list.go merges lists into one page. caching.go computes how
//     long a merged answer may be cached.
//   - result.go: resultType and caching of a result of the modern era.
//   - introduction.go: the merged results of initialize and server/discover.
//
// It has no goroutine, no lock, no clock and no log. Tables and Lists are immutable, so that
// sessions may share them.
package catalog
