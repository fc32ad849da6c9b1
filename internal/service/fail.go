package service

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// fail reports an error at a node; e holds what is known beside the place.
func (b *binder) fail(n ast.Node, p path, e Error) {
	line, col := place(n)
	b.failAt(line, col, p, e)
}

func (b *binder) failAt(line, col int, p path, e Error) {
	b.bad[p] = true
	e.File, e.Line, e.Column, e.Path = b.file, line, col, string(p)
	b.errs = append(b.errs, e)
}

// failPath reports an error at a path, or at the nearest path above it that the
// document states. One error a path: what follows from the first is noise.
func (b *binder) failPath(p path, e Error) {
	if b.bad[p] {
		return
	}
	for q := p; ; q = q.parent() {
		if n, ok := b.at[q]; ok {
			b.fail(n, p, e)
			return
		}
		if q == "" {
			b.failAt(1, 1, p, e)
			return
		}
	}
}

// foundAt is what the document says at a path.
func (b *binder) foundAt(p path) string {
	if n, ok := b.at[p]; ok {
		return b.found(n)
	}
	return ""
}

// found describes a value for an error; it is empty where it may be a secret.
func (b *binder) found(n ast.Node) string {
	line, col := place(n)
	if b.hides(line, col) {
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
