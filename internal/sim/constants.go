package sim

import (
	"encoding/json"
	"reflect"
	"slices"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
)

// Constants are the parameters of a scenario in its report, complete enough to reproduce a result.
type Constants struct {
	Workload string `json:"workload"`
	// Lengths and Sigma are omitted if they are 1, Rate in a closed loop, Think if it is 0.
	Lengths        float64           `json:"lengths,omitempty"`
	Sigma          float64           `json:"sigma,omitempty"`
	Rate           float64           `json:"rate,omitempty"`
	Think          float64           `json:"think_ms,omitempty"`
	Surges         []ConstantsSurge  `json:"surges,omitempty"`
	Trace          *ConstantsTrace   `json:"trace,omitempty"`
	Faults         []ConstantsFault  `json:"faults,omitempty"`
	Engine         EngineModel       `json:"engine"`
	Regions        []ConstantsRegion `json:"regions"`
	Links          []ConstantsLink   `json:"links"`
	LocalRTT       float64           `json:"local_rtt_ms"`
	Home           string            `json:"home"`
	Duration       float64           `json:"duration_s"`
	Warmup         float64           `json:"warmup"`
	Interval       float64           `json:"interval_ms"`
	CacheEvents    bool              `json:"cache_events"`
	Forward        bool              `json:"forward"`
	MaxNew         int               `json:"max_new"`
	MaxContext     int               `json:"max_context"`
	Order          core.QueueOrder   `json:"order"`
	PeerQueueLimit int               `json:"tau"`
	Unconfirmed    int               `json:"unconfirmed_limit"`
	MaxWait        float64           `json:"max_wait_ms"`
	ClientTimeout  float64           `json:"client_timeout_ms"` // client timeout; 0 = none

	ConstantsProfile
	// Others are further profiles of regions.
	Others []ConstantsProfile `json:"profiles,omitempty"`
}

// MarshalJSON adds the former key of ClientTimeout.
func (c Constants) MarshalJSON() ([]byte, error) {
	type plain Constants
	return json.Marshal(struct {
		plain
		OldClientTimeout float64 `json:"patience_ms"`
	}{plain(c), c.ClientTimeout})
}

// ConstantsProfile is an engine.Profile in a report.
type ConstantsProfile struct {
	Profile          string  `json:"profile"`
	PrefillBase      float64 `json:"prefill_base_ms"`
	PrefillPerToken  float64 `json:"prefill_per_token_ms"`
	DecodeBase       float64 `json:"decode_base_ms"`
	DecodePerRequest float64 `json:"decode_per_request_ms"`
	DecodePerKVToken float64 `json:"decode_per_kv_token_ms"`
	// The curves are omitted if the linear constants above apply.
	PrefillCurve []ConstantsKnot `json:"prefill_curve,omitempty"`
	DecodeCurve  []ConstantsKnot `json:"decode_curve,omitempty"`
	ChunkTokens  int             `json:"chunk_tokens"`
	KVTokens     int             `json:"kv_tokens"`
	MaxRunning   int             `json:"max_running"`
	MixedSteps   bool            `json:"mixed_steps"` // a prefill step also generates tokens of running requests
	Reserve      float64         `json:"reserve"`     // share of the tokens to be generated that admission reserves memory for
}

// ConstantsKnot is an engine.Knot in a report.
type ConstantsKnot struct {
	At     int     `json:"at"` // tokens of a prefill step, requests of a decode step
	Millis float64 `json:"ms"`
}

// ConstantsRegion is a Region in a report.
type ConstantsRegion struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
	Clients  int    `json:"clients"`
	// Profiles are names, if the region has its own.
	Profiles []string `json:"profiles,omitempty"`
	// Balancers is omitted if it is 1.
	Balancers int `json:"balancers,omitempty"`
}

// ConstantsSurge is a Surge in a report.
type ConstantsSurge struct {
	Region string  `json:"region"`
	From   float64 `json:"from_s"`
	To     float64 `json:"to_s"`
	Factor float64 `json:"factor"`
}

// ConstantsTrace is a Trace in a report. A run determines the number of requests.
type ConstantsTrace struct {
	Name     string `json:"name"`
	Format   string `json:"format"`
	Requests int    `json:"requests"`
	Skipped  int    `json:"skipped"` // prompt exceeds the context
}

// MarshalJSON adds the former key of Skipped.
func (t ConstantsTrace) MarshalJSON() ([]byte, error) {
	type plain ConstantsTrace
	return json.Marshal(struct {
		plain
		OldSkipped int `json:"left_out"`
	}{plain(t), t.Skipped})
}

