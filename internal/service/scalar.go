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

// Numbers are written one way: what YAML reads as octal, hexadecimal or with
// underscores means different things to different readers.
var (
	wholeNumber = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)$`)
	anyNumber   = regexp.MustCompile(`^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$`)
)

// bindScalar stores one text, number, duration, size or truth value.
func (b *binder) bindScalar(n ast.Node, v reflect.Value, p path, ruleKey string) {
	if _, null := n.(*ast.NullNode); null {
		b.fail(n, p, Error{Problem: "has no value", Suggestion: "give one or remove the key"})
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
		b.fail(n, p, Error{Problem: "must be true or false", Found: b.found(n)})
	case v.Kind() == reflect.Int:
		b.bindWhole(n, v, p, ruleKey)
	case v.Kind() == reflect.Float64:
		b.bindNumber(n, v, p, ruleKey)
	}
}

func (b *binder) bindText(n ast.Node, v reflect.Value, p path, ruleKey string) {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
	default:
		e := Error{Problem: "must be text", Found: b.found(n)}
		if text := scalarText(n); e.Found != "" && text != "" {
			e.Suggestion = fmt.Sprintf("put it in quotes: %q", shorten(text))
		}
		b.fail(n, p, e)
		return
	}
	text, r := scalarText(n), rules[ruleKey]
	v.SetString(text)
	if !printable(text, r.lines) {
		b.fail(n, p, Error{Problem: "must not hold characters that do not print", Found: b.found(n)})
		return
	}
	list, words := wordsOf(ruleKey)
	if problem, suggestion := list.judge(text); words && problem != "" {
		b.fail(n, p, Error{Problem: problem, Found: b.found(n), Suggestion: suggestion})
		return
	}
	if r.form != nil && !r.form.expr.MatchString(text) {
		b.fail(n, p, Error{Problem: "must be " + r.form.words, Found: b.found(n)})
	}
}

func (b *binder) bindDuration(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text := scalarText(n)
	s, isText := n.(*ast.StringNode)
	d, err := time.ParseDuration(text)
	if !isText || err != nil || !formDuration.expr.MatchString(s.Value) {
		e := Error{Problem: "must be " + formDuration.words, Found: b.found(n)}
		if wholeNumber.MatchString(text) && e.Found != "" {
			e.Suggestion = "add a unit: " + shorten(text) + "s"
		}
		b.fail(n, p, e)
		return
	}
	v.SetInt(int64(d))
	b.checkLimits(n, float64(d), p, ruleKey, func(x float64) string { return briefDuration(time.Duration(x)) })
}

func (b *binder) bindSize(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text := scalarText(n)
	s, isText := n.(*ast.StringNode)
	if !isText || !formSize.expr.MatchString(s.Value) {
		e := Error{Problem: "must be " + formSize.words, Found: b.found(n)}
		switch meant := meantSize(text); {
		case e.Found == "":
		case meant != "":
			e.Suggestion = "write " + meant
		case wholeNumber.MatchString(text):
			e.Suggestion = "add a unit: KiB, MiB or GiB"
		}
		b.fail(n, p, e)
		return
	}
	size, err := ParseSize(s.Value)
	if err != nil {
		size = Size(math.MaxInt64) // beyond any limit, whose own error says it best
	}
	v.SetInt(int64(size))
	b.checkLimits(n, float64(size), p, ruleKey, func(x float64) string { return Size(x).String() })
}

func (b *binder) bindWhole(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text, plain := plainText(n)
	if !plain || !wholeNumber.MatchString(text) {
		b.failNumber(n, text, p, "a whole number", wholeNumber)
		return
	}
	x, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // too long for any limit: the limit's own error says it best
		f, _ := strconv.ParseFloat(text, 64)
		b.checkLimits(n, f, p, ruleKey, briefNumber)
		return
	}
	v.SetInt(x)
	b.checkLimits(n, float64(x), p, ruleKey, briefNumber)
}

func (b *binder) bindNumber(n ast.Node, v reflect.Value, p path, ruleKey string) {
	text, plain := plainText(n)
	if !plain || !anyNumber.MatchString(text) {
		b.failNumber(n, text, p, "a number", anyNumber)
		return
	}
	x, _ := strconv.ParseFloat(text, 64) // out of range is an infinity, which no limit allows
	v.SetFloat(x + 0)                    // -0 becomes 0
	b.checkLimits(n, x, p, ruleKey, briefNumber)
}

func (b *binder) failNumber(n ast.Node, text string, p path, what string, form *regexp.Regexp) {
	e := Error{Problem: "must be " + what, Found: b.found(n)}
	if form.MatchString(text) && e.Found != "" {
		e.Suggestion = "write " + shorten(text) + " without quotes"
	}
	b.fail(n, p, e)
}

// plainText is the text of a scalar and whether it is written without quotes.
// The YAML parser calls some numbers text (1e3, those beyond 64 bits), so the
// kind of the node does not tell.
func plainText(n ast.Node) (text string, plain bool) {
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return scalarText(n), true
	case *ast.StringNode:
		return n.Value, n.Token.Type == token.StringType
	}
	return scalarText(n), false
}

// checkLimits refuses a number outside the rule's limits; show writes a limit.
func (b *binder) checkLimits(n ast.Node, x float64, p path, ruleKey string, show func(float64) string) {
	if problem := rules[ruleKey].limit.problem(x, show); problem != "" {
		b.fail(n, p, Error{Problem: problem, Found: b.found(n)})
	}
}

// problem says in words why a number is outside the limits; empty when it is not.
func (l *limits) problem(x float64, show func(float64) string) string {
	switch {
	case l == nil:
	case l.above && x <= l.least:
		return "must be greater than " + show(l.least)
	case x < l.least:
		return "must be at least " + show(l.least)
	case x > l.most:
		return "must be at most " + show(l.most)
	}
	return ""
}

func briefNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
