package service

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// reportAt reports an error at a node; e contains everything but the position.
func (b *binder) reportAt(n ast.Node, p path, e Error) {
	line, col := position(n)
	b.reportAtLine(line, col, p, e)
}

func (b *binder) reportAtLine(line, col int, p path, e Error) {
	b.invalid[p] = true
	e.File, e.Line, e.Column, e.Path = b.file, line, col, string(b.asWritten(p))
	b.errs = append(b.errs, e)
}

// asWritten returns a path with the names that its keys have in the document.
func (b *binder) asWritten(p path) path {
	for q := p; q != ""; q = q.parent() {
		if w, ok := b.written[q]; ok {
			return w + p[len(q):]
		}
	}
	return p
}

// reportAtPath reports an error at a path, or at its nearest ancestor in the document. It reports only
// the first error per path: later ones follow from it.
func (b *binder) reportAtPath(p path, e Error) {
	if b.invalid[p] {
		return
	}
	for q := p; ; q = q.parent() {
		if n, ok := b.at[q]; ok {
			b.reportAt(n, p, e)
			return
		}
		if q == "" {
			b.reportAtLine(1, 1, p, e)
			return
		}
	}
}

// describePath returns the document's value at a path.
func (b *binder) describePath(p path) string {
	if n, ok := b.at[p]; ok {
		return b.describeNode(n)
	}
	return ""
}

// describeNode formats a value for an error; it is empty where the value may be a secret.
func (b *binder) describeNode(n ast.Node) string {
	line, col := position(n)
	if b.isHidden(line, col) {
		return ""
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		if text, plain := plainText(n); !plain || !anyNumber.MatchString(text) {
			return fmt.Sprintf("%q", shorten(scalarText(n)))
		}
	}
	return shorten(scalarText(n))
}
