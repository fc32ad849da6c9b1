package engine

import (
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Token is a unit of text for counting and caching. It is a hash of the token's bytes; colliding texts
// share a cache entry, which costs the simulation at most a wrong hit once in billions.
type Token uint32

// maxRun is the maximum number of letters and digits in a token.
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

// Split returns the text of each token that Tokenize would append.
func Split(text string) []string {
	var tokens []string
	for len(text) > 0 {
		n := tokenLen(text)
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

// CountTokens returns the number of tokens that Tokenize would append.
func CountTokens(text string) int {
	count := 0
	for len(text) > 0 {
		text = text[tokenLen(text):]
		count++
	}
	return count
}

// tokenOf returns the token for these bytes.
func tokenOf(text string) Token { return Token(xxh3.HashString(text)) }

// tokenLen returns the length in bytes of the first token of a non-empty text.
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
