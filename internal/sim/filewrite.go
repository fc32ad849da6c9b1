package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
)

// YAML formats the scenario as YAML for ParseFile, without its claims, references and trace.
func (s *Scenario) YAML() string {
	var w writer
	w.line("name", quote(s.Name))
	w.line("title", quote(s.Title))
	w.line("workload", string(s.Workload))
	w.line("lengths", decimal(s.Lengths)+" # factor of the median lengths of prompts and responses")
	w.line("length_spread", decimal(s.Sigma)+" # factor of the spread of their logarithms")
	w.line("rate", decimal(s.Rate)+" # sessions per second (open loop); 0 = closed loop")
	w.list("engines", engineLines(s.ownEngines()))
	w.line("engine", string(s.Engine)+" # or light: lengths only, no cache")
	w.line("profile", quote(s.Profile.Name))
	w.list("regions", s.regionLines())
	w.list("links", linkLines(s.usedLinks()))
	w.line("local_rtt", brief(s.LocalRTT)+" # within a region")
	w.line("home", quote(s.Home)+" # region of the balancer in the layout single")
	w.line("duration", brief(s.Duration))
	w.line("warmup", decimal(s.Warmup)+" # share of the run excluded from figures")
	w.line("interval", brief(s.Interval)+" # of probes, heartbeats and ticks")
	w.line("cache_events", strconv.FormatBool(s.CacheEvents)+" # published by engines")
	w.line("forward", strconv.FormatBool(s.Forward)+" # to other regions")
	w.line("min_max_tokens", strconv.Itoa(s.MaxNew)+" # lower bound of the max_tokens of requests")
	w.line("max_context", strconv.Itoa(s.MaxContext)+" # maximum tokens of a prompt with its response")
	w.line("order", string(s.Order)+" # of queued requests")
	w.line("peer_queue_limit", strconv.Itoa(s.PeerQueueLimit)+" # maximum queue of a peer that receives forwards")
	w.line("unconfirmed", strconv.Itoa(s.Unconfirmed)+" # maximum requests sent to a replica since its last load report, in push mode pending")
	w.line("max_wait", brief(s.MaxWait)+" # in the queue")
	w.line("think", brief(s.Think)+" # mean time between a response and the client's next requests")
	w.line("client_timeout", brief(s.ClientTimeout)+" # 0s = none")
	w.list("surges", surgeLines(s.Surges))
	w.list("faults", faultLines(s.Faults))
	w.names("policies", s.Policies)
	w.names("pushes", s.Pushes)
	if s.Layout != "" {
		w.line("layout", string(s.Layout))
	}
	return w.String()
}

// writer writes YAML, one key per line.
type writer struct{ strings.Builder }

func (w *writer) line(key, value string) { fmt.Fprintf(w, "%s: %s\n", key, value) }

// list writes a list of mappings, one per line; it omits an empty list.
func (w *writer) list(key string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(w, "%s:\n", key)
	for _, item := range items {
		fmt.Fprintf(w, "  - {%s}\n", item)
	}
}

func (w *writer) names(key string, names []string) {
	if len(names) > 0 {
		w.line(key, list(names))
	}
}

