package service

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// defaultValue is a default value with its reason.
type defaultValue struct {
	value  any
	reason string
}

// defaults is the only table of defaults, with the keys of the rules. The rules of these keys
// reject an explicit zero, so zero always means unset. The functions below fill in defaults that
// depend on other keys.
var defaults = map[string]defaultValue{
	"Engine.kind": {EngineVLLM, "the most widely used engine"},

	"GPU.count": {1, "most models fit one GPU"},

	"Model.ready_timeout": {45 * time.Minute, "600 GB of weights take 20 minutes at 500 MB/s; boot, image, loading into the GPUs and compilation take at most 25 more"},

	"RegionSpec.balancers": {1, "one handles several thousand streams; a second one is for redundancy"},

	"BalancerSpec.policy":            {"cost", "the lowest cost in seconds: the estimated time of the request plus the delay it causes to others"},
	"BalancerSpec.push":              {"pending", "a replica gets a request only when none is pending there, so requests queue where they can still be rerouted (SkyLB 3.3)"},
	"BalancerSpec.order":             {"fcfs", "the order that clients expect"},
	"BalancerSpec.forward":           {true, "using idle replicas in other regions is the point of a multi-region service"},
	"BalancerSpec.peer_queue_limit":  {10, "a small buffer for arriving requests that still spreads a burst (SkyLB 3.3)"},
	"BalancerSpec.queue_limit":       {4096, "more than clients wait for; memory.requests limits their bytes"},
	"BalancerSpec.max_wait":          {60 * time.Second, "the longest latency that the normal interactive tier tolerates"},
	"BalancerSpec.dpa_severe_after":  {5 * time.Second, "most clients still wait 5 s after the target, fewer later"},
	"BalancerSpec.dpa_urgent_before": {time.Second, "the whole target of IW-F, so that such a request is urgent on arrival"},

	"BalancerSpec.max_cold_wait":           {15 * time.Minute, "a VM boots, pulls an image of 10 GB and loads the weights of a large model in 10 to 15 minutes"},
	"BalancerSpec.hold_deferred":           {true, "batch requests only use spare capacity (SageServe 6.2)"},
	"BalancerSpec.deferred_memory_percent": {60, "the threshold of SageServe (6.2); 65 with strategy auto, which runs replicas at a higher utilisation"},
	"BalancerSpec.deferred_wait_percent":   {42, "10 of 24 hours, as in SageServe (6.2); 83 with strategy auto, which defers batch requests to the night"},

	"BalancerSpec.max_tries":     {5, "if that many replicas fail, the request is the likely cause"},
	"BalancerSpec.retry_percent": {20, "the load that retries may add to the remaining replicas in an outage"},
	"BalancerSpec.eject_after":   {5, "five consecutive failures are unlikely to be chance"},
	"BalancerSpec.eject_time":    {5 * time.Second, "shorter than most restarts of an engine"},
	"BalancerSpec.continue":      {true, "a pause is better than a truncated response"},

	"CORS.max_age": {10 * time.Minute, "a removed origin loses its permission soon; one extra request in ten minutes costs nothing"},

	"ACME.ca":      {CALetsEncrypt, "free and trusted by every client"},
	"Memory.total": {2 * GiB, "half of the smallest balancer machine; the rest is for the controller, the agent and the system"},

	"DNS.routing": {"latency", "the fastest region is not always the nearest"},
	"DNS.ttl":     {30 * time.Second, "how long after a failed health check clients may still connect to a failed region"},

	"Autoscale.strategy": {"manual", "nothing that costs money changes without an operator"},
	"Autoscale.forecast": {"auto", "the best forecaster depends on the traffic"},
	"Autoscale.every":    {time.Hour, "SageServe forecasts and optimises every hour"},

	"Autoscale.ttft_miss_target": {0.05, "the target of IW-F is stated for the 95th percentile (SageServe section 2.2)"},
	"Autoscale.donate_for":       {time.Hour, "until the next plan: by then it was not needed for a whole hour"},

	"Autoscale.scale_to_zero_after": {10 * time.Minute, "about the time that starting a replica again takes, so that a pause in a conversation does not cost a start"},

	"StoreBackup.every": {time.Hour, "at most an hour of history, events and batches is lost with all disks"},
	"StoreBackup.keep":  {24, "a day: enough to restore the state before a mistake"},

	"LocalHosts.port": {8001, "next to 8000, which engines use"},
}

// autoDefaults override defaults for services with the strategy auto: the values of core.AutoDeferred,
// with which the strategy was evaluated.
var autoDefaults = map[string]defaultValue{
	"BalancerSpec.deferred_memory_percent": {65, "auto runs replicas at a higher utilisation than SageServe"},
	"BalancerSpec.deferred_wait_percent":   {83, "20 of 24 hours include a night, when replicas have spare capacity"},
}

// simDefaults are the defaults of keys that only simulated engines have.
var simDefaults = map[string]defaultValue{
	"Engine.profile": {"l4-llama3.1-8b", "the GPU and model of the SkyLB evaluation"},
	"Engine.speed":   {1.0, "real time"},
	"Engine.flavor":  {string(EngineVLLM), "the metrics that most engines export"},
}

// Default is a default value for the guide.
type Default struct {
	// Key is the type and key: BalancerSpec.queue_limit.
	Key string
	// Value is the default in the notation of service.yaml.
	Value string
	// Reason is why it is the default.
	Reason string
}

// DefaultOf returns the default of a key such as BalancerSpec.queue_limit, if it has one.
func DefaultOf(key string) (Default, bool) {
	d, ok := defaults[key]
	if !ok {
		d, ok = simDefaults[key]
	}
	if !ok {
		return Default{}, false
	}
	return Default{Key: key, Value: fmt.Sprint(yamlValue(d.value)), Reason: d.reason}, true
}

