package skyserve_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// The house: which room may import which of our other rooms. A room is a folder
// with Go files; "std" and libraries are not listed here but in sdkRooms and
// impure below. ARCHITECTURE.md explains the layout; this table is the law.
var mayImport = map[string][]string{
	"internal/service": {},
	// durable writes, for every package that keeps files
	"internal/atomicfile": {},
	"internal/page":       {},
	"internal/printable":  {},
	"internal/telemetry":  {"internal/printable", "internal/service"},
	"internal/store":      {"internal/service", "internal/telemetry"},
	"internal/acme":       {"internal/identity", "internal/service", "internal/store"},
	// an authority for tests, which no program imports
	"internal/acme/testca": {},
	// apart from telemetry, so that what the balancers import knows nothing of forecasts
	"internal/telemetry/demand": {"internal/service", "internal/telemetry", "internal/workload", "forecast"},
	"internal/workload":         {"internal/service"},
	"internal/load":             {"internal/printable", "internal/service", "internal/telemetry", "internal/workload"},
	"internal/whatif":           {"internal/page", "internal/printable", "internal/service", "internal/workload", "lbd/bfio", "lbd/core", "lbd/engine", "lbd/policy", "lbd/prefix", "lbd/proxy", "lbd/sim", "forecast", "plan"},
	"internal/explain":          {"internal/printable", "internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/proxy"},
	"templates":                 {},

	"lbd/prefix":        {"internal/service"},
	"lbd/bfio":          {"internal/service"},
	"lbd/policy":        {"internal/service", "lbd/bfio"},
	"lbd/engine":        {"internal/service"},
	"lbd/core":          {"internal/service", "lbd/policy", "lbd/prefix"},
	"lbd/sim":           {"internal/service", "internal/workload", "lbd/core", "lbd/engine", "lbd/policy", "lbd/prefix"},
	"lbd/engine/server": {"internal/service", "lbd/engine"},
	"lbd/proxy":         {"internal/printable", "internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/prefix", "lbd/wire"},
	"lbd/probe":         {"internal/service", "lbd/core", "lbd/policy", "lbd/wire"},
	"lbd/wire":          {},
	"lbd/trace":         {"lbd/proxy"},
	"lbd/peer":          {"internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/wire"},
	"lbd/admin":         {"internal/service", "internal/telemetry", "lbd/core", "lbd/policy", "lbd/proxy", "lbd/peer"},
	"lbd": {
		"internal/acme", "internal/identity", "internal/service", "internal/store", "internal/telemetry", "lbd/admin", "lbd/core", "lbd/peer", "lbd/policy",
		"lbd/probe", "lbd/proxy", "lbd/trace", "lbd/wire",
	},

	"forecast": {"internal/service", "internal/workload"},
	"plan":     {"internal/service", "internal/page", "forecast"},

	"provision":                    {"internal/service"},
	"provision/providertest":       {"internal/service", "provision"},
	"provision/fakecloud":          {"internal/service"},
	"provision/fakecloud/machines": {"internal/identity", "internal/node", "provision/fakecloud"},
	"examples/clouds/emulator":     {"provision/fakecloud", "provision/fakecloud/machines"},
	"provision/aws":                {"internal/identity", "internal/node", "internal/service", "provision"}, // the line in which an agent tells its key
	"provision/gcp":                {"internal/service", "provision"},
	"provision/dns":                {"internal/service", "provision"},
	"provision/cloud":              {"internal/service", "provision"},
	"provision/remote":             {"internal/service", "provision"},
	"internal/identity":            {"internal/atomicfile", "internal/service"},
	"internal/node":                {"internal/atomicfile", "internal/identity"},
	"provision/local":              {"internal/atomicfile", "internal/service", "provision"},
	"provision/static":             {"internal/service", "provision"},

	"internal/controller/fleet":   {"internal/controller", "internal/identity", "internal/node", "internal/service", "internal/telemetry", "provision", "provision/cloud", "provision/remote", "provision/static"},
	"internal/controller/rollout": {"internal/service", "provision", "provision/dns", "provision/local", "provision/static", "internal/telemetry", "internal/controller", "plan"},
	"internal/controller":         {"internal/identity", "internal/service", "internal/store", "internal/telemetry", "provision", "provision/local", "provision/static", "forecast", "plan", "templates"},
	"tui":                         {"internal/printable", "internal/service", "internal/telemetry"},
	"cmd/skyserve":                {"*"},
}

