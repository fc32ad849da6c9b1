package skyserve_test

import (
	"flag"
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

var updateContents = flag.Bool("update", false, "write the lists of contents of long pages")

// contentsPrefix begins the line with a page's contents. It follows the first paragraph.
const contentsPrefix = "On this page: "

// A long page begins with links to its sections.
func TestLongPagesListTheirSections(t *testing.T) {
	const long = 1800 // words
	section := regexp.MustCompile(`(?m)^## (.+)$`)
	listed := 0
	for page, text := range markdown(t) {
		sections := section.FindAllStringSubmatch(text, -1)
		if filepath.Dir(page) != "docs" || page == "docs/cli.md" || len(strings.Fields(text)) < long || len(sections) < 5 {
			continue
		}
		listed++
		var links []string
		for _, m := range sections {
			links = append(links, "["+m[1]+"](#"+anchor(m[1])+")")
		}
		want := contentsPrefix + strings.Join(links, " · ")
		found := regexp.MustCompile(`(?m)^` + contentsPrefix + `.*$`).FindString(text)
		if found == want {
			continue
		}
		if !*updateContents {
			t.Errorf("%s lists its sections as\n%s\nwant\n%s\nrun go test . -run %s -update", page, found, want, t.Name())
			continue
		}
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		changed := string(raw)
		if found != "" {
			changed = strings.Replace(changed, found, want, 1)
		} else {
			title, rest, _ := strings.Cut(changed, "\n\n")
			first, rest, _ := strings.Cut(rest, "\n\n")
			changed = title + "\n\n" + first + "\n\n" + want + "\n\n" + rest
		}
		if err := os.WriteFile(page, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if listed < 5 {
		t.Errorf("%d pages were checked: the test no longer finds them", listed)
	}
}
