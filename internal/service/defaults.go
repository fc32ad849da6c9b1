package service

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// preset is the value of a key that is left out, with the reason for it.
type preset struct {
	value  any
	reason string
}

// defaults is the one table of defaults, keyed as the rules are. An explicit
// zero is refused by the rules of these keys, so zero always means left out.
// What depends on other keys is filled in by the functions below it.
var defaults = map[string]preset{
	"Engine.kind": {EngineVLLM, "the engine that most people run"},

	"GPU.count": {1, "models that need several GPUs say so"},

	"RegionSpec.balancers": {1, "one carries some thousand streams; a second is for surviving its loss"},

	"BalancerSpec.policy":      {"cost", "the cheapest place by time: waiting, prefill of what is not cached, harm done to others, network"},
	"BalancerSpec.push":        {"pending", "a replica gets more only when none waits there, so queues stay where they can still move (SkyLB 3.3)"},
	"BalancerSpec.order":       {"fcfs", "what clients expect"},
	"BalancerSpec.forward":     {true, "idle replicas elsewhere are why a service has several regions"},
	"BalancerSpec.tau":         {10, "a small buffer for newly arriving requests, and a burst is still shared (SkyLB 3.3)"},
	"BalancerSpec.queue_limit": {4096, "more than clients wait for; their bytes are bounded by memory.requests"},
	"BalancerSpec.max_wait":    {60 * time.Second, "what the normal interactive tier, the most patient one, tolerates"},
	"BalancerSpec.tau_n":       {5 * time.Second, "a client that missed its target by five of them is still there, by more it is leaving"},
	"BalancerSpec.tau_p":       {time.Second, "the whole target of IW-F, so that such a request is urgent from its arrival on"},

	"BalancerSpec.hold_deferred":           {true, "batch work uses spare capacity and asks for none (SageServe 6.2)"},
	"BalancerSpec.deferred_memory_percent": {60, "as SageServe releases batch work (6.2); 65 with the strategy auto, which fills replicas further"},
	"BalancerSpec.deferred_wait_percent":   {42, "10 of 24 hours, as in SageServe (6.2); 83 with the strategy auto, which saves it for the night"},

	"BalancerSpec.max_tries":     {5, "four replicas that fail one after the other are a fleet that fails"},
	"BalancerSpec.retry_percent": {20, "what an outage may add to the load of what is left"},
	"BalancerSpec.eject_after":   {5, "one failure is bad luck, five in a row are not"},
	"BalancerSpec.eject_time":    {5 * time.Second, "an engine that restarts is back sooner, or not soon"},
	"BalancerSpec.continue":      {true, "a pause is better than half an answer"},

	"ACME.ca":      {CALetsEncrypt, "free, and every client trusts it"},
	"Memory.total": {2 * GiB, "half of the smallest machine that balancers are rented on; the rest is the controller's, the agent's and the system's"},

	"DNS.routing": {"latency", "clients want the fastest region, which is not always the nearest"},
	"DNS.ttl":     {30 * time.Second, "how much longer than the health checks a client may be sent to a dead region"},

	"Autoscale.strategy": {"manual", "nothing that costs money changes unless asked"},
	"Autoscale.forecast": {"auto", "which forecaster fits depends on the traffic"},
	"Autoscale.every":    {time.Hour, "forecast and optimisation run each hour in SageServe"},

	"Autoscale.late":       {0.05, "the target of IW-F is stated for the 95th percentile (SageServe section 2.2)"},
	"Autoscale.donate_for": {time.Hour, "until the next plan: then a whole hour went by in which it was not needed"},

	"LocalHosts.port": {8001, "next to 8000, which engines use"},
}

// autoDefaults are the defaults of a service whose strategy is auto, where others are
// better: as plan.AutoNIW, with which the strategy was measured.
var autoDefaults = map[string]preset{
	"BalancerSpec.deferred_memory_percent": {65, "auto fills replicas further than SageServe"},
	"BalancerSpec.deferred_wait_percent":   {83, "a night comes before 20 of 24 hours are over, and in it replicas have room"},
}

// simDefaults are the defaults of the keys that only simulated engines have.
var simDefaults = map[string]preset{
	"Engine.profile": {"l4-llama3.1-8b", "the GPU and model of the SkyLB evaluation"},
	"Engine.speed":   {1.0, "as fast as life"},
	"Engine.flavor":  {string(EngineVLLM), "the metrics that most engines export"},
}

// Default is a default value as the guide shows it.
type Default struct {
	// Key is its type and key: BalancerSpec.tau.
	Key string
	// Value is what it takes, as it is written in a service.yaml.
	Value string
	// Reason says why.
	Reason string
}

// DefaultOf is the default of a key such as BalancerSpec.tau, if it has one.
func DefaultOf(key string) (Default, bool) {
	d, ok := defaults[key]
	if !ok {
		d, ok = simDefaults[key]
	}
	if !ok {
		return Default{}, false
	}
	return Default{Key: key, Value: fmt.Sprint(written(d.value)), Reason: d.reason}, true
}

