package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/theory/jsonpath"
)

// Output formats of commands that list things.
const (
	outputText = "text" // a table for people
	outputWide = "wide" // the table with more columns
	outputName = "name" // one name a line
	outputJSON = "json"
	outputYAML = "yaml"
	outputPath = "jsonpath="
)

// listFormats is the help of -o.
const listFormats = "text, wide, name, json, yaml or jsonpath=PATH"

// outputFormat is a parsed -o of a command that lists things.
type outputFormat struct {
	kind string
	path *jsonpath.Path // of outputPath
}

// parseOutput parses -o. A path of jsonpath= may be written as in kubectl ({.regions[*].name}) or as in RFC 9535
// ($.regions[*].name).
func parseOutput(text string) (outputFormat, error) {
	expression, isPath := strings.CutPrefix(text, outputPath)
	if !isPath {
		if !slices.Contains([]string{outputText, outputWide, outputName, outputJSON, outputYAML}, text) {
			return outputFormat{}, usage(fmt.Errorf("-o %s: must be one of %s", text, listFormats), "")
		}
		return outputFormat{kind: text}, nil
	}
	query := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(expression), "{"), "}")
	if !strings.HasPrefix(query, "$") {
		query = "$" + query
	}
	path, err := jsonpath.Parse(query)
	if err != nil {
		return outputFormat{}, usage(fmt.Errorf("-o jsonpath=%s: %w", expression, err), "write a path such as jsonpath='{[*].id}' or jsonpath='$.regions[*].name'; 'docs/json.md' lists the keys")
	}
	return outputFormat{kind: outputPath, path: path}, nil
}

// isDocument reports whether the format prints the document instead of a table or names.
func (f outputFormat) isDocument() bool {
	return f.kind == outputJSON || f.kind == outputYAML || f.kind == outputPath
}

// writeDocument prints a document: JSON in one line, YAML, or the values that the path selects, one a line, texts
// without quotes.
func (f outputFormat) writeDocument(w io.Writer, document any) error {
	if f.kind == outputJSON {
		return json.NewEncoder(w).Encode(document)
	}
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	if f.kind == outputYAML {
		if text, err = yaml.JSONToYAML(text); err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	for _, selected := range f.path.Select(value) {
		line, isText := selected.(string)
		if !isText {
			text, err := json.Marshal(selected)
			if err != nil {
				return fmt.Errorf("encoding the output: %w", err)
			}
			line = string(text)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
