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

// gceStore contains objects by key. Its lists are eventually consistent: they omit new objects for some time,
// and contain deleted objects for some time.
type gceStore[T any] struct {
	objects      map[string]T
	unseen       map[string]int // by key: remaining lists that omit the object
	deleted      map[string]T
	deletedReads map[string]int // by key: remaining lists that contain the deleted object
}

func (s *gceStore[T]) get(key string) (T, bool) {
	object, ok := s.objects[key]
	return object, ok
}

// setObject replaces an existing object.
func (s *gceStore[T]) setObject(key string, object T) { s.objects[key] = object }

// addObject adds an object, which the next unseen lists omit.
func (s *gceStore[T]) addObject(key string, object T, unseen int) {
	if s.objects == nil {
		s.objects, s.unseen = map[string]T{}, map[string]int{}
		s.deleted, s.deletedReads = map[string]T{}, map[string]int{}
	}
	s.objects[key], s.unseen[key] = object, unseen
	delete(s.deleted, key)
}

// removeObject deletes an object, which the next unseen lists still contain.
func (s *gceStore[T]) removeObject(key string, unseen int) {
	s.deleted[key], s.deletedReads[key] = s.objects[key], unseen
	delete(s.objects, key)
}

func (s *gceStore[T]) keys() []string { return slices.Sorted(maps.Keys(s.objects)) }

// all returns the current objects, sorted by key.
func (s *gceStore[T]) all() []T {
	var all []T
	for _, key := range s.keys() {
		all = append(all, s.objects[key])
	}
	return all
}

// listObjects returns the objects of one list call.
func (s *gceStore[T]) listObjects() []T {
	shown := map[string]T{}
	for key, object := range s.objects {
		if s.unseen[key] > 0 {
			s.unseen[key]--
			continue
		}
		shown[key] = object
	}
	for key, object := range s.deleted {
		if s.deletedReads[key] > 0 {
			s.deletedReads[key]--
			shown[key] = object
		}
	}
	var all []T
	for _, key := range slices.Sorted(maps.Keys(shown)) {
		all = append(all, shown[key])
	}
	return all
}

// gceFieldLookup returns the value of an object's field for filters.
type gceFieldLookup func(field string) (value string, found bool)

// gceFilter parses a filter: field eq "regular expression", labels.key="value", or labels.key:* for an
// existing key.
func gceFilter(text string) (func(gceFieldLookup) bool, *gceError) {
	if text == "" {
		return func(gceFieldLookup) bool { return true }, nil
	}
	invalid := newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'filter': '%s'.", text)
	if key, ok := strings.CutSuffix(text, ":*"); ok {
		return func(lookup gceFieldLookup) bool { _, found := lookup(key); return found }, nil
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
		return func(lookup gceFieldLookup) bool { got, found := lookup(field); return found && got == value }, nil
	}
	pattern, err := regexp.Compile("^(?:" + value + ")$")
	if err != nil {
		return nil, invalid
	}
	return func(lookup gceFieldLookup) bool {
		got, found := lookup(field)
		return found && pattern.MatchString(got)
	}, nil
}

// gcePage returns one page of a list, limited by the request and by size, and the token of the next page.
func gcePage[T any](r *http.Request, all []T, size int) (page []T, next string, fail *gceError) {
	if n, err := strconv.Atoi(r.FormValue("maxResults")); err == nil && n > 0 && (size == 0 || n < size) {
		size = n
	}
	begin := 0
	if text := r.FormValue("pageToken"); text != "" {
		var err error
		if begin, err = strconv.Atoi(text); err != nil || begin < 0 {
			return nil, "", newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'pageToken': '%s'.", text)
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
