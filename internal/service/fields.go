package service

import (
	"reflect"
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

// keysOf returns the keys of fields.
func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}
