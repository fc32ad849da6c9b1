package replay

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"

	"skyserve/provision/record"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// node is a part of a body: an object or element with members, a list, or a text, number or truth value.
type node struct {
	kind    string // object, list, text, number, bool, null
	value   string // of a text, number or bool
	members map[string]*node
	items   []*node
}

const (
	kindObject = "object"
	kindList   = "list"
	kindText   = "text"
	kindNumber = "number"
	kindBool   = "bool"
	kindNull   = "null"
)

// parseBody parses a body; nil for an empty one.
func parseBody(b record.Body) (*node, error) {
	switch {
	case b.JSON != nil:
		decoder := json.NewDecoder(bytes.NewReader(b.JSON))
		decoder.UseNumber()
		var v any
		if err := decoder.Decode(&v); err != nil {
			return nil, err
		}
		return jsonNode(v), nil
	case b.XML != "":
		return xmlNode(b.XML)
	case b.Text != "":
		return &node{kind: kindText, value: b.Text}, nil
	}
	return nil, nil
}

func jsonNode(v any) *node {
	switch v := v.(type) {
	case map[string]any:
		n := &node{kind: kindObject, members: map[string]*node{}}
		for name, member := range v {
			n.members[name] = jsonNode(member)
		}
		return n
	case []any:
		n := &node{kind: kindList}
		for _, item := range v {
			n.items = append(n.items, jsonNode(item))
		}
		return n
	case string:
		return &node{kind: kindText, value: v}
	case json.Number:
		return &node{kind: kindNumber, value: v.String()}
	case bool:
		return &node{kind: kindBool, value: fmt.Sprint(v)}
	}
	return &node{kind: kindNull}
}

// xmlElement is an element while it is read.
type xmlElement struct {
	name     string
	children []*xmlElement
	text     strings.Builder
}

// listItems are the names of the elements of lists in AWS's XML.
var listItems = map[string]bool{"item": true, "member": true}

// xmlNode parses an XML document. Its root element is the only member of the result.
func xmlNode(text string) (*node, error) {
	decoder := xml.NewDecoder(strings.NewReader(text))
	root := &xmlElement{}
	open := []*xmlElement{root}
	for len(open) > 1 || len(root.children) == 0 {
		token, err := decoder.Token()
		if err != nil {
			return nil, fmt.Errorf("reading XML: %w", err)
		}
		top := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			child := &xmlElement{name: token.Name.Local}
			top.children = append(top.children, child)
			open = append(open, child)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			top.text.Write(token)
		}
	}
	return root.node(), nil
}

// node converts an element. Repeated elements are a list, and so are those named item or member.
func (e *xmlElement) node() *node {
	if len(e.children) == 0 {
		return &node{kind: kindText, value: strings.TrimSpace(e.text.String())}
	}
	byName := map[string][]*xmlElement{}
	for _, c := range e.children {
		byName[c.name] = append(byName[c.name], c)
	}
	n := &node{kind: kindObject, members: map[string]*node{}}
	for name, children := range byName {
		if len(children) == 1 && !listItems[name] {
			n.members[name] = children[0].node()
			continue
		}
		list := &node{kind: kindList}
		for _, c := range children {
			list.items = append(list.items, c.node())
		}
		if len(byName) == 1 && listItems[name] {
			return list
		}
		n.members[name] = list
	}
	return n
}

// fieldsOf returns the texts of a body by path: instancesSet[0].instanceId.
func fieldsOf(b record.Body) map[string]string {
	fields := map[string]string{}
	n, err := parseBody(b)
	if err != nil {
		fields["unreadable"] = err.Error()
	}
	if n != nil {
		n.addFields("", fields)
	}
	return fields
}

func (n *node) addFields(path string, fields map[string]string) {
	for name, member := range n.members {
		member.addFields(strings.TrimPrefix(path+"."+name, "."), fields)
	}
	for i, item := range n.items {
		item.addFields(fmt.Sprintf("%s[%d]", path, i), fields)
	}
	if n.members == nil && n.items == nil {
		fields[path] = n.value
	}
}
