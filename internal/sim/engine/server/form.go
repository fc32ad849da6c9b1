package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/sim/engine"
)

// form is a response whose format the request determines: a JSON document (response_format), or the
// arguments of a forced function call (tool_choice). The contents are random but conform to the format.
type form struct {
	tool   string   // name of the called function; empty for a document
	tokens []string // texts of the response's tokens
}

// Limits of a document, for recursive schemas: beyond them every value is null.
const (
	maxDepth         = 8       // levels; typical documents have four
	maxDocumentBytes = 1 << 14 // several times the longest random response
)

// schema is the supported part of JSON Schema; other keywords only restrict values and are ignored.
type schema struct {
	Type       json.RawMessage            `json:"type"`
	Properties map[string]json.RawMessage `json:"properties"`
	Items      json.RawMessage            `json:"items"`
	MinItems   int                        `json:"minItems"`
	Enum       []json.RawMessage          `json:"enum"`
	Const      json.RawMessage            `json:"const"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
	OneOf      []json.RawMessage          `json:"oneOf"`
	AllOf      []json.RawMessage          `json:"allOf"`
	Ref        string                     `json:"$ref"`
	Minimum    *float64                   `json:"minimum"`
	Maximum    *float64                   `json:"maximum"`
}

// forced returns the required format of a chat's response; nil if any text is allowed.
func (b *body) forced(seed uint64, prompt []engine.Token) (*form, error) {
	f, raw, err := b.forcedCall()
	if f == nil && err == nil {
		f, raw, err = b.forcedDocument()
	}
	if f == nil || err != nil {
		return nil, err
	}
	speech := engine.NewSpeech(seed, prompt)
	w := writer{root: raw, speech: speech, draw: rand.New(rand.NewPCG(seed, uint64(len(prompt))))}
	w.value(raw, 0)
	f.tokens = engine.Split(w.out.String())
	return f, nil
}

// forcedCall returns the call required by tool_choice, and the schema of its arguments.
func (b *body) forcedCall() (*form, json.RawMessage, error) {
	var name string
	switch choice := b.ToolChoice; firstByte(choice) {
	case 0:
		return nil, nil, nil
	case '"':
		switch string(choice) {
		case `"auto"`, `"none"`:
			return nil, nil, nil
		case `"required"`:
		default:
			return nil, nil, malformed("tool_choice", "tool_choice: must be auto, none, required or a function, got "+excerpt(choice))
		}
	default:
		var named struct{ Function struct{ Name string } }
		if err := json.Unmarshal(choice, &named); err != nil || named.Function.Name == "" {
			return nil, nil, malformed("tool_choice", "tool_choice: must be auto, none, required or a function, got "+excerpt(choice))
		}
		name = named.Function.Name
	}
	var tools []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if firstByte(b.Tools) != 0 {
		if err := json.Unmarshal(b.Tools, &tools); err != nil {
			return nil, nil, malformed("tools", "tools: must be an array of functions, got "+excerpt(b.Tools))
		}
	}
	for _, t := range tools {
		if name == "" || name == t.Function.Name {
			return &form{tool: t.Function.Name}, orObject(t.Function.Parameters), nil
		}
	}
	return nil, nil, malformed("tool_choice", "tool_choice: function not in tools: "+excerpt(b.ToolChoice))
}

// forcedDocument returns the document required by response_format, and its schema.
func (b *body) forcedDocument() (*form, json.RawMessage, error) {
	if firstByte(b.ResponseFormat) == 0 {
		return nil, nil, nil
	}
	var format struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	err := json.Unmarshal(b.ResponseFormat, &format)
	switch {
	case err == nil && format.Type == "text":
		return nil, nil, nil
	case err == nil && format.Type == "json_object":
		return &form{}, orObject(nil), nil
	case err == nil && format.Type == "json_schema" && firstByte(format.JSONSchema.Schema) == '{':
		return &form{}, format.JSONSchema.Schema, nil
	}
	return nil, nil, malformed("response_format", "response_format: must be text, json_object or json_schema with a schema, got "+excerpt(b.ResponseFormat))
}

// orObject returns the schema, or by default that of a small object.
func orObject(raw json.RawMessage) json.RawMessage {
	if firstByte(raw) == '{' {
		return raw
	}
	return json.RawMessage(`{"type":"object","properties":{"answer":{"type":"string"}}}`)
}

// writer generates a random document.
type writer struct {
	root   json.RawMessage // base of references
	out    bytes.Buffer
	speech engine.Speech
	draw   *rand.Rand
}

// value writes a value of a schema. An invalid schema allows any value.
func (w *writer) value(raw json.RawMessage, depth int) {
	var s schema
	if depth > maxDepth || w.out.Len() > maxDocumentBytes || json.Unmarshal(raw, &s) != nil {
		w.out.WriteString("null")
		return
	}
	for _, choices := range [][]json.RawMessage{s.AnyOf, s.OneOf, s.AllOf} {
		if len(choices) > 0 {
			w.value(choices[0], depth+1)
			return
		}
	}
	switch {
	case s.Ref != "":
		w.value(w.resolve(s.Ref), depth+1)
	case s.Const != nil:
		w.out.Write(compact(s.Const))
	case len(s.Enum) > 0:
		w.out.Write(compact(s.Enum[w.draw.IntN(len(s.Enum))]))
	default:
		w.typed(&s, depth)
	}
}

// typed writes a value of the schema's type, the first if there are several.
func (w *writer) typed(s *schema, depth int) {
	var kind string
	var kinds []string
	if json.Unmarshal(s.Type, &kinds) == nil && len(kinds) > 0 {
		kind = kinds[0]
	} else if json.Unmarshal(s.Type, &kind) != nil && s.Properties != nil {
		kind = "object"
	}
	switch kind {
	case "object":
		w.object(s, depth)
	case "array":
		w.out.WriteByte('[')
		for i := range min(max(s.MinItems, 1), exactTokens) {
			if i > 0 {
				w.out.WriteByte(',')
			}
			w.value(s.Items, depth+1)
		}
		w.out.WriteByte(']')
	case "integer", "number":
		w.out.WriteString(strconv.FormatFloat(w.number(s), 'f', -1, 64))
	case "boolean":
		fmt.Fprint(&w.out, w.draw.IntN(2) == 0)
	case "null":
		w.out.WriteString("null")
	default:
		w.text()
	}
}

// object writes all of a schema's properties, sorted by name.
func (w *writer) object(s *schema, depth int) {
	w.out.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if i > 0 {
			w.out.WriteByte(',')
		}
		quoted, _ := json.Marshal(name) // a string always marshals
		w.out.Write(append(quoted, ':'))
		w.value(s.Properties[name], depth+1)
	}
	w.out.WriteByte('}')
}

// number returns an integer from the schema's minimum on, at most its maximum.
func (w *writer) number(s *schema) float64 {
	n := float64(w.draw.IntN(100))
	if s.Minimum != nil {
		n += *s.Minimum
	}
	if s.Maximum != nil {
		n = min(n, *s.Maximum)
	}
	return n
}

// text writes three words.
func (w *writer) text() {
	var words strings.Builder
	for range 3 {
		_, word := w.speech.Next()
		words.WriteString(word)
	}
	quoted, _ := json.Marshal(strings.TrimSpace(words.String())) // a string always marshals
	w.out.Write(quoted)
}

// resolve returns the schema at a reference into the document; nil for any other reference.
func (w *writer) resolve(ref string) json.RawMessage {
	at := w.root
	path, inside := strings.CutPrefix(ref, "#")
	if !inside {
		return nil
	}
	for _, name := range strings.Split(path, "/")[1:] {
		var members map[string]json.RawMessage
		if json.Unmarshal(at, &members) != nil {
			return nil
		}
		at = members[name]
	}
	return at
}

// compact returns a JSON value without white space.
func compact(raw json.RawMessage) []byte {
	var out bytes.Buffer
	_ = json.Compact(&out, raw) // cannot fail: it was parsed before
	return out.Bytes()
}
