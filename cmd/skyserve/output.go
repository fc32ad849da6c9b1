package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/theory/jsonpath"

	"skyserve/internal/printable"
)

// Output formats of commands.
const (
	outputText = "text" // a table for people
	outputWide = "wide" // the table with more columns
	outputName = "name" // one name a line
	outputJSON = "json"
	outputYAML = "yaml"
	outputPath = "jsonpath="
	outputHTML = "html" // a page

	// outputTable is the former name of outputText.
	outputTable = "table"
)

// listFormats are the formats of commands that list things.
var listFormats = []string{outputText, outputWide, outputName, outputJSON, outputYAML, outputPath + "PATH"}

// resultFormats are the formats of commands that print the result of an action. The name is that of what was changed.
var resultFormats = []string{outputText, outputName, outputJSON, outputYAML, outputPath + "PATH"}

// documentFormats are the formats of commands that print one document.
var documentFormats = []string{outputText, outputJSON, outputYAML, outputPath + "PATH"}

// outputFlags are the flags for the output of a command.
type outputFlags struct {
	output    string
	noHeaders bool
	// formats are the values of -o; nil = listFormats.
	formats []string
}

// registerList registers -o and --no-headers of a command that lists things. others are formats of this command alone.
func (f *outputFlags) registerList(cmd *cobra.Command, others ...string) {
	f.register(cmd, slices.Concat(listFormats, others))
	cmd.Flags().BoolVar(&f.noHeaders, "no-headers", false, "print only the rows of the table")
}

// registerDocument registers -o of a command that prints one document.
func (f *outputFlags) registerDocument(cmd *cobra.Command) { f.register(cmd, documentFormats) }

// registerResult registers -o of a command that prints the result of an action. others are formats of this command alone.
func (f *outputFlags) registerResult(cmd *cobra.Command, others ...string) {
	f.register(cmd, slices.Concat(resultFormats, others))
}

