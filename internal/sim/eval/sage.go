package eval

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/lbd/core"
	"skyserve/plan"
)

// SageScenario is a scenario of SageServe's evaluation (section 7): a service whose replicas are
// scaled.
type SageScenario struct {
	Name, Title string
	Load        string // request pattern, as printed
	// Strategies are compared by default.
	Strategies     []string
	cases          []string // other variants to compare, such as queue orders; empty = none
	models         int      // how many of the paper's four models; 5 adds the paper's extra model
	regions        int
	from           time.Duration // since the start of the week
	duration       time.Duration
	sampleInterval time.Duration // interval between two samples of the time series
	vms            int           // per model and region; 0 = that of sim.SageFleet
	load           float64       // factor on the demand; 0 = 1
	deferred       float64       // factor on the deferred part; 0 = 1
	hardware       func(s *sim.FleetScenario)
	adapt          func(s *sim.FleetScenario, name string)
	burst          *burst
	columns        func(r *SageReport) []sageColumn
	paper          []SagePaper
}

// burst multiplies the demand during part of the run.
type burst struct {
	from, to int // minutes
	factor   float64
}

const sageDay = 24 * time.Hour

// SageScenarios returns the scenarios of SageServe.
func SageScenarios() []SageScenario {
	all := plan.StrategyNames()
	return []SageScenario{
		{
			Name: "sage-day", Title: "SageServe 7.2.1: scaling strategies on the peak day of a week, 4 models in 3 regions",
			Load: "Thursday", Strategies: all, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay,
			sampleInterval: 15 * time.Minute, columns: dayColumns, paper: dayPaper(),
		},
		{
			Name: "sage-week", Title: "SageServe 7.2.7: scaling strategies over a week, 4 models in 3 regions",
			Load: "a week", Strategies: all, models: 4, regions: 3, duration: 7 * sageDay,
			sampleInterval: time.Hour, columns: dayColumns,
		},
		{
			Name: "sage-burst", Title: "SageServe 7.2.7: 8 times the load from minute 45 to minute 75 of two hours, one model in 3 regions",
			Load: "a burst", Strategies: all, models: 1, regions: 3, from: 3*sageDay + 6*time.Hour, duration: 2 * time.Hour,
			sampleInterval: time.Minute, burst: &burst{45, 75, 8}, columns: burstColumns,
		},
		{
			Name: "sage-silo", Title: "SageServe 4: one pool of 20 VMs per model versus 16 for interactive and 4 for deferred requests, one region",
			Load: "Tuesday", Strategies: []string{"reactive"}, cases: []string{"siloed", "unified"}, models: 4, regions: 1, from: sageDay, duration: sageDay,
			sampleInterval: 15 * time.Minute, adapt: adaptSilo, columns: dayColumns, paper: siloPaper(),
		},
		{
			Name: "sage-tiers", Title: "SageServe 7.2.6: queue orders at the replica, one under-provisioned model in one region at the peak",
			Load: "overload", Strategies: []string{"fixed"}, cases: []string{"fcfs", "edf", "pf", "dpa"}, models: 1, regions: 1, from: 3*sageDay + 14*time.Hour, duration: 6 * time.Hour,
			vms: 7, load: 1.05, sampleInterval: 15 * time.Minute, adapt: adaptOrder, columns: tierColumns, paper: tierPaper(),
		},
		{
			Name: "sage-fifth-model", Title: "SageServe 7.2.5: the peak day with Llama 4 Scout as a fifth model",
			Load: "Thursday", Strategies: all, models: 5, regions: 3, from: 3 * sageDay, duration: sageDay,
			sampleInterval: 15 * time.Minute, columns: dayColumns,
		},
		{
			Name: "sage-scarce", Title: "SageServe 6.4, 7.1: the peak day with 6 VMs per model and region, 12 spare VMs per region, bloom's weights not stored in westus",
			Load: "Thursday", Strategies: all, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, vms: 6,
			sampleInterval: 15 * time.Minute, hardware: limitVMs, columns: scarceColumns,
		},
		{
			Name: "sage-a100", Title: "SageServe A: the peak day on A100, 0.55 times the load, start-up times doubled, deadline of fast requests 3 s",
			Load: "Thursday", Strategies: []string{"reactive", "lt-ua", "auto"}, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, load: 0.55,
			sampleInterval: 15 * time.Minute, hardware: sim.UseA100, columns: dayColumns, paper: savedPaper(0.282),
		},
		{
			Name: "sage-iw-9-1", Title: "SageServe A: the peak day with 9 interactive tokens to 1 deferred",
			Load: "Thursday", Strategies: []string{"reactive", "lt-ua", "auto"}, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, deferred: 0.72 / 0.28 / 9,
			sampleInterval: 15 * time.Minute, columns: dayColumns, paper: savedPaper(0.263),
		},
		{
			Name: "sage-iw-1-1", Title: "SageServe A: the peak day with 1 interactive token to 1 deferred",
			Load: "Thursday", Strategies: []string{"reactive", "lt-ua", "auto"}, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, deferred: 0.72 / 0.28,
			sampleInterval: 15 * time.Minute, columns: dayColumns, paper: savedPaper(0.22),
		},
	}
}

