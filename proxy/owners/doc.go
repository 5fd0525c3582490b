// Package owners records to whom things belong: which upstream runs a client's tasks and answered its
// reads, and which principals were given tasks and states. It knows no messages; package session asks
// it where a request may go.
package owners
