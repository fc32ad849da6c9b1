package service

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"
)

// maxVisits is the maximum number of values that one document may expand to. A service.yaml of a
// hundred regions has a few thousand; aliases of aliases can turn a few lines into billions.
const maxVisits = 20_000

// maxHops is the maximum number of aliases, anchors and merges that lead to one value, so that a
// cycle ends.
const maxHops = 16

// binder stores a document's values in Go values and records the node of each path. It continues
// after an error, so that all errors are reported.
type binder struct {
	*document
	errs    Errors
	at      map[path]ast.Node // the node of each path
	invalid map[path]bool     // paths with an error
	written map[path]path     // the paths of keys that the document has under another name, with that name
	visits  int
	// tooMany is set when visits exceeds maxVisits; then nothing else is reported.
	tooMany *Error
}

func newBinder(doc *document) *binder {
	return &binder{document: doc, at: map[path]ast.Node{}, invalid: map[path]bool{}, written: map[path]path{}}
}

// bind stores n in v, using the rule ruleKey.
func (b *binder) bind(n ast.Node, v reflect.Value, p path, ruleKey string) {
	if b.visits++; b.visits > maxVisits {
		b.reportTooMany(n, p)
		return
	}
	n, ok := b.resolve(n, p)
	if !ok {
		return
	}
	b.at[p] = n
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		b.bind(n, v.Elem(), p, ruleKey)
	case reflect.Struct:
		if f, short := shorthandOf(v.Type()); short && isScalar(n) {
			b.bindScalar(n, v.Field(f.index), p, f.rule)
			return
		}
		b.bindStruct(n, v, p)
	case reflect.Slice:
		b.bindList(n, v, p, ruleKey)
	case reflect.Map:
		b.bindMap(n, v, p, ruleKey)
	default:
		b.bindScalar(n, v, p, ruleKey)
	}
}

// isScalar reports whether a node is neither a mapping nor a list.
func isScalar(n ast.Node) bool {
	_, scalar := n.(ast.ScalarNode)
	return scalar
}

// reportTooMany records that a document expands to too many values.
func (b *binder) reportTooMany(n ast.Node, p path) {
	if b.tooMany == nil && n != nil {
		line, col := position(n)
		b.tooMany = &Error{
			File: b.file, Line: line, Column: col, Path: string(p),
			Problem: fmt.Sprintf("the file must expand to at most %d values; it contains too many aliases", maxVisits),
		}
	}
}

// resolve follows anchors and aliases to their value.
func (b *binder) resolve(n ast.Node, p path) (ast.Node, bool) {
	for range maxHops {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.GetToken().Value
			target, ok := b.anchors[name]
			if !ok {
				b.reportAt(v, p, Error{Problem: fmt.Sprintf("the alias *%s has no anchor in the file", shorten(name))})
				return nil, false
			}
			n = target
		case *ast.TagNode:
			b.reportAt(v, p, Error{Problem: fmt.Sprintf("must not have the tag %s", shorten(v.Start.Value)), Suggestion: "remove the tag"})
			return nil, false
		case nil:
			b.reportAtLine(1, 1, p, Error{Problem: "has no value"})
			return nil, false
		default:
			return n, true
		}
	}
	b.reportAt(n, p, Error{Problem: "is an alias of itself"})
	return nil, false
}

func (b *binder) bindStruct(n ast.Node, v reflect.Value, p path) {
	want := "a mapping of keys"
	if f, short := shorthandOf(v.Type()); short {
		want = fmt.Sprintf("a %s or a mapping of keys", f.key)
	}
	entries, ok := b.entries(n, p, want)
	if !ok {
		return
	}
	fields := fieldsOf(v.Type())
	seen, meant := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == e.key || f.former != "" && f.former == e.key })
		if i < 0 {
			b.unknownKey(e, p, v.Type().Name(), keysOf(fields))
			meant[Nearest(e.key, keysOf(fields))] = true
			continue
		}
		f := fields[i]
		if seen[f.key] { // equal keys are reported by entries
			b.reportAt(e.at, p.key(f.key), Error{Problem: fmt.Sprintf("is set twice: %s is its former name", f.former), Suggestion: "remove " + f.former})
			continue
		}
		seen[f.key] = true
		before := len(b.errs)
		b.bind(e.value, v.Field(f.index), p.key(f.key), f.rule)
		for i := range b.errs[before:] {
			if e.key == f.former {
				b.errs[before+i].Problem += fmt.Sprintf(" (%s is its former name)", f.former)
			}
		}
	}
	for _, f := range fields {
		if rules[f.rule].required && !seen[f.key] {
			b.invalid[p.key(f.key)] = true
			if meant[f.key] { // it is present, misspelled
				continue
			}
			line, col := position(n)
			if p == "" { // a key of the whole file: no line shows that it is missing
				line, col = 0, 0
			}
			b.reportAtLine(line, col, p.key(f.key), Error{Problem: "is required", Suggestion: "set it to " + describeValues(f.rule)})
		}
	}
}

