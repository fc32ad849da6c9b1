package eval

import (
	"time"

	"skyserve/internal/sim"
)

// SageReport compares scaling strategies.
type SageReport struct {
	Scenario   string        `json:"scenario"`
	Title      string        `json:"title"`
	Constants  SageConstants `json:"constants"`
	Rows       []SageRow     `json:"rows"`
	Summary    []SageSummary `json:"summary"`
	WallMillis float64       `json:"wall_ms"`
	// Paper holds the paper's values, with --paper.
	Paper []SagePaper `json:"paper,omitempty"`

	// Requests is the total number of simulated requests.
	Requests int `json:"-"`
	columns  []sageColumn
	series   []sageSeries // with the first seed, by row of the summary
}

// SageConstants are the parameters common to all runs.
type SageConstants struct {
	Regions       []string    `json:"regions"`
	RTTMillis     float64     `json:"rtt_ms"`
	VMs           int         `json:"vms"`   // per model and region
	Spare         int         `json:"spare"` // VMs that a region can launch
	Min           int         `json:"min"`
	Max           int         `json:"max"`
	FromHours     float64     `json:"from_h"` // since Monday of the week
	DurationHours float64     `json:"duration_h"`
	PeriodSeconds float64     `json:"period_s"`
	Trace         string      `json:"trace,omitempty"`
	Planner       SagePlanner `json:"planner"`
	Models        []SageModel `json:"models"`
}

// SagePlanner holds the planner's parameters.
type SagePlanner struct {
	Forecaster     string  `json:"forecaster"`
	Peak           string  `json:"peak"`    // quantile of the forecast peak that the plan covers
	Epsilon        float64 `json:"epsilon"` // share of its own peak that a region must serve
	HorizonSeconds float64 `json:"horizon_s"`
	StepSeconds    float64 `json:"step_s"` // averaging interval of the load before its peak is taken
	StartUpSeconds float64 `json:"start_up_s"`
}

// SageModel describes a model and its replicas.
type SageModel struct {
	Model    string `json:"model"`
	Profile  string `json:"profile"`
	GPUs     int    `json:"gpus"`
	KVTokens int    `json:"kv_tokens"`
	// ReplicaTPS is the measured capacity of one replica, in prompt tokens per second.
	ReplicaTPS float64 `json:"replica_tps"`
}

// SageRow is one strategy with one seed. Case is the other variant compared: the queue order at
// replicas, or the pools.
type SageRow struct {
	Strategy string `json:"strategy"`
	Case     string `json:"case,omitempty"`
	Seed     uint64 `json:"seed"`
	// Requests counts the sent requests; those not in Completed are waiting for capacity or being served
	// at the end.
	Requests  int            `json:"requests"`
	Completed int            `json:"completed"`
	Waiting   int            `json:"waiting"`
	Models    []SageModelRow `json:"models"`
	Burst     *SageBurst     `json:"burst,omitempty"`
}

// SageBurst describes the reaction to a scenario's burst.
type SageBurst struct {
	// PeakUtilisation is the maximum KV utilisation over all replicas, 0..1, from the burst's start on.
	PeakUtilisation float64 `json:"peak_utilisation"`
	// RecoverySeconds is the time from its start until utilisation stays below 70 % for five minutes;
	// null if it does not before the end.
	RecoverySeconds *float64 `json:"recovery_s"`
	// RecoveredInBurst reports that utilisation recovered before the burst ended.
	RecoveredInBurst bool `json:"recovered_in_burst"`
}

