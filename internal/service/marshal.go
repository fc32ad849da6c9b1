package service

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Marshal encodes s as a service.yaml that Parse decodes to an equal Spec. Comments of the original
// file are lost, and defaults are explicit. Ambiguous text is quoted, and the output for one Spec
// is deterministic. It fails only for a Spec that Parse did not return and that contains
// non-printable characters.
func Marshal(s *Spec) ([]byte, error) {
	var w yamlWriter
	w.mapping(reflect.ValueOf(s).Elem(), "")
	if w.err != nil {
		return nil, fmt.Errorf("encoding the service %q as YAML: %w", s.Name, w.err)
	}
	return w.out.Bytes(), nil
}

// yamlWriter writes block style with an indentation of two spaces.
type yamlWriter struct {
	out bytes.Buffer
	err error
}

// mapping writes the keys of a struct or a map; indent precedes each but the first, which continues
// the current line.
func (w *yamlWriter) mapping(v reflect.Value, indent string) {
	start := w.out.Len()
	each := func(key string, value reflect.Value) {
		if w.out.Len() > start {
			w.out.WriteString(indent)
		}
		w.out.WriteString(w.text(key) + ":")
		w.value(value, indent)
	}
	if v.Kind() == reflect.Map {
		for _, key := range sortedMapKeys(v) {
			each(key.String(), v.MapIndex(key))
		}
		return
	}
	for _, f := range fieldsOf(v.Type()) {
		if value := v.Field(f.index); !isUnset(value, f.rule) {
			each(f.key, value)
		}
	}
}

// isUnset reports whether a key is unset: zero means unset, except in Bounds, where zero is a
// count, and in Price, where it is free.
func isUnset(v reflect.Value, rule string) bool {
	switch rule {
	case "Bounds.min", "Bounds.max", "Price.input", "Price.output":
		return false
	}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}

// value writes everything after "key:" to the end of its lines.
func (w *yamlWriter) value(v reflect.Value, indent string) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		if empty := w.isEmpty(v); empty {
			w.out.WriteString(" {}\n")
			return
		}
		w.out.WriteString("\n" + indent + "  ")
		w.mapping(v, indent+"  ")
	case reflect.Slice:
		w.out.WriteByte('\n')
		for i := range v.Len() {
			w.item(v.Index(i), indent+"  ")
		}
	default:
		w.out.WriteString(" " + w.scalar(v) + "\n")
	}
}

func (w *yamlWriter) item(v reflect.Value, indent string) {
	w.out.WriteString(indent + "- ")
	if short, ok := shorthandValue(v); ok {
		v = short
	}
	if v.Kind() != reflect.Struct {
		w.out.WriteString(w.scalar(v) + "\n")
	} else if w.isEmpty(v) {
		w.out.WriteString("{}\n")
	} else {
		w.mapping(v, indent+"  ")
	}
}

// shorthandValue returns the value of the only set key of a mapping that may be written as that value.
func shorthandValue(v reflect.Value) (reflect.Value, bool) {
	f, ok := field{}, false
	if v.Kind() == reflect.Struct {
		f, ok = shorthandOf(v.Type())
	}
	if !ok {
		return v, false
	}
	for _, other := range fieldsOf(v.Type()) {
		if other != f && !isUnset(v.Field(other.index), other.rule) {
			return v, false
		}
	}
	return v.Field(f.index), true
}

func (w *yamlWriter) isEmpty(v reflect.Value) bool {
	if v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return !slices.ContainsFunc(fieldsOf(v.Type()), func(f field) bool { return !isUnset(v.Field(f.index), f.rule) })
}

func (w *yamlWriter) scalar(v reflect.Value) string {
	switch {
	case v.Type() == durationType:
		return FormatDuration(time.Duration(v.Int()))
	case v.Type() == sizeType:
		return w.text(Size(v.Int()).String())
	case v.Kind() == reflect.Int:
		return strconv.FormatInt(v.Int(), 10)
	case v.Kind() == reflect.Float64:
		return formatNumber(v.Float()) // without an exponent, which some YAML parsers read as text
	case v.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool())
	}
	return w.text(v.String())
}

var (
	// plainWord matches text that needs no quotes.
	plainWord = regexp.MustCompile(`^[A-Za-z/_][A-Za-z0-9/_.+@-]*(:[A-Za-z0-9/_.+@-]+)*$`)
	// reservedWord matches text that some YAML parsers read as a boolean or null.
	reservedWord = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|y|n|null)$`)
)

var quoting = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`)

// text encodes a text, quoted where YAML may interpret it as another type.
func (w *yamlWriter) text(s string) string {
	if plainWord.MatchString(s) && !reservedWord.MatchString(s) {
		return s
	}
	if !printable(s, true) && w.err == nil {
		w.err = fmt.Errorf("a string must not contain non-printable characters, got %q", shorten(s))
	}
	return `"` + quoting.Replace(s) + `"`
}

func sortedMapKeys(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	return keys
}
