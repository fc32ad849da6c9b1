package plan

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/testkit"
)

var update = flag.Bool("update", false, "write the transcripts' results instead of checking them")

// A transcript is a strategy's name, then its inputs and its results. A line "a ready=5 u=0.75"
// changes the endpoint a of model a (b, c: other models in the same region), "at 15s" runs a step,
// and the results are indented below it. "# ..." is a comment.
func TestStrategyTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/strategy/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replayStrategy(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s: the results differ; got\n%s", file, got)
			}
		})
	}
}

func replayStrategy(t *testing.T, text string) string {
	var out bytes.Buffer
	var s Strategy
	var f StrategyInput
	f.FreeVMs = map[string]int{}
	for n, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue // an outdated result
		}
		fmt.Fprintln(&out, line)
		words := strings.Fields(line)
		var err error
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "strategy":
			s, err = NewStrategy(words[1], StrategyOptions{NoDonation: slices.Contains(words, "keep")})
		case words[0] == "spare":
			f.FreeVMs["r"], err = strconv.Atoi(words[1])
		case words[0] == "at":
			var now time.Duration
			if now, err = time.ParseDuration(words[1]); err == nil {
				for _, c := range s.Step(now, &f) {
					fmt.Fprintf(&out, "  %s\n", inWords(&f, &c))
				}
			}
		default:
			err = f.set(words)
		}
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
	}
	return out.String()
}

// inWords formats a scaling as text.
func inWords(in *StrategyInput, c *Scaling) string {
	text := in.Endpoints[c.Endpoint].Model + ":"
	for _, w := range []struct {
		name string
		n    int
	}{{"reclaim", c.Reclaim}, {"launch", c.Launch}, {"donate", c.Donate}, {"remove", c.Remove}} {
		if w.n > 0 {
			text += fmt.Sprintf(" %s %d", w.name, w.n)
		}
	}
	for _, r := range c.Redeploy {
		text += fmt.Sprintf(" redeploy %d of %s", r.Count, in.Endpoints[r.From].Model)
	}
	return text + " (" + c.Reason + ")"
}

// set changes an endpoint as a line of a transcript specifies.
func (in *StrategyInput) set(words []string) error {
	i := slices.IndexFunc(in.Endpoints, func(e ScaledEndpoint) bool { return e.Model == words[0] })
	if i < 0 {
		i = len(in.Endpoints)
		in.Endpoints = append(in.Endpoints, ScaledEndpoint{Model: words[0], Region: "r", Min: 2, Max: 10})
	}
	e := &in.Endpoints[i]
	for _, w := range words[1:] {
		k, text, _ := strings.Cut(w, "=")
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		if to := map[string]*int{"ready": &e.Ready, "starting": &e.Starting, "draining": &e.Draining, "donated": &e.Donated, "min": &e.Min, "max": &e.Max}[k]; to != nil {
			*to = int(v)
			continue
		}
		switch k {
		case "u":
			e.Utilisation = &v
		case "load":
			e.ObservedTPS, e.LastMinuteTPS = &v, &v
		case "waiting":
			n := int(v)
			e.Waiting = &n
		case "came", "late":
			next := FirstTokens{}
			if e.FastFirstTokens != nil {
				next = *e.FastFirstTokens
			}
			if k == "came" {
				next.Total = int64(v)
			} else {
				next.Late = int64(v)
			}
			e.FastFirstTokens = &next
		case "target", "forecast", "then", "window", "headroom": // forecast for the first half of the hour, then for the second
			if e.Target == nil {
				e.Target = &HourlyTarget{Until: time.Hour, ReplicaTPS: 100, ForecastTPS: make([]float64, 2), ForecastStep: 30 * time.Minute}
			}
			next := *e.Target
			next.ForecastTPS = slices.Clone(next.ForecastTPS)
			switch k {
			case "window": // minutes
				next.StabilizationWindow = time.Duration(v) * time.Minute
			case "headroom": // times the mean load of the last hour
				next.Headroom = v
			case "target":
				next.Count = int(v)
			case "forecast":
				next.ForecastTPS[0] = v
			case "then":
				next.ForecastTPS[1] = v
			}
			next.PeakTPS = max(next.ForecastTPS[0], next.ForecastTPS[1])
			e.Target = &next
		default:
			return fmt.Errorf("unknown word %q", w)
		}
	}
	return nil
}

