package testcloud

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// This file evaluates IAM policies by AWS's rules ("Policy evaluation logic" and "IAM JSON policy elements" of
// the IAM User Guide). A request is allowed if a statement allows it and no statement denies it. A policy with
// an element that the emulation does not support, such as an unknown condition operator, is rejected as
// malformed.

// iamRequest is one action of a caller on one resource, which requires permission.
type iamRequest struct {
	action   string // ec2:RunInstances
	resource string // an ARN; * = the action has no resource
	context  iamContext
}

// iamContext is the condition context of a request: values by condition key. Keys are in lower case, because
// IAM ignores their case. A key may have several values.
type iamContext map[string][]string

// addValue adds a value to a key.
func (c iamContext) addValue(key, value string) {
	key = strings.ToLower(key)
	c[key] = append(c[key], value)
}

// expand replaces the policy variables ${key} in the values of a condition. A variable without a value in the request
// matches nothing.
func (c iamContext) expand(values []string) []string {
	var all []string
	for _, value := range values {
		if before, rest, found := strings.Cut(value, "${"); found {
			key, after, _ := strings.Cut(rest, "}")
			if len(c[strings.ToLower(key)]) != 1 {
				continue
			}
			value = before + c[strings.ToLower(key)][0] + after
		}
		all = append(all, value)
	}
	return all
}

// iamWords is a string or a list of strings.
type iamWords []string

// UnmarshalJSON decodes a string or a list of strings.
func (w *iamWords) UnmarshalJSON(text []byte) error {
	var one string
	if err := json.Unmarshal(text, &one); err == nil {
		*w = iamWords{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(w))
}

// iamStatement is one statement of a policy.
type iamStatement struct {
	Sid, Effect       string
	Action, NotAction iamWords
	Resource          iamWords
	NotResource       iamWords
	Condition         map[string]map[string]iamWords
	Principal         json.RawMessage // of a trust policy
}

// iamPolicy is a policy.
type iamPolicy struct {
	Version, ID string
	Statement   []iamStatement
}

// readPolicy parses the policy of a role. A policy that IAM rejects, or that the emulation does not support,
// is an error.
func readPolicy(text string) (iamPolicy, error) {
	var p iamPolicy
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, err
	}
	for i, s := range p.Statement {
		switch {
		case s.Effect != "Allow" && s.Effect != "Deny":
			return p, fmt.Errorf("statement %d: Effect must be Allow or Deny, got %q", i, s.Effect)
		case (len(s.Action) == 0) == (len(s.NotAction) == 0):
			return p, fmt.Errorf("statement %d: exactly one of Action and NotAction is required", i)
		case (len(s.Resource) == 0) == (len(s.NotResource) == 0):
			return p, fmt.Errorf("statement %d: exactly one of Resource and NotResource is required", i)
		case s.Principal != nil:
			return p, fmt.Errorf("statement %d: Principal is valid only in policies of resources", i)
		}
		for name := range s.Condition {
			if _, err := readOperator(name); err != nil {
				return p, fmt.Errorf("statement %d: %w", i, err)
			}
		}
	}
	return p, nil
}

// allowed reports whether policies together allow a request.
func allowed(policies []iamPolicy, q iamRequest) bool {
	allowed := false
	for _, p := range policies {
		for _, s := range p.Statement {
			if !s.appliesTo(q) {
				continue
			}
			if s.Effect == "Deny" {
				return false
			}
			allowed = true
		}
	}
	return allowed
}

// appliesTo reports whether a statement matches a request and its conditions hold.
func (s iamStatement) appliesTo(q iamRequest) bool {
	action := func(p string) bool { return wildcard(strings.ToLower(p), strings.ToLower(q.action)) }
	resource := func(p string) bool { return wildcard(p, q.resource) }
	if slices.ContainsFunc(s.Action, action) == (len(s.Action) == 0) || slices.ContainsFunc(s.NotAction, action) {
		return false
	}
	if slices.ContainsFunc(s.Resource, resource) == (len(s.Resource) == 0) || slices.ContainsFunc(s.NotResource, resource) {
		return false
	}
	for name, keys := range s.Condition {
		op, _ := readOperator(name) // it was read with the policy
		for key, values := range keys {
			if !op.holds(q.context[strings.ToLower(key)], q.context.expand(values)) {
				return false
			}
		}
	}
	return true
}

// iamOperator is a condition operator, such as ForAllValues:StringNotLikeIfExists.
type iamOperator struct {
	set      string // ForAllValues, ForAnyValue; empty = of keys with one value
	negated  bool
	ifExists bool
	null     bool // tests whether there is a value
	matches  func(pattern, value string) bool
}

// readOperator reads the name of a condition operator.
func readOperator(name string) (iamOperator, error) {
	var op iamOperator
	base := name
	if set, rest, ok := strings.Cut(name, ":"); ok {
		op.set, base = set, rest
	}
	base, op.ifExists = strings.CutSuffix(base, "IfExists")
	exact := func(pattern, value string) bool { return pattern == value }
	switch base {
	case "StringEquals", "StringNotEquals":
		op.matches = exact
	case "StringEqualsIgnoreCase", "StringNotEqualsIgnoreCase", "Bool":
		op.matches = strings.EqualFold
	case "StringLike", "StringNotLike", "ArnLike", "ArnEquals", "ArnNotLike", "ArnNotEquals":
		op.matches = wildcard
	case "Null":
		op.null = true
	}
	op.negated = strings.Contains(base, "Not")
	if op.matches == nil && !op.null || !slices.Contains([]string{"", "ForAllValues", "ForAnyValue"}, op.set) {
		return op, fmt.Errorf("condition operator %q: not supported", name)
	}
	return op, nil
}

// holds reports whether a condition on one key is true. values are the key's values in the request, patterns
// those in the policy.
func (op iamOperator) holds(values, patterns []string) bool {
	if op.null {
		return slices.ContainsFunc(patterns, func(p string) bool { return strings.EqualFold(p, "true") == (len(values) == 0) })
	}
	fits := func(value string) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool { return op.matches(pattern, value) }) != op.negated
	}
	switch {
	case len(values) == 0 && op.set == "ForAllValues", len(values) == 0 && op.ifExists:
		return true
	case len(values) == 0:
		return op.negated && op.set == ""
	case op.set == "ForAllValues":
		return !slices.ContainsFunc(values, func(value string) bool { return !fits(value) })
	}
	// AWS does not define the result for several values of a single-valued key. The emulation selects the value
	// that is best for the caller.
	return slices.ContainsFunc(values, fits)
}

// wildcard reports whether a text matches a pattern with the wildcards * for any text and ? for any
// one character.
func wildcard(pattern, text string) bool {
	star, next := -1, 0
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, next = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0: // the last * matches one more character
			next++
			p, t = star+1, next
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
