package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"skyserve/internal/service"
)

// maxFileBytes limits a scenario file: a thousand regions take 100 KB.
const maxFileBytes = 1 << 20

// maxFileErrors limits the errors reported for a file.
const maxFileErrors = 100

// reader parses a scenario's YAML and collects its errors.
type reader struct {
	file string
	errs service.Errors
	at   map[string]ast.Node // by path: the node of a value
}

// pair is one key of a mapping with its value.
type pair struct {
	key   string
	at    ast.Node
	value ast.Node
}

// openYAML parses a text into its only document; root is nil on errors.
func openYAML(file string, data []byte) (r *reader, root ast.Node) {
	r = &reader{file: file, at: map[string]ast.Node{}}
	defer func() {
		// The parser panics on some malformed inputs.
		if recover() != nil {
			root = nil
			r.errs = append(r.errs, service.Error{File: file, Line: 1, Column: 1, Problem: "is not valid YAML"})
		}
	}()
	if len(data) > maxFileBytes {
		r.errs = append(r.errs, service.Error{File: file, Problem: fmt.Sprintf("is too large: must be at most %d bytes", maxFileBytes), Found: fmt.Sprint(len(data))})
		return r, nil
	}
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.errs = append(r.errs, syntaxError(file, err))
		return r, nil
	}
	for _, d := range f.Docs {
		switch {
		case d.Body == nil:
		case root == nil:
			root = d.Body
		default:
			r.addError(d.Body, "", "must be a single YAML document; a second starts here")
		}
	}
	if root == nil {
		r.errs = append(r.errs, service.Error{File: file, Line: 1, Column: 1, Problem: "the file is empty", Suggestion: "'skyserve sim list -o yaml fig8a' prints an example"})
	} else {
		r.at[""] = root
	}
	return r, root
}

func syntaxError(file string, err error) service.Error {
	var ye yaml.Error
	if errors.As(err, &ye) && ye.GetToken() != nil && ye.GetToken().Position != nil {
		p := ye.GetToken().Position
		explanation, _ := service.ExplainSyntax(ye.GetMessage())
		return service.Error{File: file, Line: p.Line, Column: p.Column, Problem: "is not valid YAML: " + explanation}
	}
	return service.Error{File: file, Line: 1, Column: 1, Problem: "is not valid YAML"}
}

// errorsInOrder returns all errors, in line order.
func (r *reader) errorsInOrder() service.Errors {
	slices.SortStableFunc(r.errs, func(a, b service.Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	if more := len(r.errs) - maxFileErrors; more > 0 {
		r.errs = append(r.errs[:maxFileErrors:maxFileErrors], service.Error{File: r.file, Problem: fmt.Sprintf("%d more problems not shown", more)})
	}
	return r.errs
}

// addError adds an error for a value.
func (r *reader) addError(n ast.Node, path, problem string) {
	e := service.Error{File: r.file, Line: 1, Column: 1, Path: path, Problem: problem}
	switch m := n.(type) { // a block mapping starts at its first key
	case *ast.MappingNode:
		if len(m.Values) > 0 && !m.IsFlowStyle {
			n = m.Values[0].Key
		}
	case *ast.MappingValueNode:
		n = m.Key
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	r.errs = append(r.errs, e)
}

// keysWithErrors returns the top-level keys with errors. Errors that result from those are not
// reported.
func (r *reader) keysWithErrors() map[string]bool {
	bad := map[string]bool{}
	for i := range r.errs {
		bad[topKey(r.errs[i].Path)] = true
	}
	return bad
}

// failAt adds an error for the value at a path, or its nearest existing parent.
func (r *reader) failAt(path, problem string) {
	for at := path; ; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
		if n := r.at[at]; n != nil || at == "" {
			r.addError(n, path, problem)
			return
		}
	}
}

// unknown adds an error for an unknown key.
func (r *reader) unknown(p pair, path string, known []string) {
	slices.Sort(known)
	r.addError(p.at, join(path, p.key), "unknown key: must be one of "+strings.Join(slices.Compact(known), ", "))
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// mapping returns the keys of a mapping in their order.
func (r *reader) mapping(n ast.Node, path string) []pair {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.addError(n, path, "must be a mapping of keys")
		return nil
	}
	var pairs []pair
	for _, kv := range values {
		p := pair{key: kv.Key.String(), at: kv.Key, value: kv.Value}
		if slices.ContainsFunc(pairs, func(o pair) bool { return o.key == p.key }) {
			r.addError(p.at, join(path, p.key), "duplicate key")
			continue
		}
		r.at[join(path, p.key)] = p.value
		pairs = append(pairs, p)
	}
	return pairs
}

// scalar passes the text of a value to set; a list of texts is joined with commas.
func (r *reader) scalar(p pair, path string, set func(string) error) {
	value, ok := scalarText(p.value)
	if seq, list := p.value.(*ast.SequenceNode); list {
		ok = true
		var parts []string
		for _, item := range seq.Values {
			part, plain := scalarText(item)
			ok = ok && plain
			parts = append(parts, part)
		}
		value = strings.Join(parts, ",")
	}
	if !ok {
		r.addError(p.value, path, "must be a single value or a list of texts")
		return
	}
	if err := set(value); err != nil {
		r.addError(p.value, path, err.Error())
	}
}

// scalarText returns the text of a scalar as written, without quotes.
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// readList parses a list of mappings with the keys of fields; fresh returns the defaults of an element.
func readList[T any](r *reader, p pair, fields map[string]func(*T, string) error, fresh func() T) []T {
	seq, ok := p.value.(*ast.SequenceNode)
	if !ok {
		r.addError(p.value, p.key, "must be a list")
		return nil
	}
	var list []T
	for i, item := range seq.Values {
		path := fmt.Sprintf("%s[%d]", p.key, i)
		r.at[path] = item
		element := fresh()
		for _, field := range r.mapping(item, path) {
			if set, known := fields[field.key]; known {
				r.scalar(field, join(path, field.key), func(v string) error { return set(&element, v) })
			} else {
				r.unknown(field, path, sortedKeys(fields))
			}
		}
		list = append(list, element)
	}
	return list
}
