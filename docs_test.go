package skyserve_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

var testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// Every test that a guide names exists.
func TestTestsNamedInDocsExist(t *testing.T) {
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for guide, minNames := range map[string]int{"docs/engines.md": 2, "docs/failures.md": 20, "docs/security.md": 8} {
		text, err := os.ReadFile(guide)
		if err != nil {
			t.Fatal(err)
		}
		names := testName.FindAllStringSubmatch(string(text), -1)
		if len(names) < minNames {
			t.Errorf("%s names %d tests, want at least %d", guide, len(names), minNames)
		}
		for _, name := range names {
			if !strings.Contains(all.String(), "\nfunc "+name[1]+"(") {
				t.Errorf("%s names %s, which does not exist", guide, name[1])
			}
		}
	}
}

// Commands of this repository in the text of a page: in backquotes, or on an indented line.
var (
	goTestCommand = regexp.MustCompile("(?m)(?:`|^    )(go test [^`\n]+)")
	makeCommand   = regexp.MustCompile("(?m)(?:`|^    )make ([a-z][a-z-]*)")
	makeTarget    = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	testFunction  = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)
)

// Every `go test -run PATTERN` and `-bench PATTERN` that a page names selects a test or benchmark of its packages.
func TestGoTestCommandsInDocsSelectTests(t *testing.T) {
	checked := 0
	for page, text := range markdown(t) {
		for _, m := range goTestCommand.FindAllStringSubmatch(text, -1) {
			packages, patterns := goTestArguments(t, m[1])
			names := testsOf(t, packages)
			for _, pattern := range patterns {
				first, _, _ := strings.Cut(pattern, "/") // of a test; the rest selects subtests
				expression, err := regexp.Compile(first)
				if err != nil {
					t.Fatalf("%s: %s: %v", page, m[1], err)
				}
				if checked++; !slices.ContainsFunc(names, expression.MatchString) {
					t.Errorf("%s: %s: %q selects no test", page, m[1], pattern)
				}
			}
		}
	}
	if checked < 15 {
		t.Fatalf("%d patterns were checked: the test no longer finds them", checked)
	}
}

// goTestArguments returns the packages of a go test command and its patterns of tests and benchmarks, without '^$',
// which selects nothing on purpose.
func goTestArguments(t *testing.T, command string) (packages, patterns []string) {
	t.Helper()
	script, err := syntax.NewParser().Parse(strings.NewReader(command), "")
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	syntax.Walk(script, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok {
			return true
		}
		words, err := expand.Fields(nil, call.Args...)
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		for i, word := range words {
			switch {
			case strings.HasPrefix(word, "."):
				packages = append(packages, word)
			case (word == "-run" || word == "-bench") && i+1 < len(words) && words[i+1] != "^$" && words[i+1] != ".":
				patterns = append(patterns, words[i+1])
			}
		}
		return true
	})
	return packages, patterns
}

// testsOf returns the names of the tests and benchmarks of packages, which may end in /... .
func testsOf(t *testing.T, packages []string) (names []string) {
	t.Helper()
	for _, p := range packages {
		root, all := strings.CutSuffix(p, "/...")
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != root && !all:
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			for _, m := range testFunction.FindAllStringSubmatch(string(text), -1) {
				names = append(names, m[1])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// Every `make TARGET` that a page names exists.
func TestMakeTargetsInDocsExist(t *testing.T) {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(string(text), -1) {
		targets[m[1]] = true
	}
	for page, text := range markdown(t) {
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !targets[m[1]] {
				t.Errorf("%s: make %s: no such target", page, m[1])
			}
		}
	}
}
