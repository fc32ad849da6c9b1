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

// testName is a test in backquotes, TestScripts with a script.
var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([a-z0-9_]+))?`")

// Every test and every test script that a page names exists.
func TestTestsNamedInDocsExist(t *testing.T) {
	names := testsOf(t, []string{"./..."})
	checked := 0
	for page, text := range markdown(t) {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if checked++; !slices.Contains(names, m[1]) {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
			if m[1] != "TestScripts" || m[2] == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join("cmd/skyserve/testdata/script", m[2]+".txtar")); err != nil {
				t.Errorf("%s names the test script %s: %v", page, m[2], err)
			}
		}
	}
	if checked < 400 {
		t.Fatalf("%d tests are named: the test no longer finds them", checked)
	}
}

// sourceFileName is a Go file in a package comment, such as sse.go, strategy_*.go or lbd/proxy/earlystream.go.
var sourceFileName = regexp.MustCompile(`[A-Za-z0-9_/*]+\.go\b`)

// Every file that the comment of a package names exists: a name is relative to the package, a path to the module.
func TestFilesNamedInPackageCommentsExist(t *testing.T) {
	checked := 0
	for _, path := range sourceFiles(t) {
		if filepath.Base(path) != "doc.go" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range sourceFileName.FindAllString(string(text), -1) {
			pattern := name
			if !strings.Contains(name, "/") {
				pattern = filepath.Join(filepath.Dir(path), name)
			}
			checked++
			if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which does not exist (%v)", path, name, err)
			}
		}
	}
	if checked < 200 {
		t.Fatalf("%d files are named: the test no longer finds them", checked)
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

// testsByFile are the names of tests and benchmarks that testsOf has read, by path.
var testsByFile = map[string][]string{}

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
			if _, read := testsByFile[path]; !read {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				testsByFile[path] = []string{}
				for _, m := range testFunction.FindAllStringSubmatch(string(text), -1) {
					testsByFile[path] = append(testsByFile[path], m[1])
				}
			}
			names = append(names, testsByFile[path]...)
			return nil
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
