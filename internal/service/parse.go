package service

import (
	"reflect"
	"strings"
)

// Parse parses and validates a service.yaml and fills in its defaults; file is the name in errors.
// It returns all problems at once, as Errors ordered by line; then there is no Spec.
func Parse(file string, data []byte) (*Spec, error) {
	return parse(file, data, check)
}

// ParseWith is Parse with checks that this package cannot make, such as those of clouds. A check returns problems with Path,
// Problem, Found and Suggestion. It also receives a Spec with errors: a problem that may follow from one of them is not reported.
func ParseWith(file string, data []byte, checks ...func(*Spec) Errors) (*Spec, error) {
	return parse(file, data, func(b *binder, s *Spec) {
		check(b, s)
		c := &checker{binder: b, spec: s}
		if !c.validRegionNames() { // the clouds of the service are unknown
			return
		}
		var found Errors
		for _, more := range checks {
			for _, e := range more(s) {
				if !c.mayFollow(path(e.Path)) {
					found = append(found, e)
				}
			}
		}
		for _, e := range found {
			b.reportAtPath(path(e.Path), e)
		}
	})
}

// mayFollow reports whether a problem at a path may follow from an error: one in the same model or region, or one at
// the path, above it or below it.
func (c *checker) mayFollow(p path) bool {
	item := p
	if end := strings.Index(string(p), "]"); end >= 0 {
		item = p[:end+1]
	}
	for wrong := range c.invalid {
		if within(wrong, item) || within(item, wrong) {
			return true
		}
	}
	return false
}

// within reports whether a path is a key or one of the keys below it.
func within(p, key path) bool {
	rest, ok := strings.CutPrefix(string(p), string(key))
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// ParseDeployed is Parse for the file of an existing service. It allows plain HTTP without
// insecure, API keys in engine.args, and keys that have no effect: a service that was created before these checks must still be
// displayed and deleted.
func ParseDeployed(file string, data []byte) (*Spec, error) {
	return parse(file, data, checkDeployed)
}

// parse is Parse with a function that checks keys against each other.
func parse(file string, data []byte, check func(*binder, *Spec)) (*Spec, error) {
	doc, bad := readYAML(file, data)
	if bad != nil {
		return nil, Errors{*bad}
	}
	b := newBinder(doc)
	var s Spec
	b.bind(doc.root, reflect.ValueOf(&s).Elem(), "", "")
	if b.tooMany != nil {
		return nil, Errors{*b.tooMany}
	}
	s.fillDefaults(func(p path) bool { return b.at[p] != nil })
	check(b, &s)
	if len(b.errs) > 0 {
		return nil, b.sortedErrors()
	}
	return &s, nil
}

// sortedErrors sorts the errors and adds their excerpts, after all hidden values are known.
func (b *binder) sortedErrors() Errors {
	es := b.errs.sorted()
	for i := range es {
		es[i].Source = b.excerpt(es[i].Line, es[i].Column)
	}
	return es
}
