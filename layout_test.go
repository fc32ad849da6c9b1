package skyserve_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// mayImport lists which packages of this module a package may import. The standard
// library and other libraries are restricted by sdkPackages and impure below.
// ARCHITECTURE.md explains the layout; this table is authoritative.
var mayImport = map[string][]string{
	"internal/service":   {},
	"internal/catalogue": {"internal/service"},
	// durable writes, for every package that keeps files
	"internal/atomicfile": {},
	"internal/testkit":    {"internal/atomicfile"}, // selects tests; imported only by tests
	"internal/printable":  {},
	"internal/registry":   {},
	"internal/skypilot":   {"internal/service"},
	"internal/telemetry":  {"internal/printable", "internal/service"},
	"internal/store":      {"internal/atomicfile", "internal/printable", "internal/service", "internal/telemetry"},
	"internal/acme":       {"internal/identity", "internal/service", "internal/store"},
	// a certificate authority, imported only by tests
	"internal/acme/testca": {},
	// separate from telemetry, so that balancers do not depend on forecast
	"internal/telemetry/demand": {"internal/service", "internal/telemetry", "internal/sim/workload", "forecast"},
	// a service and its load, imported only by tests
	"internal/telemetry/demand/demandtest": {"internal/service", "internal/telemetry", "internal/telemetry/demand", "forecast"},
	"internal/sim/workload":                {"internal/service"},
	"internal/sim/barrier":                 {"lbd/bfio"},
	"internal/sim/load":                    {"internal/printable", "internal/service", "internal/telemetry", "internal/sim/workload"},
	"internal/sim/eval":                    {"internal/catalogue", "plan/chart", "internal/printable", "internal/service", "internal/sim/workload", "internal/sim/barrier", "lbd/bfio", "lbd/core", "internal/sim/engine", "lbd/policy", "lbd/prefix", "lbd/record", "internal/sim", "forecast", "plan"},
	"templates":                            {},

	"lbd/prefix":                 {"internal/service"},
	"lbd/bfio":                   {"internal/service"},
	"lbd/policy":                 {"internal/service", "lbd/bfio"},
	"internal/sim/engine":        {"internal/service"},
	"lbd/core":                   {"internal/service", "lbd/core/breaker", "lbd/core/concurrency", "lbd/core/fair", "lbd/core/pace", "lbd/policy", "lbd/prefix"},
	"lbd/core/breaker":           {},
	"lbd/core/concurrency":       {},
	"lbd/core/fair":              {},
	"lbd/core/pace":              {},
	"internal/sim":               {"internal/service", "internal/sim/workload", "lbd/core", "internal/sim/engine", "lbd/cachemap", "lbd/policy", "lbd/prefix"},
	"internal/sim/engine/server": {"internal/service", "internal/sim/engine", "internal/zmtp"},
	"lbd/proxy": {
		"internal/printable", "internal/service", "internal/telemetry", "lbd/buffer", "lbd/core", "lbd/oidc", "lbd/openai", "lbd/policy", "lbd/prefix", "lbd/quota", "lbd/record", "lbd/wire",
	},
	"lbd/batch":     {"internal/service", "internal/store", "internal/telemetry", "lbd/batch/job", "lbd/openai"},
	"lbd/batch/job": {"internal/service"},
	"lbd/buffer":    {},
	"lbd/oidc":      {"internal/service"},
	"lbd/openai":    {"internal/service", "lbd/buffer", "lbd/policy", "lbd/prefix"},
	"lbd/quota":     {"internal/printable", "internal/service", "internal/telemetry"},
	// ZeroMQ's protocol, for engines' cache events and for the simulated engine that publishes them
	"internal/zmtp":   {},
	"lbd/cacheevents": {"internal/printable", "internal/zmtp"},
	"lbd/cachemap":    {"lbd/prefix"},
	"lbd/record":      {"internal/service", "lbd/core", "lbd/policy", "lbd/prefix"},
	"lbd/explain":     {"internal/printable", "internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/record"},
	"lbd/probe":       {"internal/service", "lbd/core", "lbd/policy", "lbd/wire"},
	"lbd/wire":        {},
	"lbd/discover":    {"internal/printable", "internal/service", "lbd/wire"},
	"lbd/trace":       {"lbd/proxy"},
	"lbd/health":      {"internal/printable", "internal/service", "internal/telemetry", "lbd/core/breaker"},
	"lbd/peer":        {"internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/wire"},
	"lbd/admin":       {"internal/printable", "internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/proxy", "lbd/peer", "lbd/record"},
	"lbd": {
		"internal/acme", "internal/identity", "internal/printable", "internal/service", "internal/store", "internal/telemetry", "lbd/admin", "lbd/batch", "lbd/cacheevents", "lbd/cachemap", "lbd/core", "lbd/discover", "lbd/health", "lbd/oidc", "lbd/peer", "lbd/policy",
		"lbd/prefix", "lbd/probe", "lbd/proxy", "lbd/trace", "lbd/wire",
	},

	"forecast":   {"internal/service", "internal/sim/workload"},
	"plan/chart": {},
	"plan":       {"plan/chart", "internal/catalogue", "internal/printable", "internal/service", "forecast"},

	"provision":                      {"internal/catalogue", "internal/printable", "internal/service", "provision/record"},
	"provision/record":               {},
	"internal/testcloud/conformance": {"internal/service", "provision"},
	"internal/testcloud":             {"internal/service"},
	"internal/testcloud/replay":      {"provision/record"},
	"internal/testcloud/machines":    {"internal/identity", "internal/agent", "internal/testcloud"},
	"examples/clouds/emulator":       {"internal/testcloud", "internal/testcloud/machines"},
	"provision/aws":                  {"internal/catalogue", "internal/identity", "internal/agent", "internal/printable", "internal/service", "provision"}, // the line in which an agent publishes its key
	"provision/gcp":                  {"internal/catalogue", "internal/printable", "internal/service", "provision"},
	"provision/dns":                  {"internal/service", "provision"},
	"provision/cloud":                {"internal/catalogue", "internal/service", "provision"},
	"provision/remote":               {"internal/service", "provision"},
	"internal/identity":              {"internal/atomicfile", "internal/service"},
	"internal/agent":                 {"internal/atomicfile", "internal/identity", "internal/printable", "internal/telemetry"},        // the record of a start
	"provision/local":                {"internal/agent", "internal/atomicfile", "internal/identity", "internal/service", "provision"}, // the agent's configuration, and the line in which it publishes its key
	"provision/static":               {"internal/service", "provision"},

	"internal/controller/deploy": {"internal/atomicfile", "internal/controller", "internal/printable", "internal/identity", "internal/agent", "internal/registry", "internal/service", "internal/telemetry", "plan", "provision", "provision/cloud", "provision/dns", "provision/remote", "provision/static"},
	"internal/controller":        {"internal/atomicfile", "internal/catalogue", "internal/identity", "internal/printable", "internal/service", "internal/store", "internal/telemetry", "internal/telemetry/demand", "provision", "provision/local", "provision/static", "forecast", "plan", "templates"},
	"tui":                        {"internal/printable", "internal/service", "internal/telemetry"},
	"cmd/skyserve":               {"*"},
}

