package main

import (
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// The shortest part begins at the last write before which all is settled, and has neither reads that do not matter nor
// what came later.
func TestShrink(t *testing.T) {
	at := int64(0)
	operation := func(nonce, do string, value, got int) porcupine.Operation {
		at += 10
		return porcupine.Operation{Input: call{Nonce: nonce, Do: do, Value: value}, Call: at, Output: got, Return: at + 5}
	}
	all := []porcupine.Operation{operation("a", "set", 1, 1), operation("b", "add", 0, 2), operation("c", "set", 7, 7),
		operation("d", "get", 0, 7), operation("e", "add", 0, 8), operation("f", "get", 0, 7), operation("g", "get", 0, 8)}
	var nonces []string
	for _, o := range shrink(all) {
		nonces = append(nonces, o.Input.(call).Nonce)
	}
	if want := []string{"c", "e", "f"}; !slices.Equal(nonces, want) {
		t.Errorf("%v show it, want %v", nonces, want)
	}
}
