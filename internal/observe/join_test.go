package observe

import (
	"reflect"
	"testing"
)

// Every hook of both is called, whatever hooks there will be, and what nobody wants stays
// off.
func TestJoin(t *testing.T) {
	var called int
	all := func() (h Hooks) {
		fields := reflect.ValueOf(&h).Elem()
		for i := range fields.NumField() {
			f := fields.Field(i)
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value {
				called++
				return results(f.Type())
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
			called = 0
			var in []reflect.Value
			for value := range f.Type().Ins() {
				in = append(in, reflect.Zero(value))
			}
			f.Call(in)
			want := test.want
			if f.Type().NumOut() > 0 {
				want = 1 // who follows is one
			}
			if called != want {
				t.Errorf("%s is called %d times, want %d", name, called, want)
			}
		}
	}
}

// results are what a function of that type returns if it has nothing to say.
func results(of reflect.Type) (all []reflect.Value) {
	for out := range of.Outs() {
		all = append(all, reflect.Zero(out))
	}
	return all
}