// unknownKey reports an unknown key. Its value is hidden if it may be the secret of a misspelled key: see hideUnknown.
func (b *binder) unknownKey(e entry, p path, typ string, known []string) {
	feature, reserved := unimplementedKeys[typ+"."+e.key]
	if e.value != nil {
		b.hideUnknown(e.value, !secretName().MatchString(e.key) && (reserved || isPlainKey(Nearest(e.key, known))))
	}
	if reserved {
		b.reportAt(e.at, p.key(e.key), Error{Problem: "is reserved for " + feature + ", which is not implemented in this version", Suggestion: "remove the key"})
		return
	}
	suggestion := didYouMean(e.key, known, "valid keys:")
	// A key of a section is often written above it. Deeper down, another section is rarely meant.
	isHigh := typ == "Spec" || typ == "Model" || typ == "RegionSpec"
	if place := placeOf(e.key); typ == "Spec" && listenKeys[e.key] {
		suggestion = suggestListen
	} else if e.key == "scale_to_zero" {
		suggestion = suggestScaleToZero
	} else if isHigh && place != "" && Nearest(e.key, known) == "" {
		suggestion = "set " + place + " instead"
	}
	b.reportAt(e.at, p.key(e.key), Error{Problem: "unknown key", Suggestion: suggestion})
}

func (b *binder) hideAll(n ast.Node) {
	if n != nil {
		b.hideSecrets(n, true)
	}
}

func (b *binder) bindList(n ast.Node, v reflect.Value, p path, ruleKey string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		e := Error{Problem: "must be a list", Found: b.describeNode(n)}
		elem := v.Type().Elem().Kind()
		if ruleKey == "RegionSpec.endpoints" {
			elem = reflect.String // an endpoint may be its URL alone
		}
		if text := scalarText(n); e.Found != "" && text != "" && elem != reflect.Struct {
			e.Suggestion = suggestList(text, elem, ruleKey)
		}
		b.reportAt(n, p, e)
		return
	}
	if len(seq.Values) == 0 {
		if rules[ruleKey].nonEmpty {
			b.reportAt(n, p, Error{Problem: "must contain at least one element", Found: "an empty list"})
		}
		return
	}
	list := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		b.bind(item, list.Index(i), p.index(i), ruleKey)
		if b.tooMany != nil {
			return
		}
	}
	if rules[ruleKey].unique && list.Type().Elem().Kind() == reflect.String {
		b.checkRepeats(list, p)
	}
	v.Set(list)
}

// checkRepeats rejects duplicates in a list of texts.
func (b *binder) checkRepeats(list reflect.Value, p path) {
	first := map[string]int{}
	for i := range list.Len() {
		text, at := list.Index(i).String(), p.index(i)
		j, duplicate := first[text]
		if !duplicate {
			first[text] = i
		} else if text != "" {
			b.reportAtPath(at, Error{Problem: fmt.Sprintf("duplicates element %d of the list", j), Found: b.describePath(at)})
		}
	}
}

func (b *binder) bindMap(n ast.Node, v reflect.Value, p path, ruleKey string) {
	entries, ok := b.entries(n, p, "a mapping of keys")
	if !ok || len(entries) == 0 {
		return
	}
	m := reflect.MakeMap(v.Type())
	list, _ := wordsOf(ruleKey)
	for _, e := range entries {
		word := e.key
		e.key = list.canonical(word)
		if !b.checkKey(e, p, ruleKey) {
			continue
		}
		if m.MapIndex(reflect.ValueOf(e.key).Convert(v.Type().Key())).IsValid() {
			b.reportAt(e.at, p.key(e.key), Error{Problem: fmt.Sprintf("is set twice, as %s and as %s", e.key, list.wordFor(e.key)), Suggestion: "keep one of them"})
			continue
		}
		if word != e.key {
			b.written[p.key(e.key)] = p.key(word)
		}
		value := reflect.New(v.Type().Elem()).Elem()
		b.bind(e.value, value, p.key(e.key), ruleKey)
		m.SetMapIndex(reflect.ValueOf(e.key).Convert(v.Type().Key()), value)
	}
	if m.Len() > 0 {
		v.Set(m)
	}
}

// checkKey validates a key that the user chooses, such as a region's.
func (b *binder) checkKey(e entry, p path, ruleKey string) bool {
	if list, ok := wordsOf(ruleKey); ok {
		if problem, suggestion := list.problemOf(e.key); problem != "" {
			b.reportAt(e.at, p.key(e.key), Error{Problem: "the key " + problem, Found: fmt.Sprintf("%q", shorten(e.key)), Suggestion: suggestion})
			return false
		}
	}
	if f := rules[ruleKey].keys; f != nil && !f.matches(e.key) {
		problem, suggestion := "must be "+f.description, ""
		if f == formRegion {
			problem, suggestion = regionProblem(e.key)
		}
		b.reportAt(e.at, p.key(e.key), Error{Problem: "the key " + problem, Found: fmt.Sprintf("%q", shorten(e.key)), Suggestion: suggestion})
		return false
	}
	return true
}

// describeValues describes the values that a key accepts.
func describeValues(ruleKey string) string {
	if list, ok := wordsOf(ruleKey); ok {
		return "one of " + strings.Join(list.Implemented, ", ")
	}
	if f := rules[ruleKey].form; f != nil {
		return f.description
	}
	return strings.ToLower(rules[ruleKey].text[:1]) + strings.TrimSuffix(rules[ruleKey].text[1:], ".")
}

var durationType = reflect.TypeFor[time.Duration]()

// printable reports whether text only contains printable characters; lines allows tabs and
// newlines.
func printable(text string, lines bool) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r) && (!lines || (r != '\n' && r != '\t'))
	})
}