// pureRooms decide from arguments alone: see impure and impureCalls.
var pureRooms = []string{"internal/page", "internal/printable", "internal/service", "internal/workload", "lbd/core", "lbd/policy", "lbd/prefix", "lbd/engine", "lbd/bfio", "lbd/sim", "forecast", "plan"}

// impure is what a pure room may not import, at first hand or through our rooms.
var impure = []string{"net", "net/http", "os", "os/exec", "log", "log/slog", "math/rand", "syscall"}

// impureCalls is what a pure room may not call: the clock, and randomness that no seed fixes.
var impureCalls = map[string][]string{
	"time":         {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"math/rand/v2": {"Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "N", "Uint32", "Uint32N", "Uint64", "Uint64N", "UintN", "Float32", "Float64", "ExpFloat64", "NormFloat64", "Perm", "Shuffle"},
}

// sdkRooms names the only rooms that may import a library that must not spread.
var sdkRooms = map[string][]string{
	"github.com/aws/aws-sdk-go-v2":     {"provision/aws", "provision/dns"},
	"cloud.google.com/go":              {"provision/gcp"},
	"github.com/nats-io":               {"internal/store"},
	"github.com/caddyserver/certmagic": {"internal/acme"},
	"github.com/mholt/acmez":           {"internal/acme"},
	"github.com/libdns":                {"internal/acme"},
	"go.uber.org/zap":                  {"internal/acme"},
	"github.com/letsencrypt/pebble":    {"internal/acme/testca"},
	"charm.land":                       {"tui"},
	"github.com/goccy/go-yaml":         {"internal/controller/fleet", "internal/service", "lbd", "lbd/sim", "provision/fakecloud/machines", "provision/local", "internal/controller", "internal/controller/rollout", "tui"},
	"github.com/spf13/cobra":           {"cmd/skyserve"},
	"go.opentelemetry.io":              {"lbd/trace"},
	"github.com/invopop/jsonschema":    {"internal/service"},
	"github.com/guptarohit/asciigraph": {"tui", "cmd/skyserve"},
	"gonum.org/v1/plot":                {"cmd/skyserve"},
	// Cells of a table hold text of others, which must not add rows and columns.
	"text/tabwriter": {"internal/printable"},
	// They look methods up by name, and the linker then keeps every method of the clouds' SDKs.
	"html/template": {},
	"text/template": {},
}

// notDurable are the calls that leave a file torn or gone after a power failure:
// internal/atomicfile makes them durable, and it alone may make them.
var notDurable = map[string][]string{
	"os":                    {"Rename", "WriteFile"},
	"syscall":               {"Rename", "Renameat"},
	"golang.org/x/sys/unix": {"Rename", "Renameat", "Renameat2"},
}

// mayWriteFiles are the packages besides it whose files nobody reads after a crash.
var mayWriteFiles = map[string]string{
	"internal/atomicfile":          "it is the package that makes them durable",
	"cmd/skyserve":                 "os.WriteFile in a temporary directory, for another solver",
	"provision/fakecloud/machines": "os.WriteFile on an emulated machine's disk",
}

// topLevel lists every folder that may stand at the top.
var topLevel = []string{"cmd", "tui", "provision", "lbd", "plan", "forecast", "templates", "examples", "internal", "docs"}

// room is one package as its files (tests left out) show it.
type room struct {
	imports  map[string]string // path -> where
	breaches []string          // impure calls and go statements
	writes   []string          // calls of notDurable
}

func readHouse(t *testing.T) map[string]*room {
	t.Helper()
	rooms := map[string]*room{}
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
		if rooms[dir] == nil {
			rooms[dir] = &room{imports: map[string]string{}}
		}
		rooms[dir].read(fset, parsed)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rooms
}

func (r *room) read(fset *token.FileSet, f *ast.File) {
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

const module = "skyserve/"

func TestRoomsImportOnlyWhatTheyMay(t *testing.T) {
	for dir, r := range readHouse(t) {
		allowed, listed := mayImport[dir]
		if !listed {
			t.Errorf("%s: a room that the table of who may import whom does not know", dir)
			continue
		}
		for imp, where := range r.imports {
			if own, ok := strings.CutPrefix(imp, module); ok && !slices.Contains(allowed, own) && !slices.Contains(allowed, "*") {
				t.Errorf("%s: %s may not import %s", where, dir, own)
			}
			for lib, may := range sdkRooms {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !slices.Contains(may, dir) {
					t.Errorf("%s: %s may not import %s: only %s may", where, dir, imp, strings.Join(may, ", "))
				}
			}
		}
	}
}

func TestPureRoomsStayPure(t *testing.T) {
	house := readHouse(t)
	for _, dir := range pureRooms {
		if house[dir] == nil {
			continue // not built yet
		}
		for _, reached := range reach(house, dir) {
			r := house[reached]
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

func TestFilesAreWrittenDurably(t *testing.T) {
	for dir, r := range readHouse(t) {
		for _, write := range r.writes {
			why, may := mayWriteFiles[dir]
			if !may || strings.HasSuffix(write, "Rename") && dir != "internal/atomicfile" {
				t.Errorf("%s: use internal/atomicfile, which syncs the file and its directory (allowed here: %q)", write, why)
			}
		}
	}
}

// reach is a room and every room of ours that it imports, directly or not.
func reach(house map[string]*room, from string) []string {
	seen := map[string]bool{from: true}
	for todo := []string{from}; len(todo) > 0; {
		r := house[todo[0]]
		todo = todo[1:]
		for imp := range r.imports {
			if own, ok := strings.CutPrefix(imp, module); ok && !seen[own] && house[own] != nil {
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

func TestPlanProvisionAndBalancerDoNotKnowEachOther(t *testing.T) {
	house := readHouse(t)
	areas := []string{"plan", "provision", "lbd"}
	area := func(dir string) string { a, _, _ := strings.Cut(dir, "/"); return a }
	for dir := range house {
		if !slices.Contains(areas, area(dir)) {
			continue
		}
		for _, reached := range reach(house, dir) {
			if a := area(reached); a != area(dir) && slices.Contains(areas, a) {
				t.Errorf("%s reaches %s", dir, reached)
			}
		}
	}
}

func TestNoOtherTopLevelFolder(t *testing.T) {
	entries, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e, ".") || e == "bin" { // what make build leaves
			continue
		}
		if files, _ := filepath.Glob(e + "/*"); len(files) > 0 && !slices.Contains(topLevel, e) {
			t.Errorf("%s: not a room of the house", e)
		}
	}
}

// The checks above must be able to fail: a small house that breaks every law.
func TestTheHouseTestSeesBreaches(t *testing.T) {
	fset := token.NewFileSet()
	src := `package p
import ("time"; "math/rand/v2"; "net/http"; "os")
func f() { go f(); _ = time.Now(); _ = rand.IntN(3); _ = http.Get; os.Rename("a", "b") }`
	f, err := parser.ParseFile(fset, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &room{imports: map[string]string{}}
	r.read(fset, f)
	if len(r.breaches) != 3 || len(r.writes) != 1 || r.imports["net/http"] == "" {
		t.Errorf("saw %q, %q and %v", r.breaches, r.writes, r.imports)
	}
}
