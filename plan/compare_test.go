//go:build compare

package plan

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Solve finds the optimum of GLPK on small random problems of every kind that are too large for
// brute force. GLPK gets the problem twice: from the statement (statement.writeLP, which shares no
// code with the tested package) and from WriteLP. The test requires glpsol and is skipped without
// it.
func TestSolveEqualsGLPK(t *testing.T) {
	glpsol, err := exec.LookPath("glpsol")
	if err != nil {
		t.Fatal("glpsol is not installed: it is in the package glpk-utils")
	}
	dir := t.TempDir()
	open, outcomes := map[string]int{}, map[string]int{}
	for seed := range uint64(240) {
		kind := kinds[seed%uint64(len(kinds))]
		r := rand.New(rand.NewPCG(seed, 11))
		s := size{models: 1 + r.IntN(3), regions: 2 + r.IntN(2), gpus: 1 + r.IntN(3), windows: 4, maximum: 4 + r.IntN(8), bounds: 0.1}
		p := kind.make(random(r, s), r)
		got := solve(t, p, SolveOptions{Effort: 200_000_000})
		want, status := glpk(t, glpsol, dir, statement{p}.writeLP)
		outcomes[status]++
		written, as := glpk(t, glpsol, dir, p.WriteLP)
		if status != "stopped" && as != "stopped" && (status != as || math.Abs(want-written) > 1e-6*(1+want)) {
			t.Errorf("%s, seed %d: GLPK reports %s %g for the problem, %s %g for the output of WriteLP", kind.name, seed, status, want, as, written)
		}
		switch {
		case status == "stopped":
			if got.Counts == nil || got.Objective > want*(1+1e-6) {
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
	t.Logf("GLPK: %v; not proven: %v", outcomes, open)
}

// glpk solves a written problem: the objective is that of the file's own columns.
func glpk(t *testing.T, glpsol, dir string, write func(io.Writer) error) (objective float64, status string) {
	t.Helper()
	var lp bytes.Buffer
	if err := write(&lp); err != nil {
		t.Fatal(err)
	}
	file, out := filepath.Join(dir, "p.lp"), filepath.Join(dir, "p.out")
	if err := os.WriteFile(file, lp.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(out)
	output, err := exec.Command(glpsol, "--lp", file, "-w", out, "--tmlim", "10").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	status = "stopped"
	for _, line := range strings.Split(string(text), "\n") {
		var rows, columns int
		var state string
		if n, _ := fmt.Sscanf(line, "s mip %d %d %s %g", &rows, &columns, &state, &objective); n == 4 {
			switch state {
			case "o":
				return objective, "optimal"
			case "n":
				return 0, "infeasible"
			case "f":
				return objective, status
			}
		}
	}
	for _, none := range []string{"NO PRIMAL FEASIBLE", "NO INTEGER FEASIBLE", "INFEASIBLE"} {
		if strings.Contains(string(text), none) {
			return 0, "infeasible"
		}
	}
	return math.Inf(1), status
}

// lpFile collects a program in CPLEX LP format.
type lpFile struct {
	cost, rows, bounds, whole []string
}

// sum is an expression: the terms of factor and column, at least one.
func sum(terms []string) string { return strings.Join(terms, "\n ") }

func times(factor float64, column string) string { return fmt.Sprintf("%+.17g %s", factor, column) }

func (f *lpFile) row(terms []string, sense string, right float64) {
	f.rows = append(f.rows, fmt.Sprintf("r%d: %s %s %.17g", len(f.rows), sum(terms), sense, right))
}

// atMost bounds a column.
func (f *lpFile) atMost(column string, maximum int) {
	f.bounds = append(f.bounds, fmt.Sprintf("0 <= %s <= %d", column, maximum))
}

// writeLP writes the problem as documented: every window's load is sent from its region to one that
// may serve it, once with all regions and once for each region that may be lost; each VM is kept,
// new, or switched from one named model to another.
func (s statement) writeLP(w io.Writer) error {
	f := &lpFile{}
	for i := range s.Models {
		for j := range s.Regions {
			s.writeCounts(f, i, j)
		}
		s.writeTotals(f, i)
		for _, lost := range s.losses() {
			for at := range s.LoadTPS[i][0] {
				s.writeFlow(f, i, at, lost)
			}
		}
	}
	s.writeCapacity(f)
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "Minimize\n cost: %s\nSubject To\n %s\nBounds\n %s\nGenerals\n %s\nEnd\n",
		sum(f.cost), strings.Join(f.rows, "\n "), strings.Join(f.bounds, "\n "), strings.Join(f.whole, "\n "))
	return b.Flush()
}

// columnOf names a column by its kind and indexes.
func columnOf(kind string, index ...int) string {
	return strings.NewReplacer("[", "_", " ", "_", "]", "").Replace(fmt.Sprint(kind, index))
}

// writeCounts writes the counts of model i in region j: x replicas, each kept, started on another
// model's VM, or new.
func (s statement) writeCounts(f *lpFile, i, j int) {
	var count, carried []string
	for k := range s.GPUs {
		x, stay, fresh := columnOf("x", i, j, k), columnOf("stay", i, j, k), columnOf("new", i, j, k)
		f.whole = append(f.whole, x, stay, fresh)
		f.cost = append(f.cost, times(s.hourly(j, k), x), times(s.StartCostUSD[i][k], fresh))
		parts := []string{times(1, x), times(-1, stay), times(-1, fresh)}
		kept := []string{times(1, stay)} // of the model's own VMs: they stay, or switch to others
		for o := range s.Models {
			if o != i && s.SwitchCostUSD != nil && s.SwitchCostUSD[i][k] != nil {
				taken := columnOf("pass", o, i, j, k)
				f.whole = append(f.whole, taken)
				f.cost = append(f.cost, times(*s.SwitchCostUSD[i][k], taken))
				parts = append(parts, times(-1, taken))
			}
			if o != i && s.SwitchCostUSD != nil && s.SwitchCostUSD[o][k] != nil {
				kept = append(kept, times(1, columnOf("pass", i, o, j, k)))
			}
		}
		f.row(parts, "=", 0)
		f.row(kept, "<=", float64(s.Current[i][j][k]))
		if s.ReplicaTPS[i][k] == 0 {
			f.atMost(x, 0)
		}
		count, carried = append(count, times(1, x)), append(carried, times(s.ReplicaTPS[i][k], x))
	}
	f.row(carried, ">=", s.LocalShare*slices.Max(s.LoadTPS[i][j])*(1-1e-9))
	if s.Min != nil && s.Min[i][j] != nil {
		f.row(count, ">=", float64(*s.Min[i][j]))
	}
	if s.Max != nil && s.Max[i][j] != nil {
		f.row(count, "<=", float64(*s.Max[i][j]))
	}
	if s.Egress == nil {
		return
	}
	for w, load := range s.LoadTPS[i][j] {
		away := columnOf("away", i, j, w)
		f.cost = append(f.cost, times(s.Egress[j]*3600/1e6/float64(len(s.LoadTPS[i][j])), away))
		f.row(append([]string{times(1, away)}, carried...), ">=", load)
	}
}

// writeTotals writes the limits over all regions.
func (s statement) writeTotals(f *lpFile, i int) {
	var count []string
	for j := range s.Regions {
		for k := range s.GPUs {
			count = append(count, times(1, columnOf("x", i, j, k)))
		}
	}
	if s.MinTotal != nil && s.MinTotal[i] != nil {
		f.row(count, ">=", float64(*s.MinTotal[i]))
	}
	if s.MaxTotal != nil && s.MaxTotal[i] != nil {
		f.row(count, "<=", float64(*s.MaxTotal[i]))
	}
}

// writeFlow writes that all load of a window is sent to regions that may serve it, without the lost
// region (-1 = none).
func (s statement) writeFlow(f *lpFile, i, w, lost int) {
	served := make([][]string, len(s.Regions))
	for j := range s.Regions {
		sent := []string{times(0, columnOf("x", i, j, 0))}
		for r := range s.Regions {
			if r != lost && s.reaches(j, r) {
				flow := columnOf("flow", i, w, lost+1, j, r)
				sent, served[r] = append(sent, times(1, flow)), append(served[r], times(1, flow))
			}
		}
		f.row(sent, ">=", s.LoadTPS[i][j][w]*(1-1e-9))
	}
	for r, flows := range served {
		if len(flows) == 0 {
			continue
		}
		for k := range s.GPUs {
			flows = append(flows, times(-s.ReplicaTPS[i][k], columnOf("x", i, r, k)))
		}
		f.row(flows, "<=", 0)
	}
}

// writeCapacity writes the capacity of regions over all models.
func (s statement) writeCapacity(f *lpFile) {
	for j := range s.Regions {
		for k := range s.GPUs {
			if s.Capacity == nil || s.Capacity[j][k] == nil {
				continue
			}
			var used []string
			for i := range s.Models {
				used = append(used, times(1, columnOf("x", i, j, k)))
			}
			f.row(used, "<=", float64(*s.Capacity[j][k]))
		}
	}
}
