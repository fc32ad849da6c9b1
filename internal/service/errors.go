package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one problem of a document, with its position.
type Error struct {
	File string `json:"file"`
	// Line and Column start at 1, Column in characters; 0 = the whole file.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Path is the key in the document: regions[1].replicas.min.
	Path string `json:"path"`
	// Found is the value found at Path; empty where it may be a secret.
	Found string `json:"found,omitempty"`
	// Problem is what is wrong, Suggestion how to fix it.
	Problem    string `json:"problem"`
	Suggestion string `json:"suggestion,omitempty"`
	// Source is the line of the document with a caret under the column; values that may be secret
	// are masked.
	Source string `json:"source,omitempty"`
}

// Error returns the whole message: one line, followed by the excerpt.
func (e Error) Error() string {
	if e.Source == "" {
		return e.Message()
	}
	return e.Message() + "\n" + e.Source
}

// Message returns the message without its excerpt: service.yaml:14:12: regions[1].replicas.min:
// must be at least 0, got -3.
func (e Error) Message() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	b.WriteString(": " + e.Problem)
	if e.Found != "" {
		b.WriteString(", got " + e.Found)
	}
	if e.Suggestion != "" {
		b.WriteString("; " + e.Suggestion)
	}
	return b.String()
}

// Errors are all problems of a document, ordered by line.
type Errors []Error

// Error returns all messages, one per line.
func (es Errors) Error() string {
	texts := make([]string, len(es))
	for i, e := range es {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "\n")
}

// maxErrors is the maximum number of errors that one parse reports. Without it, a megabyte of wrong
// keys would produce a hundred megabytes of messages.
const maxErrors = 100

// sorted orders the errors by position and truncates them to maxErrors.
func (es Errors) sorted() Errors {
	slices.SortStableFunc(es, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	if len(es) <= maxErrors {
		return es
	}
	more := Error{File: es[0].File, Problem: fmt.Sprintf("has %d more problems, not shown", len(es)-maxErrors)}
	return append(slices.Clip(es[:maxErrors]), more)
}
