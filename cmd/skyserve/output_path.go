package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/spec"
)

// unknownKeyError reports a name of a path that selects nothing in any document of a command.
type unknownKeyError struct {
	expression, name string
	known            []string // the keys in its place; empty if there is no object
}

// Error names the key and the existing keys.
func (e *unknownKeyError) Error() string {
	if len(e.known) == 0 {
		return fmt.Sprintf("-o jsonpath=%s: %s: a list or a value has no keys; [*] selects all elements of a list", e.expression, e.name)
	}
	return fmt.Sprintf("-o jsonpath=%s: %s: unknown key: must be one of %s", e.expression, e.name, strings.Join(e.known, ", "))
}

// hint returns the most similar key, or how to write a path.
func (e *unknownKeyError) hint() string {
	if similar := didYouMean(e.name, e.known); similar != "" {
		return similar
	}
	return hintPath
}

// checkKeys returns an *unknownKeyError for a name of the path that no document of this type has. A key that is only
// absent now, such as an optional one, is no error. decoded is the document as decoded from JSON. Names in filters and
// after .. are not checked.
func checkKeys(expression string, path *jsonpath.Path, document, decoded any) error {
	at, segments := []reflect.Value{reflect.ValueOf(document)}, path.Query().Segments()
	for i, segment := range segments {
		if segment.IsDescendant() {
			return nil
		}
		var next []reflect.Value
		for _, selector := range segment.Selectors() {
			name, isName := selector.(spec.Name)
			found, keys, err := selectIn(at, string(name), isName)
			switch {
			case err != nil: // the keys are unknown here
				return nil //nolint:nilerr // what cannot be checked is accepted
			case isName && len(found) == 0:
				here := append(slices.Clone(segments[:i]), spec.Child(selector))
				if len(spec.Query(true, here...).Select(decoded, decoded)) > 0 {
					return nil // a key that its type's encoder adds
				}
				return &unknownKeyError{expression, string(name), keys}
			}
			next = append(next, found...)
		}
		at = next
	}
	return nil
}

// errUnknownKeys is returned for a value whose keys only the value itself tells, and there is none.
var errUnknownKeys = errors.New("the keys are unknown")

// selectIn returns the values with a name, or all values if isName is false, in the given values, and the keys that
// these have.
func selectIn(at []reflect.Value, name string, isName bool) (found []reflect.Value, keys []string, err error) {
	known := map[string]bool{}
	for _, v := range at {
		children, elements, err := childrenOf(v)
		if err != nil {
			return nil, nil, err
		}
		for key, child := range children {
			known[key] = true
			if !isName || key == name {
				found = append(found, child)
			}
		}
		switch v = dereferenced(v); {
		case !isName:
			found = append(found, elements...)
		case v.Kind() == reflect.Map && v.Type().Elem().Kind() != reflect.Interface: // its keys are data
			child := v.MapIndex(reflect.ValueOf(name).Convert(v.Type().Key()))
			if !child.IsValid() {
				child = reflect.Zero(v.Type().Elem())
			}
			found = append(found, child)
		}
	}
	return found, slices.Sorted(maps.Keys(known)), nil
}

// dereferenced returns what pointers and interfaces contain; the zero value of its type for a nil pointer.
func dereferenced(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.Kind() == reflect.Pointer && v.IsNil() {
			v = reflect.Zero(v.Type().Elem())
		} else {
			v = v.Elem()
		}
	}
	return v
}

// childrenOf returns the values of an object by key, and the elements of a list, of which there is at least one.
func childrenOf(v reflect.Value) (byKey map[string]reflect.Value, elements []reflect.Value, err error) {
	v = dereferenced(v)
	byKey = map[string]reflect.Value{}
	switch v.Kind() {
	case reflect.Invalid:
		return nil, nil, errUnknownKeys
	case reflect.Struct:
		addFields(byKey, v)
		if _, custom := v.Interface().(json.Marshaler); custom {
			return byKey, nil, addEncodedKeys(byKey, v)
		}
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.Interface && v.Len() == 0 || v.Type().Key().Kind() != reflect.String {
			return nil, nil, errUnknownKeys
		}
		for _, key := range v.MapKeys() {
			byKey[key.String()] = v.MapIndex(key)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil, nil, errUnknownKeys // JSON, or bytes
		}
		for i := range v.Len() {
			elements = append(elements, v.Index(i))
		}
		if len(elements) == 0 {
			elements = append(elements, reflect.Zero(v.Type().Elem()))
		}
	}
	return byKey, elements, nil
}

// addFields adds the exported fields of a struct by their JSON keys.
func addFields(byKey map[string]reflect.Value, v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && key == "":
			if embedded := dereferenced(v.Field(i)); embedded.Kind() == reflect.Struct {
				addFields(byKey, embedded)
			}
		case key == "-" || !field.IsExported():
		case key == "":
			byKey[field.Name] = v.Field(i)
		default:
			byKey[key] = v.Field(i)
		}
	}
}

// addEncodedKeys adds the keys that a type's own encoder adds to its fields, such as the former names of keys. A text
// or a number, such as a time, has none.
func addEncodedKeys(byKey map[string]reflect.Value, v reflect.Value) error {
	text, err := json.Marshal(v.Interface())
	var encoded any
	if err != nil || json.Unmarshal(text, &encoded) != nil {
		return errUnknownKeys
	}
	switch encoded := encoded.(type) {
	case map[string]any:
		for key := range encoded {
			if _, isField := byKey[key]; !isField {
				byKey[key] = reflect.ValueOf(encoded).MapIndex(reflect.ValueOf(key))
			}
		}
	case nil, []any:
		return errUnknownKeys
	}
	return nil
}
