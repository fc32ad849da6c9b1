package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// maxCount bounds every count, so that at usual prices sums of costs stay exact to a cent.
const maxCount = 1_000_000_000

// Problem is one scaling problem. Index i runs over models, j over regions, k over GPUs and w over
// time windows (SageServe, table 2).
type Problem struct {
	Models  []string `json:"models"`
	Regions []string `json:"regions"`
	// GPUs are the offerings of index k, also called "GPU k": a type and count of GPUs with one capacity type. Several may
	// have the same GPU: see CapacityType.
	GPUs []string `json:"gpus"`
	// Current is the number of replicas of model i that run in region j on GPU k now. The JSON keys
	// from n to epsilon are the paper's letters.
	Current [][][]int `json:"n"`
	// ReplicaTPS is the throughput of one replica of model i on GPU k, in uncached prompt tokens per second;
	// 0 = the model does not run there.
	ReplicaTPS [][]float64 `json:"theta"`
	// PricePerHour is the price of a replica on GPU k, in USD per hour.
	PricePerHour []float64 `json:"alpha"`
	// StartCostUSD is the cost of starting a replica of model i on GPU k, in USD.
	StartCostUSD [][]float64 `json:"sigma"`
	// LoadTPS is the load to plan for, of model i in region j in window w, in uncached prompt tokens per second.
	LoadTPS [][][]float64 `json:"rho"`
	// LocalShare is the share of its own peak that a region must be able to serve itself, above 0 and
	// at most 1. Other regions may serve the remainder.
	LocalShare float64 `json:"epsilon"`
	// Capacity is the maximum number of replicas in region j on GPU k over all models; nil, or a
	// nil entry, is no limit.
	Capacity [][]*int `json:"capacity"`
	// Min and Max bound the replicas of model i in region j over all GPUs; nil, or a nil entry, is
	// no bound.
	Min [][]*int `json:"min"`
	Max [][]*int `json:"max"`
	Extras
}

// ReadProblem parses a problem from JSON and checks it. The error of invalid JSON contains the line, and the
// field if its type is wrong; the error of an invalid value contains the field with its index, and the value. An unknown
// key is an error: a misspelled limit would not apply.
func ReadProblem(name string, data []byte) (*Problem, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("reading problem %s: the file is empty", name)
	}
	var p Problem
	if err := json.Unmarshal(data, &p); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("reading problem %s:%d: is not valid JSON", name, lineOf(data, err))
		}
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) && kind.Field != "" {
			return nil, fmt.Errorf("reading problem %s:%d: %s: has the wrong type, got a JSON %s", name, lineOf(data, err), kind.Field[strings.LastIndexByte(kind.Field, '.')+1:], kind.Value)
		}
		return nil, fmt.Errorf("reading problem %s:%d: must be a JSON object", name, lineOf(data, err))
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(new(Problem)); err != nil { // otherwise the same as above
		return nil, fmt.Errorf("reading problem %s: %s: unknown key", name, strings.Trim(strings.TrimPrefix(err.Error(), "json: unknown field "), `"`))
	}
	if err := cmp.Or(p.checkNames(), p.Check()); err != nil {
		return nil, fmt.Errorf("reading problem %s: %w", name, err)
	}
	return &p, nil
}

// checkNames checks that the names of models, of regions and of GPUs tell them apart; a GPU may have several capacity types.
func (p *Problem) checkNames() error {
	var gpus []string
	for k, gpu := range p.GPUs {
		if k < len(p.CapacityType) && gpu != "" {
			gpu += " " + p.CapacityType[k]
		}
		gpus = append(gpus, gpu)
	}
	for _, list := range []struct {
		field string
		names []string
	}{{"models", p.Models}, {"regions", p.Regions}, {"gpus", gpus}} {
		for i, name := range list.names {
			if name == "" {
				return fmt.Errorf(`%s: must not be empty, got ""`, indexed(list.field, i))
			}
			if first := slices.Index(list.names, name); first < i {
				return fmt.Errorf("%s: must differ from %s, got %q", indexed(list.field, i), indexed(list.field, first), name)
			}
		}
	}
	return nil
}

// lineOf returns the line number of a JSON error.
func lineOf(data []byte, err error) int {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	offset := 0
	switch {
	case errors.As(err, &syntax):
		offset = int(syntax.Offset)
	case errors.As(err, &kind):
		offset = int(kind.Offset)
	}
	return 1 + bytes.Count(data[:min(offset, len(data))], []byte{'\n'})
}

