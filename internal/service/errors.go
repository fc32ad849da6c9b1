package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a document, with its place.
type Error struct {
	File string `json:"file"`
	// Line and Column count from 1, Column in characters; 0 = the whole file.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Path is the place in the document: regions[1].replicas.min.
	Path string `json:"path"`
	// Found is the value found there; empty where it may be a secret.
	Found string `json:"found,omitempty"`
	// Problem says what is wrong, Suggestion what to write instead.
	Problem    string `json:"problem"`
	Suggestion string `json:"suggestion,omitempty"`
	// Source is the line of the document and a caret under the column; values
	// that may be secret are starred out in it.
	Source string `json:"source,omitempty"`
}

// Error is the whole message: one line, and below it the excerpt.
func (e Error) Error() string {
	if e.Source == "" {
		return e.Message()
	}
	return e.Message() + "\n" + e.Source
}

// Message is the message without its excerpt:
// service.yaml:14:12: regions[1].replicas.min: must be at least 0, got -3.
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

// Errors is everything that is wrong with a document, in the order of its lines.
type Errors []Error

// Error joins all messages, one after the other.
func (es Errors) Error() string {
	texts := make([]string, len(es))
	for i, e := range es {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "\n")
}

// maxErrors bounds how many errors one reading reports: more help nobody, and
// a megabyte of wrong keys must not make a hundred megabytes of messages.
const maxErrors = 100

// sorted orders by place and leaves out what maxErrors does not allow.
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
