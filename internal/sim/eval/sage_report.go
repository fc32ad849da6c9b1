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
	// Paper is what the paper prints, where --paper asks for it.
	Paper []SagePaper `json:"paper,omitempty"`

	// Requests is how many were simulated in all.
	Requests int `json:"-"`
	columns  []sageColumn
	courses  []sageCourse // of seed 1, by row of the summary
}

// SageConstants is what the runs have in common.
type SageConstants struct {
	Regions       []string    `json:"regions"`
	RTTMillis     float64     `json:"rtt_ms"`
	VMs           int         `json:"vms"`   // a model and region
	Spare         int         `json:"spare"` // VMs that a region can launch
	Min           int         `json:"min"`
	Max           int         `json:"max"`
	FromHours     float64     `json:"from_h"` // of the week, from Monday
	DurationHours float64     `json:"duration_h"`
	PeriodSeconds float64     `json:"period_s"`
	Trace         string      `json:"trace,omitempty"`
	Planner       SagePlanner `json:"planner"`
	Models        []SageModel `json:"models"`
}

// SagePlanner is how the plans of a run are made.
type SagePlanner struct {
	Forecaster     string  `json:"forecaster"`
	Peak           string  `json:"peak"`    // level of the forecast peak that is planned for
	Epsilon        float64 `json:"epsilon"` // share of its own peak that a region carries
	HorizonSeconds float64 `json:"horizon_s"`
	StepSeconds    float64 `json:"step_s"` // over which load is averaged before its peak is planned for
	StartUpSeconds float64 `json:"start_up_s"`
}

// SageModel is a model and what one replica of it is.
type SageModel struct {
	Model    string `json:"model"`
	Profile  string `json:"profile"`
	GPUs     int    `json:"gpus"`
	KVTokens int    `json:"kv_tokens"`
	// ReplicaTPS is what was measured of one replica, in prompt tokens a second.
	ReplicaTPS float64 `json:"replica_tps"`
}

// SageRow is one strategy at one seed. Case says what else is compared: the order
// of the requests that wait, or the pools.
type SageRow struct {
	Strategy string `json:"strategy"`
	Case     string `json:"case,omitempty"`
	Seed     uint64 `json:"seed"`
	// Requests were asked; those that are not in Completed wait for room or are being
	// served at the end.
	Requests  int            `json:"requests"`
	Completed int            `json:"completed"`
	Waiting   int            `json:"waiting"`
	Models    []SageModelRow `json:"models"`
	Burst     *SageBurst     `json:"burst,omitempty"`
}

// SageBurst is how a scenario's burst went.
type SageBurst struct {
	// PeakUtilisation is the most that the KV memory of all replicas is used, 0..1,
	// from the burst's beginning on.
	PeakUtilisation float64 `json:"peak_utilisation"`
	// RecoverySeconds is how long after its beginning utilisation is back below 70 %
	// for five minutes; null where it is not before the end.
	RecoverySeconds *float64 `json:"recovery_s"`
	// InBurst says that it was back before the burst was over.
	InBurst bool `json:"recovered_in_burst"`
}

// SageUse is what replicas were used for.
type SageUse struct {
	// InstanceHours is VM-hours that were not lent, starting and draining included.
	InstanceHours float64 `json:"instance_hours"`
	// GPUHours is the same by GPUs.
	GPUHours float64 `json:"gpu_hours"`
	// WastedInstanceHours is from asking for a replica until it serves, and
	// WastedGPUHours the same by GPUs.
	WastedInstanceHours  float64 `json:"wasted_instance_hours"`
	WastedGPUHours       float64 `json:"wasted_gpu_hours"`
	DonatedInstanceHours float64 `json:"donated_instance_hours"`
	Starts               int     `json:"starts"`
	Redeployed           int     `json:"redeployed"` // of the starts, with other weights before
	Launched             int     `json:"launched"`   // of the starts, on new VMs
}

// SageModelRow is one model of a row.
type SageModelRow struct {
	Model string `json:"model"`
	SageUse
	Tiers   []SageTier      `json:"tiers"`
	Regions []SageRegionRow `json:"regions"`
}

// SageRegionRow is one model in one region. Its tiers are those of the region's
// clients, wherever they were served.
type SageRegionRow struct {
	Region string `json:"region"`
	Pool   string `json:"pool,omitempty"` // IW or NIW, of silos
	SageUse
	Tiers []SageTier `json:"tiers"`
}