func TestUnknownStrategy(t *testing.T) {
	_, err := NewStrategy("lt-x", StrategyOptions{})
	if err == nil || err.Error() != `unknown strategy "lt-x": must be one of reactive, lt-i, lt-u, lt-ua, predictive, auto` {
		t.Errorf("got %v", err)
	}
	for _, name := range StrategyNames() {
		if s, err := NewStrategy(name, StrategyOptions{}); err != nil || s.Name() != name {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
	}
}

// closedFleet is a fleet of three models in two regions that applies a strategy's changes with a
// delay.
type closedFleet struct {
	fleet StrategyInput
}

func drawFleet(t *rapid.T) *closedFleet {
	c := &closedFleet{}
	for _, m := range []string{"a", "b", "c"} {
		for _, r := range []string{"r", "s"} {
			minimum := rapid.IntRange(1, 3).Draw(t, "min")
			ready := minimum + rapid.IntRange(0, 5).Draw(t, "over")
			c.fleet.Endpoints = append(c.fleet.Endpoints, ScaledEndpoint{
				Model: m, Region: r, Min: minimum, Max: ready + rapid.IntRange(0, 6).Draw(t, "room"),
				Ready: ready, Donated: rapid.IntRange(0, 3).Draw(t, "donated"),
			})
		}
	}
	return c
}

// vary draws the changes between two steps.
func (c *closedFleet) vary(t *rapid.T, now time.Duration) {
	for i := range c.fleet.Endpoints {
		e := &c.fleet.Endpoints[i]
		if rapid.Bool().Draw(t, "load changes") {
			u, tps := rapid.Float64Range(0, 1).Draw(t, "u"), rapid.Float64Range(0, 4000).Draw(t, "tps")
			waiting := rapid.IntRange(0, 60).Draw(t, "waiting")
			e.Utilisation, e.ObservedTPS, e.LastMinuteTPS, e.Waiting = &u, &tps, &tps, &waiting
			all := int64(rapid.IntRange(0, 5000).Draw(t, "first tokens"))
			e.FastFirstTokens = &FirstTokens{Total: all, Late: int64(rapid.IntRange(0, int(all)).Draw(t, "late"))}
		}
		if hour := now.Truncate(time.Hour); e.Target == nil || e.Target.From != hour {
			peak := rapid.Float64Range(1, 2000).Draw(t, "peak")
			e.Target = &HourlyTarget{
				Count: rapid.IntRange(e.Min, e.Max).Draw(t, "target"), From: hour, Until: hour + time.Hour,
				ReplicaTPS: 300, PeakTPS: peak, ForecastTPS: []float64{peak, peak / 2}, ForecastStep: 30 * time.Minute,
			}
		}
		up := rapid.IntRange(0, e.Starting).Draw(t, "come up")
		e.Starting, e.Ready = e.Starting-up, e.Ready+up
		idle := rapid.IntRange(0, e.Draining).Draw(t, "idle")
		e.Draining, e.Donated = e.Draining-idle, e.Donated+idle
	}
}

// apply applies a strategy's changes; an impossible change is a failure.
func (c *closedFleet) apply(t *rapid.T, changes []Scaling) {
	for _, s := range changes {
		e := &c.fleet.Endpoints[s.Endpoint]
		if s.AddedReplicas() > 0 && s.DrainedReplicas() > 0 || s.AddedReplicas()+s.DrainedReplicas() == 0 || s.Reason == "" {
			t.Fatalf("impossible: %+v", s)
		}
		e.Donated -= s.Reclaim
		e.Starting += s.AddedReplicas()
		for _, r := range s.Redeploy {
			if c.fleet.Endpoints[r.From].Region != e.Region {
				t.Fatalf("a VM changes its region: %+v", s)
			}
			c.fleet.Endpoints[r.From].Donated -= r.Count
		}
		e.Ready -= s.DrainedReplicas()
		e.Draining += s.Donate
	}
	for i := range c.fleet.Endpoints {
		e := &c.fleet.Endpoints[i]
		if e.Donated < 0 || e.Ready < e.Min || e.count() > e.Max {
			t.Fatalf("endpoint %d: out of bounds: %+v after %+v", i, *e, changes)
		}
	}
}

func (c *closedFleet) vms() (n int) {
	for i := range c.fleet.Endpoints {
		e := &c.fleet.Endpoints[i]
		n += e.Ready + e.Starting + e.Draining + e.Donated
	}
	return n
}

// No strategy leaves the bounds, loses a VM or depends on anything but its inputs. The paper's strategies also stay
// within the plan or observe the cooldown, see checkChange.
func TestStrategiesRespectBounds(t *testing.T) {
	testkit.Slow(t)
	for _, name := range StrategyNames() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkStrategy(t, name) })
		})
	}
}

