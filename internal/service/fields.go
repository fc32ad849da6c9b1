package service

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// field is a key of a mapping with its struct field.
type field struct {
	key   string
	index int
	// rule is its name in the rules: type and key.
	rule string
}

var fieldCache sync.Map // reflect.Type -> []field

// fieldsOf returns the keys of a struct type in the order of its fields, from its yaml tags: the
// only place that names keys.
func fieldsOf(t reflect.Type) []field {
	if known, ok := fieldCache.Load(t); ok {
		return known.([]field)
	}
	var fields []field
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		fields = append(fields, field{key: key, index: i, rule: t.Name() + "." + key})
	}
	fieldCache.Store(t, fields)
	return fields
}

// shorthands are the types of mappings that may be written as the value of one of their keys.
var shorthands = map[string]string{"Endpoint": "url", "Adapter": "name"}

// shorthandOf returns the field that a value of a struct type may be written as, if any.
func shorthandOf(t reflect.Type) (field, bool) {
	key, ok := shorthands[t.Name()]
	if !ok {
		return field{}, false
	}
	fields := fieldsOf(t)
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.key == key })], true
}

// keysOf returns the keys of fields.
func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}
