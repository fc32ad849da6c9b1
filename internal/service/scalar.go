package service

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Only decimal notation is accepted: YAML parsers disagree about octal, hexadecimal and
// underscores.
var (
	wholeNumber = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)$`)
	anyNumber   = regexp.MustCompile(`^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$`)
)

// bindScalar stores one text, number, duration, size or boolean.
func (b *binder) bindScalar(n ast.Node, v reflect.Value, p path, ruleKey string) {
	if _, null := n.(*ast.NullNode); null {
		e := Error{Problem: "has no value", Suggestion: "set a value or remove the key"}
		if rules[ruleKey].required {
			e.Suggestion = "set a value"
		}
		b.reportAt(n, p, e)
		return
	}
	switch {
	case v.Type() == durationType:
		b.bindDuration(n, v, p, ruleKey)
	case v.Type() == sizeType:
		b.bindSize(n, v, p, ruleKey)
	case v.Kind() == reflect.String:
		b.bindText(n, v, p, ruleKey)
	case v.Kind() == reflect.Bool:
		if t, ok := n.(*ast.BoolNode); ok {
			v.SetBool(t.Value)
			return
		}
		b.reportAt(n, p, Error{Problem: "must be true or false", Found: b.describeNode(n)})
	case v.Kind() == reflect.Int:
		b.bindWhole(n, v, p, ruleKey)
	case v.Kind() == reflect.Float64:
		b.bindNumber(n, v, p, ruleKey)
	}
}

func (b *binder) bindText(n ast.Node, v reflect.Value, p path, ruleKey string) {
	list, words := wordsOf(ruleKey)
	text, r := list.canonical(scalarText(n)), rules[ruleKey]
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
	default:
		problem, _ := list.problemOf(text)
		if text != "" && (words && problem != "" || r.form != nil && !r.form.matches(text)) {
			break // quotes would not make it valid
		}
		e := Error{Problem: "must be a string", Found: b.describeNode(n)}
		if e.Found != "" && text != "" {
			e.Suggestion = fmt.Sprintf("put it in quotes: %q", shorten(text))
		}
		b.reportAt(n, p, e)
		return
	}
	v.SetString(text)
	if !printable(text, r.multiline) {
		b.reportAt(n, p, Error{Problem: "must not contain non-printable characters", Found: b.describeNode(n)})
		return
	}
	if problem, suggestion := list.problemOf(text); words && problem != "" {
		b.reportAt(n, p, Error{Problem: problem, Found: b.describeNode(n), Suggestion: suggestion})
		return
	}
	if r.form != nil && !r.form.matches(text) {
		e := Error{Problem: "must be " + r.form.description, Found: b.describeNode(n)}
		if r.form == formRegion {
			e.Problem, e.Suggestion = regionProblem(text)
		}
		b.reportAt(n, p, e)
	}
}

func (b *binder) bindDuration(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text := scalarText(n)
	s, isText := n.(*ast.StringNode)
	d, err := time.ParseDuration(text)
	if !isText || err != nil || !formDuration.matches(s.Value) {
		e := Error{Problem: "must be " + formDuration.description, Found: b.describeNode(n)}
		if wholeNumber.MatchString(text) && e.Found != "" {
			e.Suggestion = "add a unit, such as " + shorten(text) + "ms or " + shorten(text) + "s"
		}
		b.reportAt(n, p, e)
		return
	}
	v.SetInt(int64(d))
	b.checkLimits(n, float64(d), p, ruleKey, func(x float64) string { return FormatDuration(time.Duration(x)) })
}

func (b *binder) bindSize(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text := scalarText(n)
	s, isText := n.(*ast.StringNode)
	if !isText || !formSize.matches(s.Value) {
		e := Error{Problem: "must be " + formSize.description, Found: b.describeNode(n)}
		switch suggested := suggestSize(text); {
		case e.Found == "":
		case suggested != "":
			e.Suggestion = "write " + suggested
		case wholeNumber.MatchString(text):
			e.Suggestion = "add a unit: KiB, MiB or GiB"
		}
		b.reportAt(n, p, e)
		return
	}
	size, err := ParseSize(s.Value)
	if err != nil {
		size = Size(math.MaxInt64) // above any limit, which reports the error
	}
	v.SetInt(int64(size))
	b.checkLimits(n, float64(size), p, ruleKey, func(x float64) string { return Size(x).String() })
}

func (b *binder) bindWhole(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text, plain := plainText(n)
	if !plain || !wholeNumber.MatchString(text) {
		b.reportNumber(n, text, p, "a whole number", wholeNumber)
		return
	}
	x, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // above any limit, which reports the error
		f, _ := strconv.ParseFloat(text, 64)
		b.checkLimits(n, f, p, ruleKey, formatNumber)
		return
	}
	v.SetInt(x)
	b.checkLimits(n, float64(x), p, ruleKey, formatNumber)
}

func (b *binder) bindNumber(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text, plain := plainText(n)
	if !plain || !anyNumber.MatchString(text) {
		b.reportNumber(n, text, p, "a number", anyNumber)
		return
	}
	x, _ := strconv.ParseFloat(text, 64) // out of range becomes infinity, which no limit allows
	v.SetFloat(x + 0)                    // -0 becomes 0
	b.checkLimits(n, x, p, ruleKey, formatNumber)
}

func (b *binder) reportNumber(n ast.Node, text string, p path, what string, form *regexp.Regexp) {
	e := Error{Problem: "must be " + what, Found: b.describeNode(n)}
	if form.MatchString(text) && e.Found != "" {
		e.Suggestion = "write " + shorten(text) + " without quotes"
	}
	b.reportAt(n, p, e)
}

// plainText returns the text of a scalar and whether it is unquoted. The YAML parser classifies
// some numbers as text (1e3, those beyond 64 bits), so the node's kind is not sufficient.
func plainText(n ast.Node) (text string, plain bool) {
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return scalarText(n), true
	case *ast.StringNode:
		return n.Value, n.Token.Type == token.StringType
	}
	return scalarText(n), false
}

// checkLimits rejects a number outside the rule's limits; show formats a limit.
func (b *binder) checkLimits(n ast.Node, x float64, p path, ruleKey string, show func(float64) string) {
	if problem := rules[ruleKey].limit.problem(x, show); problem != "" {
		b.reportAt(n, p, Error{Problem: problem, Found: b.describeNode(n), Suggestion: rules[ruleKey].limitNote})
	}
}

// problem describes why a number is outside the limits; it is empty when the number is not.
func (l *limits) problem(x float64, show func(float64) string) string {
	switch {
	case l == nil:
	case l.above && x <= l.min:
		return "must be greater than " + show(l.min)
	case x < l.min:
		return "must be at least " + show(l.min)
	case x > l.max:
		return "must be at most " + show(l.max)
	}
	return ""
}

func formatNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
