package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

func illegal(operations []porcupine.Operation) bool {
	return !porcupine.CheckOperations(registerModel, operations)
}

// notLinearizable reports the shortest part of the operations on a register that shows it, and draws that part.
func (j *judge) notLinearizable(key string, operations []porcupine.Operation) {
	shown := shrink(operations)
	a := Anomaly{Rule: 7, What: fmt.Sprintf("the operations on the register %s are not linearizable: %d of %d show it",
		key, len(shown), len(operations))}
	for _, o := range shown {
		a.Of = append(a.Of, o.Input.(call).Nonce)
	}
	a.picture = func(file string) error {
		_, info := porcupine.CheckOperationsVerbose(registerModel, shown, 0)
		return porcupine.VisualizePath(registerModel, info, file)
	}
	j.anomalies = append(j.anomalies, a)
}

// shrink returns a short part of operations that is not linearizable as they are not. It drops only what cannot
// make linearizable ones look otherwise: what came after the first outcome that does not fit, what came before a
// write at which nothing else was open, and reads.
func shrink(operations []porcupine.Operation) []porcupine.Operation {
	all := slices.SortedFunc(slices.Values(operations), func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	n := sort.Search(len(all), func(i int) bool { return illegal(until(all, all[i].Return)) })
	if n == len(all) {
		return operations
	}
	shown := until(all, all[n].Return)
	for i := len(shown) - 1; i >= 0; i-- {
		if later := since(shown, shown[i]); later != nil && illegal(later) {
			shown = later
			break
		}
	}
	for i := 0; i < len(shown); i++ {
		if less := slices.Delete(slices.Clone(shown), i, i+1); shown[i].Input.(call).Do == "get" && illegal(less) {
			shown = less
			i--
		}
	}
	return shown
}

// until returns what operations were until a time. What was open then had an unknown outcome.
func until(operations []porcupine.Operation, at int64) (before []porcupine.Operation) {
	for _, o := range operations {
		if o.Call > at {
			continue
		}
		if o.Return > at {
			o.Output, o.Return = nil, math.MaxInt64
		}
		before = append(before, o)
	}
	return before
}

// since returns the operations from a write on, if nothing else was open at it, else nil.
func since(operations []porcupine.Operation, write porcupine.Operation) (after []porcupine.Operation) {
	if write.Input.(call).Do != "set" || write.Return == math.MaxInt64 {
		return nil
	}
	for _, o := range operations {
		switch {
		case o.Input == write.Input, o.Call > write.Return:
			after = append(after, o)
		case o.Return >= write.Call:
			return nil
		}
	}
	return after
}
