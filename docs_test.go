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
