package service

import "reflect"

// Parse parses and validates a service.yaml and fills in its defaults; file is the name in errors.
// It returns all problems at once, as Errors ordered by line; then there is no Spec.
func Parse(file string, data []byte) (*Spec, error) {
	return parse(file, data, check)
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
