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

// SageScenario is a scenario of SageServe's evaluation (section 7): a service whose
// replicas come and go.
type SageScenario struct {
	Name, Title string
	Load        string // how requests come, for people
	// Strategies are compared where nothing else is asked for.
	Strategies []string
	cases      []string // what else is compared, such as orders; one empty = nothing
	models     int      // how many of the paper's four, or 5 with the one that it adds
	regions    int
	from       time.Duration // of the week
	duration   time.Duration
	course     time.Duration // between two moments
	vms        int           // a model and region; 0 = sim.SageFleet's
	load       float64       // factor on the demand; 0 = 1
	deferred   float64       // factor on the deferred part; 0 = 1
	hardware   func(s *sim.FleetScenario)
	adapt      func(s *sim.FleetScenario, name string)
	burst      *burst
	columns    func(r *SageReport) []sageColumn
	paper      []SagePaper
}

// burst multiplies the demand for some minutes of the run.
type burst struct {
	from, to int // minutes
	factor   float64
}

const sageDay = 24 * time.Hour

// SageScenarios lists the scenarios of SageServe.
func SageScenarios() []SageScenario {
	all := plan.StrategyNames()
	return []SageScenario{
		{
			Name: "sage-day", Title: "SageServe 7.2.1: scaling strategies on the peak day of a week, 4 models in 3 regions",
			Load: "Thursday", Strategies: all, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay,
			course: 15 * time.Minute, columns: dayColumns, paper: dayPaper(),
		},
		{
			Name: "sage-week", Title: "SageServe 7.2.7: scaling strategies over a week, 4 models in 3 regions",
			Load: "a week", Strategies: all, models: 4, regions: 3, duration: 7 * sageDay,
			course: time.Hour, columns: dayColumns,
		},
		{
			Name: "sage-burst", Title: "SageServe 7.2.7: 8 times the load from minute 45 to minute 75 of two hours, one model in 3 regions",
			Load: "a burst", Strategies: all, models: 1, regions: 3, from: 3*sageDay + 6*time.Hour, duration: 2 * time.Hour,
			course: time.Minute, burst: &burst{45, 75, 8}, columns: burstColumns,
		},
		{
			Name: "sage-silo", Title: "SageServe 4: one pool of 20 VMs a model against 16 for interactive and 4 for deferred requests, one region",
			Load: "Tuesday", Strategies: []string{"reactive"}, cases: []string{"siloed", "unified"}, models: 4, regions: 1, from: sageDay, duration: sageDay,
			course: 15 * time.Minute, adapt: adaptSilo, columns: dayColumns, paper: siloPaper(),
		},
		{
			Name: "sage-tiers", Title: "SageServe 7.2.6: orders of the requests waiting at a replica, too few replicas of one model in one region at the peak",
			Load: "overload", Strategies: []string{"fixed"}, cases: []string{"fcfs", "edf", "pf", "dpa"}, models: 1, regions: 1, from: 3*sageDay + 14*time.Hour, duration: 6 * time.Hour,
			vms: 7, load: 1.05, course: 15 * time.Minute, adapt: adaptOrder, columns: tierColumns, paper: tierPaper(),
		},
		{
			Name: "sage-fifth-model", Title: "SageServe 7.2.5: the peak day with Llama 4 Scout as a fifth model",
			Load: "Thursday", Strategies: all, models: 5, regions: 3, from: 3 * sageDay, duration: sageDay,
			course: 15 * time.Minute, columns: dayColumns,
		},
		{
			Name: "sage-scarce", Title: "SageServe 6.4, 7.1: the peak day with 6 VMs a model and region, 12 more that a region can launch, bloom's weights not in westus",
			Load: "Thursday", Strategies: all, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, vms: 6,
			course: 15 * time.Minute, hardware: scarce, columns: scarceColumns,
		},
		{
			Name: "sage-a100", Title: "SageServe A: the peak day on A100, 0.55 of the load, starts twice as long, IW-F due after 3 s",
			Load: "Thursday", Strategies: []string{"reactive", "lt-ua", "auto"}, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, load: 0.55,
			course: 15 * time.Minute, hardware: sim.OnA100, columns: dayColumns, paper: savedPaper(0.282),
		},
		{
			Name: "sage-iw-9-1", Title: "SageServe A: the peak day with 9 interactive tokens to 1 deferred",
			Load: "Thursday", Strategies: []string{"reactive", "lt-ua", "auto"}, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, deferred: 0.72 / 0.28 / 9,
			course: 15 * time.Minute, columns: dayColumns, paper: savedPaper(0.263),
		},
		{
			Name: "sage-iw-1-1", Title: "SageServe A: the peak day with as many deferred tokens as interactive ones",
			Load: "Thursday", Strategies: []string{"reactive", "lt-ua", "auto"}, models: 4, regions: 3, from: 3 * sageDay, duration: sageDay, deferred: 0.72 / 0.28,
			course: 15 * time.Minute, columns: dayColumns, paper: savedPaper(0.22),
		},
	}
}