// limitVMs leaves too few VMs for the peak, and removes the large model's weights from one region's
// storage.
func limitVMs(s *sim.FleetScenario) {
	s.Spare = 12
	s.Models[1].RemoteIn = []int{2}
}

func adaptSilo(s *sim.FleetScenario, name string) {
	if name == "siloed" {
		s.Silo = s.VMs / 5
	}
}

func adaptOrder(s *sim.FleetScenario, name string) { s.Order = core.QueueOrder(name) }

// IsSageName reports whether name is, or looks like, the name of one of SageScenarios rather than a file.
func IsSageName(name string) bool {
	return strings.HasPrefix(name, "sage") && !strings.ContainsAny(name, "./")
}

// FindSageScenarios returns the scenarios with that name; "sage" selects all. The error for an unknown name
// lists the names.
func FindSageScenarios(name string) ([]SageScenario, error) {
	all := SageScenarios()
	if name == "sage" {
		return all, nil
	}
	var names []string
	for i := range all {
		if all[i].Name == name {
			return all[i : i+1], nil
		}
		names = append(names, all[i].Name)
	}
	return nil, fmt.Errorf("unknown scenario %q: must be one of %s", name, strings.Join(names, ", "))
}

// SageComparison configures a comparison on a SageServe scenario.
type SageComparison struct {
	Scenario SageScenario
	// Strategies are names from plan.StrategyNames; none = the scenario's.
	Strategies []string
	// Seeds is the number of seeds, from SeedBase+1.
	Seeds    int
	SeedBase uint64
	Settings SageSettings
	// Trace, if set, replaces the generated week of demand.
	Trace *SageTrace
	// Paper adds the paper's values to the report.
	Paper bool
	// Workers is the number of concurrent runs; 0 = the number of processors.
	Workers int
	// Progress, if set, receives the number of finished runs and of all runs. Calls never overlap.
	Progress func(done, all int)
}

// sageRun is the run of one row.
type sageRun struct {
	strategy, label string
	seed            uint64
	fleet           *sim.FleetScenario
	setup           sim.FleetSetup
}