// yamlValue converts a default value to its form in YAML and JSON.
func yamlValue(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return FormatDuration(v)
	case EngineKind:
		return string(v)
	case Size:
		return v.String()
	}
	return v
}

// FormatDuration formats a duration without trailing zero units: 1h for 1h0m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// WithDefaults returns b with every unset key filled in.
func (b BalancerSpec) WithDefaults() BalancerSpec {
	applyDefaults(reflect.ValueOf(&b).Elem(), defaults)
	b.Memory = b.Memory.withDefaults()
	return b
}

// fillDefaults fills in unset keys. has reports whether the document contains a path; it
// distinguishes "min: 0" from no min.
func (s *Spec) fillDefaults(has func(path) bool) {
	if s.Autoscale.Strategy == StrategyAuto {
		applyDefaults(reflect.ValueOf(&s.Balancer).Elem(), autoDefaults)
	}
	applyDefaults(reflect.ValueOf(s).Elem(), defaults)
	s.Balancer.Memory = s.Balancer.Memory.withDefaults()
	for i := range s.Models {
		if e := &s.Models[i].Engine; e.Kind == EngineSim {
			applyDefaults(reflect.ValueOf(e).Elem(), simDefaults)
		}
	}
	for i := range s.Regions {
		s.Regions[i].fillDefaults(has, path("regions").index(i))
	}
	if s.DNS != nil {
		s.DNS.fillDefaults()
	}
	if tls := s.Balancer.TLS; tls != nil && tls.ACME != nil {
		tls.ACME.Challenge = cmp.Or(tls.ACME.Challenge, s.defaultChallenge())
	}
	for i := range s.Models {
		s.fillModelBounds(&s.Models[i], has, path("models").index(i).key("regions"))
	}
}

// applyDefaults sets every zero field below v to its value in the table, if any.
func applyDefaults(v reflect.Value, table map[string]defaultValue) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			applyDefaults(v.Elem(), table)
		}
	case reflect.Slice:
		for i := range v.Len() {
			applyDefaults(v.Index(i), table)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			field := v.Field(f.index)
			if d, ok := table[f.rule]; ok && field.IsZero() {
				setDefault(field, d.value)
				continue
			}
			applyDefaults(field, table)
		}
	}
}

// setDefault stores a default in a field of its type, or in a pointer to one.
func setDefault(field reflect.Value, value any) {
	if field.Kind() != reflect.Pointer {
		field.Set(reflect.ValueOf(value).Convert(field.Type()))
		return
	}
	p := reflect.New(field.Type().Elem())
	p.Elem().Set(reflect.ValueOf(value))
	field.Set(p)
}

// fillDefaults sets the bounds and the capacity of a region.
//
//   - Replicas of a static region: one per endpoint with an http or https URL. Others are found by balancers.
//   - Otherwise min is 1 (a region without replicas serves no requests), but
//     never above an explicit max; max is min, so that nothing scales up by default.
//   - Capacity of a cloud region: on demand, which the cloud does not interrupt,
//     after reserved capacity, which is already paid for.
func (r *RegionSpec) fillDefaults(has func(path) bool, at path) {
	b, p := &r.Replicas, at.key("replicas")
	count := 1
	if r.Name.Cloud() == CloudStatic && r.hasEndpoints() {
		count = r.fixedEndpoints()
	}
	if !has(p.key("min")) {
		b.Min = count
		if has(p.key("max")) {
			b.Min = min(count, b.Max)
		}
	}
	if !has(p.key("max")) {
		b.Max = max(b.Min, count)
	}
	if len(r.Capacity) == 0 && r.Name.Rented() {
		r.Capacity = []CapacityType{CapacityOnDemand}
		if len(r.Reserved) > 0 {
			r.Capacity = []CapacityType{CapacityReserved, CapacityOnDemand}
		}
	}
}

// defaultNameServer is the listen address of an embedded name server: on loopback, and not port 53,
// which requires root.
const defaultNameServer = "127.0.0.1:5300"

// fillDefaults sets the defaults of an embedded name server: its zone is by default the name itself.
func (d *DNS) fillDefaults() {
	if d.Provider == DNSEmbedded {
		d.Zone, d.Listen = cmp.Or(d.Zone, d.Name), cmp.Or(d.Listen, defaultNameServer)
	}
}

// defaultChallenge returns the default challenge. It is dns-01 if a machine on AWS can write the DNS
// record in Route 53 with its own IAM role: then no port needs to be reachable. Otherwise it is
// tls-alpn-01, since port 443 is open in any case.
func (s *Spec) defaultChallenge() string {
	amazon := slices.ContainsFunc(s.Regions, func(r RegionSpec) bool { return r.Name.Cloud() == CloudAWS })
	if amazon && s.DNS != nil && s.DNS.Provider == DNSRoute53 {
		return ChallengeDNS
	}
	return ChallengeTLSALPN
}

// fillModelBounds completes a model's own bounds from the region's; an explicit bound has
// precedence over a default.
func (s *Spec) fillModelBounds(m *Model, has func(path) bool, at path) {
	for name, b := range m.Regions {
		region := s.regionBounds(name)
		p := at.key(string(name))
		if !has(p.key("min")) {
			b.Min = region.Min
			if has(p.key("max")) {
				b.Min = min(region.Min, b.Max)
			}
		}
		if !has(p.key("max")) {
			b.Max = max(region.Max, b.Min)
		}
		m.Regions[name] = b
	}
}

// regionBounds returns the replica bounds of a region, or zero for an unknown region.
func (s *Spec) regionBounds(name Region) Bounds {
	for _, r := range s.Regions {
		if r.Name == name {
			return r.Replicas
		}
	}
	return Bounds{}
}
