package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/printable"
	"skyserve/internal/testkit"
)

// mayBypass lists, for each way to bypass the printable.Writers of stdout and stderr, the files that
// may use it.
var mayBypass = map[string][]string{
	`\bos\.(Stdout|Stderr)\b`:         {"cmd/skyserve/root.go", "lbd/proxy/crash.go"},
	`\bfmt\.Print(f|ln)?\(`:           {"examples/clouds/emulator/main.go"},
	`\bprintable\.(Raw|Unwrap)\(`:     {"cmd/skyserve/terminal.go", "cmd/skyserve/paint.go"},
	`\bunguarded\(`:                   {"cmd/skyserve/terminal.go", "cmd/skyserve/paint.go", "cmd/skyserve/top.go", "cmd/skyserve/top_print.go", "cmd/skyserve/forecast.go", "cmd/skyserve/forecast_term.go"},
	`\\x1b|\\033|\\u001b|"[^"\n]*\\r`: {"cmd/skyserve/terminal.go", "cmd/skyserve/paint.go"},
}

// All output goes through the writers that escape control sequences.
func TestOutputGoesThroughPrintableWriters(t *testing.T) {
	testkit.Slow(t)
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for way, may := range mayBypass {
			inVerbs := strings.HasPrefix(name, "cmd/")
			if strings.Contains(way, "x1b") && !inVerbs {
				continue // a protocol, or the dashboard
			}
			if found := regexp.MustCompile(way).Find(text); found != nil && !slices.Contains(may, filepath.ToSlash(name)) {
				t.Errorf("%s bypasses the printable.Writers: %s", name, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A log has one line per record and no control sequences, in both formats, whatever clients and
// engines send.
func TestLogsEscapeUntrustedText(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := newLog(printable.NewWriter(&out), slog.LevelInfo, format)
		if err != nil {
			t.Fatal(err)
		}
		log.Error(hostile, "request", hostile, hostile, "key", "err", errors.New(hostile), "model", []string{hostile})
		line := out.String()
		if where := harmful(line); where != "" || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
			t.Errorf("%s: %s in %q", format, where, line)
		}
		if format == "json" && !json.Valid(out.Bytes()) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

// A progress line that is longer than the terminal is cut: the next one could replace only its last row.
func TestProgressLinesHaveOneRow(t *testing.T) {
	var out bytes.Buffer
	redrawLine(&out, strings.Repeat("é", 100))
	if got, want := out.String(), clearLine+strings.Repeat("é", defaultColumns-1); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