func list(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quote(n)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote formats a text so that YAML parses it as text.
func quote(text string) string {
	plain := text != "" && text != "true" && text != "false" && text != "null"
	for i, c := range text {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		plain = plain && (letter || i > 0 && ('0' <= c && c <= '9' || c == '-' || c == '.'))
	}
	if plain {
		return text
	}
	return strconv.Quote(text)
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// brief formats a duration in its largest whole unit: 400s, not 6m40s.
func brief(d time.Duration) string {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}} {
		if d%unit.of == 0 {
			return strconv.FormatInt(int64(d/unit.of), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// ownEngines returns the profiles that are not built in.
func (s *Scenario) ownEngines() []engine.Profile {
	var own []engine.Profile
	all := append(slices.Clone(s.Engines), s.Profile)
	for _, r := range s.Regions {
		all = append(all, r.Profiles...)
	}
	for i := range all {
		same := func(p engine.Profile) bool { return reflect.DeepEqual(p, all[i]) }
		if !slices.ContainsFunc(engine.Profiles(), same) && !slices.ContainsFunc(own, same) {
			own = append(own, all[i])
		}
	}
	return own
}

// EnginesYAML formats profiles as the engines section of a scenario file, for ParseFile.
func EnginesYAML(profiles []engine.Profile) string {
	var w writer
	w.list("engines", engineLines(profiles))
	return w.String()
}

func engineLines(profiles []engine.Profile) (lines []string) {
	for i := range profiles {
		p := &profiles[i]
		prefill := fmt.Sprintf("prefill_base: %s, prefill_per_token: %s", brief(p.PrefillBase), brief(p.PrefillPerToken))
		if len(p.Prefill) > 0 {
			prefill = "prefill_curve: " + knots(p.Prefill)
		}
		decode := fmt.Sprintf("decode_base: %s, decode_per_request: %s", brief(p.DecodeBase), brief(p.DecodePerRequest))
		if len(p.Decode) > 0 {
			decode = "decode_curve: " + knots(p.Decode)
		}
		line := fmt.Sprintf("name: %s, description: %s, %s, %s, decode_per_kv_token: %s, chunk_tokens: %d, kv_tokens: %d, max_running: %d, reserve_per_mille: %d",
			quote(p.Name), quote(p.Description), prefill, decode, brief(p.DecodePerKVToken), p.ChunkTokens, p.KVTokens, p.MaxRunning, p.ReservePerMille)
		if p.MixedSteps {
			line += ", mixed_steps: true"
		}
		lines = append(lines, line)
	}
	return lines
}

// knots formats a curve as a list of texts, one per knot.
func knots(c engine.Curve) string { return "[" + strings.ReplaceAll(c.String(), ",", ", ") + "]" }

func (s *Scenario) regionLines() (lines []string) {
	for _, r := range s.Regions {
		line := fmt.Sprintf("name: %s, replicas: %d, clients: %d", quote(r.Name), r.Replicas, r.Clients)
		if r.balancers() > 1 {
			line += fmt.Sprintf(", balancers: %d", r.Balancers)
		}
		if len(r.Profiles) > 0 {
			var names []string
			for i := range r.Profiles {
				names = append(names, r.Profiles[i].Name)
			}
			line += ", profiles: " + list(names)
		}
		lines = append(lines, line)
	}
	return lines
}

func linkLines(links []Link) (lines []string) {
	for _, l := range links {
		lines = append(lines, fmt.Sprintf("a: %s, b: %s, rtt: %s", quote(l.A), quote(l.B), brief(l.RTT)))
	}
	return lines
}

func surgeLines(surges []Surge) (lines []string) {
	for _, u := range surges {
		lines = append(lines, fmt.Sprintf("region: %s, from: %s, to: %s, factor: %s", quote(u.Region), brief(u.From), brief(u.To), decimal(u.Factor)))
	}
	return lines
}

func faultLines(faults []Fault) (lines []string) {
	for i := range faults {
		f := &faults[i]
		line := fmt.Sprintf("kind: %s, from: %s, to: %s", quote(string(f.Kind)), brief(f.From), brief(f.To))
		for _, field := range f.fields() {
			line += fmt.Sprintf(", %s: %s", field.key, field.value)
		}
		lines = append(lines, line)
	}
	return lines
}

// faultField is a field of a fault in YAML.
type faultField struct{ key, value string }

// fields returns the fields of the fault besides its kind and its times that have a value.
func (f *Fault) fields() (set []faultField) {
	for _, text := range []faultField{{"replica", f.Replica}, {"region", f.Region}, {"peer", f.Peer}} {
		if text.value != "" {
			set = append(set, faultField{text.key, quote(text.value)})
		}
	}
	if f.Balancer != 0 {
		set = append(set, faultField{"balancer", strconv.Itoa(f.Balancer)})
	}
	if f.Factor != 0 {
		set = append(set, faultField{"factor", decimal(f.Factor)})
	}
	if f.Share != 0 {
		set = append(set, faultField{"share", decimal(f.Share)})
	}
	if f.Delay != 0 {
		set = append(set, faultField{"delay", brief(f.Delay)})
	}
	return set
}