// scarce leaves too few VMs for the peak, and takes the large model's weights out of
// one region's store.
func scarce(s *sim.FleetScenario) {
	s.Spare = 12
	s.Models[1].RemoteIn = []int{2}
}

func adaptSilo(s *sim.FleetScenario, name string) {
	if name == "siloed" {
		s.Silo = s.VMs / 5
	}
}

func adaptOrder(s *sim.FleetScenario, name string) { s.Order = core.Order(name) }

// IsSage tells whether a name is, or looks like, that of one of SageScenarios and
// not that of a file.
func IsSage(name string) bool {
	return strings.HasPrefix(name, "sage") && !strings.ContainsAny(name, "./")
}

// SageNamed finds the scenarios of a name; sage is all of them. An unknown one is
// an error that lists the names.
func SageNamed(name string) ([]SageScenario, error) {
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
	return nil, fmt.Errorf("unknown scenario %q: want one of %s", name, strings.Join(names, ", "))
}

// SagePlan is what to compare on a scenario of SageServe.
type SagePlan struct {
	Scenario SageScenario
	// Strategies are names of plan.StrategyNames; none = the scenario's.
	Strategies []string
	// Seeds is how many seeds to run, from 1.
	Seeds    int
	Settings SageSettings
	// Trace, when set, is the demand instead of a generated week.
	Trace *SageTrace
	// Paper puts what the paper prints beside what is measured.
	Paper bool
	// Workers is how many runs go on at once; 0 = as many as there are processors.
	Workers int
	// Progress, when set, is told how many of how many runs are done. Calls never
	// overlap.
	Progress func(done, all int)
}

// sageRun is one row to be.
type sageRun struct {
	strategy, label string
	seed            uint64
	fleet           *sim.FleetScenario
	setup           sim.FleetSetup
}

