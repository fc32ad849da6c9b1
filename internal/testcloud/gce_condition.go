package testcloud

import (
	"fmt"
	"strings"
)

// This file evaluates conditions of IAM role bindings of Google Cloud that refer to the resource:
// resource.type, resource.service and resource.name with startsWith, endsWith and extract, joined by &&, ||
// and !. See "Attribute reference for IAM Conditions" in Google's IAM documentation. extract is Google's
// extension of the Common Expression Language.

// gceResource is a resource for which a permission is checked.
type gceResource struct{ kind, name string }

// attribute returns an attribute of a resource by its name in conditions.
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

// satisfies reports whether a resource satisfies a condition; it always satisfies an empty one.
func (r gceResource) satisfies(condition string) (bool, error) {
	if condition == "" {
		return true, nil
	}
	c := &gceCondition{rest: condition, resource: r}
	v, err := c.parseOr()
	switch truth, isTruth := v.(bool); {
	case err != nil:
		return false, fmt.Errorf("condition %q: %w", condition, err)
	case strings.TrimSpace(c.rest) != "":
		return false, fmt.Errorf("condition %q: unexpected %q", condition, c.rest)
	case !isTruth:
		return false, fmt.Errorf("condition %q: is not a boolean", condition)
	default:
		return truth, nil
	}
}

// gceCondition is the state of parsing and evaluating a condition: values are strings and bools. Both
// operands of an operator are always evaluated, so that every error is found.
type gceCondition struct {
	rest     string
	resource gceResource
}

// accept consumes a token if it is next.
func (c *gceCondition) accept(token string) bool {
	c.rest = strings.TrimLeft(c.rest, " \t\n")
	rest, ok := strings.CutPrefix(c.rest, token)
	if ok {
		c.rest = rest
	}
	return ok
}

func (c *gceCondition) parseOr() (any, error) {
	return c.parseOperands("||", (*gceCondition).parseAnd, func(a, b bool) bool { return a || b })
}

func (c *gceCondition) parseAnd() (any, error) {
	return c.parseOperands("&&", (*gceCondition).parseNot, func(a, b bool) bool { return a && b })
}

// parseOperands evaluates a chain of operands that an operator joins.
func (c *gceCondition) parseOperands(operator string, operand func(*gceCondition) (any, error), join func(a, b bool) bool) (any, error) {
	v, err := operand(c)
	for err == nil && c.accept(operator) {
		var next any
		if next, err = operand(c); err != nil {
			break
		}
		a, isA := v.(bool)
		b, isB := next.(bool)
		if !isA || !isB {
			return nil, fmt.Errorf("%s: operands must be booleans", operator)
		}
		v = join(a, b)
	}
	return v, err
}

func (c *gceCondition) parseNot() (any, error) {
	c.rest = strings.TrimLeft(c.rest, " \t\n")
	if strings.HasPrefix(c.rest, "!=") || !c.accept("!") {
		return c.parseComparison()
	}
	v, err := c.parseNot()
	truth, isTruth := v.(bool)
	if err == nil && !isTruth {
		err = fmt.Errorf("!: operand must be a boolean")
	}
	return !truth, err
}

func (c *gceCondition) parseComparison() (any, error) {
	v, err := c.parseValue()
	if err != nil {
		return nil, err
	}
	for _, operator := range []string{"==", "!="} {
		if c.accept(operator) {
			other, err := c.parseValue()
			return (v == other) == (operator == "=="), err
		}
	}
	return v, nil
}

// parseValue evaluates a string, an attribute with its methods, or an expression in parentheses.
func (c *gceCondition) parseValue() (any, error) {
	if c.accept("(") {
		v, err := c.parseOr()
		if err == nil && !c.accept(")") {
			err = fmt.Errorf("missing ) before %q", c.rest)
		}
		return v, err
	}
	if text, ok := c.parseString(); ok {
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
	if c.accept("(") {
		at := strings.LastIndex(word, ".")
		word, method = word[:max(0, at)], word[at+1:]
	}
	v, known := c.resource.attribute(word)
	if !known {
		return nil, fmt.Errorf("unknown attribute %q", word)
	}
	return c.applyMethod(v, method)
}

// applyMethod applies a method, whose opening parenthesis is consumed, to a string, and then any
// following methods.
func (c *gceCondition) applyMethod(v, method string) (any, error) {
	if method == "" {
		return v, nil
	}
	argument, ok := c.parseString()
	if !ok || !c.accept(")") {
		return nil, fmt.Errorf("%s: argument must be one string, got %q", method, c.rest)
	}
	switch method {
	case "startsWith":
		return strings.HasPrefix(v, argument), nil
	case "endsWith":
		return strings.HasSuffix(v, argument), nil
	case "extract":
		return c.applyNextMethod(extractTemplate(v, argument))
	}
	return nil, fmt.Errorf("unknown method %s", method)
}

// applyNextMethod applies the next method to a string, if there is one.
func (c *gceCondition) applyNextMethod(v string) (any, error) {
	if !c.accept(".") {
		return v, nil
	}
	method, rest, ok := strings.Cut(c.rest, "(")
	if !ok {
		return nil, fmt.Errorf("missing method in %q", c.rest)
	}
	c.rest = rest
	return c.applyMethod(v, method)
}

// parseString consumes a quoted string.
func (c *gceCondition) parseString() (string, bool) {
	for _, quote := range []string{`"`, "'"} {
		if c.accept(quote) {
			text, rest, closed := strings.Cut(c.rest, quote)
			c.rest = rest
			return text, closed
		}
	}
	return "", false
}

// extractTemplate returns the part of a value at the position of {name} in a template: from the first
// occurrence of the text before it to the next occurrence of the text after it; empty if either is
// missing.
func extractTemplate(value, template string) string {
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
