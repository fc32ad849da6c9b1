package skyserve_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"unicode"
)

// retiredIdentifiers are words that no identifier contains, with the word to use. They
// were names of this project's own; docs/glossary.md has those of the field. An
// identifier is split at its capitals: reconcileKeeper contains keeper.
var retiredIdentifiers = map[string]string{
	"abroad":     "other cloud",
	"asks":       "confirm, requires, alerts",
	"climb":      "ascent",
	"dear":       "costlier",
	"edition":    "generation",
	"elsewhere":  "other, another",
	"eyes":       "prober",
	"flight":     "in flight",
	"foresee":    "forecast",
	"foreseen":   "forecast",
	"foundation": "prerequisite",
	"going":      "terminating",
	"handover":   "enrolment, config delivery",
	"hear":       "receive",
	"heard":      "received",
	"heed":       "reload",
	"heeded":     "reloaded",
	"house":      "layout",
	"inlet":      "reader",
	"instead":    "replaces",
	"keeper":     "reconciler",
	"lane":       "track",
	"laying":     "placement",
	"leaving":    "draining, terminating",
	"lend":       "donate",
	"lent":       "donated",
	"likeness":   "template",
	"meaner":     "lower",
	"news":       "gossip, update",
	"outlook":    "forecast",
	"patience":   "timeout",
	"pulse":      "tick",
	"relieved":   "drained",
	"rhythm":     "interval",
	"said":       "reported",
	"saying":     "message",
	"seam":       "splice",
	"seat":       "bundle, leader",
	"seated":     "bundled",
	"shelf":      "buffer pool",
	"sight":      "observation",
	"sighting":   "observation",
	"spoken":     "transcript",
	"stray":      "diverges",
	"strays":     "diverges",
	"summit":     "peak, best",
	"surplus":    "excess",
	"tenure":     "term, leadership",
	"told":       "reported",
	"verdict":    "action, result",
	"witness":    "attestation",
	"wording":    "message",
}

// retiredTexts are words and phrases that nobody who reads the program, its docs or its
// comments should have to guess the meaning of.
var retiredTexts = []struct{ pattern, use string }{
	{`abroad`, "in another cloud or region"},
	{`as far as we know`, "known weaknesses"},
	{`asks? for attention`, "alerts"},
	{`balancers take it up`, "configuration is reloaded"},
	{`by way of which`, "through"},
	{`call(s|ed)? back`, "reclaim"},
	{`carr(y|ies|ied) (it|them) out`, "apply"},
	{`dear(er|est)?`, "costlier"},
	{`foresee(n|s|ing)?`, "forecast, expect"},
	{`goes on with|go on with`, "continues, resumes"},
	{`hand(-| )?over`, "enrolment, config delivery"},
	{`heed(s|ed|ing)?`, "reload"},
	{`hold the figures`, "pause"},
	{`house_test`, "layout_test"},
	{`how (it|a service|they) (does|do)`, "status"},
	{`is told`, "receives, is informed"},
	{`keepers?`, "reconciler"},
	{`laying`, "placement"},
	{`left over`, "remaining"},
	{`lends?|lent`, "donate, donated"},
	{`meaner`, "lower"},
	{`of which (that|none|it|they|one|some|all|this)`, "a second sentence"},
	{`patience`, "timeout"},
	{`relieved`, "drained"},
	{`seated`, "has its bundle"},
	{`sightings?`, "observation"},
	{`takes? it (away|up)`, "interrupts, reloads"},
	{`tenures?`, "term"},
	{`the rooms?`, "the packages"},
	{`what (it|the process|the processes) (says|say|said)`, "logs, output"},
}

// allowedWords are the exceptions, each with its reason: a path or its beginning, the
// word, and why it stays.
var allowedWords = []struct{ path, word, reason string }{
	{"words_test.go", "*", "the list itself"},
	{"CHANGELOG.md", "*", "says what was renamed"},
	{"internal/sim/", "patience", "a former name of a setting that is still accepted"},
	{"internal/store/lease.go", "tenure", "a key of stored leases"},
}

