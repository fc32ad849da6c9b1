package service

import (
	"reflect"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// LimitError is a number of a document outside the limits of its key in service.yaml.
type LimitError struct {
	// Key is the key, such as balancer.max_wait, and Problem what is wrong with its value.
	Key, Problem string
	// Value is the node of the value.
	Value ast.Node
}

// CheckLimits returns the first number below n that is set and outside the limits of its key in service.yaml; nil if
// there is none. v is the struct into which n was decoded. Zero means unset in v, so that only n has an explicit one.
func CheckLimits(n ast.Node, v any) *LimitError {
	return checkLimitsBelow(n, reflect.ValueOf(v), "", "")
}

func checkLimitsBelow(n ast.Node, v reflect.Value, p path, ruleKey string) *LimitError {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		m, ok := n.(ast.MapNode)
		if !ok {
			return nil
		}
		for entries := m.MapRange(); entries.Next(); {
			if e := checkEntryLimits(entries.Key(), entries.Value(), v, p, ruleKey); e != nil {
				return e
			}
		}
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			return nil
		}
		for i := range min(len(list.Values), v.Len()) {
			if e := checkLimitsBelow(list.Values[i], v.Index(i), p.index(i), ruleKey); e != nil {
				return e
			}
		}
	case reflect.Int, reflect.Int64:
		show, x := formatNumber, v.Int()
		switch v.Type() {
		case durationType:
			show = func(x float64) string { return FormatDuration(time.Duration(x)) }
		case sizeType:
			show = func(x float64) string { return Size(x).String() }
		}
		return newLimitError(n, float64(x), p, ruleKey, show)
	case reflect.Float64:
		return newLimitError(n, v.Float(), p, ruleKey, formatNumber)
	}
	return nil
}

// checkEntryLimits checks one entry of a mapping, which was decoded into v.
func checkEntryLimits(key ast.MapKeyNode, n ast.Node, v reflect.Value, p path, ruleKey string) *LimitError {
	name := keyText(key)
	if v.Kind() == reflect.Map {
		k := reflect.ValueOf(name)
		if value := v.MapIndex(k.Convert(v.Type().Key())); value.IsValid() {
			return checkLimitsBelow(n, value, p.key(name), ruleKey)
		}
		return nil
	}
	for _, f := range fieldsOf(v.Type()) {
		if name == f.key || f.former != "" && name == f.former {
			return checkLimitsBelow(n, v.Field(f.index), p.key(f.key), f.rule)
		}
	}
	return nil
}

func newLimitError(n ast.Node, x float64, p path, ruleKey string, show func(float64) string) *LimitError {
	problem := rules[ruleKey].limit.problem(x, show)
	if problem == "" {
		return nil
	}
	return &LimitError{Key: string(p), Problem: problem + ", got " + show(x), Value: n}
}
