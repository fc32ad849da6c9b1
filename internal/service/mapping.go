package service

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// entry is one key of a mapping with its value.
type entry struct {
	key   string
	at    ast.Node
	value ast.Node
}

// entries lists the keys of a mapping in their order; merged ones come last and
// give way to those that the mapping has itself.
func (b *binder) entries(n ast.Node, p path) ([]entry, bool) {
	pairs, ok := pairsOf(n)
	if !ok {
		b.fail(n, p, Error{Problem: "must be a mapping of keys", Found: b.found(n)})
		return nil, false
	}
	var own []entry
	first := map[string]int{}
	for _, kv := range pairs {
		if kv.Key.IsMergeKey() {
			continue
		}
		key, ok := b.keyOf(kv, p)
		if !ok {
			continue
		}
		line, _ := place(kv.Key)
		if before, twice := first[key]; twice {
			b.fail(kv.Key, p.key(key), Error{Problem: fmt.Sprintf("the key stands twice, first on line %d", before), Suggestion: "keep one of them"})
			continue
		}
		first[key] = line
		own = append(own, entry{key, kv.Key, kv.Value})
	}
	return b.merge(own, pairs, first, p), true
}

// keyOf is the text of a key; what is not a plain text is refused.
func (b *binder) keyOf(kv *ast.MappingValueNode, p path) (string, bool) {
	switch kv.Key.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return keyText(kv.Key), true
	}
	b.hideAll(kv.Value)
	b.fail(kv.Key, p, Error{Problem: "has a key that is not plain text"})
	return "", false
}

// merge adds what "<<: *anchor" brings in.
func (b *binder) merge(own []entry, pairs []*ast.MappingValueNode, has map[string]int, p path) []entry {
	for _, kv := range pairs {
		if !kv.Key.IsMergeKey() {
			continue
		}
		for _, source := range b.mergeSources(kv.Value, p) {
			for _, other := range source {
				if key := keyText(other.Key); has[key] == 0 && !other.Key.IsMergeKey() {
					has[key], _ = place(other.Key)
					own = append(own, entry{key, other.Key, other.Value})
				}
			}
		}
	}
	return own
}

// mergeSources are the mappings that a merge names. A mapping that itself merges
// brings in only its own keys: nobody needs more here, and it cannot run in circles.
func (b *binder) mergeSources(n ast.Node, p path) [][]*ast.MappingValueNode {
	n, ok := b.resolve(n, p)
	if !ok {
		return nil
	}
	nodes := []ast.Node{n}
	if seq, list := n.(*ast.SequenceNode); list {
		nodes = seq.Values
	}
	var sources [][]*ast.MappingValueNode
	for _, item := range nodes {
		item, ok := b.resolve(item, p)
		if !ok {
			continue
		}
		pairs, ok := pairsOf(item)
		if !ok {
			b.fail(item, p, Error{Problem: "<< must merge a mapping", Found: b.found(item)})
			continue
		}
		sources = append(sources, pairs)
	}
	return sources
}

// pairsOf is the keys and values of a mapping; ok is false for anything else.
func pairsOf(n ast.Node) (pairs []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}
