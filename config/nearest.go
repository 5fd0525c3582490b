package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest returns the known word that word most likely misspells; "" for none. At most two
// letters differ. Among equally near ones it prefers the most similar length, then the first in
// the alphabet. A word of a few letters is more likely an abbreviation: cmd means command, not cwd.
func Nearest(word string, known []string) string {
	const few = 4
	known = slices.Sorted(slices.Values(known))
	long := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !isShort(word, k) })
	short := ""
	if len(long) > 0 {
		short = slices.MinFunc(long, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	}
	if short != "" && len(word) <= few {
		return short
	}
	near := slices.DeleteFunc(known, func(k string) bool { return distance(word, k) > min(2, len(word)/2) })
	if len(near) == 0 {
		return short
	}
	return slices.MinFunc(near, func(a, b string) int {
		return cmp.Or(cmp.Compare(distance(word, a), distance(word, b)), cmp.Compare(longer(word, a), longer(word, b)))
	})
}

// distance returns the number of letters to change, ignoring case. For words of very different
// lengths it returns the difference, which costs less: names from clients may be long.
func distance(word, k string) int {
	if d := longer(word, k); d > 8 {
		return d
	}
	return levenshtein.ComputeDistance(strings.ToLower(word), strings.ToLower(k))
}

func longer(word, k string) int { return max(len(k)-len(word), len(word)-len(k)) }

// isShort reports whether word is k without some of its letters, as cmd is command.
func isShort(word, k string) bool {
	if len(word) < 3 || k == "" || len(k) > 3*len(word) || word[0] != k[0] {
		return false
	}
	for i := 0; i < len(k) && word != ""; i++ {
		if k[i] == word[0] {
			word = word[1:]
		}
	}
	return word == ""
}

// DidYouMean returns the end of an error line about an unknown word; "" if no known word is
// similar.
func DidYouMean(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