// purePackages depend only on their arguments: see impure and impureCalls.
var purePackages = []string{"internal/printable", "internal/service", "internal/skypilot", "internal/catalogue", "internal/sim/workload", "lbd/batch/job", "lbd/buffer", "lbd/core", "lbd/core/breaker", "lbd/core/concurrency", "lbd/core/fair", "lbd/core/pace", "lbd/openai", "lbd/policy", "lbd/prefix", "lbd/record", "internal/sim/barrier", "internal/sim/engine", "lbd/bfio", "lbd/cachemap", "internal/sim", "forecast", "plan", "plan/chart"}

// impure lists packages that a pure package may not import, directly or through other packages of this module.
var impure = []string{"net", "net/http", "os", "os/exec", "log", "log/slog", "math/rand", "syscall"}

// impureCalls lists functions that a pure package may not call: the clock and unseeded randomness.
var impureCalls = map[string][]string{
	"time":         {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"math/rand/v2": {"Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "N", "Uint32", "Uint32N", "Uint64", "Uint64N", "UintN", "Float32", "Float64", "ExpFloat64", "NormFloat64", "Perm", "Shuffle"},
}

// sdkPackages lists the only packages that may import a library.
var sdkPackages = map[string][]string{
	"github.com/aws/aws-sdk-go-v2":           {"provision/aws", "provision/dns"},
	"cloud.google.com/go":                    {"provision/gcp"},
	"github.com/nats-io":                     {"internal/store"},
	"github.com/caddyserver/certmagic":       {"internal/acme"},
	"github.com/mholt/acmez":                 {"internal/acme"},
	"github.com/coreos/go-oidc":              {"lbd/oidc"},
	"github.com/go-jose/go-jose":             {"lbd/oidc"},
	"github.com/libdns":                      {"internal/acme"},
	"go.uber.org/zap":                        {"internal/acme"},
	"github.com/letsencrypt/pebble":          {"internal/acme/testca"},
	"charm.land":                             {"tui"},
	"github.com/google/go-containerregistry": {"internal/registry"},
	"github.com/goccy/go-yaml":               {"internal/controller/deploy", "internal/service", "internal/skypilot", "lbd", "lbd/discover", "internal/sim", "internal/testcloud/machines", "internal/testkit", "provision/local", "internal/controller", "cmd/skyserve", "tui"},
	"github.com/klauspost/compress":          {"lbd/proxy"},
	"github.com/theory/jsonpath":             {"cmd/skyserve"},
	"github.com/tinylib/msgp":                {"lbd/cacheevents", "internal/sim/engine/server"},
	"mvdan.cc/sh":                            {"internal/skypilot"},
	"github.com/spf13/cobra":                 {"cmd/skyserve"},
	"go.opentelemetry.io":                    {"lbd/trace"},
	"github.com/invopop/jsonschema":          {"internal/service"},
	"gonum.org/v1/plot":                      {"cmd/skyserve"},
	// Cells contain text from outside, which must not add rows or columns.
	"text/tabwriter": {"internal/printable"},
	// Templates look methods up by name, so the linker would keep every method of the clouds' SDKs.
	"html/template": {},
	"text/template": {},
}

// notDurable lists calls that can leave a file incomplete or missing after a power
// failure. Only internal/atomicfile may make them, because it syncs.
var notDurable = map[string][]string{
	"os":                    {"Rename", "WriteFile"},
	"syscall":               {"Rename", "Renameat"},
	"golang.org/x/sys/unix": {"Rename", "Renameat", "Renameat2"},
}

// mayWriteFiles lists packages whose files need not survive a crash, with the reason.
var mayWriteFiles = map[string]string{
	"internal/atomicfile":         "it is the package that makes them durable",
	"cmd/skyserve":                "os.WriteFile in a temporary directory, for another solver",
	"internal/testcloud/machines": "os.WriteFile on an emulated machine's disk",
}

// topLevel lists the allowed top-level folders.
var topLevel = []string{"cmd", "tui", "provision", "lbd", "plan", "forecast", "templates", "examples", "internal", "docs"}

// pkg is what one package's files, without tests, import and call.
type pkg struct {
	imports  map[string]string // path -> position
	breaches []string          // impure calls and go statements
	writes   []string          // calls of notDurable
}

// readModule returns the packages of the module, by directory. Several tests share them: parsing takes a second.
func readModule(t *testing.T) map[string]*pkg {
	t.Helper()
	packages, err := parseModule()
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

var parseModule = sync.OnceValues(func() (map[string]*pkg, error) {
	packages := map[string]*pkg{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file != "." && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		if packages[dir] == nil {
			packages[dir] = &pkg{imports: map[string]string{}}
		}
		packages[dir].read(fset, parsed)
		return nil
	})
	return packages, err
})

func (r *pkg) read(fset *token.FileSet, f *ast.File) {
	names := map[string]string{} // name in this file -> import path
	for _, im := range f.Imports {
		p, _ := strconv.Unquote(im.Path.Value)
		r.imports[p] = fset.Position(im.Pos()).String()
		name := path.Base(p)
		if name == "v2" {
			name = path.Base(path.Dir(p))
		}
		if im.Name != nil {
			name = im.Name.Name
		}
		names[name] = p
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			r.breaches = append(r.breaches, fmt.Sprintf("%s: go statement", fset.Position(n.Pos())))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureCalls[names[x.Name]], n.Sel.Name) {
				r.breaches = append(r.breaches, fmt.Sprintf("%s: %s.%s", fset.Position(n.Pos()), x.Name, n.Sel.Name))
			}
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(notDurable[names[x.Name]], n.Sel.Name) {
				r.writes = append(r.writes, fmt.Sprintf("%s: %s.%s", fset.Position(n.Pos()), x.Name, n.Sel.Name))
			}
		}
		return true
	})
}

