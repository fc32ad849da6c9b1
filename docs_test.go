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

// What these guides promise is held by tests that there are.
func TestPromisesAreHeldByTests(t *testing.T) {
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
	for guide, least := range map[string]int{"docs/failures.md": 20, "docs/security.md": 8} {
		text, err := os.ReadFile(guide)
		if err != nil {
			t.Fatal(err)
		}
		names := testName.FindAllStringSubmatch(string(text), -1)
		if len(names) < least {
			t.Errorf("%s names %d tests", guide, len(names))
		}
		for _, name := range names {
			if !strings.Contains(all.String(), "\nfunc "+name[1]+"(") {
				t.Errorf("%s names %s, which there is not", guide, name[1])
			}
		}
	}
}
