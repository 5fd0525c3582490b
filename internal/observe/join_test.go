package observe

import (
	"reflect"
	"testing"
	"time"
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
			called = 0
			in := []reflect.Value{reflect.New(f.Type().In(0)).Elem()}
			if f.Type().NumIn() == 2 {
				in = append(in, reflect.ValueOf(End{Took: time.Second}))
			}
			f.Call(in)
			if called != test.want {
				t.Errorf("%s is called %d times, want %d", name, called, test.want)
			}
		}
	}
}
