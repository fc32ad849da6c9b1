package workload

import (
	"math"
	"math/rand/v2"
	"unicode/utf8"
)

const (
	// wordBytes is the size of a generated word: a space and three letters, one token of the simulated
	// engine.
	wordBytes = 4
	// words is the number of different words.
	words = 26 * 26 * 26
)

// AppendText appends n tokens of text to dst: n words of a space and three lower-case letters,
// determined by key. Equal keys yield equal text, and a shorter text is a prefix of a longer one with
// the same key.
func AppendText(dst []byte, n int, key uint64) []byte {
	for i := 0; i < n; i += 4 {
		bits := mix(key + uint64(i)*0x9e3779b97f4a7c15)
		for k := i; k < min(i+4, n); k++ {
			w := (bits & 0xffff) * words >> 16
			dst = append(dst, ' ', 'a'+byte(w/676), 'a'+byte(w/26%26), 'a'+byte(w%26))
			bits >>= 16
		}
	}
	return dst
}

// Text is AppendText as a string.
func Text(n int, key uint64) string {
	return string(AppendText(make([]byte, 0, n*wordBytes), n, key))
}

// CountTokens counts the tokens of text by the rule of the simulated engine: an optional single space
// and 1 to 8 ASCII letters or digits are a token; any other rune is a token.
func CountTokens(text string) int {
	n := 0
	for i := 0; i < len(text); n++ {
		j := i
		if text[j] == ' ' && j+1 < len(text) && isWord(text[j+1]) {
			j++
		}
		end := min(j+8, len(text))
		k := j
		for k < end && isWord(text[k]) {
			k++
		}
		if k == j {
			_, size := utf8.DecodeRuneInString(text[j:])
			k = j + size
		}
		i = k
	}
	return n
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// mix is a bijection of 64 bits in which every output bit depends on all input bits (the finaliser of
// SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// keyOf returns a key for a name and numbers; any difference yields another key.
func keyOf(name string, numbers ...uint64) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := 0; i < len(name); i++ {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	h = mix(h + uint64(len(name)))
	for _, n := range numbers {
		h = mix(h*0x9e3779b97f4a7c15 + n + 1)
	}
	return h
}

// stream returns the random number generator of a key.
func stream(key uint64) *rand.Rand {
	return rand.New(rand.NewPCG(key, mix(key^0x5851f42d4c957f2d)))
}

// logNormal is a log-normal length in tokens with a median and a standard deviation of its logarithm.
type logNormal struct {
	median, sigma float64
}

// draw returns a length from lo to hi.
func (l logNormal) draw(r *rand.Rand, lo, hi int) int {
	x := l.median * math.Exp(l.sigma*r.NormFloat64())
	if !(x < float64(hi)) { // also catches an overflow to +Inf
		return hi
	}
	return max(lo, int(math.Round(x)))
}
