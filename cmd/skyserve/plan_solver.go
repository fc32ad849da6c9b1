package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"skyserve/plan"
)

// externalSolver is an external integer programming solver.
type externalSolver struct {
	name, program, install string
	// args returns its command line, and options the content of its options file, if it needs one.
	args    func(file, out, options string, gap float64) []string
	options func(gap float64) string
	// read parses the columns' values and the status from the file that it wrote.
	read func(p *plan.Problem, written string) (columns map[string]float64, status plan.SolveStatus)
}

// externalSolvers are the solvers that --solver supports.
var externalSolvers = []externalSolver{
	{
		name: "highs", program: "highs", install: "pip install highspy, or https://highs.dev",
		args: func(file, out, options string, _ float64) []string {
			return []string{"--options_file", options, "--solution_file", out, file}
		},
		options: func(gap float64) string { return "mip_rel_gap = " + formatExact(gap) + "\n" },
		read:    readHighs,
	},
	{
		name: "cbc", program: "cbc", install: "apt-get install coinor-cbc",
		args: func(file, out, _ string, gap float64) []string {
			return []string{file, "-ratioGap", formatExact(gap), "-solve", "-solution", out}
		},
		read: readCBC,
	},
	{
		name: "glpsol", program: "glpsol", install: "apt-get install glpk-utils",
		args: func(file, out, _ string, gap float64) []string {
			args := []string{"--lp", file, "-w", out}
			if gap > 0 {
				args = append(args, "--mipgap", formatExact(gap))
			}
			return args
		},
		read: readGLPK,
	},
}

func formatExact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// findSolver returns the solver with a name; nil if there is none.
func findSolver(name string) *externalSolver {
	for at := range externalSolvers {
		if externalSolvers[at].name == name {
			return &externalSolvers[at]
		}
	}
	return nil
}

