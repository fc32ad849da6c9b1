package sim

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/workload"
	"skyserve/lbd/engine"
)

// settings are the fields of a scenario that can be set by name.
var settings = map[string]func(s *Scenario, value string) error{
	"workload":    func(s *Scenario, v string) error { s.Workload = workload.Kind(v); return nil },
	"duration":    func(s *Scenario, v string) error { return setDuration(&s.Duration, v) },
	"warmup":      func(s *Scenario, v string) error { return setFloat(&s.Warmup, v) },
	"interval":    func(s *Scenario, v string) error { return setDuration(&s.Interval, v) },
	"local_rtt":   func(s *Scenario, v string) error { return setDuration(&s.LocalRTT, v) },
	"rtt_scale":   scaleLinks,
	"home":        func(s *Scenario, v string) error { s.Home = v; return nil },
	"forward":     func(s *Scenario, v string) error { return setBool(&s.Forward, v) },
	"max_new":     func(s *Scenario, v string) error { return setInt(&s.MaxNew, v) },
	"max_context": func(s *Scenario, v string) error { return setInt(&s.MaxContext, v) },
	"tau":         func(s *Scenario, v string) error { return setInt(&s.Tau, v) },
	"max_wait":    func(s *Scenario, v string) error { return setDuration(&s.MaxWait, v) },
	"patience":    func(s *Scenario, v string) error { return setDuration(&s.Patience, v) },
	"kv":          func(s *Scenario, v string) error { return setInt(&s.Profile.KVTokens, v) },
	"profile": func(s *Scenario, v string) (err error) {
		s.Profile, err = engine.ProfileNamed(v)
		return err
	},
}

// Set changes one field of the scenario. Beside the fields of SettingNames,
// clients.REGION and replicas.REGION set a count, and clients and replicas that
// of every region. An unknown name and a value that cannot be read are errors;
// whether the scenario can still run, Validate says.
func (s *Scenario) Set(name, value string) error {
	set, known := settings[name]
	if !known {
		field, region, _ := strings.Cut(name, ".")
		if field != "clients" && field != "replicas" {
			return fmt.Errorf("unknown setting %q: want one of %s", name, strings.Join(SettingNames(), ", "))
		}
		return s.setCount(field, region, value)
	}
	if err := set(s, value); err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return nil
}

// SettingNames lists what Set understands, sorted.
func SettingNames() []string {
	names := []string{"clients", "clients.REGION", "replicas", "replicas.REGION"}
	for n := range settings {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func (s *Scenario) setCount(field, region, value string) error {
	s.Regions = append([]Region(nil), s.Regions...) // may be shared with another scenario
	found := false
	for i := range s.Regions {
		r := &s.Regions[i]
		if region != "" && region != r.Name {
			continue
		}
		count := &r.Clients
		if field == "replicas" {
			count = &r.Replicas
		}
		if err := setInt(count, value); err != nil {
			return fmt.Errorf("setting %s: %w", field, err)
		}
		found = true
	}
	if !found {
		return fmt.Errorf("setting %s: no region is called %q", field, region)
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
		return fmt.Errorf("want a duration such as 100s, got %q", value)
	}
	*to = d
	return nil
}

func setInt(to *int, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("want a whole number, got %q", value)
	}
	*to = n
	return nil
}

func setFloat(to *float64, value string) error {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || f != f {
		return fmt.Errorf("want a number, got %q", value)
	}
	*to = f
	return nil
}

func setBool(to *bool, value string) error {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("want true or false, got %q", value)
	}
	*to = b
	return nil
}
