package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
)

// Default returns the defaults of a scenario file: SkyLB's round-trip times and constants, no regions.
func Default() Scenario {
	s := common
	s.Links = slices.Clone(common.Links)
	return s
}

// ParseFile parses a scenario from YAML; errors refer to it as file. The keys are those of Set for the
// whole scenario, and regions, links, surges, faults and engines (the file's own profiles). Defaults come from
// Default, with its links between the file's regions; without a region us, the first region is home. It
// returns all errors at once, as service.Errors in line order, and then no scenario.
func ParseFile(file string, data []byte) (*Scenario, error) {
	r, root := openYAML(file, data)
	if root == nil {
		return nil, r.errorsInOrder()
	}
	s := Default()
	s.Name = strings.TrimSuffix(strings.TrimSuffix(file[strings.LastIndexAny(file, `/\`)+1:], ".yaml"), ".yml")
	top := r.mapping(root, "")
	if i := slices.IndexFunc(top, func(p pair) bool { return p.key == "models" }); i >= 0 {
		return nil, r.serviceFile(top[i])
	}
	// The file's profiles come first because other keys refer to them.
	slices.SortStableFunc(top, func(a, b pair) int { return keyOrder(a.key) - keyOrder(b.key) })
	for _, p := range top {
		r.top(&s, p)
	}
	if r.at["links"] == nil {
		s.Links = s.usedLinks()
	}
	if r.at["home"] == nil && len(s.Regions) > 0 && s.region(s.Home) < 0 {
		s.Home = s.Regions[0].Name
	}
	bad := r.keysWithErrors()
	problems := s.Problems()
	if r.at["links"] != nil && len(s.Regions) > 0 && !bad["regions"] {
		problems = append(problems, s.linkProblems()...)
	}
	for _, p := range problems {
		if !bad[topKey(p.Path)] {
			r.failAt(p.Path, p.Text)
		}
	}
	if len(r.errs) > 0 {
		return nil, r.errorsInOrder()
	}
	return &s, nil
}

// serviceFile returns the error of a service file that is passed as a scenario by mistake: only that has the key models.
// A list of its unknown keys would not say so.
func (r *reader) serviceFile(models pair) error {
	r.errs = nil
	r.addError(models.at, models.key, "this is a service file, not a scenario; 'skyserve up "+r.file+"' deploys it")
	return r.errs
}

// keyOrder orders keys before those that refer to them.
func keyOrder(key string) int {
	first := []string{"engines", "profile", "regions", "links"}
	if at := slices.Index(first, key); at >= 0 {
		return at
	}
	return len(first)
}

// topKey returns the first key of a path.
func topKey(path string) string {
	if end := strings.IndexAny(path, ".["); end >= 0 {
		return path[:end]
	}
	return path
}

// usedLinks returns the links without those of missing regions.
func (s *Scenario) usedLinks() []Link {
	return slices.DeleteFunc(slices.Clone(s.Links), func(l Link) bool { return s.region(l.A) < 0 || s.region(l.B) < 0 })
}

// top parses one top-level key.
func (r *reader) top(s *Scenario, p pair) {
	switch p.key {
	case "engines":
		s.Engines = readList(r, p, engineFields, func() engine.Profile { return common.Profile })
		for i := range s.Engines {
			r.curves(&s.Engines[i], fmt.Sprintf("engines[%d]", i))
		}
	case "regions":
		fields := map[string]func(*Region, string) error{"name": func(to *Region, v string) error { to.Name = v; return nil }}
		for name, setting := range perRegion {
			fields[name] = func(to *Region, v string) error { return setting.set(s, to, v) }
		}
		s.Regions = readList(r, p, fields, func() Region { return Region{} })
	case "links":
		s.Links = readList(r, p, linkFields, func() Link { return Link{} })
	case "surges":
		s.Surges = readList(r, p, surgeFields, func() Surge { return Surge{} })
	case "faults":
		s.Faults = readList(r, p, faultFields, func() Fault { return Fault{} })
	default:
		set, known := setting(p.key)
		field, _, _ := strings.Cut(p.key, ".")
		_, regional := perRegion[field]
		switch {
		case known:
			r.scalar(p, p.key, func(v string) error { return set(s, v) })
		case regional: // --set accepts it at the top, a file in each region
			r.addError(p.at, p.key, "unknown key; set regions[]."+field+" instead")
		default:
			r.unknown(p, "", append(sortedKeys(settings), "engines", "regions", "links", "surges", "faults"))
		}
	}
}

// curves clears the constants that an engine's curves replace, and rejects a file with both.
func (r *reader) curves(p *engine.Profile, path string) {
	for _, c := range []struct {
		curve       engine.Curve
		name        string
		base, slope *time.Duration
		replaced    [2]string
	}{
		{p.Prefill, "prefill_curve", &p.PrefillBase, &p.PrefillPerToken, [2]string{"prefill_base", "prefill_per_token"}},
		{p.Decode, "decode_curve", &p.DecodeBase, &p.DecodePerRequest, [2]string{"decode_base", "decode_per_request"}},
	} {
		if len(c.curve) == 0 {
			continue
		}
		*c.base, *c.slope = 0, 0
		for _, key := range c.replaced {
			if n := r.at[join(path, key)]; n != nil {
				r.addError(n, join(path, key), "conflicts with "+c.name+", which sets the step time")
			}
		}
	}
}

// The functions below return setters of a field.
func textField[T any](field func(*T) *string) func(*T, string) error {
	return func(to *T, v string) error { *field(to) = v; return nil }
}

func durationField[T any](field func(*T) *time.Duration) func(*T, string) error {
	return func(to *T, v string) error { return setDuration(field(to), v) }
}

func integerField[T any](field func(*T) *int) func(*T, string) error {
	return func(to *T, v string) error { return setInt(field(to), v) }
}

func numberField[T any](field func(*T) *float64) func(*T, string) error {
	return func(to *T, v string) error { return setFloat(field(to), v) }
}

func boolField[T any](field func(*T) *bool) func(*T, string) error {
	return func(to *T, v string) error { return setBool(field(to), v) }
}

func curveField[T any](field func(*T) *engine.Curve) func(*T, string) error {
	return func(to *T, v string) (err error) { *field(to), err = engine.ParseCurve(v); return err }
}

// The keys of the file's list elements.
var (
	linkFields = map[string]func(*Link, string) error{
		"a":   textField(func(l *Link) *string { return &l.A }),
		"b":   textField(func(l *Link) *string { return &l.B }),
		"rtt": durationField(func(l *Link) *time.Duration { return &l.RTT }),
	}
	surgeFields = map[string]func(*Surge, string) error{
		"region": textField(func(u *Surge) *string { return &u.Region }),
		"from":   durationField(func(u *Surge) *time.Duration { return &u.From }),
		"to":     durationField(func(u *Surge) *time.Duration { return &u.To }),
		"factor": numberField(func(u *Surge) *float64 { return &u.Factor }),
	}
	faultFields = map[string]func(*Fault, string) error{
		"kind":     func(f *Fault, v string) error { f.Kind = FaultKind(v); return nil },
		"from":     durationField(func(f *Fault) *time.Duration { return &f.From }),
		"to":       durationField(func(f *Fault) *time.Duration { return &f.To }),
		"replica":  textField(func(f *Fault) *string { return &f.Replica }),
		"region":   textField(func(f *Fault) *string { return &f.Region }),
		"peer":     textField(func(f *Fault) *string { return &f.Peer }),
		"balancer": integerField(func(f *Fault) *int { return &f.Balancer }),
		"factor":   numberField(func(f *Fault) *float64 { return &f.Factor }),
		"share":    numberField(func(f *Fault) *float64 { return &f.Share }),
		"delay":    durationField(func(f *Fault) *time.Duration { return &f.Delay }),
	}
	engineFields = map[string]func(*engine.Profile, string) error{
		"name":                textField(func(p *engine.Profile) *string { return &p.Name }),
		"description":         textField(func(p *engine.Profile) *string { return &p.Description }),
		"prefill_base":        durationField(func(p *engine.Profile) *time.Duration { return &p.PrefillBase }),
		"prefill_per_token":   durationField(func(p *engine.Profile) *time.Duration { return &p.PrefillPerToken }),
		"prefill_curve":       curveField(func(p *engine.Profile) *engine.Curve { return &p.Prefill }),
		"decode_curve":        curveField(func(p *engine.Profile) *engine.Curve { return &p.Decode }),
		"decode_base":         durationField(func(p *engine.Profile) *time.Duration { return &p.DecodeBase }),
		"decode_per_request":  durationField(func(p *engine.Profile) *time.Duration { return &p.DecodePerRequest }),
		"decode_per_kv_token": durationField(func(p *engine.Profile) *time.Duration { return &p.DecodePerKVToken }),
		"chunk_tokens":        integerField(func(p *engine.Profile) *int { return &p.ChunkTokens }),
		"kv_tokens":           integerField(func(p *engine.Profile) *int { return &p.KVTokens }),
		"max_running":         integerField(func(p *engine.Profile) *int { return &p.MaxRunning }),
		"mixed_steps":         boolField(func(p *engine.Profile) *bool { return &p.MixedSteps }),
		"reserve_per_mille":   integerField(func(p *engine.Profile) *int { return &p.ReservePerMille }),
	}
)