// RunSage runs the plan and reports. The first run that fails, in the order of the
// rows, is the error, and so is the end of ctx.
func RunSage(ctx context.Context, p SagePlan) (*SageReport, error) {
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

// Check says what makes the plan impossible, or nil, without running it.
func (p *SagePlan) Check() error {
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

func (p *SagePlan) strategies() []string { return firstOf(p.Strategies, p.Scenario.Strategies) }

// runs lists the runs in the order of their rows, and says what a replica of each
// model carries.
func (p *SagePlan) runs() ([]sageRun, []float64, error) {
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
	if _, err := forecast.ByName(p.planning(base).WithDefaults(spec).Forecaster); err != nil {
		return nil, nil, err
	}
	demands := make([]*sim.Demand, p.Seeds)
	for seed := range demands {
		if demands[seed], err = p.demand(base, uint64(seed)+1); err != nil {
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
				run := sageRun{strategy: strategy, label: label, seed: uint64(seed) + 1, fleet: &s}
				if run.setup, err = newFleetSetup(&s, strategy, plan.StrategyOptions{Late: p.Settings.Late}, run.seed, spec, inputs[seed]); err != nil {
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

// fleet is the scenario's fleet, as the settings change it.
func (p *SagePlan) fleet() (*sim.FleetScenario, error) {
	s, c := sim.SageFleet(), &p.Scenario
	s.Name, s.Title, s.From, s.Duration, s.CoursePeriod = c.Name, c.Title, c.from, c.duration, c.course
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
			return nil, fmt.Errorf("--trace: %s has a load of its own", c.Name)
		}
		s.Models = p.Trace.models(s.Models)
	}
	return &s, p.Settings.apply(&s)
}

// planning is how plans are made: as everywhere, but for what the settings say and for
// how long a replica takes to start, which is the scenario's.
func (p *SagePlan) planning(s *sim.FleetScenario) plan.ReviewOptions {
	return plan.ReviewOptions{Forecaster: p.Settings.Forecaster, Epsilon: p.Settings.Epsilon, Peak: p.Settings.Peak, Horizon: p.Settings.Horizon, Step: p.Settings.Step, StartUp: s.Starts.Reclaim}
}

// newFleetSetup makes the state machines of one run.
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

// deferredOf is the rule for deferred requests that goes with a strategy.
func deferredOf(strategy string) core.DeferredRule {
	if strategy == "auto" {
		return core.AutoDeferred()
	}
	return core.DefaultDeferred()
}

// fixedFleet changes nothing.
type fixedFleet struct{}

func (fixedFleet) Step(time.Duration, *sim.FleetView) ([]sim.FleetChange, error) { return nil, nil }

// planUtilisation is the memory utilisation at which a replica's capacity is
// measured: that above which the paper's strategies scale out.
const planUtilisation = 0.70

// replicaTPS measures what a replica of each model carries.
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

// demand is what is asked under a seed.
func (p *SagePlan) demand(s *sim.FleetScenario, seed uint64) (*sim.Demand, error) {
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

// SageSettings change a scenario of SageServe; zero values change nothing.
type SageSettings struct {
	// Load multiplies the demand, Deferred the deferred part once more.
	Load, Deferred float64
	// VMs, Spare, Min and Max are sim.FleetScenario's.
	VMs, Spare, Min, Max int
	// Day is where the run begins, from 0 = Monday, plus one; Duration how long it is.
	Day      int
	Duration time.Duration
	Late     float64 // the share of late first tokens that auto aims at; 0 = plan.DefaultLate
	// Forecaster, Epsilon, Peak and Horizon are those of plan.ReviewOptions, whose
	// defaults hold: what is simulated is the planner as it is used.
	Forecaster string
	Epsilon    float64
	Peak       string
	Horizon    time.Duration
	Step       time.Duration
}

// sageDays are the days as users write them.
var sageDays = []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}

// apply changes a fleet. What it cannot be is an error of Validate.
func (o *SageSettings) apply(s *sim.FleetScenario) error {
	for _, v := range []struct{ to, from *int }{{&s.VMs, &o.VMs}, {&s.Spare, &o.Spare}, {&s.Min, &o.Min}, {&s.Max, &o.Max}} {
		*v.to = cmp.Or(*v.from, *v.to)
	}
	if o.Day > 0 {
		s.From = time.Duration(o.Day-1)*sageDay + s.From%sageDay
	}
	s.Duration = cmp.Or(o.Duration, s.Duration)
	if week := 7 * sageDay; s.From+s.Duration > week {
		return fmt.Errorf("day and duration: the run ends %s after the week, whose demand is all that is known", s.From+s.Duration-week)
	}
	return nil
}

// SageSettingNames lists the keys of Set.
func SageSettingNames() []string {
	return []string{"day", "deferred", "duration", "epsilon", "forecaster", "horizon", "late", "load", "max", "min", "peak", "spare", "step", "vms"}
}

// Set changes a setting by its name, as users write it.
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
			return fmt.Errorf("want one of %s, got %q", strings.Join(sageDays, ", "), text)
		}
		o.Day = i + 1
	case "duration":
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Hour {
			return fmt.Errorf("want a duration of 1h or more, got %q", text)
		}
		o.Duration = d
	case "epsilon":
		return setFigure(&o.Epsilon, text, 1)
	case "peak":
		if !slices.Contains(forecast.PeakLevels, text) {
			return fmt.Errorf("want one of %s, got %q", strings.Join(forecast.PeakLevels, ", "), text)
		}
		o.Peak = text
	case "horizon":
		return setMinutes(&o.Horizon, text)
	case "step":
		return setMinutes(&o.Step, text)
	case "forecaster":
		if _, err := forecast.ByName(text); err != nil {
			return err
		}
		o.Forecaster = text
	default:
		return fmt.Errorf("unknown setting %q: want one of %s", name, strings.Join(SageSettingNames(), ", "))
	}
	return nil
}

func setMinutes(to *time.Duration, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Minute || d > sageDay || d%time.Minute != 0 {
		return fmt.Errorf("want whole minutes from 1m to 24h, got %q", text)
	}
	*to = d
	return nil
}

func setFigure(to *float64, text string, most float64) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= most) {
		return fmt.Errorf("want a number above 0 and at most %g, got %q", most, text)
	}
	*to = v
	return nil
}

func setCount(to *int, text string, most int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return fmt.Errorf("want a whole number from 1 to %d, got %q", most, text)
	}
	*to = n
	return nil
}
