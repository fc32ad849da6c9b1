package skyserve_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// outsideFiles is the start of the names of the files with facts about a cloud that the cloud may change, each
// with its source.
const outsideFiles = "outside"

// outsideTexts match facts about a cloud: codes of quotas, host names, ids of price lists.
var outsideTexts = regexp.MustCompile(`\bL-[0-9A-F]{8}\b|\b[a-z0-9-]+\.(?:amazonaws|googleapis)\.com|\bservices/[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}\b`)

// shownCommand matches a command for the operator, which may contain the name of an API.
var shownCommand = regexp.MustCompile(`\b(?:gcloud services enable|aws iam create-service-linked-role)\b`)

// codeFields are the names of the functions, fields and variables of the providers that hold a code or a state
// from a cloud, and codeFunctions those that take a code as an argument.
var (
	codeFields    = []string{"codeOf", "GetCode", "GetStatus", "GetState", "code", "Code", "reason", "spelled"}
	codeFunctions = []string{"ignoreCode", "retryOnCode"}
)

// holdsCode reports whether an expression is a code from a cloud.
func holdsCode(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		e = call.Fun
	}
	switch e := e.(type) {
	case *ast.Ident:
		return slices.Contains(codeFields, e.Name)
	case *ast.SelectorExpr:
		return slices.Contains(codeFields, e.Sel.Name)
	}
	return false
}

// literalText returns the text of a string literal; empty for any other expression.
func literalText(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		text, _ := strconv.Unquote(l.Value)
		return text
	}
	return ""
}

// codesAt returns the codes of a cloud that a node contains as literals.
func codesAt(n ast.Node) []string {
	var literals []ast.Expr
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if (n.Op == token.EQL || n.Op == token.NEQ) && (holdsCode(n.X) || holdsCode(n.Y)) {
			literals = []ast.Expr{n.X, n.Y}
		}
	case *ast.SwitchStmt:
		if n.Tag == nil || !holdsCode(n.Tag) {
			return nil
		}
		for _, c := range n.Body.List {
			literals = append(literals, c.(*ast.CaseClause).List...) //nolint:errcheck // a switch has only cases
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(codeFunctions, f.Sel.Name) {
			literals = n.Args
		}
		if f, ok := n.Fun.(*ast.Ident); ok && slices.Contains(codeFunctions, f.Name) {
			literals = n.Args
		}
	case *ast.ValueSpec:
		if strings.HasPrefix(n.Names[0].Name, "code") {
			literals = n.Values
		}
	case *ast.CompositeLit:
		m, isMap := n.Type.(*ast.MapType)
		if !isMap {
			return nil
		}
		if v, ok := m.Value.(*ast.SelectorExpr); ok && v.Sel.Name == "CapacityScope" {
			for _, e := range n.Elts {
				literals = append(literals, e.(*ast.KeyValueExpr).Key) //nolint:errcheck // a map has only pairs
			}
		}
	}
	var codes []string
	for _, l := range literals {
		if text := literalText(l); text != "" {
			codes = append(codes, text)
		}
	}
	return codes
}

// outsideFacts returns the facts about a cloud that a file contains as literals.
func outsideFacts(f *ast.File) []string {
	var facts []string
	ast.Inspect(f, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		facts = append(facts, codesAt(n)...)
		if e, ok := n.(ast.Expr); ok {
			if text := literalText(e); outsideTexts.MatchString(text) && !shownCommand.MatchString(text) {
				facts = append(facts, text)
			}
		}
		return true
	})
	return facts
}

// Facts about a cloud stand in the tables of its provider, where each has its source.
func TestFactsAboutCloudsStandInTables(t *testing.T) {
	for _, dir := range []string{"provision/aws", "provision/gcp"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(filepath.Base(file), outsideFiles) {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, fact := range outsideFacts(f) {
				t.Errorf("%s contains %q: move it to %s.go or a table beside it, with its source", file, fact, outsideFiles)
			}
		}
	}
}

func TestFactsAboutCloudsAreFound(t *testing.T) {
	const src = `package p
import _ "cloud.googleapis.com/x"
var scopes = map[string]provision.CapacityScope{"QUOTA": 1}
const codeMissing = "MISSING"
var hint = "gcloud services enable a.googleapis.com"
func f() {
	if codeOf(err) == "A" || r.code != "" || "B" == r.code || name == "no code" {}
	switch i.GetStatus() { case "C", "D": }
	ignoreCode("E", err)
	use("https://ec2.amazonaws.com", "L-0123ABCD", "services/6F81-5844-456A")
}`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(outsideFacts(f), " "), "QUOTA MISSING A B C D E https://ec2.amazonaws.com L-0123ABCD services/6F81-5844-456A"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
