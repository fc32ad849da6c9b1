package service

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// entry is one key of a mapping with its value.
type entry struct {
	key   string
	at    ast.Node
	value ast.Node
}

// entries returns the keys of a mapping in order; merged keys come last and do not override the
// mapping's own. want describes the values that are accepted at n, for the error of another kind of node.
func (b *binder) entries(n ast.Node, p path, want string) ([]entry, bool) {
	pairs, ok := pairsOf(n)
	if !ok {
		b.reportAt(n, p, Error{Problem: "must be " + want, Found: b.describeNode(n), Suggestion: mappingFor(p, n)})
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
		line, _ := position(kv.Key)
		if before, duplicate := first[key]; duplicate {
			b.reportAt(kv.Key, p.key(key), Error{Problem: fmt.Sprintf("duplicate key, first set on line %d", before), Suggestion: "keep one of them"})
			continue
		}
		first[key] = line
		own = append(own, entry{key, kv.Key, kv.Value})
	}
	return b.mergeEntries(own, pairs, first, p), true
}

// mappingFor suggests the mapping that was probably meant by a value of another kind; "" if unknown.
func mappingFor(p path, n ast.Node) string {
	text := scalarText(n)
	switch _, list := n.(*ast.SequenceNode); {
	case p == "" && list:
		return "remove the dash before the first key"
	case strings.HasSuffix(string(p), ".replicas") && anyNumber.MatchString(text):
		return fmt.Sprintf("write {min: %s, max: %s}", text, text)
	case p == "autoscale.budget" && anyNumber.MatchString(text):
		return fmt.Sprintf("write {per_hour: %s}", text)
	case gpuItem.MatchString(string(p)) && gpuName.MatchString(text):
		return fmt.Sprintf("write {type: %s}", text)
	case keyWithoutSpace.MatchString(text):
		return "write a space after the colon"
	case p != "":
		return "docs/service-yaml.md describes it"
	}
	return ""
}

// gpuItem matches the path of an item of models[].gpus, gpuName a text that may be the name of a GPU.
var (
	gpuItem = regexp.MustCompile(`^models\[\d+\]\.gpus\[\d+\]$`)
	gpuName = regexp.MustCompile(`^[A-Za-z]+[0-9]+[A-Za-z]?$`)
)

// keyWithoutSpace matches a key whose colon is not followed by a space.
var keyWithoutSpace = regexp.MustCompile(`^[a-z_]+:[^ /]`)

// keyOf returns the text of a key and rejects keys that are not names, such as aliases, null and "? key".
func (b *binder) keyOf(kv *ast.MappingValueNode, p path) (string, bool) {
	switch kv.Key.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return keyText(kv.Key), true
	}
	b.hideAll(kv.Value)
	b.reportAt(kv.Key, p, Error{Problem: "must have only names as keys, written as NAME: VALUE"})
	return "", false
}

// mergeEntries adds the keys of "<<: *anchor".
func (b *binder) mergeEntries(own []entry, pairs []*ast.MappingValueNode, has map[string]int, p path) []entry {
	for _, kv := range pairs {
		if !kv.Key.IsMergeKey() {
			continue
		}
		for _, source := range b.mergeSources(kv.Value, p) {
			for _, other := range source {
				if key := keyText(other.Key); has[key] == 0 && !other.Key.IsMergeKey() {
					has[key], _ = position(other.Key)
					own = append(own, entry{key, other.Key, other.Value})
				}
			}
		}
	}
	return own
}

// mergeSources returns the mappings that a merge refers to. A mapping that itself merges
// contributes only its own keys: that is sufficient here, and it prevents cycles.
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
			b.reportAt(item, p, Error{Problem: "<< must merge a mapping", Found: b.describeNode(item)})
			continue
		}
		sources = append(sources, pairs)
	}
	return sources
}

// pairsOf returns the keys and values of a mapping; ok is false for any other node.
func pairsOf(n ast.Node) (pairs []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}
