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

// maxVisits bounds the values that one document may expand to. A service.yaml
// of a hundred regions has some thousands; aliases of aliases can make billions
// of a few lines.
const maxVisits = 20_000

// maxHops bounds how many aliases, anchors and merges lead to one value, so
// that a circle of them ends.
const maxHops = 16

// binder stores a document's values in Go values and notes, for each path, where
// it stands. It goes on after an error, so that all of them are reported.
type binder struct {
	*document
	errs   Errors
	at     map[path]ast.Node // where the value of a path stands
	bad    map[path]bool     // paths whose value has an error already
	visits int
	// tooMany is set when visits passed maxVisits; then nothing else is reported.
	tooMany *Error
}

func newBinder(doc *document) *binder {
	return &binder{document: doc, at: map[path]ast.Node{}, bad: map[path]bool{}}
}

// bind stores n in v, which the rule named by ruleKey speaks of.
func (b *binder) bind(n ast.Node, v reflect.Value, p path, ruleKey string) {
	if b.visits++; b.visits > maxVisits {
		b.stop(n, p)
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
		b.bindStruct(n, v, p)
	case reflect.Slice:
		b.bindList(n, v, p, ruleKey)
	case reflect.Map:
		b.bindMap(n, v, p, ruleKey)
	default:
		b.bindScalar(n, v, p, ruleKey)
	}
}

// stop ends the reading of a document that expands to too much.
func (b *binder) stop(n ast.Node, p path) {
	if b.tooMany == nil && n != nil {
		line, col := place(n)
		b.tooMany = &Error{
			File: b.file, Line: line, Column: col, Path: string(p),
			Problem: fmt.Sprintf("the file expands to more than %d values", maxVisits),
		}
	}
}

// resolve follows anchors and aliases to the value that they stand for.
func (b *binder) resolve(n ast.Node, p path) (ast.Node, bool) {
	for range maxHops {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.GetToken().Value
			target, ok := b.anchors[name]
			if !ok {
				b.fail(v, p, Error{Problem: fmt.Sprintf("no anchor &%s is in the file", shorten(name))})
				return nil, false
			}
			n = target
		case *ast.TagNode:
			b.fail(v, p, Error{Problem: fmt.Sprintf("must not have the tag %s", shorten(v.Start.Value)), Suggestion: "write the value alone"})
			return nil, false
		case nil:
			b.failAt(1, 1, p, Error{Problem: "has no value"})
			return nil, false
		default:
			return n, true
		}
	}
	b.fail(n, p, Error{Problem: "is an alias of itself"})
	return nil, false
}

func (b *binder) bindStruct(n ast.Node, v reflect.Value, p path) {
	entries, ok := b.entries(n, p)
	if !ok {
		return
	}
	fields := fieldsOf(v.Type())
	seen := map[string]bool{}
	for _, e := range entries {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == e.key })
		if i < 0 {
			b.unknownKey(e, p, v.Type().Name(), keysOf(fields))
			continue
		}
		seen[e.key] = true
		b.bind(e.value, v.Field(fields[i].index), p.key(e.key), fields[i].rule)
	}
	for _, f := range fields {
		if rules[f.rule].required && !seen[f.key] {
			b.bad[p.key(f.key)] = true
			b.fail(n, p.key(f.key), Error{Problem: "is missing", Suggestion: "want " + wants(f.rule)})
		}
	}
}

// unknownKey reports a key that its mapping does not have. Its value is hidden:
// it may be a secret under a misspelt key.
func (b *binder) unknownKey(e entry, p path, typ string, known []string) {
	b.hideAll(e.value)
	if what, ok := plannedKeys[typ+"."+e.key]; ok {
		b.fail(e.at, p.key(e.key), Error{Problem: "is not built yet in this version: it belongs to " + what, Suggestion: "remove the key"})
		return
	}
	b.fail(e.at, p.key(e.key), Error{Problem: "unknown key", Suggestion: didYouMean(e.key, known, "the keys here are")})
}

func (b *binder) hideAll(n ast.Node) {
	if n != nil {
		b.hideSecrets(n, true)
	}
}

func (b *binder) bindList(n ast.Node, v reflect.Value, p path, ruleKey string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		e := Error{Problem: "must be a list", Found: b.found(n)}
		if text := scalarText(n); e.Found != "" && text != "" {
			e.Suggestion = fmt.Sprintf("write [%s]", shorten(text))
		}
		b.fail(n, p, e)
		return
	}
	if len(seq.Values) == 0 {
		if rules[ruleKey].some {
			b.fail(n, p, Error{Problem: "must hold at least one element", Found: "an empty list"})
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
	if rules[ruleKey].unique {
		b.checkRepeats(list, p)
	}
	v.Set(list)
}

// checkRepeats refuses what stands in a list of texts twice.
func (b *binder) checkRepeats(list reflect.Value, p path) {
	first := map[string]int{}
	for i := range list.Len() {
		text, at := list.Index(i).String(), p.index(i)
		j, twice := first[text]
		if !twice {
			first[text] = i
		} else if text != "" {
			b.failPath(at, Error{Problem: fmt.Sprintf("repeats element %d of the list", j), Found: b.foundAt(at)})
		}
	}
}

func (b *binder) bindMap(n ast.Node, v reflect.Value, p path, ruleKey string) {
	entries, ok := b.entries(n, p)
	if !ok || len(entries) == 0 {
		return
	}
	m := reflect.MakeMap(v.Type())
	for _, e := range entries {
		if !b.checkKey(e, p, ruleKey) {
			continue
		}
		value := reflect.New(v.Type().Elem()).Elem()
		b.bind(e.value, value, p.key(e.key), ruleKey)
		m.SetMapIndex(reflect.ValueOf(e.key).Convert(v.Type().Key()), value)
	}
	if m.Len() > 0 {
		v.Set(m)
	}
}

// checkKey checks a key that the user chooses, such as a region's.
func (b *binder) checkKey(e entry, p path, ruleKey string) bool {
	if list, ok := wordsOf(ruleKey); ok {
		if problem, suggestion := list.judge(e.key); problem != "" {
			b.fail(e.at, p.key(e.key), Error{Problem: "the key " + problem, Found: fmt.Sprintf("%q", shorten(e.key)), Suggestion: suggestion})
			return false
		}
	}
	if f := rules[ruleKey].keys; f != nil && !f.expr.MatchString(e.key) {
		b.fail(e.at, p.key(e.key), Error{Problem: "the key must be " + f.words, Found: fmt.Sprintf("%q", shorten(e.key))})
		return false
	}
	return true
}

// wants says in words what a key takes.
func wants(ruleKey string) string {
	if list, ok := wordsOf(ruleKey); ok {
		return "one of " + strings.Join(list.Built, ", ")
	}
	if f := rules[ruleKey].form; f != nil {
		return f.words
	}
	return strings.ToLower(rules[ruleKey].text[:1]) + strings.TrimSuffix(rules[ruleKey].text[1:], ".")
}

var durationType = reflect.TypeFor[time.Duration]()

// printable says whether text is free of characters that do not show; lines
// allows tabs and line ends.
func printable(text string, lines bool) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r) && (!lines || (r != '\n' && r != '\t'))
	})
}
