package skyserve_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// What docs/failures.md promises is held by tests that there are.
func TestPromisesAreHeldByTests(t *testing.T) {
	guide, err := os.ReadFile("docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
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
	names := testName.FindAllStringSubmatch(string(guide), -1)
	if len(names) < 20 {
		t.Errorf("docs/failures.md names %d tests", len(names))
	}
	for _, name := range names {
		if !strings.Contains(all.String(), "\nfunc "+name[1]+"(") {
			t.Errorf("docs/failures.md names %s, which there is not", name[1])
		}
	}
}
