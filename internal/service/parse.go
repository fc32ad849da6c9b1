package service

import "reflect"

// Parse reads and checks a service.yaml and fills its defaults in; file is the
// name that errors show. What is wrong comes back all at once, as Errors in the
// order of the lines; then there is no Spec.
func Parse(file string, data []byte) (*Spec, error) {
	return parse(file, data, check)
}

// ParseDeployed is Parse for the file of a service that runs already. It does not ask
// again whether balancers may serve plain HTTP: a service from before that was asked
// must still be shown and removed.
func ParseDeployed(file string, data []byte) (*Spec, error) {
	return parse(file, data, checkDeployed)
}

// parse is Parse with a check of how keys fit each other.
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
		return nil, b.report()
	}
	return &s, nil
}

// report orders the errors and adds their excerpts, now that every value that
// must not be shown is known.
func (b *binder) report() Errors {
	es := b.errs.sorted()
	for i := range es {
		es[i].Source = b.excerpt(es[i].Line, es[i].Column)
	}
	return es
}
