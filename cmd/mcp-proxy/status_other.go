//go:build !unix

package main

import "os"

// notifyStatus does nothing: there is no signal that could ask.
func notifyStatus(chan<- os.Signal) {}