// Check returns the first error in the problem's shape or values, with the index and the value
// found.
func (p *Problem) Check() error {
	c := inputChecker{models: len(p.Models), regions: len(p.Regions), gpus: len(p.GPUs)}
	if c.models == 0 || c.regions == 0 || c.gpus == 0 {
		return fmt.Errorf("models, regions, gpus: must not be empty, got %d, %d and %d entries", c.models, c.regions, c.gpus)
	}
	if !(p.LocalShare > 0 && p.LocalShare <= 1) {
		return fmt.Errorf("epsilon: must be greater than 0 and at most 1, got %g", p.LocalShare)
	}
	c.checkLength("n", len(p.Current), c.models)
	c.checkLength("theta", len(p.ReplicaTPS), c.models)
	c.checkLength("sigma", len(p.StartCostUSD), c.models)
	c.checkLength("rho", len(p.LoadTPS), c.models)
	c.checkValues("alpha", p.PricePerHour, c.gpus)
	if c.err != nil {
		return c.err
	}
	for i := range p.Models {
		c.checkValues(indexed("theta", i), p.ReplicaTPS[i], c.gpus)
		c.checkValues(indexed("sigma", i), p.StartCostUSD[i], c.gpus)
		c.checkLength(indexed("n", i), len(p.Current[i]), c.regions)
		c.checkLength(indexed("rho", i), len(p.LoadTPS[i]), c.regions)
		if c.err != nil {
			return c.err
		}
		for j := range p.Regions {
			c.checkCounts(indexed("n", i, j), p.Current[i][j], c.gpus)
			c.checkLength(indexed("rho", i, j), len(p.LoadTPS[i][j]), len(p.LoadTPS[0][0]))
			c.checkValues(indexed("rho", i, j), p.LoadTPS[i][j], len(p.LoadTPS[i][j]))
		}
	}
	c.checkLimits("capacity", p.Capacity, c.regions, c.gpus)
	c.checkLimits("min", p.Min, c.models, c.regions)
	c.checkLimits("max", p.Max, c.models, c.regions)
	c.checkExtras(p)
	return c.err
}

// inputChecker checks the fields of a Problem and records the first error.
type inputChecker struct {
	models, regions, gpus int
	err                   error
}

// indexed formats an index: indexed("n", 0, 2) returns n[0][2].
func indexed(name string, index ...int) string {
	var b strings.Builder
	b.WriteString(name)
	for _, i := range index {
		fmt.Fprintf(&b, "[%d]", i)
	}
	return b.String()
}

func (c *inputChecker) failf(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *inputChecker) checkLength(name string, got, want int) {
	if got != want {
		c.failf("%s: must have %d entries, got %d", name, want, got)
	}
}

func (c *inputChecker) checkValues(name string, values []float64, want int) {
	c.checkLength(name, len(values), want)
	for i, v := range values {
		if !(v >= 0 && v <= 1e15) {
			c.failf("%s: must be 0 to 1e15, got %g", indexed(name, i), v)
		}
	}
}

func (c *inputChecker) checkCounts(name string, values []int, want int) {
	c.checkLength(name, len(values), want)
	for i, v := range values {
		if v < 0 || v > maxCount {
			c.failf("%s: must be 0 to %d, got %d", indexed(name, i), maxCount, v)
		}
	}
}

func (c *inputChecker) checkLimits(name string, rows [][]*int, outer, inner int) {
	if rows == nil {
		return
	}
	c.checkLength(name, len(rows), outer)
	for i, row := range rows {
		c.checkLimitRow(indexed(name, i), row, inner)
	}
}

func (c *inputChecker) checkLimitRow(name string, row []*int, want int) {
	c.checkLength(name, len(row), want)
	for i, v := range row {
		if v != nil && (*v < 0 || *v > maxCount) {
			c.failf("%s: must be 0 to %d, got %d", indexed(name, i), maxCount, *v)
		}
	}
}

// limitOr returns rows[a][b], or fallback where there is no entry.
func limitOr(rows [][]*int, a, b, fallback int) int {
	if rows == nil || rows[a][b] == nil {
		return fallback
	}
	return *rows[a][b]
}

// LocalDemand returns the load of model i that region j must serve itself: LocalShare of its peak.
func (p *Problem) LocalDemand(i, j int) float64 { return p.LocalShare * p.RegionPeak(i, j) }

// RegionPeak returns the highest load of model i in region j over the windows.
func (p *Problem) RegionPeak(i, j int) float64 {
	var peak float64
	for _, v := range p.LoadTPS[i][j] {
		peak = math.Max(peak, v)
	}
	return peak
}

// GlobalDemand returns the highest load of model i in one window, summed over all regions.
func (p *Problem) GlobalDemand(i int) float64 {
	var peak float64
	for w := range p.LoadTPS[i][0] {
		var sum float64
		for j := range p.Regions {
			sum += p.LoadTPS[i][j][w]
		}
		peak = math.Max(peak, sum)
	}
	return peak
}

// Cost returns the objective at counts x: the hourly price of every replica, the start cost of every
// new one (the switch cost where it takes over a VM that another model frees), and the egress cost
// of load served by other regions.
func (p *Problem) Cost(x [][][]int) float64 {
	var cost float64
	for i := range p.Models {
		for j := range p.Regions {
			for k := range p.GPUs {
				cost += p.Price(j, k)*float64(x[i][j][k]) + p.StartCostUSD[i][k]*float64(max(0, x[i][j][k]-p.Current[i][j][k]))
			}
			if a := p.egressCostOf(i, j); a.price > 0 {
				cost += a.costAt(p.regionThroughput(x, i, j))
			}
		}
	}
	if p.SwitchCostUSD == nil {
		return cost
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			cost -= p.reuseSavings(j, k, func(i int) int { return x[i][j][k] }, nil)
		}
	}
	return math.Max(0, cost) // rounding must not make it negative
}
