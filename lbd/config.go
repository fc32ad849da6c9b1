package lbd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"skyserve/internal/service"
)

// maxConfig is the maximum size of a configuration file: thousands of replicas.
const maxConfig = 4 << 20

// ReadConfig reads a balancer's configuration, YAML or JSON. An unknown key is an error. Errors name
// the file and the position, but quote no line, because the file contains tokens.
func ReadConfig(file string) (service.BalancerConfig, error) {
	f, err := os.Open(file)
	if err != nil {
		return service.BalancerConfig{}, fmt.Errorf("reading configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return service.BalancerConfig{}, fmt.Errorf("reading configuration: %w", err)
	}
	if len(data) > maxConfig {
		return service.BalancerConfig{}, fmt.Errorf("reading configuration %s: must have at most %d bytes", file, maxConfig)
	}
	return parseConfig(file, data)
}

func parseConfig(file string, data []byte) (cfg service.BalancerConfig, err error) {
	defer func() {
		// The parser panics on some unusual texts.
		if recover() != nil {
			cfg, err = service.BalancerConfig{}, fmt.Errorf("reading %s: invalid YAML (the parser reported no line)", file)
		}
	}()
	err = decodeConfig(data, &cfg)
	if errors.Is(err, io.EOF) || (err == nil && len(data) == 0) {
		return cfg, fmt.Errorf("reading %s: the file is empty", file)
	}
	var ye yaml.Error
	var duration *durationError
	var wait *zeroWaitError
	switch {
	case err == nil:
		return cfg, nil
	case errors.As(err, &wait):
		return service.BalancerConfig{}, fmt.Errorf("reading %s:%d:%d: %w", file, wait.at.Line, wait.at.Column, wait)
	case errors.As(err, &duration):
		return service.BalancerConfig{}, fmt.Errorf("reading %s: %w", duration.position(file, data), duration)
	case !errors.As(err, &ye):
		return service.BalancerConfig{}, fmt.Errorf("reading %s: %w", file, err)
	}
	position := file
	if t := ye.GetToken(); t != nil && t.Position != nil {
		position = fmt.Sprintf("%s:%d:%d", file, t.Position.Line, t.Position.Column)
	}
	return service.BalancerConfig{}, fmt.Errorf("reading %s: %s", position, strings.Replace(ye.GetMessage(), "unknown field", "unknown key", 1))
}

// decodeConfig decodes a configuration. Keys of the section balancer may have their names in service.yaml or, as in
// files that the controller writes, their former names.
func decodeConfig(data []byte, cfg *service.BalancerConfig) error {
	options := []yaml.DecodeOption{yaml.Strict(), yaml.CustomUnmarshaler(readDuration)}
	file, err := parser.ParseBytes(data, 0)
	if err != nil || len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return yaml.UnmarshalWithOptions(data, cfg, options...)
	}
	ast.Walk(keyRenamer(service.FormerKeys(reflect.TypeFor[service.BalancerSpec]())), file.Docs[0].Body)
	if err := yaml.NodeToValue(file.Docs[0].Body, cfg, options...); err != nil {
		return err
	}
	return checkZeroWait(file.Docs[0].Body, cfg.Balancer.MaxWait)
}

// zeroWaitError is the error of a maximum wait of 0, which would mean the default.
type zeroWaitError struct{ at *token.Position }

// Error names the key.
func (*zeroWaitError) Error() string { return "balancer.max_wait: must be at least 1ms, got 0s" }

// checkZeroWait rejects a maximum wait of 0 that a document contains. Files that skyserve writes for the default have none.
func checkZeroWait(document ast.Node, wait time.Duration) error {
	if wait != 0 {
		return nil
	}
	path, err := yaml.PathString("$.balancer.max_wait")
	if err != nil {
		return err
	}
	n, err := path.FilterNode(document)
	if err != nil || n == nil || n.Type() == ast.NullType {
		return nil //nolint:nilerr // the document has no such key
	}
	return &zeroWaitError{n.GetToken().Position}
}

// keyRenamer replaces keys of a document.
type keyRenamer map[string]string

// Visit implements ast.Visitor.
func (r keyRenamer) Visit(n ast.Node) ast.Visitor {
	if pair, ok := n.(*ast.MappingValueNode); ok {
		if key, ok := pair.Key.(*ast.StringNode); ok && r[key.Value] != "" {
			key.Value = r[key.Value]
		}
	}
	return r
}

// durationError is the error of a text that is no duration. The decoder does not add its position.
type durationError struct{ text string }

// Error names the text.
func (e *durationError) Error() string {
	return fmt.Sprintf("must be a duration such as 110ms or 5s, got %q", e.text)
}

// position returns the file with the line and column of the first value with this text.
func (e *durationError) position(file string, data []byte) string {
	doc, err := parser.ParseBytes(data, 0)
	if err != nil || len(doc.Docs) == 0 || doc.Docs[0].Body == nil {
		return file
	}
	f := valueFinder{text: e.text}
	ast.Walk(&f, doc.Docs[0].Body)
	if f.found == nil {
		return file
	}
	return fmt.Sprintf("%s:%d:%d", file, f.found.Line, f.found.Column)
}

// valueFinder finds the first value of a key with a text.
type valueFinder struct {
	text  string
	found *token.Position
}

// Visit implements ast.Visitor.
func (f *valueFinder) Visit(n ast.Node) ast.Visitor {
	if pair, ok := n.(*ast.MappingValueNode); ok && f.found == nil {
		if t := pair.Value.GetToken(); t != nil && t.Value == f.text {
			f.found = t.Position
		}
	}
	return f
}

// readDuration parses a duration such as 110ms or, as encoded in JSON, a number of nanoseconds.
func readDuration(d *time.Duration, raw []byte) error {
	text := strings.Trim(strings.TrimSpace(string(raw)), `"'`)
	if ns, err := strconv.ParseInt(text, 10, 64); err == nil {
		*d = time.Duration(ns)
		return nil
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return &durationError{text}
	}
	*d = parsed
	return nil
}
