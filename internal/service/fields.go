package service

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// field is a key of a mapping with its struct field.
type field struct {
	key string
	// former is an earlier name of the key, which is accepted too; empty = none.
	former string
	index  int
	// rule is its name in the rules: type and key.
	rule string
}

var fieldCache sync.Map // reflect.Type -> []field

// KeyOf returns the key of a struct field in service.yaml: its tag key, else its yaml tag. With both tags, the yaml
// tag is the former name of the key. Configurations between processes still use it, because a balancer of the
// previous version rejects unknown keys.
func KeyOf(f reflect.StructField) string {
	if key := f.Tag.Get("key"); key != "" {
		return key
	}
	return yamlName(f)
}

// yamlName returns the name of a struct field in its yaml tag.
func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// fieldsOf returns the keys of a struct type in the order of its fields, from its tags: the
// only place that names keys.
func fieldsOf(t reflect.Type) []field {
	if known, ok := fieldCache.Load(t); ok {
		return known.([]field)
	}
	var fields []field
	for i := range t.NumField() {
		f := field{key: KeyOf(t.Field(i)), index: i}
		if f.rule = t.Name() + "." + f.key; f.key != yamlName(t.Field(i)) {
			f.former = yamlName(t.Field(i))
		}
		fields = append(fields, f)
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

// FormerKeys returns the former names of the keys of a struct type, by key.
func FormerKeys(t reflect.Type) map[string]string {
	former := map[string]string{}
	for _, f := range fieldsOf(t) {
		if f.former != "" {
			former[f.key] = f.former
		}
	}
	return former
}

// keysOf returns the keys of fields.
func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}
