package engine

import (
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Token is one unit of text as the engine counts and caches it. It is a hash of
// the token's bytes; two texts that collide would share a cache entry, which
// costs a model nothing but a wrong hit once in billions.
type Token uint32

// maxRun is the most letters and digits in one token.
const maxRun = 8

// Tokenize appends the tokens of text to dst. A token is an optional single
// space followed by one to eight ASCII letters or digits, or else one rune (one
// byte where the text is not UTF-8). The rule looks at no more than nine bytes,
// so texts joined at a token boundary tokenise to the same tokens.
func Tokenize(dst []Token, text string) []Token {
	for len(text) > 0 {
		n := tokenLen(text)
		dst = append(dst, tokenOf(text[:n]))
		text = text[n:]
	}
	return dst
}

// Split is the text of each token that Tokenize would append.
func Split(text string) []string {
	var tokens []string
	for len(text) > 0 {
		n := tokenLen(text)
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

// CountTokens is the length of what Tokenize would append.
func CountTokens(text string) int {
	count := 0
	for len(text) > 0 {
		text = text[tokenLen(text):]
		count++
	}
	return count
}

// tokenOf is the token that stands for exactly these bytes.
func tokenOf(text string) Token { return Token(xxh3.HashString(text)) }

// tokenLen is how many bytes the first token of a text that is not empty has.
func tokenLen(text string) int {
	start := 0
	if text[0] == ' ' {
		start = 1
	}
	end := start
	for end < len(text) && end-start < maxRun && alphanumeric(text[end]) {
		end++
	}
	if end > start {
		return end
	}
	if start == 1 {
		return 1
	}
	_, size := utf8.DecodeRuneInString(text)
	return size
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
