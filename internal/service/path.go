package service

import (
	"regexp"
	"strconv"
	"strings"
)

// path is a place in a document as errors show it: regions[1].replicas.min.
// The empty path is the whole document.
type path string

var bareKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// key is the path of a key of the mapping at p. A key that could be mistaken
// for syntax is quoted: models[0].regions["aws/us-east-1"].
func (p path) key(k string) path {
	switch {
	case !bareKey.MatchString(k):
		return p + path("["+strconv.Quote(shorten(k))+"]")
	case p == "":
		return path(k)
	}
	return p + "." + path(k)
}

// index is the path of an element of the list at p.
func (p path) index(i int) path { return p + path("["+strconv.Itoa(i)+"]") }

// parent is the path of the mapping or list that holds p.
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

// maxShown bounds, in characters, a found value that an error repeats.
const maxShown = 60

// shorten cuts s to what an error can show.
func shorten(s string) string {
	if r := []rune(s); len(r) > maxShown {
		return string(r[:maxShown]) + "..."
	}
	return s
}
