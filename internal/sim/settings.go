package sim

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// Setting is a setting of a scenario: its name, and its meaning in a line.
type Setting struct{ Name, Meaning string }

// scenarioSetting is a scenario field that can be set by name.
type scenarioSetting struct {
	meaning string
	set     func(s *Scenario, value string) error
}

// settings are the scenario fields that can be set by name.
var settings = map[string]scenarioSetting{
	"name":             {"name of the scenario", func(s *Scenario, v string) error { s.Name = v; return nil }},
	"title":            {"description of the scenario in one line", func(s *Scenario, v string) error { s.Title = v; return nil }},
	"policies":         {"as --policy", func(s *Scenario, v string) error { s.Policies = split(v); return nil }},
	"pushes":           {"as --push", func(s *Scenario, v string) error { s.Pushes = split(v); return nil }},
	"layout":           {"as --layout", func(s *Scenario, v string) error { return setLayout(s, v) }},
	"workload":         {"as load --workload", func(s *Scenario, v string) error { s.Workload = workload.Kind(v); return nil }},
	"lengths":          {"factor of the median lengths of prompts and responses", func(s *Scenario, v string) error { return setFloat(&s.Lengths, v) }},
	"length_spread":    {"factor of the spread (standard deviation of the logarithm) of the lengths of prompts and responses", func(s *Scenario, v string) error { return setFloat(&s.Sigma, v) }},
	"rate":             {"sessions that start per second (open loop); 0 = closed loop", func(s *Scenario, v string) error { return setFloat(&s.Rate, v) }},
	"duration":         {"simulated time", func(s *Scenario, v string) error { return setDuration(&s.Duration, v) }},
	"warmup":           {"share of the run, 0 to 1, excluded from the results", func(s *Scenario, v string) error { return setFloat(&s.Warmup, v) }},
	"interval":         {"time between two load reports of a replica (probe) or peer (heartbeat)", func(s *Scenario, v string) error { return setDuration(&s.Interval, v) }},
	"local_rtt":        {"round-trip time within a region", func(s *Scenario, v string) error { return setDuration(&s.LocalRTT, v) }},
	"rtt_scale":        {"factor of the round-trip times between regions", scaleLinks},
	"home":             {"region of the balancer in the layout single", func(s *Scenario, v string) error { s.Home = v; return nil }},
	"cache_events":     {"whether engines publish changes of their caches: true or false", func(s *Scenario, v string) error { return setBool(&s.CacheEvents, v) }},
	"forward":          {"whether balancers forward to peers: true or false", func(s *Scenario, v string) error { return setBool(&s.Forward, v) }},
	"min_max_tokens":   {"lower bound of the max_tokens of requests, even if responses are shorter", func(s *Scenario, v string) error { return setInt(&s.MaxNew, v) }},
	"max_context":      {"maximum tokens of a prompt with its response", func(s *Scenario, v string) error { return setInt(&s.MaxContext, v) }},
	"order":            {"queue order, as lb --order", setOrder},
	"peer_queue_limit": {"queued requests above which a peer receives no forwarded ones, as balancer.peer_queue_limit in service.yaml", func(s *Scenario, v string) error { return setInt(&s.PeerQueueLimit, v) }},
	"unconfirmed":      {"maximum requests sent to a replica since its last load report (push mode pending)", func(s *Scenario, v string) error { return setInt(&s.Unconfirmed, v) }},
	"max_wait":         {"maximum time of a request in the queue", func(s *Scenario, v string) error { return setDuration(&s.MaxWait, v) }},
	"think":            {"mean time between a response and the client's next requests", func(s *Scenario, v string) error { return setDuration(&s.Think, v) }},
	"client_timeout":   {"timeout of a client for a complete response; 0s = none", func(s *Scenario, v string) error { return setDuration(&s.ClientTimeout, v) }},
	"engine":           {"model of engines: full, or light (lengths only, no cache)", func(s *Scenario, v string) error { s.Engine = EngineModel(v); return nil }},
	"kv":               {"size of a replica's KV cache in tokens", setKV},
	"profile":          {"engine profile of the replicas, as engine --profile", setProfile},
}

// formerSettings maps former names of settings, which are still accepted, to today's.
var formerSettings = map[string]string{"patience": "client_timeout", "sigma": "length_spread", "max_new": "min_max_tokens", "tau": "peer_queue_limit"}

// setting returns the setter of a setting by its name or a former one.
func setting(name string) (set func(s *Scenario, value string) error, known bool) {
	if current, renamed := formerSettings[name]; renamed {
		name = current
	}
	one, known := settings[name]
	return one.set, known
}

// regionSetting is a field of regions that can be set by name.
type regionSetting struct {
	meaning string
	set     func(s *Scenario, r *Region, value string) error
}

