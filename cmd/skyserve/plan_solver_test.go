package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/plan"
)

const solverProblem = `{"models":["a"],"regions":["us","eu"],"gpus":["L4"],"n":[[[2],[0]]],"theta":[[1000]],"alpha":[0.8],"sigma":[[0.1]],
"rho":[[[4200,0],[0,4200]]],"epsilon":0.7,"capacity":null,"min":null,"max":null}`

// fakeSolver puts a program with a name first in PATH. It records its arguments and writes solution to
// the file that they name.
func fakeSolver(t *testing.T, name, outputFlag, solution string, code int) (args string) {
	t.Helper()
	dir := t.TempDir()
	args = filepath.Join(dir, "args")
	script := "#!/bin/sh\necho \"$@\" > " + args + "\nwhile [ $# -gt 0 ]; do if [ \"$1\" = " + outputFlag + " ]; then printf '%s' '" + solution + "' > \"$2\"; fi; shift; done\n" +
		"echo thinking; echo last word\nexit " + string(rune('0'+code)) + "\n"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return args
}

func solveWith(t *testing.T, solver string, gap float64) (plan.Proposal, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(file, []byte(solverProblem), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := planOptions{problem: file, solver: solver, list: outputFlags{output: "json"}}
	o.review.LocalShare, o.review.Gap = 0.7, gap
	err := runPlan(context.Background(), &o, nil, &out)
	p := plan.Proposal{}
	if err == nil {
		if e := json.Unmarshal(out.Bytes(), &p); e != nil {
			t.Fatal(e)
		}
	}
	return p, err
}

// An external solver's solution is parsed in its format and checked, and the result names the solver.
func TestExternalSolvers(t *testing.T) {
	const (
		highs = "Model status\nOptimal\n\n# Primal solution values\nFeasible\nObjective 5.2\n# Columns 4\ns_0_0_0 2\na_0_0_0 1\ns_0_1_0 0\na_0_1_0 3\n# Rows 3\nlocal_0_0 3000\n\n# Dual solution values\nNone\n# Columns 4\ns_0_0_0 9\n"
		cbc   = "Optimal - objective value 5.2\n 0 s_0_0_0 2 0\n 1 a_0_0_0 1 0\n** 3 a_0_1_0 2.999999999 0\n"
		glpk  = "c comment\ns mip 3 4 o 5.2\ni 1 3000\nj 1 2\nj 2 1\nj 3 0\nj 4 3\n"
	)
	for _, c := range []struct {
		solver, flag, solution string
		status                 plan.SolveStatus
		cost                   float64
		fails                  string
	}{
		{"highs", "--solution_file", highs, plan.StatusOptimal, 5.2, ""},
		{"highs", "--solution_file", strings.Replace(highs, "Optimal", "Time limit reached", 1), plan.StatusFeasible, 5.2, ""},
		{"highs", "--solution_file", "Model status\nInfeasible\n", plan.StatusInfeasible, 0, ""},
		{"highs", "--solution_file", "Model status\nUnknown\n", plan.StatusUnknown, 0, ""},
		{"cbc", "-solution", cbc, plan.StatusOptimal, 5.2, ""},
		{"cbc", "-solution", strings.Replace(cbc, "Optimal", "Stopped on time", 1), plan.StatusFeasible, 5.2, ""},
		{"cbc", "-solution", "Infeasible - objective value 1\n", plan.StatusInfeasible, 0, ""},
		{"cbc", "-solution", "Stopped on time (no integer solution - continuous used)\n", plan.StatusUnknown, 0, ""},
		{"glpsol", "-w", glpk, plan.StatusOptimal, 5.2, ""},
		{"glpsol", "-w", strings.Replace(glpk, " o ", " f ", 1), plan.StatusFeasible, 5.2, ""},
		{"glpsol", "-w", "s mip 3 4 n 0\n", plan.StatusInfeasible, 0, ""},
		{"glpsol", "-w", "s mip 3 4 u 0\n", plan.StatusUnknown, 0, ""},
		{"cbc", "-solution", strings.Replace(cbc, "2.999999999", "2", 1), "", 0, "checking the solution of cbc: a in eu: serves 2000 of the 2940 tokens per second that the region must serve itself"},
		{"cbc", "-solution", strings.Replace(cbc, "2.999999999", "2.5", 1), "", 0, "reading the solution of cbc: a_0_1_0: must be a whole number from 0 to 1000000000, got 2.5"},
		{"cbc", "-nothing", "", "", 0, "solving with cbc: no solution file: last word"},
	} {
		fakeSolver(t, c.solver, c.flag, c.solution, 0)
		p, err := solveWith(t, c.solver, 0)
		if c.fails != "" {
			if err == nil || err.Error() != c.fails {
				t.Errorf("%s: got %v, want %s", c.solver, err, c.fails)
			}
			continue
		}
		if err != nil || p.Status != c.status || c.cost > 0 && (p.TotalCostUSD == nil || math.Abs(*p.TotalCostUSD-c.cost) > 1e-9) {
			t.Errorf("%s: %v, %s", c.solver, err, p.Status)
			continue
		}
		if !strings.HasPrefix(p.Assumed[0], "solved by "+c.solver) {
			t.Errorf("%s is not named: %v", c.solver, p.Assumed)
		}
	}
}

// The gap is passed to the solver, and its failure is reported.
func TestExternalSolverReceivesGap(t *testing.T) {
	args := fakeSolver(t, "cbc", "-solution", "Stopped on time (no integer solution)\n", 0)
	if _, err := solveWith(t, "cbc", 0.01); err != nil {
		t.Fatal(err)
	}
	output, err := os.ReadFile(args)
	if err != nil || !strings.Contains(string(output), "-ratioGap 0.01 -solve -solution") {
		t.Errorf("%s %v", output, err)
	}
	fakeSolver(t, "glpsol", "-w", "", 3)
	if _, err := solveWith(t, "glpsol", 0.01); err == nil || err.Error() != "solving with glpsol: exit status 3: last word" {
		t.Errorf("got %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := solveWith(t, "highs", 0); err == nil || !strings.Contains(err.Error(), "solving with highs: not installed") {
		t.Errorf("got %v", err)
	}
	if _, err := solveWith(t, "gurobi", 0); err == nil || err.Error() != "--solver gurobi: must be one of highs, cbc, glpsol" {
		t.Errorf("got %v", err)
	}
}

// A service can be planned with an external solver, which the plan names.
func TestPlanWithExternalSolver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "service.yaml")
	text := "name: chat-elsewhere\nmodels:\n  - name: m\n    engine: {kind: sim}\n    gpus: [{type: L4, tps: 1000}]\nregions:\n  - name: local/us\n    replicas: {min: 1, max: 4}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fakeSolver(t, "cbc", "-solution", "Optimal - objective value 1.6\n 1 a_0_0_0 2 0\n", 0)
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	var out bytes.Buffer
	o := planOptions{target: file, solver: "cbc", list: outputFlags{output: "json"}}
	o.review.LocalShare = 0.7
	if err := runPlan(context.Background(), &o, nil, &out); err != nil {
		t.Fatal(err)
	}
	var p plan.Proposal
	if err := json.Unmarshal(out.Bytes(), &p); err != nil || p.Changes[0].Planned != 2 || p.Assumed[0] != "solved by cbc: skyserve checked feasibility and cost, but not the bound" {
		t.Errorf("%s %v", out.String(), err)
	}
	fakeSolver(t, "glpsol", "-w", "", 3)
	o.solver = "glpsol"
	if err := runPlan(context.Background(), &o, nil, &out); err == nil || err.Error() != "planning chat-elsewhere: solving with glpsol: exit status 3: last word" {
		t.Errorf("got %v", err)
	}
	// A solver may end without counts: another one may find some, while the gap concerns only what is found.
	fakeSolver(t, "glpsol", "-w", "s mip 3 4 u 0\n", 0)
	err := runPlan(context.Background(), &o, nil, &out)
	var e *exitError
	if !errors.As(err, &e) || e.hint != "retry with another --solver: highs, cbc or glpsol" {
		t.Errorf("without counts: %v with the hint of %+v", err, e)
	}
}

// An interrupted plan exits 130, whatever it was doing: reading prices, solving, or running an external solver.
func TestInterruptedPlanExits130(t *testing.T) {
	storedService(t, "")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	problem := file("p.json", solverProblem)
	local := file("local.yaml", "name: chat\nmodels: [{name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}]}]\nregions: [{name: local/us}]\n")
	clouds := file("clouds.yaml", cloudService)
	fakeSolver(t, "cbc", "-solution", "", 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, o := range map[string]planOptions{
		"problem": {problem: problem}, "external solver": {problem: problem, solver: "cbc"}, "service": {target: local}, "service with an external solver": {target: local, solver: "cbc"},
		"prices": {target: clouds}, "list prices": {target: clouds, listPrices: true},
	} {
		var out, errOut bytes.Buffer
		o.list.output, o.errOut, o.review.LocalShare = "text", &errOut, 0.7
		if code := report(ctx, &errOut, runPlan(ctx, &o, nil, &out)); code != exitInterrupted || out.Len() > 0 {
			t.Errorf("%s: exit %d\n%s%s", name, code, &out, &errOut)
		}
	}
}
