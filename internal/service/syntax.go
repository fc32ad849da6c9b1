package service

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxBytes is the maximum size of a service.yaml. The largest realistic one, a hundred regions
	// with all their keys, is below 100 KB.
	MaxBytes = 1 << 20
	// maxNesting is the maximum depth of nested brackets: a service.yaml needs 5, and the YAML
	// parser's stack grows with it.
	maxNesting = 64
)

// document is a parsed YAML text.
type document struct {
	*source
	root    ast.Node
	anchors map[string]ast.Node
}

// readYAML parses a text that contains exactly one document. Other texts return an error with its
// position.
func readYAML(file string, data []byte) (*document, *Error) {
	if len(data) > MaxBytes {
		return nil, &Error{File: file, Problem: fmt.Sprintf("must be at most %d bytes", MaxBytes), Found: fmt.Sprint(len(data))}
	}
	text, bad := normalise(file, data)
	if bad != nil {
		return nil, bad
	}
	src := newSource(file, text)
	docs, bad := src.parse(text)
	if bad != nil {
		return nil, bad
	}
	switch {
	case len(docs) == 0:
		return nil, &Error{File: file, Line: 1, Column: 1, Problem: "the file is empty", Suggestion: "'skyserve init' prints a starter service.yaml"}
	case len(docs) > 1:
		line, col := position(docs[1])
		return nil, src.syntaxError(line, col, "must be one YAML document, but a second one starts here")
	}
	doc := &document{source: src, root: docs[0], anchors: map[string]ast.Node{}}
	if bad := doc.foreignFile(); bad != nil {
		return nil, bad
	}
	ast.Walk(doc, doc.root)
	doc.hideSecrets(doc.root, false)
	return doc, nil
}

// Visit collects the anchors of a document (ast.Visitor).
func (d *document) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		d.anchors[a.Name.GetToken().Value] = a.Value
	}
	return d
}

// normalise converts line ends to \n and rejects text that is not UTF-8.
func normalise(file string, data []byte) (string, *Error) {
	text := strings.TrimPrefix(string(data), "\ufeff")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	line, col := 1, 1
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return "", &Error{File: file, Line: line, Column: col, Problem: "must be UTF-8 text", Found: fmt.Sprintf("byte 0x%02x", text[i])}
		}
		if r == 0 {
			return "", &Error{File: file, Line: line, Column: col, Problem: "must be text without zero bytes"}
		}
		if col++; r == '\n' {
			line, col = line+1, 1
		}
	}
	return text, nil
}

// parse runs the YAML parser and returns the non-empty documents.
func (s *source) parse(text string) (docs []ast.Node, bad *Error) {
	defer func() {
		// The parser panics on some malformed texts; such a bug must not crash a balancer or `up`.
		if r := recover(); r != nil {
			docs, bad = nil, s.syntaxError(1, 1, "is not valid YAML")
		}
	}()
	tokens := lexer.Tokenize(text)
	if t, problem := exceedsLimits(tokens); t != nil {
		return nil, s.syntaxError(t.Position.Line, t.Position.Column, problem)
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, s.fromParser(err)
	}
	for _, d := range f.Docs {
		if _, directive := d.Body.(*ast.DirectiveNode); d.Body != nil && !directive {
			docs = append(docs, d.Body)
		}
	}
	return docs, nil
}

// exceedsLimits finds the token at which a text exceeds maxNesting or maxVisits keys, and describes
// the problem; nil when it exceeds neither. Nesting by indentation needs no limit: each level
// requires a longer line than the last.
func exceedsLimits(tokens token.Tokens) (at *token.Token, problem string) {
	flow, block, line, keys := 0, 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, block = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow = max(flow-1, 0)
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			block++
		case token.MappingValueType:
			keys++
		}
		if flow > maxNesting || flow == 0 && block > maxNesting {
			return t, fmt.Sprintf("must be nested at most %d levels deep", maxNesting)
		}
		if keys > maxVisits {
			return t, fmt.Sprintf("must have at most %d keys", maxVisits)
		}
	}
	return nil, ""
}

// fromParser converts an error of the YAML parser.
func (s *source) fromParser(err error) *Error {
	var ye yaml.Error
	if !errors.As(err, &ye) || ye.GetToken() == nil || ye.GetToken().Position == nil {
		return s.syntaxError(1, 1, "is not valid YAML")
	}
	p := ye.GetToken().Position
	explanation, explained := ExplainSyntax(ye.GetMessage())
	if !explained && s.nearSecrets(p.Line) { // the parser's message may quote the text; an explanation never does
		return s.syntaxError(p.Line, p.Column, "is not valid YAML; the reason and the line are not shown, because they may contain a secret")
	}
	return s.syntaxError(p.Line, p.Column, "is not valid YAML: "+explanation)
}

// syntaxExplanations are messages of the YAML parser, by a part of their text, with what they mean and how to
// repair the file.
var syntaxExplanations = []struct{ message, explanation string }{
	{"'\t'", "a tab before the text; indent with spaces"},
	{"tab character", "a tab before the text; indent with spaces"},
	{"non-map value is specified", "a line without a colon, or without a space after it, among lines with keys; write KEY: VALUE"},
	{"unexpected key name", "a line without a colon, or without a space after it, among lines with keys; write KEY: VALUE"},
	{"is a reserved character", "the text starts with a character that YAML reserves; quote it"},
	{"mapping value is not allowed", "a second colon in the line, or other indentation than in the line before or after it; quote a value that contains a colon, and start keys of one mapping in the same column"},
	{"value is not allowed in this context", "the indentation differs from the lines above; keys of one mapping start in the same column"},
	{"could not find flow map content", "a value that starts with { must be quoted, unless it is a mapping"},
	{"end character of double-quoted", "the closing double quote is missing"},
	{"end character of single-quoted", "the closing single quote is missing"},
	{"sequence end token", "the closing ] of a list is missing"},
	{"mapping end token", "the closing } of a mapping is missing"},
	{"',' or ']' must be specified", "a [ above this place is not closed, or a comma is missing"},
	{"',' or '}' must be specified", "a { above this place is not closed, or a comma is missing"},
}

// ExplainSyntax returns the explanation of a message of the YAML parser, else the message and false.
func ExplainSyntax(message string) (explanation string, explained bool) {
	for _, e := range syntaxExplanations {
		if strings.Contains(message, e.message) {
			return e.explanation, true
		}
	}
	return message, false
}

// syntaxError returns an error about the text itself. The tree that identifies secrets does not
// exist yet, so the excerpt is omitted near possible secrets.
func (s *source) syntaxError(line, col int, problem string) *Error {
	e := &Error{File: s.file, Line: max(line, 1), Column: max(col, 1), Problem: problem}
	if !s.nearSecrets(e.Line) {
		e.Source = s.excerpt(e.Line, e.Column)
	}
	return e
}

// position returns the position of a node.
func position(n ast.Node) (line, col int) {
	switch v := n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return position(v.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return position(v.Key)
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return max(t.Position.Line, 1), max(t.Position.Column, 1)
	}
	return 1, 1
}

// scalarText returns the text of a scalar as written, without its quotes; "" for other nodes.
func scalarText(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.AnchorNode:
		return scalarText(n.Value)
	case *ast.AliasNode, *ast.TagNode:
		return ""
	case ast.ScalarNode:
		if t := n.GetToken(); t != nil {
			return t.Value
		}
	}
	return ""
}

// keyText returns the text of a key; "" where the key is not a plain scalar.
func keyText(k ast.MapKeyNode) string {
	if _, complex := k.(*ast.MappingKeyNode); complex {
		return ""
	}
	return scalarText(k)
}