const modulePath = "skyserve/"

func TestPackagesFollowTheImportTable(t *testing.T) {
	for dir, r := range readModule(t) {
		allowed, listed := mayImport[dir]
		if !listed {
			t.Errorf("%s: package is missing in mayImport", dir)
			continue
		}
		for imp, where := range r.imports {
			if own, ok := strings.CutPrefix(imp, modulePath); ok && !slices.Contains(allowed, own) && !slices.Contains(allowed, "*") {
				t.Errorf("%s: %s may not import %s", where, dir, own)
			}
			for lib, may := range sdkPackages {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !slices.Contains(may, dir) {
					t.Errorf("%s: %s may not import %s: only %s may", where, dir, imp, strings.Join(may, ", "))
				}
			}
		}
	}
}

func TestPurePackagesStayPure(t *testing.T) {
	module := readModule(t)
	for _, dir := range purePackages {
		if module[dir] == nil {
			t.Errorf("%s: purePackages lists a package that does not exist", dir)
			continue
		}
		for _, reached := range reach(module, dir) {
			r := module[reached]
			for _, breach := range r.breaches {
				t.Errorf("%s is pure: %s", dir, breach)
			}
			for imp, where := range r.imports {
				if slices.Contains(impure, imp) {
					t.Errorf("%s: %s is pure and must not reach %s", where, dir, imp)
				}
			}
		}
	}
}

