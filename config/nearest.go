package config

import "strings"

// Nearest returns the one of known that word is most likely a misspelling of: at most
// two letters differ, or word is short for it. It is "" if there is none. Of several that
// are equally near it is the first in the alphabet.
func Nearest(word string, known []string) string {
	best, least := "", min(2, len(word)/2)+1
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if isShort(word, k) {
			d = min(d, 1)
		}
		if d < least || d == least && best != "" && k < best {
			best, least = k, d
		}
	}
	return best
}

// isShort reports whether word is k without some of its letters, as cmd is command.
func isShort(word, k string) bool {
	if len(word) < 3 || word[0] != k[0] {
		return false
	}
	for i := 0; i < len(k) && word != ""; i++ {
		if k[i] == word[0] {
			word = word[1:]
		}
	}
	return word == ""
}

// distance counts the letters to add, to remove or to change until a is b.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // from the part of a so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// DidYouMean completes an error line about an unknown word. It is "" if no known word is
// near.
func DidYouMean(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