// SageUse is the use of VMs.
type SageUse struct {
	// InstanceHours counts VM-hours that were not donated, including starting and draining.
	InstanceHours float64 `json:"instance_hours"`
	// GPUHours is InstanceHours times the GPUs per VM.
	GPUHours float64 `json:"gpu_hours"`
	// WastedInstanceHours counts VM-hours from the scaling request until the replica serves;
	// WastedGPUHours is the same times the GPUs per VM.
	WastedInstanceHours  float64 `json:"wasted_instance_hours"`
	WastedGPUHours       float64 `json:"wasted_gpu_hours"`
	DonatedInstanceHours float64 `json:"donated_instance_hours"`
	// OwedInstanceHours is the VM-hours that a replica at its capacity needs for the deferred requests that
	// still wait at the end: work of this run that a later one pays for. OwedGPUHours is the same times the
	// GPUs per VM.
	OwedInstanceHours float64 `json:"owed_instance_hours"`
	OwedGPUHours      float64 `json:"owed_gpu_hours"`
	Starts            int     `json:"starts"`
	Redeployed        int     `json:"redeployed"` // starts that replaced other weights
	Launched          int     `json:"launched"`   // starts on new VMs
}

// SageModelRow is one model of a row.
type SageModelRow struct {
	Model string `json:"model"`
	SageUse
	Tiers   []SageTier      `json:"tiers"`
	Regions []SageRegionRow `json:"regions"`
}

// SageRegionRow is one model in one region. Its tiers count the region's clients, wherever they were
// served.
type SageRegionRow struct {
	Region string `json:"region"`
	Pool   string `json:"pool,omitempty"` // IW or NIW, with silos
	SageUse
	Tiers []SageTier `json:"tiers"`
}

// SageTier is the result of a tier's requests.
type SageTier struct {
	Tier      string `json:"tier"`
	Requests  int    `json:"requests"`
	Completed int    `json:"completed"`
	// Violations is the share (0..1) of requests that missed the tier's deadline.
	Violations *float64         `json:"sla_violations"`
	Reroutes   int              `json:"reroutes"`
	TTFT       *sim.Percentiles `json:"ttft_ms"`
	E2E        *sim.Percentiles `json:"e2e_ms"`
}

// sageSeries is the time series of a row, for charts.
type sageSeries struct {
	strategy, label string
	moments         []sim.FleetSample
	models          []int // by endpoint
}

// newSageReport returns the report of finished runs.
func newSageReport(p *SageComparison, tps []float64, runs []sageRun, results []*sim.FleetResult) *SageReport {
	r := &SageReport{Scenario: p.Scenario.Name, Title: p.Scenario.Title, Constants: sageConstants(p, runs[0].fleet, tps)}
	for i := range runs {
		row := sageRow(&runs[i], results[i], tps)
		if b := p.Scenario.burst; b != nil {
			row.Burst = recovery(b, results[i])
		}
		r.Rows = append(r.Rows, row)
		r.Requests += row.Requests
		if runs[i].seed == p.SeedBase+1 {
			c := sageSeries{strategy: row.Strategy, label: row.Case, moments: results[i].Samples}
			for _, e := range results[i].Endpoints {
				c.models = append(c.models, e.Model)
			}
			r.series = append(r.series, c)
		}
	}
	if p.Paper {
		r.Paper = p.Scenario.paper
		if p.Trace != nil {
			r.Paper = tracePaper()
		}
	}
	r.Summary = summariseSage(r.Rows)
	r.columns = p.Scenario.columns(r)
	return r
}

func sageConstants(p *SageComparison, s *sim.FleetScenario, tps []float64) SageConstants {
	c := SageConstants{
		Regions: s.Regions, RTTMillis: float64(s.RTT) / float64(time.Millisecond), VMs: s.VMs, Spare: s.Spare, Min: s.Min, Max: s.Max,
		FromHours: s.From.Hours(), DurationHours: s.Duration.Hours(), PeriodSeconds: s.Period.Seconds(),
	}
	if p.Trace != nil {
		c.Trace = p.Trace.Name
	}
	o := p.planning(s).WithDefaults(fleetService(s, tps))
	c.Planner = SagePlanner{o.Forecaster, o.PeakQuantile, o.LocalShare, o.Horizon.Seconds(), o.Step.Seconds(), o.StartUp.Seconds()}
	for i := range s.Models {
		m := &s.Models[i]
		c.Models = append(c.Models, SageModel{Model: m.Name, Profile: m.Profile.Name, GPUs: m.GPUs, KVTokens: m.Profile.KVTokens, ReplicaTPS: tps[i]})
	}
	return c
}

