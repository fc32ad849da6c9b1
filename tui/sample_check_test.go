package tui

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// The sample services, which the frames and the pictures of the documentation show, do not contradict themselves.
func TestSamplesAreConsistent(t *testing.T) {
	for name, s := range map[string]*telemetry.Snapshot{"normal": normal(), "with batches": withBatches(), "own machines": ownMachines()} {
		t.Run(name, func(t *testing.T) {
			checkFlows(t, s)
			checkTraffic(t, s)
			checkDonations(t, s)
			checkPlan(t, s)
			checkBatches(t, s)
		})
	}
	for _, l := range loadHistory() { // NOW of the forecast is LOAD of the cost
		load := *uncachedLoad(findRegion(normal(), l.Region).Models[0].Traffic)
		near(t, string(l.Region)+": load of the last minute", l.TPS[len(l.TPS)-1], load)
	}
}

// near fails if two figures differ by more than one percent and one.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1+0.01*math.Abs(want) {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

// checkFlows checks that regions receive what others forward.
func checkFlows(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	in, out := map[service.Region]int64{}, map[service.Region]int64{}
	for _, r := range s.Regions {
		for _, f := range r.ForwardedTo {
			in[f.Region], out[r.Name] = in[f.Region]+f.Requests, out[r.Name]+f.Requests
		}
	}
	for _, r := range s.Regions {
		if r.ForwardedIn != in[r.Name] || r.ForwardedOut != out[r.Name] {
			t.Errorf("%s: forwarded in/out %d/%d, and the regions forward %d/%d", r.Name, r.ForwardedIn, r.ForwardedOut, in[r.Name], out[r.Name])
		}
	}
}

// checkTraffic checks that balancers and engines count the same requests and tokens, in total and by key.
func checkTraffic(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	fromClients, fromEngines := 0.0, 0.0
	for _, r := range s.Regions {
		for _, rep := range r.Replicas {
			if rep.OutputTokensPerSecond != nil {
				fromEngines += *rep.OutputTokensPerSecond
			}
		}
		if len(r.Replicas) == 0 {
			continue
		}
		fromClients += *r.OutputTokensPerSecond
		if len(r.Models) != 1 || r.Models[0].Traffic == nil {
			t.Errorf("%s: no traffic of its model", r.Name)
			continue
		}
		m, all := r.Models[0], *r.Models[0].Traffic
		if r.Queued != m.Queued+m.Deferred {
			t.Errorf("%s: %d queued, by model %d and %d deferred", r.Name, r.Queued, m.Queued, m.Deferred)
		}
		ended := all.Outcomes.Served + all.Outcomes.Limited + all.Outcomes.Failed
		near(t, string(r.Name)+": req/s", *r.RequestsPerSecond, float64(ended)/60)
		near(t, string(r.Name)+": output tok/s", *r.OutputTokensPerSecond, float64(all.Usage.OutputTokens)/60)
		near(t, string(r.Name)+": hit rate in percent", 100**r.PrefixHitRate, 100*float64(all.Usage.CachedTokens)/float64(all.Usage.PromptTokens))
		var sum telemetry.Outcomes
		for _, k := range r.Keys {
			sum = sum.Add(k.Traffic.Outcomes)
		}
		if sum != all.Outcomes {
			t.Errorf("%s: requests by key %+v, by model %+v", r.Name, sum, all.Outcomes)
		}
	}
	near(t, "output tok/s of all regions", fromClients, fromEngines)
}

// checkDonations checks that only replicas on own machines are donated, and that they are in the list.
func checkDonations(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	for _, r := range s.Regions {
		for _, rep := range r.Replicas {
			listed := slices.ContainsFunc(s.Donations, func(d telemetry.Donation) bool { return d.Replica == rep.ID && d.Region == r.Name })
			donated := rep.Donated || rep.State == service.StateDonated
			if donated != listed || donated && isCloud(r.Name) {
				t.Errorf("%s in %s: donated: %t, listed: %t", rep.ID, r.Name, donated, listed)
			}
		}
	}
	for _, e := range s.Events {
		if e.Kind == telemetry.EventDonate && isCloud(e.Region) {
			t.Errorf("%s in %s", e.Message, e.Region)
		}
	}
}

// checkPlan checks the sums of the plan, and that no smaller addition would do.
func checkPlan(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	if s.Plan == nil {
		return
	}
	text := func(v float64) string { return rate(&v) }
	current, planned := 0.0, 0.0
	for _, target := range s.Targets {
		running := 0 // as controllers count them for a plan
		for _, rep := range findRegion(s, target.Region).Replicas {
			if rep.State != service.StateDraining && rep.State != service.StateShuttingDown && rep.State != service.StateFailed {
				running++
			}
		}
		price := s.Prices[slices.IndexFunc(s.Prices, func(p telemetry.Price) bool { return p.Region == target.Region })].USDPerHour
		current, planned = current+float64(running)*price, planned+float64(target.Count)*price
		f := s.Forecast[slices.IndexFunc(s.Forecast, func(f telemetry.LoadForecast) bool { return f.Region == target.Region })]
		near(t, string(target.Region)+": planned peak", target.PeakTPS, f.Peak.P95)
		capacity := float64(target.Count) * target.ReplicaTPS
		if capacity < target.PeakTPS {
			t.Errorf("%s: a capacity of %g for a peak of %g", target.Region, capacity, target.PeakTPS)
		}
		at := slices.IndexFunc(s.Plan.Changes, func(c telemetry.PlanChange) bool { return c.Region == target.Region })
		if at < 0 {
			if running != target.Count {
				t.Errorf("%s: %d replicas run, %d are planned, without a change", target.Region, running, target.Count)
			}
			continue
		}
		c := s.Plan.Changes[at]
		if c.Current != running || c.Planned != target.Count || c.Current+c.Delta != c.Planned {
			t.Errorf("%s: %d replicas run, %d are planned, and the change is %+v", target.Region, running, target.Count, c)
		}
		if c.Delta > 0 && capacity-target.ReplicaTPS >= target.PeakTPS {
			t.Errorf("%s: %d replicas serve the peak too", target.Region, target.Count-1)
		}
		for _, want := range []string{
			"peak of " + text(target.PeakTPS) + " ", fmt.Sprintf("%d x %s serve up to %s", c.Current, c.GPU, text(float64(running)*target.ReplicaTPS)),
			"capacity", text(capacity), fmt.Sprintf("$%.2f/h", math.Abs(float64(c.Delta)*price)),
		} {
			if !strings.Contains(c.Reason, want) {
				t.Errorf("%s: the reason lacks %q: %s", target.Region, want, c.Reason)
			}
		}
	}
	if c := s.Plan.CostPerHour; dollars(*c.Current) != dollars(current) || dollars(*c.Planned) != dollars(planned) {
		t.Errorf("the plan costs %g and %g, its replicas %g and %g", *c.Current, *c.Planned, current, planned)
	}
}

// checkBatches checks that the expected end of a batch follows from its rate.
func checkBatches(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	for _, b := range s.Batches {
		if b.FinishAt != nil {
			near(t, b.ID+": minutes to the end", b.FinishAt.Sub(s.At).Minutes(), float64(b.Remaining()) / *b.RequestsPerSecond / 60)
		}
	}
}
