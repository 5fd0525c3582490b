package observe

import (
	"reflect"
	"testing"
)

// Join calls every hook of both, including future hooks, and leaves unused hooks nil.
func TestJoin(t *testing.T) {
	var called int
	all := func() (h Hooks) {
		fields := reflect.ValueOf(&h).Elem()
		for i := range fields.NumField() {
			f := fields.Field(i)
			if f.Kind() != reflect.Func {
				h.Follower = new(follower)
				continue
			}
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value {
				called++
				return nil
			}))
		}
		return h
	}
	for _, test := range []struct {
		a, b Hooks
		want int
	}{{Hooks{}, Hooks{}, 0}, {all(), Hooks{}, 1}, {Hooks{}, all(), 1}, {all(), all(), 2}} {
		joined := reflect.ValueOf(Join(test.a, test.b))
		for i := range joined.NumField() {
			name, f := joined.Type().Field(i).Name, joined.Field(i)
			if test.want == 0 {
				if !f.IsNil() {
					t.Errorf("%s is on, and nobody wants it", name)
				}
				continue
			}
			if f.Kind() != reflect.Func {
				continue
			}
			called = 0
			var in []reflect.Value
			for value := range f.Type().Ins() {
				in = append(in, reflect.Zero(value))
			}
			f.Call(in)
			if called != test.want {
				t.Errorf("%s is called %d times, want %d", name, called, test.want)
			}
		}
	}
}

// Of two followers the first one follows.
func TestJoinFollowers(t *testing.T) {
	a, b := new(follower), new(follower)
	if got := Join(Hooks{Follower: a}, Hooks{Follower: b}).Follower; got != a {
		t.Error("the second follows")
	}
	if got := Join(Hooks{}, Hooks{Follower: b}).Follower; got != b {
		t.Error("nobody follows")
	}
}

type follower struct{ _ int }

func (*follower) Follow(Request, Arrival) Trace           { return nil }
func (*follower) FollowCall(Call, TraceContext) CallTrace { return nil }