func (f *outputFlags) register(cmd *cobra.Command, formats []string) {
	f.formats = formats
	last := len(formats) - 1
	cmd.Flags().StringVarP(&f.output, "output", "o", formats[0], "output format: "+strings.Join(formats[:last], ", ")+" or "+formats[last])
	completeFlag(cmd, "output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var words []string
		for _, format := range formats {
			words = append(words, strings.TrimSuffix(format, "PATH"))
		}
		return words, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
}

// hintPath follows an error of a path of jsonpath=.
const hintPath = "write a path such as jsonpath='{[*].id}' or jsonpath='$.regions[*].name'; 'docs/json.md' lists the keys"

// parse parses the flags. A path of jsonpath= may be written as in kubectl ({.regions[*].name}) or as in RFC 9535
// ($.regions[*].name).
func (f *outputFlags) parse() (outputFormat, error) {
	format := outputFormat{kind: f.output, noHeaders: f.noHeaders}
	expression, isPath := strings.CutPrefix(f.output, outputPath)
	formats := f.formats
	if formats == nil {
		formats = listFormats
	}
	switch {
	case f.output == outputTable && slices.Contains(formats, outputText) || f.output == "":
		format.kind = outputText
		return format, nil
	case !isPath && slices.Contains(formats, f.output):
		return format, nil
	case !isPath:
		return outputFormat{}, usage(fmt.Errorf("-o %s: must be one of %s", f.output, strings.Join(formats, ", ")), didYouMean(f.output, formats))
	}
	query, opened := strings.CutPrefix(strings.TrimSpace(expression), "{")
	query, closed := strings.CutSuffix(query, "}")
	if opened != closed { // otherwise the rest of a key that a brace ends would be taken for a whole one, and nothing printed
		return outputFormat{}, usage(fmt.Errorf("-o jsonpath=%s: a brace is missing", expression), hintPath)
	}
	if !strings.HasPrefix(query, "$") {
		query = "$" + query
	}
	path, err := jsonpath.Parse(query)
	if err != nil {
		return outputFormat{}, usage(fmt.Errorf("-o jsonpath=%s: %w", expression, err), hintPath)
	}
	return outputFormat{kind: outputPath, path: path, expression: expression, noHeaders: f.noHeaders}, nil
}

// outputFormat is the parsed output format of a command.
type outputFormat struct {
	kind       string
	path       *jsonpath.Path // of outputPath
	expression string         // the path as written
	noHeaders  bool
}

// isDocument reports whether the format prints the document instead of a table or names.
func (f outputFormat) isDocument() bool {
	return f.kind == outputJSON || f.kind == outputYAML || f.kind == outputPath
}

// isResult reports whether the format prints a result instead of text for people.
func (f outputFormat) isResult() bool { return f.isDocument() || f.kind == outputName }

// writeResult prints the result of an action: the document, or the name of what was changed.
func (f outputFormat) writeResult(w io.Writer, name string, document any) error {
	return afterAction(f.writeNamed(w, name, document))
}

// writeNamed prints a document, or its name.
func (f outputFormat) writeNamed(w io.Writer, name string, document any) error {
	if f.kind == outputName {
		_, err := fmt.Fprintln(w, printable.Line(name))
		return err
	}
	return f.writeDocument(w, document)
}

// afterAction returns the error of printing the result of an action. Exit code 2 for an unknown key would claim that
// nothing was changed.
func afterAction(err error) error {
	if unknown := (*unknownKeyError)(nil); errors.As(err, &unknown) {
		return failed(unknown, "the action itself is done; "+unknown.hint())
	}
	return err
}

// writeItem prints one of several documents: in YAML as a document of its own. A path is applied to each.
func (f outputFormat) writeItem(w io.Writer, name string, document any) error {
	if f.kind == outputYAML {
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
	}
	err := f.writeNamed(w, name, document)
	unknown := (*unknownKeyError)(nil)
	if path := strings.Replace(f.expression, "[*]", "", 1); errors.As(err, &unknown) && strings.HasPrefix(strings.TrimLeft(f.expression, " {$"), "[*]") {
		return usage(unknown, fmt.Sprintf("the path is applied to each document: write jsonpath='%s'", path))
	}
	return err
}

// isTable reports whether the format is a table for people.
func (f outputFormat) isTable() bool { return f.kind == outputText || f.kind == outputWide }

// list is the table of what a command lists.
type list struct {
	titles []string
	// wide are the titles of the further columns of -o wide.
	wide []string
	// fitting says what a terminal which is too narrow for all columns omits and cuts; -o wide has everything.
	fitting printable.Fitting
	rows    []listRow
}

// listRow is a row of a list.
type listRow struct {
	// name identifies the thing in -o name. It is empty for rows that are no thing, such as a sum.
	name  string
	cells []string
	wide  []string
}

// write prints a list: the document, one name a line, or a table with a dash for empty cells of a thing.
func (f outputFormat) write(w io.Writer, document any, l list) error {
	if f.isDocument() {
		return f.writeDocument(w, document)
	}
	if f.kind == outputName {
		var names strings.Builder
		for _, row := range l.rows {
			if row.name != "" {
				names.WriteString(printable.Line(row.name) + "\n")
			}
		}
		_, err := io.WriteString(w, names.String())
		return err
	}
	t := printable.NewTable(w)
	f.addRows(t, l)
	return t.Flush()
}

// addRows adds the titles, unless they are omitted, and the rows of a list to a table.
func (f outputFormat) addRows(t *printable.Table, l list) {
	titles := slices.Clone(l.titles)
	if f.kind == outputWide {
		titles = append(titles, l.wide...)
	} else {
		t.Fit(l.fitting)
	}
	if f.noHeaders {
		t.HideTitles(titles...)
	} else {
		t.Row(titles...)
	}
	for _, row := range l.rows {
		cells := slices.Clone(row.cells)
		if f.kind == outputWide {
			cells = append(cells, row.wide...)
		}
		if row.name != "" {
			for i, c := range cells {
				cells[i] = cmp.Or(c, "-")
			}
		}
		t.Row(cells...)
	}
}

// writeJSON prints a document in one line, on a terminal indented.
func writeJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if isTerminal(w) {
		encoder.SetIndent("", "  ")
	}
	if err := encoder.Encode(document); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// writeDocument prints a document: JSON, YAML, or the values that the path selects, one a line, texts without quotes.
func (f outputFormat) writeDocument(w io.Writer, document any) error {
	if f.kind == outputJSON {
		return writeJSON(w, document)
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
	if unknown := (*unknownKeyError)(nil); errors.As(checkKeys(f.expression, f.path, document, value), &unknown) {
		return usage(unknown, unknown.hint())
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
