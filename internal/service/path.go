package service

import (
	"regexp"
	"strconv"
	"strings"
)

// path is the position of a value in a document, in the notation of errors:
// regions[1].replicas.min. The empty path is the whole document.
type path string

var bareKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// key returns the path of a key of the mapping at p. A key with special characters is quoted:
// models[0].regions["aws/us-east-1"].
func (p path) key(k string) path {
	switch {
	case !bareKey.MatchString(k):
		return p + path("["+strconv.Quote(shorten(k))+"]")
	case p == "":
		return path(k)
	}
	return p + "." + path(k)
}

// index returns the path of an element of the list at p.
func (p path) index(i int) path { return p + path("["+strconv.Itoa(i)+"]") }

// parent returns the path of the mapping or list that contains p.
func (p path) parent() path {
	s := string(p)
	cut := strings.LastIndexByte(s, '.')
	if strings.HasSuffix(s, `"]`) {
		cut = strings.LastIndex(s, `["`) // inside quotes every " is escaped
	} else if strings.HasSuffix(s, "]") {
		cut = strings.LastIndexByte(s, '[')
	}
	return path(s[:max(cut, 0)])
}

// maxShown is the maximum number of characters of a found value in an error.
const maxShown = 60

// shorten truncates s to maxShown characters.
func shorten(s string) string {
	if r := []rune(s); len(r) > maxShown {
		return string(r[:maxShown]) + "..."
	}
	return s
}
