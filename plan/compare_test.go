//go:build compare

package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Solve finds what GLPK finds, on small random problems of every kind. It needs
// glpsol and says so where there is none.
func TestSolveEqualsGLPK(t *testing.T) {
	glpsol, err := exec.LookPath("glpsol")
	if err != nil {
		t.Fatal("glpsol is not installed: it is in the package glpk-utils")
	}
	dir := t.TempDir()
	open := map[string]int{}
	for seed := range uint64(240) {
		kind := kinds[seed%uint64(len(kinds))]
		r := rand.New(rand.NewPCG(seed, 11))
		s := size{models: 1 + r.IntN(3), regions: 2 + r.IntN(2), gpus: 1 + r.IntN(3), windows: 4, most: 4 + r.IntN(8), bounds: 0.1}
		p := kind.make(random(r, s), r)
		got := solve(t, p, Options{Effort: 200_000_000})
		want, status := glpk(t, glpsol, dir, p)
		switch {
		case status == "stopped":
			if got.X == nil || got.Objective > want*(1+1e-6) {
				t.Errorf("%s, seed %d: %s %g, GLPK found %g in its time", kind.name, seed, got.Status, got.Objective, want)
			}
		case status == "infeasible":
			if got.Status != StatusInfeasible {
				t.Errorf("%s, seed %d: %s %g, GLPK finds nothing", kind.name, seed, got.Status, got.Objective)
			}
		case got.Status == StatusFeasible && got.Bound <= want*(1+1e-6) && got.Objective >= want*(1-1e-6):
			open[kind.name]++
			t.Logf("%s, seed %d: %g..%g, GLPK %g", kind.name, seed, got.Bound, got.Objective, want)
		case got.Status != StatusOptimal || math.Abs(got.Objective-want) > 1e-6*(1+want):
			t.Errorf("%s, seed %d: %s %g..%g %v, GLPK %s %g", kind.name, seed, got.Status, got.Bound, got.Objective, got.Infeasible, status, want)
		}
	}
	t.Logf("not proven: %v", open)
}

// glpk solves the written problem.
func glpk(t *testing.T, glpsol, dir string, p *Problem) (objective float64, status string) {
	t.Helper()
	file, out := filepath.Join(dir, "p.lp"), filepath.Join(dir, "p.out")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WriteLP(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	os.Remove(out)
	said, err := exec.Command(glpsol, "--lp", file, "-w", out, "--tmlim", "10").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if strings.Contains(string(said), "NO PRIMAL FEASIBLE") || strings.Contains(string(said), "NO INTEGER FEASIBLE") || strings.Contains(string(said), "INFEASIBLE") {
		return 0, "infeasible"
	}
	status = "optimal"
	if strings.Contains(string(said), "TIME LIMIT EXCEEDED") {
		status = "stopped"
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	columns, names := map[string]float64{}, p.ColumnNames()
	for _, line := range strings.Split(string(text), "\n") {
		var at int
		var v float64
		if n, _ := fmt.Sscanf(line, "j %d %g", &at, &v); n == 2 {
			columns[names[at-1]] = v
		}
	}
	x, err := p.Counts(columns)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Verify(x); err != nil {
		t.Fatalf("GLPK's counts: %v", err)
	}
	return p.Cost(x), status
}
