package config

import (
	"cmp"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest returns the known word that word most likely misspells; "" for none. At most two
// letters differ. Among equally near ones it prefers the most similar length, then the
// alphabet. A word of a few letters is more likely an abbreviation: cmd means command, not cwd.
func Nearest(word string, known []string) string {
	const few = 4
	short := longForm(word, known)
	if short != "" && len(word) <= few {
		return short
	}
	best, least := "", rank{distance: min(2, len(word)/2) + 1}
	for _, k := range known {
		r := rankOf(word, k)
		if c := r.compare(least); c < 0 || c == 0 && k < best {
			best, least = k, r
		}
	}
	return cmp.Or(best, short)
}

// longForm returns the shortest known word that word abbreviates; "" for none.
func longForm(word string, known []string) (found string) {
	for _, k := range known {
		if isShort(word, k) && (found == "" || len(k) < len(found) || len(k) == len(found) && k < found) {
			found = k
		}
	}
	return found
}

// A rank says how near one word is to another; the lowest is the nearest.
type rank struct{ distance, longer int }

func (r rank) compare(with rank) int {
	return cmp.Or(cmp.Compare(r.distance, with.distance), cmp.Compare(r.longer, with.longer))
}

// rankOf compares without regard to case. It skips words of very different lengths: names may
// come from clients, and be long.
func rankOf(word, k string) rank {
	longer := max(len(k)-len(word), len(word)-len(k))
	if longer > 8 {
		return rank{longer, longer}
	}
	return rank{levenshtein.ComputeDistance(strings.ToLower(word), strings.ToLower(k)), longer}
}

// isShort reports whether word is k without some of its letters, as cmd is command.
func isShort(word, k string) bool {
	if len(word) < 3 || len(k) > 3*len(word) || word[0] != k[0] {
		return false
	}
	for i := 0; i < len(k) && word != ""; i++ {
		if k[i] == word[0] {
			word = word[1:]
		}
	}
	return word == ""
}

// DidYouMean completes an error line about an unknown word. It is "" if no known word is
// similar.
func DidYouMean(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
