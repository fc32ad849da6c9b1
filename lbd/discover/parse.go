package discover

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"skyserve/internal/service"
)

const (
	maxFile     = 4 << 20 // thousands of replicas
	maxReplicas = 4096    // of one file: more than any balancer serves
	maxQuoted   = 100     // bytes of an invalid value in an error
)

// LineError is an error in a file of replicas.
type LineError struct {
	Line    int // from 1; 0 = unknown
	Problem string
	// NextStep is what an operator should do; may be empty.
	NextStep string
}

// Error returns the line and the problem.
func (e *LineError) Error() string {
	if e.Line == 0 {
		return e.Problem
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Problem)
}

func errAt(line int, format string, args ...any) error {
	return &LineError{Line: line, Problem: fmt.Sprintf(format, args...)}
}

// ParseFile parses a file of replicas: one URL a line, or a list in YAML or JSON whose entries are URLs or
// objects with the keys url, model and id. check validates a URL. Every error is a *LineError. A file without
// any entry is an error, because it may be half written; the list [] has no entries on purpose.
func ParseFile(data []byte, check func(url string) error) ([]service.ReplicaConfig, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var entries []entry
	var err error
	if isList(data) {
		entries, err = parseList(data)
	} else {
		entries, err = parseLines(data), nil
		if len(entries) == 0 {
			err = &LineError{Problem: "contains no replica", NextStep: "write one URL per line; without replicas, write []"}
		}
	}
	if err != nil {
		return nil, err
	}
	return checkEntries(entries, check)
}

// entry is a replica of a file with its line.
type entry struct {
	service.ReplicaConfig
	line int
}

// significant returns a line without its comment and the spaces around it.
func significant(line string) string {
	if at := strings.IndexByte(line, '#'); at == 0 || at > 0 && (line[at-1] == ' ' || line[at-1] == '\t') {
		line = line[:at]
	}
	return strings.TrimSpace(line)
}

// isList reports whether a file contains a list in YAML or JSON.
func isList(data []byte) bool {
	for line := range strings.Lines(string(data)) {
		if line = significant(line); line != "" {
			return strings.ContainsRune("[{-", rune(line[0]))
		}
	}
	return false
}

// parseLines parses a file with one URL a line.
func parseLines(data []byte) (entries []entry) {
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		if url := significant(line); url != "" {
			entries = append(entries, entry{service.ReplicaConfig{URL: url}, number})
		}
	}
	return entries
}

// parseList parses a list in YAML or JSON.
func parseList(data []byte) (entries []entry, err error) {
	defer func() {
		// The parser panics on some unusual texts.
		if recover() != nil {
			entries, err = nil, errAt(0, "invalid YAML (the parser reported no line)")
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, explainYAML(err)
	}
	if len(file.Docs) != 1 {
		return nil, errAt(0, "must contain one list, got %d documents", len(file.Docs))
	}
	list, ok := file.Docs[0].Body.(*ast.SequenceNode)
	if !ok {
		return nil, errAt(lineOf(file.Docs[0].Body), "must be a list of replicas")
	}
	for _, node := range list.Values {
		e := entry{line: lineOf(node)}
		if err := e.fill(node); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// fill sets an entry from a URL or an object.
func (e *entry) fill(node ast.Node) error {
	if url, ok := node.(*ast.StringNode); ok {
		e.URL = url.Value
		return nil
	}
	object, ok := node.(ast.MapNode)
	if !ok {
		return errAt(e.line, "must be a URL, or an object with the keys url, model and id")
	}
	fields := map[string]*string{"url": &e.URL, "model": &e.Model, "id": &e.ID}
	for values := object.MapRange(); values.Next(); {
		key := values.Key().String()
		if text, ok := values.Key().(*ast.StringNode); ok {
			key = text.Value
		}
		field := fields[key]
		if field == nil {
			return errAt(lineOf(values.Key()), "unknown key %s: must be url, model or id", quote(key))
		}
		text, ok := values.Value().(*ast.StringNode)
		if !ok {
			return errAt(lineOf(values.Value()), "%s: must be a string; put it in quotes", key)
		}
		*field = text.Value
	}
	return nil
}

func lineOf(node ast.Node) int {
	if node == nil || node.GetToken() == nil || node.GetToken().Position == nil {
		return 0
	}
	return node.GetToken().Position.Line
}

// explainYAML returns a parser's error with its line.
func explainYAML(err error) error {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		return errAt(0, "invalid YAML: %v", err)
	}
	line := 0
	if t := ye.GetToken(); t != nil && t.Position != nil {
		line = t.Position.Line
	}
	return errAt(line, "invalid YAML: %s", ye.GetMessage())
}

// checkEntries validates the URLs, and that no replica is listed twice.
func checkEntries(entries []entry, check func(string) error) ([]service.ReplicaConfig, error) {
	if len(entries) > maxReplicas {
		return nil, errAt(0, "must list at most %d replicas, got %d", maxReplicas, len(entries))
	}
	replicas := make([]service.ReplicaConfig, 0, len(entries))
	type key struct {
		id     string
		isName bool // a DNS name may have the id of a replica: the ids of its replicas also contain their addresses
	}
	urls, ids := map[string]int{}, map[key]int{}
	for _, e := range entries {
		e.URL = service.BaseURL(e.URL)
		if err := CheckURL(e.URL, check); err != nil {
			return nil, errAt(e.line, "%s", strings.TrimPrefix(err.Error(), "url: "))
		}
		if first, listed := urls[e.URL]; listed {
			return nil, errAt(e.line, "%s is already listed in line %d", quote(e.URL), first)
		}
		urls[e.URL] = e.line
		id := key{ReplicaID(e.ReplicaConfig), IsName(e.URL)}
		if first, listed := ids[id]; listed {
			return nil, &LineError{
				Line: e.line, Problem: fmt.Sprintf("id %s is already used in line %d", quote(id.id), first),
				NextStep: "write a list that gives each of them an id: - {url: URL, id: ID}",
			}
		}
		ids[id] = e.line
		replicas = append(replicas, e.ReplicaConfig)
	}
	return replicas, nil
}

// ReplicaID returns a replica's id, or the host of its URL if it has none.
func ReplicaID(r service.ReplicaConfig) string {
	if r.ID != "" {
		return r.ID
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return r.URL
	}
	return u.Host
}

// quote quotes a value of a file for an error, clipped.
func quote(text string) string {
	if len(text) > maxQuoted {
		text = string(bytes.ToValidUTF8([]byte(text[:maxQuoted]), nil)) + "..."
	}
	return fmt.Sprintf("%q", text)
}