// perRegion are the fields of regions: NAME sets it for all, NAME.REGION for one.
var perRegion = map[string]regionSetting{
	"clients":   {"clients of a region", func(_ *Scenario, r *Region, v string) error { return setInt(&r.Clients, v) }},
	"balancers": {"balancers of a region", func(_ *Scenario, r *Region, v string) error { return setInt(&r.Balancers, v) }},
	"replicas":  {"replicas of a region", func(_ *Scenario, r *Region, v string) error { return setInt(&r.Replicas, v) }},
	"profile":   {"engine profile of the replicas, as engine --profile", setProfiles},
	"profiles":  {"several engine profiles, comma-separated, assigned to the replicas in turn", setProfiles},
}

// Set sets a field of the scenario. The fields of perRegion are set for all regions by clients and so
// on, for one by clients.REGION and so on. Profiles are comma-separated names, assigned to a region's
// replicas cyclically. Unknown names and unparsable values are errors; Validate checks the
// result.
func (s *Scenario) Set(name, value string) error {
	var err error
	field, region, _ := strings.Cut(name, ".")
	if set, known := setting(name); known {
		err = set(s, value)
	} else if one, known := perRegion[field]; known {
		err = s.setRegions(one.set, region, value)
	} else {
		return fmt.Errorf("unknown setting %q: must be one of %s", name, strings.Join(SettingNames(), ", "))
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return nil
}

// AllSettings returns the settings of scenarios with their meanings, sorted by name. Those of regions are listed
// once, as NAME[.REGION].
func AllSettings() []Setting {
	var all []Setting
	for n, one := range settings {
		if _, regional := perRegion[n]; !regional {
			all = append(all, Setting{n, one.meaning})
		}
	}
	for n, one := range perRegion {
		all = append(all, Setting{n + "[.REGION]", one.meaning})
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// SettingNames returns the names that Set accepts, sorted.
func SettingNames() []string {
	var names []string
	for n := range settings {
		names = append(names, n)
	}
	for n := range perRegion {
		names = append(names, n, n+".REGION")
	}
	sort.Strings(names)
	return slices.Compact(names)
}

// setRegions sets a field of one region, or of all if region is empty.
func (s *Scenario) setRegions(set func(*Scenario, *Region, string) error, region, value string) error {
	s.Regions = append([]Region(nil), s.Regions...) // may be shared with another scenario
	found := false
	for i := range s.Regions {
		if region != "" && region != s.Regions[i].Name {
			continue
		}
		found = true
		if err := set(s, &s.Regions[i], value); err != nil {
			return err
		}
	}
	if !found {
		return s.unknownRegion(region)
	}
	return nil
}

// setProfile sets the profile of all replicas.
func setProfile(s *Scenario, value string) (err error) {
	if s.Profile, err = s.profileNamed(value); err != nil || len(s.Regions) == 0 {
		return err
	}
	return s.setRegions(func(_ *Scenario, r *Region, _ string) error { r.Profiles = nil; return nil }, "", "")
}

// profileNamed returns one of the scenario's own profiles, or a built-in one.
func (s *Scenario) profileNamed(name string) (engine.Profile, error) {
	for i := range s.Engines {
		if s.Engines[i].Name == name {
			return s.Engines[i], nil
		}
	}
	return engine.FindProfile(name)
}

func setOrder(s *Scenario, value string) (err error) {
	s.Order, err = core.ParseOrder(value)
	return err
}

func setLayout(s *Scenario, value string) (err error) {
	s.Layout, err = ParseLayout(value)
	return err
}

// split splits comma-separated names.
func split(value string) []string {
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func setProfiles(s *Scenario, r *Region, value string) error {
	var profiles []engine.Profile
	for _, name := range split(value) {
		p, err := s.profileNamed(name)
		if err != nil {
			return err
		}
		profiles = append(profiles, p)
	}
	r.Profiles = profiles
	return nil
}

// setKV sets the KV memory of all replicas.
func setKV(s *Scenario, value string) error {
	if err := setInt(&s.Profile.KVTokens, value); err != nil {
		return err
	}
	s.Regions = append([]Region(nil), s.Regions...)
	for i := range s.Regions {
		r := &s.Regions[i]
		r.Profiles = append([]engine.Profile(nil), r.Profiles...)
		for k := range r.Profiles {
			r.Profiles[k].KVTokens = s.Profile.KVTokens
		}
	}
	return nil
}

func scaleLinks(s *Scenario, value string) error {
	var by float64
	if err := setFloat(&by, value); err != nil {
		return err
	}
	links := make([]Link, len(s.Links))
	for i, l := range s.Links {
		links[i] = Link{l.A, l.B, time.Duration(by * float64(l.RTT))}
	}
	s.Links = links
	return nil
}

func setDuration(to *time.Duration, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("must be a duration such as 100ms or 90s, got %q", value)
	}
	*to = d
	return nil
}

func setInt(to *int, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("must be an integer, got %q", value)
	}
	*to = n
	return nil
}

func setFloat(to *float64, value string) error {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || f != f {
		return fmt.Errorf("must be a number, got %q", value)
	}
	*to = f
	return nil
}

func setBool(to *bool, value string) error {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("must be true or false, got %q", value)
	}
	*to = b
	return nil
}