// TestRetiredWords keeps private language out of identifiers, comments, messages and
// docs. Each finding names the place, the word and what to write.
func TestRetiredWords(t *testing.T) {
	findings := map[string][]string{}
	report := func(path, word, at, use string) {
		for _, a := range allowedWords {
			if strings.HasPrefix(path, a.path) && (a.word == "*" || a.word == word) {
				return
			}
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		findings[dir] = append(findings[dir], fmt.Sprintf("%s: %q: write %s", at, word, use))
	}
	// Patterns begin with letters: without \b and (?i), regexp searches for those letters alone, ten times as fast.
	type pattern struct{ letters, whole *regexp.Regexp }
	texts := make([]pattern, len(retiredTexts))
	for i, r := range retiredTexts {
		texts[i] = pattern{regexp.MustCompile(r.pattern), regexp.MustCompile(`\b(?:` + r.pattern + `)\b`)}
	}
	checkText := func(path string, at func() string, text string) {
		text = strings.ToLower(text)
		for i, re := range texts {
			if !re.letters.MatchString(text) {
				continue
			}
			if m := re.whole.FindString(text); m != "" {
				report(path, m, at(), retiredTexts[i].use)
			}
		}
	}
	for _, path := range sourceFiles(t) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(path) != ".go" {
			for i, line := range strings.Split(string(content), "\n") {
				checkText(path, func() string { return fmt.Sprintf("%s:%d", path, i+1) }, line)
			}
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, content, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range declaredNames(file) {
			words := splitName(name.Name)
			for i, w := range words {
				if use, ok := retiredIdentifiers[w]; ok && (w != "flight" || i == 0 || words[i-1] != "in") {
					report(path, w, fmt.Sprintf("%v %s", files.Position(name.Pos()), name.Name), use)
				}
			}
		}
		// A phrase may go over the end of a comment's line: neighbouring lines are one text.
		var s scanner.Scanner
		tokens := files.AddFile(path, -1, len(content))
		s.Init(tokens, content, nil, scanner.ScanComments)
		comment, begins := "", token.NoPos
		place := func(pos token.Pos) func() string { return func() string { return files.Position(pos).String() } }
		for {
			pos, tok, lit := s.Scan()
			if tok == token.COMMENT {
				if comment == "" {
					begins = pos
				}
				comment += " " + strings.TrimSpace(strings.TrimPrefix(lit, "//"))
				continue
			}
			if comment != "" && (tok != token.SEMICOLON || lit != "\n") {
				checkText(path, place(begins), comment)
				comment = ""
			}
			if tok == token.STRING {
				checkText(path, place(pos), lit)
			}
			if tok == token.EOF {
				break
			}
		}
	}
	dirs := make([]string, 0, len(findings))
	for d := range findings {
		dirs = append(dirs, d)
	}
	sort.Strings(dirs)
	for _, d := range dirs {
		t.Errorf("%s: %d retired words\n\t%s", d, len(findings[d]), strings.Join(findings[d], "\n\t"))
	}
}

// TestTestNamesAreShort keeps the names of tests readable in the output of go test.
func TestTestNamesAreShort(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func (?:Test|Fuzz|Benchmark)(\w+)\(`)
	for _, path := range sourceFiles(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllStringSubmatch(string(content), -1) {
			if len(m[1]) >= 50 {
				t.Errorf("%s: the test name %s has %d letters, want fewer than 50", path, m[1], len(m[1]))
			}
		}
	}
}

// TestWordChecksDetectViolations proves that the checks above can fail.
func TestWordChecksDetectViolations(t *testing.T) {
	if got := splitName("reconcileKeeperHTTP2_now"); !slices.Equal(got, []string{"reconcile", "keeper", "http2", "now"}) {
		t.Errorf("splitName gives %q", got)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "p.go", "package p\nfunc f(told int) (lent bool) { seat := told; for news := range seat { _ = news }; return }", 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, n := range declaredNames(file) {
		if _, retired := retiredIdentifiers[n.Name]; retired {
			found = append(found, n.Name)
		}
	}
	if want := []string{"told", "lent", "seat", "news"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	for _, r := range retiredTexts {
		if _, err := regexp.Compile(r.pattern); err != nil {
			t.Errorf("pattern %q: %v", r.pattern, err)
		}
	}
}

// declaredNames returns the identifiers that a file declares, in order.
func declaredNames(file *ast.File) []*ast.Ident {
	var names []*ast.Ident
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			names = append(names, n.Names...)
		case *ast.Field:
			names = append(names, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, l := range n.Lhs {
					if id, ok := l.(*ast.Ident); ok {
						names = append(names, id)
					}
				}
			}
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					names = append(names, id)
				}
			}
		}
		return true
	})
	return names
}

// splitName returns the words of an identifier in lower case: "letGoHTTP2" has let, go, http2.
func splitName(name string) []string {
	var words []string
	runes := []rune(name)
	start := 0
	for i := 1; i <= len(runes); i++ {
		boundary := i == len(runes) || runes[i] == '_' || runes[i-1] == '_' ||
			unicode.IsUpper(runes[i]) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if boundary {
			if w := strings.Trim(strings.ToLower(string(runes[start:i])), "_"); w != "" {
				words = append(words, w)
			}
			start = i
		}
	}
	return words
}

// sourceFiles returns the paths of the module's texts: Go, docs, templates, scripts and examples.
func sourceFiles(t *testing.T) []string {
	t.Helper()
	kinds := []string{".go", ".md", ".txtar", ".yaml", ".yml", ".sh", ".tmpl", ".service", ".html", ".json"}
	var paths []string
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(name, ".") && name != ".ci" || name == "bin" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if slices.Contains(kinds, filepath.Ext(name)) || name == "Makefile" || filepath.Dir(filepath.ToSlash(path)) == ".ci" {
			paths = append(paths, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
