package main

import "testing"

// What quiet moments differ by is no more than what is kept for reuse, and what one of them has more of says nothing.
func TestLeftBehind(t *testing.T) {
	dir := t.TempDir()
	first := sample{pid: 1, servers: 2, descriptors: 30, goroutines: 50, private: 20_000}
	with := func(change func(s *sample)) sample {
		s := first
		change(&s)
		return s
	}
	var descriptors, memory []sample
	for i := range 5 {
		descriptors = append(descriptors, with(func(s *sample) { s.descriptors += 3 * i }))
		memory = append(memory, with(func(s *sample) { s.private += i * 50_000 }))
	}
	for _, tt := range []struct {
		name    string
		samples []sample
		found   int
	}{
		{"no change", []sample{first, first}, 0},
		{"more servers", []sample{first, with(func(s *sample) { s.servers, s.descriptors, s.goroutines = 4, 40, 62 })}, 0},
		{"another process", []sample{first, with(func(s *sample) { s.pid, s.descriptors = 2, 300 })}, 0},
		{"more descriptors", []sample{first, with(func(s *sample) { s.descriptors = 60 })}, 1},
		{"more goroutines", []sample{first, with(func(s *sample) { s.goroutines = 100 })}, 1},
		{"once more memory", []sample{first, first, with(func(s *sample) { s.private = 400_000 }), first}, 0},
		{"more and more descriptors", descriptors, 1},
		{"more and more memory", memory, 1},
	} {
		if found := leftBehind(dir, tt.samples); len(found) != tt.found {
			t.Errorf("%s: %v", tt.name, found)
		}
	}
}
