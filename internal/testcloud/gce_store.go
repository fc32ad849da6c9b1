package testcloud

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// gceStore keeps things by key. Its lists lag: they do not show at once what was
// made, and go on showing what has gone.
type gceStore[T any] struct {
	things     map[string]T
	unseen     map[string]int // by how many lists a thing will not be shown
	ghosts     map[string]T
	ghostReads map[string]int // by how many lists a ghost will be shown
}

func (s *gceStore[T]) get(key string) (T, bool) {
	thing, ok := s.things[key]
	return thing, ok
}

// set changes a thing that is there.
func (s *gceStore[T]) set(key string, thing T) { s.things[key] = thing }

// add puts a new thing, unseen by the next lists.
func (s *gceStore[T]) add(key string, thing T, unseen int) {
	if s.things == nil {
		s.things, s.unseen = map[string]T{}, map[string]int{}
		s.ghosts, s.ghostReads = map[string]T{}, map[string]int{}
	}
	s.things[key], s.unseen[key] = thing, unseen
	delete(s.ghosts, key)
}

// remove takes a thing away, which the next lists still show.
func (s *gceStore[T]) remove(key string, unseen int) {
	s.ghosts[key], s.ghostReads[key] = s.things[key], unseen
	delete(s.things, key)
}

func (s *gceStore[T]) keys() []string { return slices.Sorted(maps.Keys(s.things)) }

// all are the things as they are.
func (s *gceStore[T]) all() []T {
	var all []T
	for _, key := range s.keys() {
		all = append(all, s.things[key])
	}
	return all
}

// list is what a list shows now.
func (s *gceStore[T]) list() []T {
	shown := map[string]T{}
	for key, thing := range s.things {
		if s.unseen[key] > 0 {
			s.unseen[key]--
			continue
		}
		shown[key] = thing
	}
	for key, ghost := range s.ghosts {
		if s.ghostReads[key] > 0 {
			s.ghostReads[key]--
			shown[key] = ghost
		}
	}
	var all []T
	for _, key := range slices.Sorted(maps.Keys(shown)) {
		all = append(all, shown[key])
	}
	return all
}

// gceFields are the fields of a thing that a filter can ask for.
type gceFields func(field string) (value string, found bool)

// gceFilter reads a filter: field eq "regular expression", or labels.key="value", or
// labels.key:* for a key that is there.
func gceFilter(text string) (func(gceFields) bool, *gceError) {
	if text == "" {
		return func(gceFields) bool { return true }, nil
	}
	invalid := gceFail(http.StatusBadRequest, "invalid", "Invalid value for field 'filter': '%s'.", text)
	if key, ok := strings.CutSuffix(text, ":*"); ok {
		return func(of gceFields) bool { _, found := of(key); return found }, nil
	}
	field, value, isMatch := strings.Cut(text, " eq ")
	if !isMatch {
		var isEqual bool
		if field, value, isEqual = strings.Cut(text, "="); !isEqual {
			return nil, invalid
		}
	}
	value, err := strconv.Unquote(value)
	if err != nil {
		return nil, invalid
	}
	if !isMatch {
		return func(of gceFields) bool { got, found := of(field); return found && got == value }, nil
	}
	shape, err := regexp.Compile("^(?:" + value + ")$")
	if err != nil {
		return nil, invalid
	}
	return func(of gceFields) bool { got, found := of(field); return found && shape.MatchString(got) }, nil
}

// gcePage is one page of a list, by the request and the fake's page size, and the
// token of the next.
func gcePage[T any](r *http.Request, all []T, size int) (page []T, next string, fail *gceError) {
	if n, err := strconv.Atoi(r.FormValue("maxResults")); err == nil && n > 0 && (size == 0 || n < size) {
		size = n
	}
	begin := 0
	if text := r.FormValue("pageToken"); text != "" {
		var err error
		if begin, err = strconv.Atoi(text); err != nil || begin < 0 {
			return nil, "", gceFail(http.StatusBadRequest, "invalid", "Invalid value for field 'pageToken': '%s'.", text)
		}
	}
	begin = min(begin, len(all))
	end := len(all)
	if size > 0 && begin+size < end {
		end = begin + size
		next = fmt.Sprint(end)
	}
	return all[begin:end], next, nil
}
