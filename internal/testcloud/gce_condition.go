package testcloud

import (
	"fmt"
	"strings"
)

// This file evaluates conditions of role bindings of Google Cloud, as far as they speak of the
// resource: resource.type, resource.service and resource.name with startsWith, endsWith and
// extract, joined by &&, || and !. ("Attribute reference for IAM Conditions" of Google's IAM
// documentation; extract is Google's own addition to the Common Expression Language.)

// gceResource is what a permission is asked for.
type gceResource struct{ kind, name string }

// attribute is an attribute of a resource by its name in conditions.
func (r gceResource) attribute(name string) (string, bool) {
	switch name {
	case "resource.type":
		return r.kind, true
	case "resource.service":
		service, _, _ := strings.Cut(r.kind, "/")
		return service, true
	case "resource.name":
		return r.name, true
	}
	return "", false
}

// holds reports whether a condition holds of a resource; an empty one always does.
func (r gceResource) holds(condition string) (bool, error) {
	if condition == "" {
		return true, nil
	}
	c := &gceCondition{rest: condition, of: r}
	v, err := c.or()
	switch truth, isTruth := v.(bool); {
	case err != nil:
		return false, fmt.Errorf("condition %q: %w", condition, err)
	case strings.TrimSpace(c.rest) != "":
		return false, fmt.Errorf("condition %q: cannot read %q", condition, c.rest)
	case !isTruth:
		return false, fmt.Errorf("condition %q: it is neither true nor false", condition)
	default:
		return truth, nil
	}
}

// gceCondition is a condition while it is evaluated: values are strings and bools. Both sides of
// an operator are always evaluated, so that an error shows wherever it is.
type gceCondition struct {
	rest string
	of   gceResource
}

// takes drops a token from the beginning, if it is there.
func (c *gceCondition) takes(token string) bool {
	c.rest = strings.TrimLeft(c.rest, " \t\n")
	rest, ok := strings.CutPrefix(c.rest, token)
	if ok {
		c.rest = rest
	}
	return ok
}

func (c *gceCondition) or() (any, error) {
	return c.joined("||", (*gceCondition).and, func(a, b bool) bool { return a || b })
}

func (c *gceCondition) and() (any, error) {
	return c.joined("&&", (*gceCondition).not, func(a, b bool) bool { return a && b })
}

// joined reads operands that an operator joins.
func (c *gceCondition) joined(operator string, operand func(*gceCondition) (any, error), join func(a, b bool) bool) (any, error) {
	v, err := operand(c)
	for err == nil && c.takes(operator) {
		var next any
		if next, err = operand(c); err != nil {
			break
		}
		a, isA := v.(bool)
		b, isB := next.(bool)
		if !isA || !isB {
			return nil, fmt.Errorf("%s joins what is true or false", operator)
		}
		v = join(a, b)
	}
	return v, err
}

func (c *gceCondition) not() (any, error) {
	c.rest = strings.TrimLeft(c.rest, " \t\n")
	if strings.HasPrefix(c.rest, "!=") || !c.takes("!") {
		return c.compared()
	}
	v, err := c.not()
	truth, isTruth := v.(bool)
	if err == nil && !isTruth {
		err = fmt.Errorf("! is of what is true or false")
	}
	return !truth, err
}

func (c *gceCondition) compared() (any, error) {
	v, err := c.value()
	if err != nil {
		return nil, err
	}
	for _, operator := range []string{"==", "!="} {
		if c.takes(operator) {
			other, err := c.value()
			return (v == other) == (operator == "=="), err
		}
	}
	return v, nil
}

// value reads a text, an attribute with its methods, or what is in parentheses.
func (c *gceCondition) value() (any, error) {
	if c.takes("(") {
		v, err := c.or()
		if err == nil && !c.takes(")") {
			err = fmt.Errorf("a parenthesis is open before %q", c.rest)
		}
		return v, err
	}
	if text, ok := c.text(); ok {
		return text, nil
	}
	end := strings.IndexFunc(c.rest, func(r rune) bool {
		return r != '.' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	word := c.rest
	if end >= 0 {
		word = c.rest[:end]
	}
	c.rest = c.rest[len(word):]
	method := ""
	if c.takes("(") {
		at := strings.LastIndex(word, ".")
		word, method = word[:max(0, at)], word[at+1:]
	}
	v, known := c.of.attribute(word)
	if !known {
		return nil, fmt.Errorf("the fake does not know %q", word)
	}
	return c.called(v, method)
}

// called applies a method, of which the parenthesis is open, to a text, and those that follow it.
func (c *gceCondition) called(v, method string) (any, error) {
	if method == "" {
		return v, nil
	}
	argument, ok := c.text()
	if !ok || !c.takes(")") {
		return nil, fmt.Errorf("%s takes one text, found %q", method, c.rest)
	}
	switch method {
	case "startsWith":
		return strings.HasPrefix(v, argument), nil
	case "endsWith":
		return strings.HasSuffix(v, argument), nil
	case "extract":
		return c.chained(extracted(v, argument))
	}
	return nil, fmt.Errorf("the fake does not know the method %s", method)
}

// chained applies the method that follows a text, if one does.
func (c *gceCondition) chained(v string) (any, error) {
	if !c.takes(".") {
		return v, nil
	}
	method, rest, ok := strings.Cut(c.rest, "(")
	if !ok {
		return nil, fmt.Errorf("no method in %q", c.rest)
	}
	c.rest = rest
	return c.called(v, method)
}

// text reads a text in quotes.
func (c *gceCondition) text() (string, bool) {
	for _, quote := range []string{`"`, "'"} {
		if c.takes(quote) {
			text, rest, closed := strings.Cut(c.rest, quote)
			c.rest = rest
			return text, closed
		}
	}
	return "", false
}

// extracted is the part of a value that stands where a template has {name}: what follows the
// first occurrence of the text before it, up to that of the text behind it; empty where either is
// missing.
func extracted(value, template string) string {
	before, rest, _ := strings.Cut(template, "{")
	_, behind, _ := strings.Cut(rest, "}")
	_, from, found := strings.Cut(value, before)
	if !found {
		return ""
	}
	if behind == "" {
		return from
	}
	part, _, found := strings.Cut(from, behind)
	if !found {
		return ""
	}
	return part
}