func sageRow(run *sageRun, result *sim.FleetResult, tps []float64) SageRow {
	s := run.fleet
	row := SageRow{
		Strategy: run.strategy, Case: run.label, Seed: run.seed, Requests: result.Issued, Completed: result.Completed, Waiting: result.Waiting,
		Models: make([]SageModelRow, len(s.Models)),
	}
	for m := range s.Models {
		row.Models[m].Model = s.Models[m].Name
		for _, t := range result.Tiers[3*m : 3*m+3] {
			row.Models[m].Tiers = append(row.Models[m].Tiers, sageTier(&t))
		}
	}
	for i := range result.Endpoints {
		e := &result.Endpoints[i]
		region := SageRegionRow{Region: s.Regions[e.Region], SageUse: sageUse(e, s.Models[e.Model].GPUs, tps[e.Model])}
		if s.Silo > 0 {
			region.Pool = "IW"
		}
		if e.Deferred {
			region.Pool = "NIW"
		} else {
			for t := range e.Tiers {
				region.Tiers = append(region.Tiers, sageTier(&e.Tiers[t]))
			}
		}
		model := &row.Models[e.Model]
		model.Regions = append(model.Regions, region)
		model.SageUse.addUse(&region.SageUse)
	}
	return row
}

func sageUse(e *sim.EndpointResult, gpus int, tps float64) SageUse {
	owed := float64(e.WaitingTokens) / tps / 3600
	return SageUse{
		OwedInstanceHours: owed, OwedGPUHours: float64(gpus) * owed,
		InstanceHours: e.InstanceHours(), GPUHours: float64(gpus) * e.InstanceHours(), WastedInstanceHours: e.Hours[sim.VMStarting], WastedGPUHours: float64(gpus) * e.Hours[sim.VMStarting],
		DonatedInstanceHours: e.Hours[sim.VMDonated], Starts: e.Starts, Redeployed: e.Redeployed, Launched: e.Launched,
	}
}

func (u *SageUse) addUse(o *SageUse) {
	u.InstanceHours += o.InstanceHours
	u.GPUHours += o.GPUHours
	u.WastedInstanceHours += o.WastedInstanceHours
	u.WastedGPUHours += o.WastedGPUHours
	u.DonatedInstanceHours += o.DonatedInstanceHours
	u.OwedInstanceHours += o.OwedInstanceHours
	u.OwedGPUHours += o.OwedGPUHours
	u.Starts += o.Starts
	u.Redeployed += o.Redeployed
	u.Launched += o.Launched
}

func sageTier(t *sim.TierResult) SageTier {
	out := SageTier{Tier: string(t.Tier), Requests: t.Issued, Completed: t.Completed, Reroutes: t.Reroutes, TTFT: t.TTFT, E2E: t.E2E}
	if t.Issued > 0 {
		share := float64(t.Violations) / float64(t.Issued)
		out.Violations = &share
	}
	return out
}

// A fleet has recovered when utilisation has stayed below recoveredBelow, the strategies' scale-out
// threshold, for recoveredFor.
const (
	recoveredBelow = 0.70
	recoveredFor   = 5 * time.Minute
)

// recovery computes the reaction to a burst.
func recovery(b *burst, result *sim.FleetResult) *SageBurst {
	began, ended := time.Duration(b.from)*time.Minute, time.Duration(b.to)*time.Minute
	out := &SageBurst{}
	last := began // last time above the threshold
	for _, m := range result.Samples {
		if m.At < began {
			continue
		}
		used := 0.0
		for i := range m.Endpoints {
			used += m.Endpoints[i].Utilisation / float64(len(m.Endpoints))
		}
		out.PeakUtilisation = max(out.PeakUtilisation, used)
		if out.RecoverySeconds != nil {
			continue
		}
		if used >= recoveredBelow {
			last = m.At
		} else if m.At-last >= recoveredFor {
			seconds := (last - began).Seconds()
			out.RecoverySeconds, out.RecoveredInBurst = &seconds, last < ended
		}
	}
	return out
}