// written is a default value as YAML and JSON hold it.
func written(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return briefDuration(v)
	case EngineKind:
		return string(v)
	case Size:
		return v.String()
	}
	return v
}

// briefDuration writes 1h0m0s as 1h.
func briefDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// WithDefaults is b with every key that is left out filled in.
func (b BalancerSpec) WithDefaults() BalancerSpec {
	applyPresets(reflect.ValueOf(&b).Elem(), defaults)
	b.Memory = b.Memory.withDefaults()
	return b
}

// fillDefaults fills in what s leaves out. has says whether the document states
// a path; it tells "min: 0" from no min at all.
func (s *Spec) fillDefaults(has func(path) bool) {
	if s.Autoscale.Strategy == StrategyAuto {
		applyPresets(reflect.ValueOf(&s.Balancer).Elem(), autoDefaults)
	}
	applyPresets(reflect.ValueOf(s).Elem(), defaults)
	s.Balancer.Memory = s.Balancer.Memory.withDefaults()
	for i := range s.Models {
		if e := &s.Models[i].Engine; e.Kind == EngineSim {
			applyPresets(reflect.ValueOf(e).Elem(), simDefaults)
		}
	}
	for i := range s.Regions {
		s.Regions[i].fillDefaults(has, path("regions").index(i))
	}
	if s.DNS != nil {
		s.DNS.fillDefaults()
	}
	if tls := s.Balancer.TLS; tls != nil && tls.ACME != nil {
		tls.ACME.Challenge = cmp.Or(tls.ACME.Challenge, s.usualChallenge())
	}
	for i := range s.Models {
		s.fillModelBounds(&s.Models[i], has, path("models").index(i).key("regions"))
	}
}

// applyPresets sets every zero field below v that the table has a value for.
func applyPresets(v reflect.Value, table map[string]preset) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			applyPresets(v.Elem(), table)
		}
	case reflect.Slice:
		for i := range v.Len() {
			applyPresets(v.Index(i), table)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			field := v.Field(f.index)
			if d, ok := table[f.rule]; ok && field.IsZero() {
				setPreset(field, d.value)
				continue
			}
			applyPresets(field, table)
		}
	}
}

// setPreset stores a default in a field of its type, or in a pointer to it.
func setPreset(field reflect.Value, value any) {
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
//   - Replicas of a static region: as many as it has endpoints.
//   - Else min is 1 (a region without replicas serves nobody at first), but
//     never above a stated max; max is min, so that nothing grows unasked.
//   - Capacity of a rented region: on demand, which the cloud does not take
//     back; what is already paid for goes first.
func (r *RegionSpec) fillDefaults(has func(path) bool, at path) {
	b, p := &r.Replicas, at.key("replicas")
	usual := 1
	if n := len(r.Endpoints); r.Name.Cloud() == CloudStatic && n > 0 {
		usual = n
	}
	if !has(p.key("min")) {
		b.Min = usual
		if has(p.key("max")) {
			b.Min = min(usual, b.Max)
		}
	}
	if !has(p.key("max")) {
		b.Max = max(b.Min, usual)
	}
	if len(r.Capacity) == 0 && r.Name.rented() {
		r.Capacity = []CapacityType{CapacityOnDemand}
		if len(r.Reserved) > 0 {
			r.Capacity = []CapacityType{CapacityReserved, CapacityOnDemand}
		}
	}
}

// defaultNameServer is where an embedded name server listens: beside the port of
// DNS, which only root may have, and for this machine alone.
const defaultNameServer = "127.0.0.1:5300"

// fillDefaults sets what an embedded name server needs: it may serve a zone that
// is nothing but the name.
func (d *DNS) fillDefaults() {
	if d.Provider == DNSEmbedded {
		d.Zone, d.Listen = cmp.Or(d.Zone, d.Name), cmp.Or(d.Listen, defaultNameServer)
	}
}

// usualChallenge is the challenge of a service that names none: a record in Route 53, which
// needs nothing to be reached from outside, where a machine may write it by its own identity;
// else a handshake on the port that is open anyway.
func (s *Spec) usualChallenge() string {
	amazon := slices.ContainsFunc(s.Regions, func(r RegionSpec) bool { return r.Name.Cloud() == CloudAWS })
	if amazon && s.DNS != nil && s.DNS.Provider == DNSRoute53 {
		return ChallengeDNS
	}
	return ChallengeTLSALPN
}

// fillModelBounds completes a model's own bounds from the region's; the end
// that is stated wins over the one that is not.
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

// regionBounds is the replica bounds of a region, zero when it is not declared.
func (s *Spec) regionBounds(name Region) Bounds {
	for _, r := range s.Regions {
		if r.Name == name {
			return r.Replicas
		}
	}
	return Bounds{}
}
