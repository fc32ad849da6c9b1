//go:build compare

package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"skyserve/provision/record"
)

// judgeJSON judges a call of the protocol json.
func (m *model) judgeJSON(o *operation, c record.Call) []string {
	findings := m.judgeDocument("request: ", o.Input, c.Request.JSON)
	if kind := c.Request.Headers["Content-Type"]; kind != "application/x-amz-json-1.1" {
		findings = append(findings, fmt.Sprintf("request: its Content-Type is %q", kind))
	}
	if succeeded(c) && o.Output != nil {
		findings = append(findings, m.judgeDocument("response: ", o.Output, c.Response.JSON)...)
	}
	return findings
}

func (m *model) judgeDocument(prefix string, ref *reference, text json.RawMessage) []string {
	v, err := parseJSON(text)
	if err != nil {
		return []string{prefix + err.Error()}
	}
	return m.value(prefix, "", ref, v)
}

// parseJSON parses a document with its numbers as texts.
func parseJSON(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, fmt.Errorf("reading JSON: %w", err)
	}
	return v, nil
}

// value checks a value of a JSON document.
func (m *model) value(prefix, path string, ref *reference, v any) []string {
	s := m.Shapes[ref.Shape]
	var findings []string
	wrong := func(want string) []string { return []string{fmt.Sprintf("%s%s is %v, want %s", prefix, path, v, want)} }
	switch s.Type {
	case "structure":
		object, ok := v.(map[string]any)
		if !ok {
			return wrong("an object")
		}
		for name, member := range object {
			if s.Members[name] == nil {
				findings = append(findings, prefix+"unknown field "+path+"."+name)
			} else if member != nil {
				findings = append(findings, m.value(prefix, path+"."+name, s.Members[name], member)...)
			}
		}
		for _, name := range s.Required {
			if object[name] == nil {
				findings = append(findings, prefix+"missing field "+path+"."+name)
			}
		}
	case "list":
		list, ok := v.([]any)
		if !ok {
			return wrong("a list")
		}
		for _, item := range list {
			findings = append(findings, m.value(prefix, path+"[]", s.Member, item)...)
		}
	case "map":
		if _, ok := v.(map[string]any); !ok {
			return wrong("an object")
		}
	default:
		if kind := jsonType(v); !slices.Contains(jsonTypes[s.Type], kind) {
			return wrong("a " + s.Type)
		}
		if f := s.check(fmt.Sprint(v)); f != "" {
			return wrong(strings.TrimPrefix(f, "want "))
		}
	}
	return findings
}

// jsonTypes are the types in JSON of the models' types.
var jsonTypes = map[string][]string{
	"string": {"string"}, "blob": {"string"}, "boolean": {"boolean"}, "timestamp": {"number"},
	"integer": {"number"}, "long": {"number"}, "float": {"number"}, "double": {"number"},
}

func jsonType(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case json.Number:
		return "number"
	case bool:
		return "boolean"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "null"
}