// SageTier is what became of a tier's requests.
type SageTier struct {
	Tier      string `json:"tier"`
	Requests  int    `json:"requests"`
	Completed int    `json:"completed"`
	// Violations is the share (0..1) that missed the tier's target.
	Violations *float64         `json:"sla_violations"`
	Reroutes   int              `json:"reroutes"`
	TTFT       *sim.Percentiles `json:"ttft_ms"`
	E2E        *sim.Percentiles `json:"e2e_ms"`
}

// sageCourse is a row's course, for drawings.
type sageCourse struct {
	strategy, label string
	moments         []sim.FleetMoment
	models          []int // by endpoint
}

// newSageReport makes the report of runs that have ended.
func newSageReport(p *SagePlan, tps []float64, runs []sageRun, results []*sim.FleetResult) *SageReport {
	r := &SageReport{Scenario: p.Scenario.Name, Title: p.Scenario.Title, Constants: sageConstants(p, runs[0].fleet, tps)}
	for i := range runs {
		row := sageRow(&runs[i], results[i])
		if b := p.Scenario.burst; b != nil {
			row.Burst = recovery(b, results[i])
		}
		r.Rows = append(r.Rows, row)
		r.Requests += row.Requests
		if runs[i].seed == 1 {
			c := sageCourse{strategy: row.Strategy, label: row.Case, moments: results[i].Course}
			for _, e := range results[i].Endpoints {
				c.models = append(c.models, e.Model)
			}
			r.courses = append(r.courses, c)
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

func sageConstants(p *SagePlan, s *sim.FleetScenario, tps []float64) SageConstants {
	c := SageConstants{
		Regions: s.Regions, RTTMillis: float64(s.RTT) / float64(time.Millisecond), VMs: s.VMs, Spare: s.Spare, Min: s.Min, Max: s.Max,
		FromHours: s.From.Hours(), DurationHours: s.Duration.Hours(), PeriodSeconds: s.Period.Seconds(),
	}
	if p.Trace != nil {
		c.Trace = p.Trace.Name
	}
	o := p.planning(s).WithDefaults(fleetService(s, tps))
	c.Planner = SagePlanner{o.Forecaster, o.Peak, o.Epsilon, o.Horizon.Seconds(), o.Step.Seconds(), o.StartUp.Seconds()}
	for i := range s.Models {
		m := &s.Models[i]
		c.Models = append(c.Models, SageModel{Model: m.Name, Profile: m.Profile.Name, GPUs: m.GPUs, KVTokens: m.Profile.KVTokens, ReplicaTPS: tps[i]})
	}
	return c
}

func sageRow(run *sageRun, result *sim.FleetResult) SageRow {
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
		region := SageRegionRow{Region: s.Regions[e.Region], SageUse: sageUse(e, s.Models[e.Model].GPUs)}
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
		model.SageUse.add(&region.SageUse)
	}
	return row
}

func sageUse(e *sim.EndpointResult, gpus int) SageUse {
	return SageUse{
		InstanceHours: e.InstanceHours(), GPUHours: float64(gpus) * e.InstanceHours(), WastedInstanceHours: e.Hours[sim.VMStarting], WastedGPUHours: float64(gpus) * e.Hours[sim.VMStarting],
		DonatedInstanceHours: e.Hours[sim.VMDonated], Starts: e.Starts, Redeployed: e.Redeployed, Launched: e.Launched,
	}
}

func (u *SageUse) add(o *SageUse) {
	u.InstanceHours += o.InstanceHours
	u.GPUHours += o.GPUHours
	u.WastedInstanceHours += o.WastedInstanceHours
	u.WastedGPUHours += o.WastedGPUHours
	u.DonatedInstanceHours += o.DonatedInstanceHours
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

// A burst counts as over when utilisation has been below recoveredBelow, above which
// the strategies scale out, for recoveredFor.
const (
	recoveredBelow = 0.70
	recoveredFor   = 5 * time.Minute
)

// recovery reads off how a burst went.
func recovery(b *burst, result *sim.FleetResult) *SageBurst {
	began, ended := time.Duration(b.from)*time.Minute, time.Duration(b.to)*time.Minute
	out := &SageBurst{}
	last := began // time above
	for _, m := range result.Course {
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
			out.RecoverySeconds, out.InBurst = &seconds, last < ended
		}
	}
	return out
}
