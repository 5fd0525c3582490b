// Package catalog knows what upstreams offer: names, lists and what clients may see of
// them. It asks nobody. It takes what upstreams and clients have said, as values, and
// returns values.
//
//	elements of a list ──Index──► Table ──┬─ Owner, OwnerOfURI ─► which upstream, its own name
//	                                      ├─ Mirrors ──────────► what headers have to repeat
//	                                      └─ Merge ──► List ───► result
//
// Its parts:
//
//   - table.go: one list of one upstream. owner.go finds an upstream by name or URI in
//     the tables of all.
//   - name.go: which names have a prefix, and how it is written; which tools are allowed.
//     task.go has the same for ids of tasks.
//   - page.go reads an upstream's pages. list.go merges lists into one page.
//     caching.go says how long a merged answer may be kept.
//   - mirror.go: headers that repeat a tool's arguments.
//   - filter.go: what a subscription is about.
//   - result.go: what a result of the modern era says of itself.
//   - introduction.go: what upstreams say of themselves, together.
//
// There is no goroutine, no lock, no clock and no log here. A Table and a List are
// immutable once they are made, so that sessions may share them.
package catalog