// ConstantsFault is a Fault in a report.
type ConstantsFault struct {
	Kind     FaultKind `json:"kind"`
	From     float64   `json:"from_s"`
	To       float64   `json:"to_s"`
	Replica  string    `json:"replica,omitempty"`
	Region   string    `json:"region,omitempty"`
	Peer     string    `json:"peer,omitempty"`
	Balancer int       `json:"balancer,omitempty"` // 0 = all balancers of the region
	Factor   float64   `json:"factor,omitempty"`
	Share    float64   `json:"share,omitempty"`
	Delay    float64   `json:"delay_ms,omitempty"`
}

// ConstantsLink is a Link in a report.
type ConstantsLink struct {
	A   string  `json:"a"`
	B   string  `json:"b"`
	RTT float64 `json:"rtt_ms"`
}

// Constants returns the scenario's parameters.
func (s *Scenario) Constants() Constants {
	c := Constants{
		Workload: string(s.Workload), Lengths: unlessOne(s.Lengths), Sigma: unlessOne(s.Sigma), Rate: s.Rate, Think: milliseconds(s.Think), Engine: s.Engine,
		LocalRTT: milliseconds(s.LocalRTT), Home: s.Home, Duration: s.Duration.Seconds(), Warmup: s.Warmup,
		Interval: milliseconds(s.Interval), CacheEvents: s.CacheEvents, Forward: s.Forward, MaxNew: s.MaxNew, MaxContext: s.MaxContext, Order: s.Order, PeerQueueLimit: s.PeerQueueLimit, Unconfirmed: s.Unconfirmed,
		MaxWait: milliseconds(s.MaxWait), ClientTimeout: milliseconds(s.ClientTimeout), ConstantsProfile: constantsOf(&s.Profile),
	}
	for _, u := range s.Surges {
		c.Surges = append(c.Surges, ConstantsSurge{u.Region, u.From.Seconds(), u.To.Seconds(), u.Factor})
	}
	if t := s.Trace; t != nil {
		c.Workload, c.Trace = "trace", &ConstantsTrace{Name: t.Name, Format: t.Format}
	}
	for i := range s.Faults {
		f := &s.Faults[i]
		c.Faults = append(c.Faults, ConstantsFault{
			f.Kind, f.From.Seconds(), s.end(f).Seconds(), f.Replica, f.Region, f.Peer, f.Balancer, f.Factor, f.Share, milliseconds(f.Delay),
		})
	}
	c.Regions, c.Others = s.regionConstants()
	for _, l := range s.Links {
		c.Links = append(c.Links, ConstantsLink{l.A, l.B, milliseconds(l.RTT)})
	}
	return c
}

// regionConstants returns the regions, and every profile they use besides the scenario's.
func (s *Scenario) regionConstants() (regions []ConstantsRegion, others []ConstantsProfile) {
	seen := []engine.Profile{s.Profile}
	for _, r := range s.Regions {
		region := ConstantsRegion{Name: r.Name, Replicas: r.Replicas, Clients: r.Clients}
		if r.balancers() > 1 {
			region.Balancers = r.Balancers
		}
		for i := range r.Profiles {
			region.Profiles = append(region.Profiles, r.Profiles[i].Name)
			same := func(p engine.Profile) bool { return reflect.DeepEqual(p, r.Profiles[i]) }
			if !slices.ContainsFunc(seen, same) {
				seen = append(seen, r.Profiles[i])
				others = append(others, constantsOf(&r.Profiles[i]))
			}
		}
		regions = append(regions, region)
	}
	return regions, others
}

func constantsOf(p *engine.Profile) ConstantsProfile {
	return ConstantsProfile{
		Profile: p.Name, PrefillBase: milliseconds(p.PrefillBase), PrefillPerToken: milliseconds(p.PrefillPerToken),
		DecodeBase: milliseconds(p.DecodeBase), DecodePerRequest: milliseconds(p.DecodePerRequest), DecodePerKVToken: milliseconds(p.DecodePerKVToken),
		PrefillCurve: constantsKnots(p.Prefill), DecodeCurve: constantsKnots(p.Decode),
		ChunkTokens: p.ChunkTokens, KVTokens: p.KVTokens, MaxRunning: p.MaxRunning, MixedSteps: p.MixedSteps, Reserve: float64(p.ReservePerMille) / 1000,
	}
}

func constantsKnots(c engine.Curve) (all []ConstantsKnot) {
	for _, k := range c {
		all = append(all, ConstantsKnot{k.At, milliseconds(k.Time)})
	}
	return all
}

// unlessOne returns a factor, or 0 if it is 1.
func unlessOne(factor float64) float64 {
	if factor == 1 {
		return 0
	}
	return factor
}