// RunSage runs the plan and returns its report. It returns the error of the first failed run in the
// order of the rows, or the end of ctx.
func RunSage(ctx context.Context, p SageComparison) (*SageReport, error) {
	runs, tps, err := p.runs()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	results, failures := make([]*sim.FleetResult, len(runs)), make([]error, len(runs))
	todo := make(chan int, len(runs))
	for i := range runs {
		todo <- i
	}
	close(todo)
	var mu sync.Mutex
	done := 0
	workers := p.Workers
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	var running sync.WaitGroup
	for range min(workers, len(runs)) {
		running.Go(func() {
			for i := range todo {
				if results[i], failures[i] = sim.RunFleet(ctx, runs[i].fleet, runs[i].setup); failures[i] != nil {
					stop()
				}
				mu.Lock()
				done++
				if p.Progress != nil {
					p.Progress(done, len(runs))
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if err := firstFailure(failures); err != nil {
		return nil, err
	}
	return newSageReport(&p, tps, runs, results), nil
}

// Check returns an error if the plan cannot run; it runs nothing.
func (p *SageComparison) Check() error {
	if p.Seeds < 1 {
		return fmt.Errorf("seeds: must be at least 1, got %d", p.Seeds)
	}
	for _, name := range p.strategies() {
		if name == "fixed" {
			continue
		}
		if _, err := plan.NewStrategy(name, plan.StrategyOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (p *SageComparison) strategies() []string {
	return firstNonEmpty(p.Strategies, p.Scenario.Strategies)
}

// runs returns the runs in the order of their rows, and the capacity of a replica of each model.
func (p *SageComparison) runs() ([]sageRun, []float64, error) {
	if err := p.Check(); err != nil {
		return nil, nil, err
	}
	base, err := p.fleet()
	if err != nil {
		return nil, nil, err
	}
	tps, err := replicaTPS(base)
	if err != nil {
		return nil, nil, err
	}
	spec := fleetService(base, tps)
	if _, err := forecast.ForecasterByName(p.planning(base).WithDefaults(spec).Forecaster); err != nil {
		return nil, nil, err
	}
	demands := make([]*sim.Demand, p.Seeds)
	for seed := range demands {
		if demands[seed], err = p.demand(base, p.SeedBase+uint64(seed)+1); err != nil {
			return nil, nil, err
		}
	}
	cases := p.Scenario.cases
	if len(cases) == 0 {
		cases = []string{""}
	}
	var runs []sageRun
	for _, label := range cases {
		inputs := make([]*sharedInputs, p.Seeds)
		for seed := range inputs {
			inputs[seed] = newSharedInputs(p.planning(base))
		}
		for _, strategy := range p.strategies() {
			for seed := range p.Seeds {
				s := *base
				s.Demand = demands[seed]
				if p.Scenario.adapt != nil {
					p.Scenario.adapt(&s, label)
				}
				run := sageRun{strategy: strategy, label: label, seed: p.SeedBase + uint64(seed) + 1, fleet: &s}
				if run.setup, err = newFleetSetup(&s, strategy, plan.StrategyOptions{MaxLateShare: p.Settings.Late}, run.seed, spec, inputs[seed]); err != nil {
					return nil, nil, err
				}
				if err := s.Validate(); err != nil {
					return nil, nil, err
				}
				runs = append(runs, run)
			}
		}
	}
	return runs, tps, nil
}

// fleet returns the scenario's fleet with the settings applied.
func (p *SageComparison) fleet() (*sim.FleetScenario, error) {
	s, c := sim.SageFleet(), &p.Scenario
	s.Name, s.Title, s.From, s.Duration, s.SampleInterval = c.Name, c.Title, c.from, c.duration, c.sampleInterval
	if c.models > len(s.Models) {
		s.Models = append(s.Models, sim.Scout())
	}
	s.Models, s.Regions = s.Models[:c.models], s.Regions[:c.regions]
	s.VMs = cmp.Or(c.vms, s.VMs)
	if c.hardware != nil {
		c.hardware(&s)
	}
	if p.Trace != nil {
		if c.burst != nil || len(c.cases) > 0 {
			return nil, fmt.Errorf("--trace: not supported by %s, which defines its own load", c.Name)
		}
		s.Models = p.Trace.models(s.Models)
		if served, found := len(s.Models), len(p.Trace.Models); found > served {
			return nil, fmt.Errorf("%s: must have at most the %d models of %s, got %d", p.Trace.Name, served, c.Name, found)
		}
	}
	return &s, p.Settings.apply(&s)
}

// planning returns the review options: the planner's defaults, the settings, and the scenario's replica
// start-up time.
func (p *SageComparison) planning(s *sim.FleetScenario) plan.ReviewOptions {
	return plan.ReviewOptions{Forecaster: p.Settings.Forecaster, LocalShare: p.Settings.Epsilon, PeakQuantile: p.Settings.Peak, Horizon: p.Settings.Horizon, Step: p.Settings.Step, StartUp: s.Starts.Reclaim}
}

// newFleetSetup creates the state machines of one run.
func newFleetSetup(s *sim.FleetScenario, name string, o plan.StrategyOptions, seed uint64, spec *service.Spec, inputs *sharedInputs) (sim.FleetSetup, error) {
	if name == "fixed" {
		return sim.FleetSetup{Scaler: fixedFleet{}, Deferred: core.DefaultDeferred(), Seed: seed}, nil
	}
	strategy, err := plan.NewStrategy(name, o)
	if err != nil {
		return sim.FleetSetup{}, err
	}
	return sim.FleetSetup{Scaler: newFleetScaler(s, strategy, spec, inputs), Deferred: deferredOf(name), Seed: seed}, nil
}

// deferredOf returns the rule for deferred requests that a strategy uses.
func deferredOf(strategy string) core.DeferredRule {
	if strategy == "auto" {
		return core.AutoDeferred()
	}
	return core.DefaultDeferred()
}

// fixedFleet never scales.
type fixedFleet struct{}

func (fixedFleet) Step(time.Duration, *sim.FleetView) ([]sim.FleetChange, error) { return nil, nil }

// planUtilisation is the memory utilisation at which a replica's capacity is measured: the scale-out
// threshold of the paper's strategies.
const planUtilisation = 0.70

// replicaTPS measures the capacity of a replica of each model.
func replicaTPS(s *sim.FleetScenario) ([]float64, error) {
	var out []float64
	for i := range s.Models {
		tps, err := s.ReplicaTPS(&s.Models[i], planUtilisation, 1)
		if err != nil {
			return nil, err
		}
		out = append(out, math.Max(tps, 1))
	}
	return out, nil
}

// demand returns the demand with a seed.
func (p *SageComparison) demand(s *sim.FleetScenario, seed uint64) (*sim.Demand, error) {
	load, deferred := cmp.Or(p.Settings.Load, p.Scenario.load, 1), cmp.Or(p.Settings.Deferred, p.Scenario.deferred, 1)
	if p.Trace != nil {
		return p.Trace.demand(s, load, deferred)
	}
	d := sim.SageWeek(seed, len(s.Models), load, deferred)
	for m := range d.PromptTPS {
		d.PromptTPS[m] = d.PromptTPS[m][:len(s.Regions)]
	}
	if b := p.Scenario.burst; b != nil {
		from := int(s.From / time.Minute)
		d.Scale(from+b.from, from+b.to, b.factor)
	}
	return d, nil
}

// SageSettings change a SageServe scenario; zero values change nothing.
type SageSettings struct {
	// Load multiplies the demand; Deferred additionally multiplies the deferred part.
	Load, Deferred float64
	// VMs, Spare, Min and Max are those of sim.FleetScenario.
	VMs, Spare, Min, Max int
	// Day is the start of the run: 1 = Monday, 0 = the scenario's. Duration is its length.
	Day      int
	Duration time.Duration
	Late     float64 // target share of late first tokens for strategy auto; 0 = plan.DefaultMaxLateShare
	// Forecaster, Epsilon, Peak and Horizon are those of plan.ReviewOptions with its defaults: the
	// simulation runs the planner of production.
	Forecaster string
	Epsilon    float64
	Peak       string
	Horizon    time.Duration
	Step       time.Duration
}

// sageDays are the values of the setting day.
var sageDays = []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}

// apply changes a fleet. Invalid results are errors of Validate.
func (o *SageSettings) apply(s *sim.FleetScenario) error {
	for _, v := range []struct{ to, from *int }{{&s.VMs, &o.VMs}, {&s.Spare, &o.Spare}, {&s.Min, &o.Min}, {&s.Max, &o.Max}} {
		*v.to = cmp.Or(*v.from, *v.to)
	}
	if o.Day > 0 {
		s.From = time.Duration(o.Day-1)*sageDay + s.From%sageDay
	}
	s.Duration = cmp.Or(o.Duration, s.Duration)
	if week := 7 * sageDay; s.From+s.Duration > week {
		return fmt.Errorf("day and duration: the run ends %s after the week that the demand covers", s.From+s.Duration-week)
	}
	return nil
}

// sageSettings are the keys of Set, sorted.
var sageSettings = []sim.Setting{
	{Name: "day", Meaning: "first day of the run: mon to sun"},
	{Name: "deferred", Meaning: "factor of the deferred load"},
	{Name: "duration", Meaning: "length of the run"},
	{Name: "epsilon", Meaning: "as plan --local-share"},
	{Name: "forecaster", Meaning: "as plan --forecaster"},
	{Name: "horizon", Meaning: "as plan --horizon"},
	{Name: "late", Meaning: "share of first tokens that may be later than their TTFT target (strategy auto)"},
	{Name: "load", Meaning: "factor of the whole load"},
	{Name: "max", Meaning: "maximum number of replicas per model and region"},
	{Name: "min", Meaning: "minimum number of replicas per model and region"},
	{Name: "peak", Meaning: "as plan --peak-quantile"},
	{Name: "spare", Meaning: "VMs that a region can launch, besides those at the start (vms)"},
	{Name: "step", Meaning: "as plan --step"},
	{Name: "vms", Meaning: "VMs per model and region at the start, all serving"},
}

// AllSageSettings returns the settings of SageServe's scenarios with their meanings, sorted by name.
func AllSageSettings() []sim.Setting { return slices.Clone(sageSettings) }

// sageSettingNames returns the keys of Set.
func sageSettingNames() []string {
	names := make([]string, len(sageSettings))
	for i, s := range sageSettings {
		names[i] = s.Name
	}
	return names
}

// Set sets the named setting from text.
func (o *SageSettings) Set(name, text string) error {
	switch name {
	case "load":
		return setFigure(&o.Load, text, 100)
	case "late":
		return setFigure(&o.Late, text, 0.5)
	case "deferred":
		return setFigure(&o.Deferred, text, 100)
	case "vms":
		return setCount(&o.VMs, text, 200)
	case "spare":
		return setCount(&o.Spare, text, 1000)
	case "min":
		return setCount(&o.Min, text, 200)
	case "max":
		return setCount(&o.Max, text, 1000)
	case "day":
		i := slices.Index(sageDays, text)
		if i < 0 {
			return fmt.Errorf("must be one of %s, got %q", strings.Join(sageDays, ", "), text)
		}
		o.Day = i + 1
	case "duration":
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Hour {
			return fmt.Errorf("must be a duration of at least 1h, got %q", text)
		}
		o.Duration = d
	case "epsilon":
		return setFigure(&o.Epsilon, text, 1)
	case "peak":
		if !slices.Contains(forecast.PeakQuantiles, text) {
			return fmt.Errorf("must be one of %s, got %q", strings.Join(forecast.PeakQuantiles, ", "), text)
		}
		o.Peak = text
	case "horizon":
		return setMinutes(&o.Horizon, text)
	case "step":
		return setMinutes(&o.Step, text)
	case "forecaster":
		if _, err := forecast.ForecasterByName(text); err != nil {
			return err
		}
		o.Forecaster = text
	default:
		return fmt.Errorf("unknown setting %q: must be one of %s", name, strings.Join(sageSettingNames(), ", "))
	}
	return nil
}

func setMinutes(to *time.Duration, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Minute || d > sageDay || d%time.Minute != 0 {
		return fmt.Errorf("must be whole minutes from 1m to 24h, got %q", text)
	}
	*to = d
	return nil
}

func setFigure(to *float64, text string, maximum float64) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= maximum) {
		return fmt.Errorf("must be greater than 0 and at most %g, got %q", maximum, text)
	}
	*to = v
	return nil
}

func setCount(to *int, text string, maximum int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maximum {
		return fmt.Errorf("must be an integer from 1 to %d, got %q", maximum, text)
	}
	*to = n
	return nil
}
