package skyserve_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	linkRE    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingRE = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	fenceRE   = regexp.MustCompile("(?ms)^```.*?^```")
)

// markdown returns the text of every Markdown file of the module, without fenced code, by its path.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "dist") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = fenceRE.ReplaceAllString(string(text), "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// anchor returns the anchor that GitHub gives a heading.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

// Every relative link leads to a file that exists, and every anchor to a heading.
func TestLinksInDocsWork(t *testing.T) {
	pages, links := markdown(t), 0
	for page, text := range pages {
		for _, m := range linkRE.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			target, fragment, _ := strings.Cut(m[1], "#")
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, m[1])
				continue
			}
			if fragment == "" {
				continue
			}
			found := false
			for _, h := range headingRE.FindAllStringSubmatch(pages[path], -1) {
				found = found || anchor(h[1]) == fragment
			}
			if !found {
				t.Errorf("%s links to %s: %s has no such heading", page, m[1], path)
			}
		}
	}
	if len(pages) < 20 || links < 100 {
		t.Fatalf("%d pages with %d links were checked: the test no longer finds them", len(pages), links)
	}
}

// The index of the documentation names every page.
func TestEveryPageIsIndexed(t *testing.T) {
	pages := markdown(t)
	for page := range pages {
		if name, ok := strings.CutPrefix(page, "docs/"); ok && name != "README.md" && !strings.Contains(pages["docs/README.md"], "("+name) {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}