// solveProblem writes the problem, runs the solver on it and checks its solution. It fails if the solver is
// not installed, ends with an error, or returns counts that violate a row.
func (s *externalSolver) solveProblem(ctx context.Context, p *plan.Problem, gap float64) (plan.Solution, error) {
	program, err := exec.LookPath(s.program)
	if err != nil {
		return plan.Solution{}, failed(fmt.Errorf("solving with %s: not installed: %w", s.name, err), "install it: "+s.install)
	}
	dir, err := os.MkdirTemp("", "skyserve-plan-")
	if err != nil {
		return plan.Solution{}, fmt.Errorf("solving with %s: %w", s.name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	written, err := s.runSolver(ctx, program, dir, p, gap)
	if ctx.Err() != nil { // the solver was killed
		return plan.Solution{}, fmt.Errorf("solving with %s: %w", s.name, ctx.Err())
	}
	if err != nil {
		return plan.Solution{}, failed(fmt.Errorf("solving with %s: %w", s.name, err), "")
	}
	columns, status := s.read(p, written)
	switch {
	case status == plan.StatusInfeasible:
		return plan.Solution{Status: status, Infeasible: []string{s.name + " reports that no counts satisfy the constraints"}}, nil
	case columns == nil:
		return plan.Solution{Status: plan.StatusUnknown}, nil
	}
	return s.checkSolution(p, columns, status, gap)
}

// checkSolution converts the solver's columns to a result.
func (s *externalSolver) checkSolution(p *plan.Problem, columns map[string]float64, status plan.SolveStatus, gap float64) (plan.Solution, error) {
	x, err := p.CountsFromColumns(columns)
	if err != nil {
		return plan.Solution{}, failed(fmt.Errorf("reading the solution of %s: %w", s.name, err), "")
	}
	bound := 0.0
	if status == plan.StatusOptimal {
		bound = p.Cost(x) * (1 - gap)
	}
	r, err := p.AssessExternal(x, bound, gap)
	if err != nil {
		return plan.Solution{}, failed(fmt.Errorf("checking the solution of %s: %w", s.name, err), "")
	}
	if status != plan.StatusOptimal {
		r.Status = plan.StatusFeasible
	}
	return r, nil
}

// runSolver runs the solver in dir and returns the content of its solution file.
func (s *externalSolver) runSolver(ctx context.Context, program, dir string, p *plan.Problem, gap float64) (string, error) {
	var lp bytes.Buffer
	if err := p.WriteLP(&lp); err != nil {
		return "", err
	}
	file, out, options := filepath.Join(dir, "problem.lp"), filepath.Join(dir, "solution"), filepath.Join(dir, "options")
	if err := os.WriteFile(file, lp.Bytes(), 0o600); err != nil {
		return "", err
	}
	if s.options != nil {
		if err := os.WriteFile(options, []byte(s.options(gap)), 0o600); err != nil {
			return "", err
		}
	}
	output, err := exec.CommandContext(ctx, program, s.args(file, out, options, gap)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, lastLine(output))
	}
	written, err := os.ReadFile(out)
	if err != nil {
		return "", fmt.Errorf("no solution file: %s", lastLine(output))
	}
	return string(written), nil
}

// lastLine returns the last non-empty line of a program's output.
func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// readHighs reads HiGHS's solution file: the status on the line after "Model
// status", the columns between "# Columns" and "# Rows".
func readHighs(_ *plan.Problem, written string) (map[string]float64, plan.SolveStatus) {
	columns, in, status, primal := map[string]float64{}, false, plan.StatusFeasible, true
	lines := strings.Split(written, "\n")
	for at, line := range lines {
		switch f := strings.Fields(line); {
		case strings.HasPrefix(line, "Model status") && at+1 < len(lines):
			switch strings.TrimSpace(lines[at+1]) {
			case "Optimal":
				status = plan.StatusOptimal
			case "Infeasible":
				return nil, plan.StatusInfeasible
			}
		case strings.HasPrefix(line, "# Dual"):
			primal = false
		case strings.HasPrefix(line, "# Columns"):
			in = primal
		case strings.HasPrefix(line, "#"):
			in = false
		case in && len(f) == 2:
			columns[f[0]], _ = strconv.ParseFloat(f[1], 64)
		}
	}
	if len(columns) == 0 {
		return nil, plan.StatusUnknown
	}
	return columns, status
}

// readCBC reads CBC's solution file: its status, then a line for each column
// that is not 0: number, name, value, reduced cost.
func readCBC(_ *plan.Problem, written string) (map[string]float64, plan.SolveStatus) {
	first, rest, _ := strings.Cut(written, "\n")
	status := plan.StatusFeasible
	switch {
	case strings.HasPrefix(first, "Optimal"):
		status = plan.StatusOptimal
	case strings.HasPrefix(first, "Infeasible"), strings.HasPrefix(first, "Integer infeasible"):
		return nil, plan.StatusInfeasible
	case strings.Contains(first, "no integer solution"):
		return nil, plan.StatusUnknown
	}
	columns := map[string]float64{}
	for _, line := range strings.Split(rest, "\n") {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "**"))
		if len(f) >= 3 {
			columns[f[1]], _ = strconv.ParseFloat(f[2], 64)
		}
	}
	return columns, status
}

// readGLPK reads GLPK's solution file: "s mip rows columns status objective",
// and "j number value" for each column, numbered as in the LP file.
func readGLPK(p *plan.Problem, written string) (map[string]float64, plan.SolveStatus) {
	names, columns, status := p.ColumnNames(), map[string]float64{}, plan.StatusUnknown
	for _, line := range strings.Split(written, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) >= 5 && f[0] == "s":
			switch f[4] {
			case "o":
				status = plan.StatusOptimal
			case "f":
				status = plan.StatusFeasible
			case "n":
				return nil, plan.StatusInfeasible
			default:
				return nil, plan.StatusUnknown
			}
		case len(f) == 3 && f[0] == "j":
			if n, err := strconv.Atoi(f[1]); err == nil && n >= 1 && n <= len(names) {
				columns[names[n-1]], _ = strconv.ParseFloat(f[2], 64)
			}
		}
	}
	return columns, status
}