func checkStrategy(t *rapid.T, name string) {
	c := drawFleet(t)
	s, _ := NewStrategy(name, StrategyOptions{})
	twin, _ := NewStrategy(name, StrategyOptions{})
	vms, last := c.vms(), map[int]time.Duration{}
	now := time.Duration(0)
	for range 40 {
		c.vary(t, now)
		before := slices.Clone(c.fleet.Endpoints)
		changes := s.Step(now, &c.fleet)
		if again := twin.Step(now, &c.fleet); !reflect.DeepEqual(changes, again) {
			t.Fatalf("the same fleets: %+v and %+v", changes, again)
		}
		if !reflect.DeepEqual(before, c.fleet.Endpoints) {
			t.Fatalf("the strategy changed its input")
		}
		c.apply(t, changes)
		if c.vms() != vms {
			t.Fatalf("%d VMs have become %d", vms, c.vms())
		}
		for _, ch := range changes {
			checkChange(t, name, now, &before[ch.Endpoint], &ch, last)
			last[ch.Endpoint] = now
		}
		now += time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second
	}
}

// checkChange checks one change against the rules of its strategy.
func checkChange(t *rapid.T, name string, now time.Duration, e *ScaledEndpoint, c *Scaling, last map[int]time.Duration) {
	n := c.AddedReplicas() - c.DrainedReplicas()
	byTraffic := false
	if name == "lt-ua" && now >= e.Target.Until-loadRatioWindow {
		gap := *e.ObservedTPS / e.Target.PeakTPS
		share := gap * float64(e.Target.Count)
		byTraffic = n == 1 && gap >= underestimated && float64(e.count()) < share || n == -1 && gap <= overestimated && float64(e.count()) > share
	}
	if name == "reactive" || name == "lt-u" || name == "lt-ua" {
		if then, ok := last[c.Endpoint]; ok && now-then < scaleCooldown {
			t.Fatalf("scaled at %s and again at %s", then, now)
		}
		byMemory := n == 1 && *e.Utilisation > scaleOutAbove || n == -1 && *e.Utilisation < scaleInBelow
		if !byMemory && !byTraffic {
			t.Fatalf("changes by %d at a utilisation of %g", n, *e.Utilisation)
		}
	}
	if name == "lt-i" || name == "lt-u" || name == "lt-ua" && !byTraffic {
		if then := e.count() + n; n > 0 && then > e.Target.Count || n < 0 && then < e.Target.Count {
			t.Fatalf("%d replicas become %d where %d are planned", e.count(), then, e.Target.Count)
		}
	}
}

// A fleet without need for change is not changed.
func TestNoLoadNeedsNoReplicas(t *testing.T) {
	for _, name := range StrategyNames() {
		u, tps := 0.5, 550.0
		f := StrategyInput{Endpoints: []ScaledEndpoint{{
			Model: "m", Region: "r", Ready: 5, Donated: 5, Min: 2, Max: 8, Utilisation: &u, ObservedTPS: &tps,
			Target: &HourlyTarget{Count: 5, Until: time.Hour, ReplicaTPS: 100, PeakTPS: 550, ForecastTPS: []float64{550}, ForecastStep: time.Hour},
		}}}
		s, _ := NewStrategy(name, StrategyOptions{})
		for now := time.Duration(0); now < 2*time.Hour; now += 5 * time.Second {
			if got := s.Step(now, &f); len(got) > 0 {
				t.Fatalf("%s at %s: %+v", name, now, got)
			}
		}
	}
}

// In an unannounced burst auto has the replicas for the last minute's load at 70 % of their throughput, from its first
// step on: neither the mean of several minutes nor a high fill level delays them.
func TestAutoFollowsBursts(t *testing.T) {
	u, mean, minute, waiting := 0.6, 800.0, 800.0, 0
	f := StrategyInput{FreeVMs: map[string]int{"r": 40}, Endpoints: []ScaledEndpoint{{
		Model: "m", Region: "r", Ready: 9, Min: 2, Max: 40, Utilisation: &u, ObservedTPS: &mean, LastMinuteTPS: &minute, Waiting: &waiting,
		Target: &HourlyTarget{Count: 9, Until: time.Hour, ReplicaTPS: 100, PeakTPS: 900, ForecastTPS: []float64{800}, ForecastStep: time.Hour},
	}}}
	s, err := NewStrategy("auto", StrategyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Step(0, &f)
	mean, minute = 1000, 2095
	got := s.Step(5*time.Second, &f)
	if len(got) != 1 || got[0].Launch != 30-9 {
		t.Errorf("a load of 20.95 replicas where 8 were expected: %+v, want 21 launches", got)
	}
}
