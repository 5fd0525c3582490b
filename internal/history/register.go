package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"
)

// A register keeps values of a server by key, over its processes.
type register interface {
	// apply does what a call asks for, and returns the value that its result has.
	apply(a call) (int, error)
}

// A registerFile is a register that processes share.
type registerFile string

func (r registerFile) apply(a call) (int, error) {
	if a.Do == "" {
		return 0, nil
	}
	lock, err := os.OpenFile(string(r)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer lock.Close() // unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return 0, err
	}
	values := map[string]int{}
	text, err := os.ReadFile(string(r))
	if err == nil {
		err = json.Unmarshal(text, &values)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if a.change(values); a.Do == "get" {
		return values[a.Key], nil
	}
	if err := os.WriteFile(string(r)+".new", encode(values), 0o600); err != nil {
		return 0, err
	}
	// A process that is killed leaves the old file or the new one.
	return values[a.Key], os.Rename(string(r)+".new", string(r))
}

// change does to the values of a register what a call asks for.
func (a *call) change(values map[string]int) {
	switch a.Do {
	case "set":
		values[a.Key] = a.Value
	case "add":
		values[a.Key]++
	}
}

// registerModel is what the registers of one key do, for the checker: the input is a call, and the output its
// value. An output of nil is unknown: then the call has happened, or has not.
var registerModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		was, a := state.(int), input.(call)
		is := was
		switch a.Do {
		case "set":
			is = a.Value
		case "add":
			is++
		}
		return output == nil || output.(int) == is, is
	},
	DescribeOperation: func(input, output any) string {
		a := input.(call)
		return fmt.Sprintf("%s %s %d: %v", a.Nonce, a.Do, a.Value, output)
	},
}

// registers judges that the operations on each register are linearizable. What had no effect did nothing. What has
// an unknown outcome has happened before its server says that it ended, or, if the server was killed, at any time.
// Without that end a few lost additions would make porcupine try more orders than it has time for.
func (j *judge) registers() {
	of := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	for _, r := range j.calls {
		if r.op.Do == "" || r.op.Do == "touch" || r.op.Do == "grow" || len(r.effects) == 0 {
			continue
		}
		if clients[r.client] == 0 {
			clients[r.client] = len(clients) + 1
		}
		o := porcupine.Operation{ClientId: clients[r.client], Input: r.op.call, Call: r.sent, Return: math.MaxInt64}
		if len(r.outcomes) > 0 && r.outcomes[0].What == Result {
			var a answer
			if json.Unmarshal([]byte(r.outcomes[0].Text), &a) != nil || a.Nonce != r.nonce {
				continue // that is an anomaly by itself
			}
			o.Output, o.Return = a.Value, r.outcomes[0].At
		} else if r.op.Do == "get" {
			continue
		} else if len(r.ended) > 0 {
			o.Return = r.ended[0].At
		}
		key := r.op.Server + " " + r.op.Key
		of[key] = append(of[key], o)
	}
	for key, operations := range of {
		switch porcupine.CheckOperationsTimeout(registerModel, operations, 20*time.Second) {
		case porcupine.Illegal:
			j.notLinearizable(key, operations)
		case porcupine.Unknown:
			j.found(7, fmt.Sprintf("20 s do not suffice to judge the %d operations on the register %s", len(operations), key))
		}
	}
}
