package sim

// Constants is a scenario as its report names it: every figure that a result
// rests on, so that it can be judged and repeated.
type Constants struct {
	Workload   string            `json:"workload"`
	Regions    []ConstantsRegion `json:"regions"`
	Links      []ConstantsLink   `json:"links"`
	LocalRTT   float64           `json:"local_rtt_ms"`
	Home       string            `json:"home"`
	Duration   float64           `json:"duration_s"`
	Warmup     float64           `json:"warmup"`
	Interval   float64           `json:"interval_ms"`
	Forward    bool              `json:"forward"`
	MaxNew     int               `json:"max_new"`
	MaxContext int               `json:"max_context"`
	Tau        int               `json:"tau"`
	MaxWait    float64           `json:"max_wait_ms"`
	Patience   float64           `json:"patience_ms"` // 0 = for ever

	Profile          string  `json:"profile"`
	PrefillBase      float64 `json:"prefill_base_ms"`
	PrefillPerToken  float64 `json:"prefill_per_token_ms"`
	DecodeBase       float64 `json:"decode_base_ms"`
	DecodePerRequest float64 `json:"decode_per_request_ms"`
	DecodePerKVToken float64 `json:"decode_per_kv_token_ms"`
	ChunkTokens      int     `json:"chunk_tokens"`
	KVTokens         int     `json:"kv_tokens"`
	MaxRunning       int     `json:"max_running"`
	Reserve          float64 `json:"reserve"` // share of the tokens to come that admission keeps room for
}

// ConstantsRegion is a Region in a report.
type ConstantsRegion struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
	Clients  int    `json:"clients"`
}

// ConstantsLink is a Link in a report.
type ConstantsLink struct {
	A   string  `json:"a"`
	B   string  `json:"b"`
	RTT float64 `json:"rtt_ms"`
}

// Constants lists what the scenario is made of.
func (s *Scenario) Constants() Constants {
	p := &s.Profile
	c := Constants{
		Workload: string(s.Workload), LocalRTT: milliseconds(s.LocalRTT), Home: s.Home, Duration: s.Duration.Seconds(), Warmup: s.Warmup,
		Interval: milliseconds(s.Interval), Forward: s.Forward, MaxNew: s.MaxNew, MaxContext: s.MaxContext, Tau: s.Tau,
		MaxWait: milliseconds(s.MaxWait), Patience: milliseconds(s.Patience),
		Profile: p.Name, PrefillBase: milliseconds(p.PrefillBase), PrefillPerToken: milliseconds(p.PrefillPerToken),
		DecodeBase: milliseconds(p.DecodeBase), DecodePerRequest: milliseconds(p.DecodePerRequest), DecodePerKVToken: milliseconds(p.DecodePerKVToken),
		ChunkTokens: p.ChunkTokens, KVTokens: p.KVTokens, MaxRunning: p.MaxRunning, Reserve: float64(p.ReservePerMille) / 1000,
	}
	for _, r := range s.Regions {
		c.Regions = append(c.Regions, ConstantsRegion(r))
	}
	for _, l := range s.Links {
		c.Links = append(c.Links, ConstantsLink{l.A, l.B, milliseconds(l.RTT)})
	}
	return c
}