// Only pure packages are excluded from the race detector.
func TestRaceExcludesOnlyPurePackages(t *testing.T) {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\nPURE ")
	list, _, end := strings.Cut(after, "\nCONCURRENT ")
	if !found || !end {
		t.Fatal("the Makefile has no PURE and CONCURRENT")
	}
	got := strings.Fields(strings.NewReplacer(":=", "", "\\\n", "").Replace(list))
	want := slices.Sorted(slices.Values(purePackages))
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("PURE of the Makefile is %q, want %q", got, want)
	}
}

func TestFilesAreWrittenDurably(t *testing.T) {
	for dir, r := range readModule(t) {
		for _, write := range r.writes {
			why, may := mayWriteFiles[dir]
			if !may || strings.HasSuffix(write, "Rename") && dir != "internal/atomicfile" {
				t.Errorf("%s: use internal/atomicfile, which syncs the file and its directory (allowed in this package: %q)", write, why)
			}
		}
	}
}

// reach returns a package and all packages of this module that it imports, directly or indirectly.
func reach(module map[string]*pkg, from string) []string {
	seen := map[string]bool{from: true}
	for todo := []string{from}; len(todo) > 0; {
		r := module[todo[0]]
		todo = todo[1:]
		for imp := range r.imports {
			if own, ok := strings.CutPrefix(imp, modulePath); ok && !seen[own] && module[own] != nil {
				seen[own] = true
				todo = append(todo, own)
			}
		}
	}
	var dirs []string
	for d := range seen {
		dirs = append(dirs, d)
	}
	sort.Strings(dirs)
	return dirs
}

func TestPlanProvisionAndLBDAreIndependent(t *testing.T) {
	module := readModule(t)
	areas := []string{"plan", "provision", "lbd"}
	area := func(dir string) string { a, _, _ := strings.Cut(dir, "/"); return a }
	for dir := range module {
		if !slices.Contains(areas, area(dir)) {
			continue
		}
		for _, reached := range reach(module, dir) {
			if a := area(reached); a != area(dir) && slices.Contains(areas, a) {
				t.Errorf("%s reaches %s", dir, reached)
			}
		}
	}
}

func TestTopLevelFolders(t *testing.T) {
	entries, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e, ".") || e == "bin" { // output of make build
			continue
		}
		if files, _ := filepath.Glob(e + "/*"); len(files) > 0 && !slices.Contains(topLevel, e) {
			t.Errorf("%s: not a folder of the module's layout", e)
		}
	}
}

// The checks above must be able to fail: a small package that breaks every rule.
func TestLayoutChecksDetectViolations(t *testing.T) {
	fset := token.NewFileSet()
	src := `package p
import ("time"; "math/rand/v2"; "net/http"; "os")
func f() { go f(); _ = time.Now(); _ = rand.IntN(3); _ = http.Get; os.Rename("a", "b") }`
	f, err := parser.ParseFile(fset, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &pkg{imports: map[string]string{}}
	r.read(fset, f)
	if len(r.breaches) != 3 || len(r.writes) != 1 || r.imports["net/http"] == "" {
		t.Errorf("found %q, %q and %v", r.breaches, r.writes, r.imports)
	}
}

// The emulated clouds take no facts from the code that they judge.
func TestFakesAreIndependentOfProviders(t *testing.T) {
	for _, judged := range []string{"provision/aws", "provision/gcp", "internal/catalogue", "provision"} {
		if slices.Contains(mayImport["internal/testcloud"], judged) {
			t.Errorf("internal/testcloud may import %s, which it judges", judged)
		}
	}
}
