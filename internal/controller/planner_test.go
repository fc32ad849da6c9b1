package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// plannedService is a service whose replicas have a capacity of 1000 tokens per second each.
const plannedService = `name: chat
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}]}]
regions: [{name: local/us, replicas: {min: 1, max: 9}}]
autoscale: {forecast: moving-average, every: 1h}
`

// plannerWorld is a planner with fake dependencies.
type plannerWorld struct {
	*controlLoop
	t     *testing.T
	state *fakeState
	lease *fakeLease

	mu           sync.Mutex
	perMin       int64 // prompt tokens per future minute
	counted      []telemetry.Point
	err          error
	histories    int // number of reads of the history
	observed     *service.Spec
	backlog      []plan.Backlog
	unresponsive int // number of balancers that do not respond, while others do
}

func newPlannerWorld(t *testing.T) *plannerWorld {
	spec, err := service.Parse("service.yaml", []byte(plannedService))
	if err != nil {
		t.Fatal(err)
	}
	w := &plannerWorld{t: t, state: &fakeState{}, lease: &fakeLease{}, observed: spec}
	log := slog.New(slog.DiscardHandler)
	w.controlLoop = &controlLoop{log: log, wake: make(chan struct{}, 1), observe: w.observeBalancers}
	w.planner = newPlanner(service.ControllerConfig{Service: "chat"}, w.state, new(reviewInForce), log)
	return w
}

// observeBalancers returns what the balancers report.
func (w *plannerWorld) observeBalancers(_ context.Context, since int64, history bool) (*Observed, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	if history {
		w.histories++
	}
	o := &Observed{Backlog: w.backlog, Failed: w.unresponsive, Spec: w.observed, Counts: []plan.ReplicaCount{{Model: "m", Region: "local/us", GPU: "L4", Replicas: 1}}}
	for _, p := range w.counted {
		if history && p.Minute >= since {
			o.Points = append(o.Points, p)
		}
	}
	return o, nil
}

// set changes the world under its lock.
func (w *plannerWorld) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// pass advances the time, minute by minute, with the load of each.
func (w *plannerWorld) pass(d time.Duration) {
	for ; d > 0; d -= time.Minute {
		time.Sleep(min(d, time.Minute))
		w.set(func() {
			if w.perMin > 0 {
				w.counted = append(w.counted, telemetry.Point{Minute: time.Now().Unix()/60 - 1, Balancer: "lb-us-0", Region: "local/us", Model: "m", Tier: service.TierFast, Requests: 1, PromptTokens: w.perMin})
			}
		})
	}
	synctest.Wait()
}

// published returns the published review.
func (w *plannerWorld) published() (r telemetry.Review) {
	w.t.Helper()
	data, _, err := w.state.Get(context.Background(), "")
	if err != nil {
		return r
	}
	if err := json.Unmarshal(data, &r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// testPlanner runs a planner in a synctest bubble; prepare changes the world before it starts.
func testPlanner(t *testing.T, f func(w *plannerWorld), prepare ...func(w *plannerWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newPlannerWorld(t)
		for _, p := range prepare {
			p(w)
		}
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.runLoop(ctx, w.lease) })
		f(w)
		end()
		wg.Wait()
	})
}

func TestFirstReviewWaitsForHistory(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.pass(3 * time.Minute)
		if r := w.published(); r.Plan != nil {
			t.Fatalf("planned from nothing: %+v", r.Plan)
		}
		w.set(func() { w.perMin = 150_000 })
		w.pass(2 * time.Minute)
		r := w.published()
		if r.Plan == nil || r.Plan.Status != "optimal" || r.Token != 7 {
			t.Fatalf("got %+v", r)
		}
		if c := r.Plan.Changes; len(c) != 1 || c[0].Delta != 2 || c[0].Region != "local/us" {
			t.Errorf("2500 tokens a second need two replicas more: got %+v", c)
		}
		if len(r.Forecast) != 1 || len(r.Forecast[0].MeanTPS) != 12 || r.Forecast[0].StepSeconds != 300 {
			t.Fatalf("got %+v", r.Forecast)
		}
		if f := r.Forecast[0]; f.MeanTPS[0] < 2400 || f.MeanTPS[0] > 2600 || f.Peak.Mean < 2400 || f.Deviation != "" || f.Forecaster == "" {
			t.Errorf("got %+v", f)
		}
	})
}

// A service that gets its load right after its start counts a part of it in its first minute. The plan from that
// minute is replaced once another one shows the load, and later ones do not count it.
func TestFirstMinuteIsPlannedAgain(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		time.Sleep(41 * time.Second) // between two steps of the loop
		point := telemetry.Point{Minute: time.Now().Unix() / 60, Balancer: "lb-us-0", Region: "local/us", Model: "m", Tier: service.TierFast, Requests: 1, PromptTokens: 25_000}
		w.set(func() { w.counted = append(w.counted, point) })
		time.Sleep(15 * time.Second)
		if r := w.published(); r.Plan == nil || len(r.Forecast) != 1 {
			t.Fatalf("got %+v", r)
		}
		time.Sleep(25 * time.Second) // 21 s of the second minute
		w.set(func() {
			w.counted[0].PromptTokens = 50_000
			point.Minute, point.PromptTokens = point.Minute+1, 50_000
			w.counted = append(w.counted, point)
		})
		time.Sleep(11 * time.Second)
		synctest.Wait()
		r := w.published()
		if c := r.Plan.Changes; len(c) != 1 || c[0].Planned != 2 {
			t.Errorf("1600 to 2500 tokens a second need two or three replicas: got %+v", r.Plan)
		}
	})
}

// A day's load in 20 minutes, as balancers recorded it from the 40th second of a minute on: in each later minute, the
// target is that for the mean of the whole minutes before it.
func TestTargetsFollowRecordedMinutes(t *testing.T) {
	const replicaTPS = 700
	recorded := []int64{543, 1672, 1509, 1372, 1388, 1421, 1655, 1533, 1290, 1402, 1640, 1988, 2630, 3249, 3580, 3838, 3767, 3337}
	var got, want []int
	testPlanner(t, func(w *plannerWorld) {
		time.Sleep(41 * time.Second) // between two steps of the loop
		sum := int64(0)
		for i, tps := range recorded {
			w.set(func() {
				w.counted = append(w.counted, telemetry.Point{Minute: time.Now().Unix() / 60, Balancer: "lb-us-0", Region: "local/us", Model: "m", Tier: service.TierFast, Requests: 1, PromptTokens: 60 * tps})
			})
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(59 * time.Second)))
			synctest.Wait()
			if i > 0 {
				sum += tps
			}
			if i >= 5 { // before, the running minute counts too
				got, want = append(got, w.published().Targets[0].Count), append(want, int(math.Ceil(float64(sum-tps)/float64(i-1)/replicaTPS)))
			}
			time.Sleep(2 * time.Second)
		}
	}, func(w *plannerWorld) {
		spec := *w.observed
		spec.Models = slices.Clone(spec.Models)
		spec.Models[0].GPUs = []service.GPU{{Type: "L4", Count: 1, TPS: replicaTPS}}
		spec.Autoscale.Every, spec.Autoscale.Strategy = time.Minute, "lt-ua"
		w.observed = &spec
	})
	if !slices.Equal(got, want) {
		t.Errorf("targets by minute: %v, want %v", got, want)
	}
}

// The first reviews follow as the history doubles, later ones every hour.
func TestReviewsBecomeHourly(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() { w.perMin = 60_000 })
		var at []time.Time
		for range 5 * 60 {
			w.pass(time.Minute)
			if r := w.published(); r.Plan != nil && (len(at) == 0 || !at[len(at)-1].Equal(r.Plan.At)) {
				at = append(at, r.Plan.At)
			}
		}
		if len(at) < 8 || len(at) > 12 {
			t.Fatalf("%d reviews in five hours: %v", len(at), at)
		}
		last := at[len(at)-3:]
		for i := range last[1:] {
			if d := last[i+1].Sub(last[i]); d != time.Hour {
				t.Errorf("%s between two reviews", d)
			}
		}
	})
}

// The first load of a region causes a new review at once, whether its balancer reported minutes without load before or
// not: else status and top would lack its peak, and the plan its load, until the next hour. Later load causes none.
func TestFirstLoadOfRegionIsReviewedAtOnce(t *testing.T) {
	for _, idle := range []bool{false, true} {
		testPlanner(t, func(w *plannerWorld) { checkFirstLoad(w, idle) }, func(w *plannerWorld) {
			spec, err := service.Parse("service.yaml", []byte(strings.Replace(plannedService, "max: 9}}]", "max: 9}}, {name: local/eu, replicas: {min: 1, max: 9}}]", 1)))
			if err != nil {
				t.Fatal(err)
			}
			w.observed = spec
		})
	}
}

func checkFirstLoad(w *plannerWorld, idle bool) {
	addPoint := func(tokens int64) {
		w.set(func() {
			w.counted = append(w.counted, telemetry.Point{Minute: time.Now().Unix() / 60, Balancer: "lb-eu-0", Region: "local/eu", Model: "m", Tier: service.TierFast, PromptTokens: tokens})
		})
	}
	euPeak := func() float64 {
		for _, f := range w.published().Forecast {
			if f.Region == "local/eu" {
				return f.Peak.Mean
			}
		}
		return 0
	}
	w.set(func() { w.perMin = 60_000 })
	for range 3 * 60 {
		if idle {
			addPoint(0)
		}
		w.pass(time.Minute)
	}
	if got := euPeak(); got != 0 {
		w.t.Fatalf("before the load: peak %g", got)
	}
	addPoint(60_000)
	w.pass(2 * time.Minute)
	first := w.published()
	if euPeak() == 0 {
		w.t.Errorf("idle before: %v: the load is not in the forecast", idle)
	}
	for range 10 {
		addPoint(60_000)
		w.pass(time.Minute)
	}
	if r := w.published(); !r.Plan.At.Equal(first.Plan.At) {
		w.t.Errorf("idle before: %v: reviewed at %s and again at %s", idle, first.Plan.At.Format(time.TimeOnly), r.Plan.At.Format(time.TimeOnly))
	}
}

func TestDeviationFromForecastIsPublished(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() { w.perMin = 60_000 })
		w.pass(3 * time.Hour)
		w.trigger()
		w.pass(5 * time.Minute)
		before := w.published()
		if left := before.Forecast[0].Deviation; left != "" {
			t.Fatalf("a steady load deviates: %q", left)
		}
		w.set(func() { w.perMin = 600_000 })
		w.pass(25 * time.Minute)
		r := w.published()
		if left := r.Forecast[0].Deviation; !strings.Contains(left, "x the forecast") || !strings.Contains(left, "burst") {
			t.Errorf("got %q", left)
		}
		if !r.Plan.At.Equal(before.Plan.At) {
			t.Error("the plan changed without a review")
		}
	})
}

// A deviation is published as soon as all balancers have stored the minute that shows it.
func TestDeviationIsPublishedWhenMinuteIsStored(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() { w.perMin = 60_000 })
		w.pass(3 * time.Hour)
		w.trigger()
		w.pass(5 * time.Minute)
		w.set(func() { w.perMin = 600_000 })
		for range 30 {
			w.pass(time.Minute)
			for range 59 {
				time.Sleep(time.Second)
				synctest.Wait()
				if w.published().Forecast[0].Deviation == "" {
					continue
				}
				if at := time.Now().Add(-minuteDelay); at.Sub(at.Truncate(time.Minute)) > time.Second {
					t.Errorf("published at %s", time.Now().Format(time.TimeOnly))
				}
				return
			}
		}
		t.Fatal("no deviation was published")
	}, func(*plannerWorld) { time.Sleep(3 * time.Second) }) // the seconds in which the loop runs
}

func TestFailedReviewKeepsLastOne(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() { w.perMin = 60_000 })
		w.pass(3 * time.Hour)
		good := w.published()
		w.set(func() { w.err = errors.New("no balancer responds") })
		w.trigger()
		w.pass(time.Minute)
		r := w.published()
		if r.Plan.Error != "no balancer responds" || !r.Plan.At.Equal(good.Plan.At) || len(r.Forecast) != 1 {
			t.Fatalf("got %+v", r.Plan)
		}
		w.set(func() { w.err = nil })
		w.pass(reviewRetry + time.Minute)
		if r := w.published(); r.Plan.Error != "" || r.Plan.At.Equal(good.Plan.At) {
			t.Errorf("it was not retried: %+v", r.Plan)
		}
	})
}

// hasHistory adds two hours of history from an earlier run to the store.
func (w *plannerWorld) hasHistory() {
	now := time.Now().Unix() / 60
	for m := now - 120; m < now; m++ {
		w.counted = append(w.counted, telemetry.Point{Minute: m, Balancer: "lb-us-0", Region: "local/us", Model: "m", Tier: service.TierFast, Requests: 1, PromptTokens: 150_000})
	}
}

// line returns the plan's line in status and top.
func (w *plannerWorld) line() string {
	s := telemetry.Snapshot{Plan: w.published().Plan}
	return s.PlanLine(time.UTC)
}

// A controller may start before its balancers: the plan follows soon after they start, and until
// then status shows what planning is waiting for.
func TestPlanningWaitsForStartingBalancers(t *testing.T) {
	for _, starting := range []time.Duration{500 * time.Millisecond, 7 * time.Second, 40 * time.Second} {
		testPlanner(t, func(w *plannerWorld) {
			time.Sleep(starting)
			synctest.Wait()
			if line := w.line(); line != "planning: waiting for balancers" {
				t.Errorf("after %s: got %q", starting, line)
			}
			w.set(func() { w.err = nil })
			time.Sleep(starting + 2*time.Second) // the backoff is at most as long as the start
			synctest.Wait()
			if line := w.line(); !strings.HasSuffix(line, ": us +2 L4") {
				t.Errorf("balancers that started in %s: got %q", starting, line)
			}
			if w.histories > 3 {
				t.Errorf("balancers that started in %s: their history was read %d times", starting, w.histories)
			}
		}, func(w *plannerWorld) {
			w.hasHistory()
			w.err = fmt.Errorf("%w: %w", ErrNoBalancerResponds, syscall.ECONNREFUSED)
		})
	}
}

// Planning no longer waits for balancers that have started but have no traffic yet.
func TestNoPlanIsShownBeforeTraffic(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		time.Sleep(2 * time.Second)
		w.set(func() { w.err = nil })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if line := w.line(); line != "" {
			t.Errorf("got %q", line)
		}
	}, func(w *plannerWorld) { w.err = ErrNoBalancerResponds })
}

// Balancers that still do not respond after startGrace no longer count as starting: the error is shown.
func TestUnreachableBalancersAreReported(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.pass(time.Hour)
		if line := w.line(); !strings.Contains(line, "no balancer responds: connection refused") {
			t.Errorf("got %q", line)
		}
	}, func(w *plannerWorld) {
		w.err = fmt.Errorf("%w: %w", ErrNoBalancerResponds, syscall.ECONNREFUSED)
	})
}

// Balancers start one after the other: planning waits for all of them, because the first alone
// reports only a part of the service. The wait is limited.
func TestPlanningWaitsForAllBalancersAtStart(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if line := w.line(); line != "planning: waiting for balancers" {
			t.Errorf("got %q", line)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if r := w.published(); r.Plan == nil || r.Plan.Status != "optimal" {
			t.Errorf("a balancer that stays unreachable: got %+v", r.Plan)
		}
	}, func(w *plannerWorld) {
		w.hasHistory()
		w.unresponsive = 2
	})
}

func TestReviewIsPublishedAfterStoreRecovers(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.state.mu.Lock()
		w.state.down = true
		w.state.mu.Unlock()
		w.set(func() { w.perMin = 60_000 })
		w.pass(5 * time.Minute)
		w.state.mu.Lock()
		w.state.down = false
		w.state.mu.Unlock()
		w.pass(2 * time.Minute)
		if w.published().Plan == nil {
			t.Error("nothing was published")
		}
	})
}

func TestNewerControllersReviewIsNotOverwritten(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		newer, err := json.Marshal(telemetry.Review{Token: 8})
		if err != nil {
			t.Fatal(err)
		}
		w.state.mu.Lock()
		w.state.data, w.state.revision = newer, 3
		w.state.mu.Unlock()
		w.set(func() { w.perMin = 60_000 })
		w.pass(5 * time.Minute)
		if r := w.published(); r.Token != 8 {
			t.Errorf("got %+v", r)
		}
	})
}

// Unresponsive balancers delay neither rounds nor shutdown.
func TestPlanningDoesNotDelayRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		p := newPlannerWorld(t)
		p.observe = func(ctx context.Context, _ int64, _ bool) (*Observed, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		w.loop = p.controlLoop
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.runController(ctx) })
		time.Sleep(5 * time.Second)
		w.lb["lb-us-0"].set(true)
		time.Sleep(deadAfter*roundInterval + roundInterval)
		synctest.Wait()
		if got := w.lb["lb-eu-0"].replicas(); len(got) != 3 {
			t.Errorf("no adoption while planning is blocked: %v", got)
		}
		end()
		wg.Wait()
	})
}

// Added or removed replicas cause a review as soon as balancers report them, one for several
// changes in sequence.
func TestChangedReplicasCauseReview(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() { w.perMin = 60_000 })
		w.pass(3 * time.Hour)
		before := w.published()
		w.trigger()
		synctest.Wait()
		time.Sleep(changeDelay / 2)
		w.trigger()
		synctest.Wait()
		if r := w.published(); !r.Plan.At.Equal(before.Plan.At) {
			t.Error("reviewed before balancers could report the change")
		}
		requested := time.Now()
		w.pass(time.Minute)
		if r := w.published(); r.Plan.At.Sub(requested) != changeDelay {
			t.Errorf("reviewed %s after the last change", r.Plan.At.Sub(requested))
		}
	})
}

// A batch that is due before the end of the next plan is planned for at once, once. A later one waits for the next review.
func TestNewBatchCausesReview(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() { w.perMin = 60 * 500 })
		w.pass(3*time.Hour + 10*time.Minute) // between two hourly plans
		reviews := func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.histories }
		before := w.published().Plan.At
		w.set(func() {
			w.backlog = []plan.Backlog{{Batch: "batch_late", Model: "m", Tokens: 1, Deadline: time.Now().Add(100 * time.Hour)}}
		})
		w.pass(2 * time.Minute)
		if !w.published().Plan.At.Equal(before) {
			t.Error("a batch without haste caused a review")
		}
		w.set(func() {
			w.backlog = append(w.backlog, plan.Backlog{Batch: "batch_soon", Model: "m", Tokens: 4000 * 1800, Deadline: time.Now().Add(30 * time.Minute)})
		})
		w.pass(time.Minute)
		made := w.published()
		if made.Plan.At.Equal(before) || len(made.Targets) != 1 || made.Targets[0].Count < 5 {
			t.Fatalf("after a batch of 4000 tokens a second: %+v", made)
		}
		n := reviews()
		w.pass(5 * time.Minute)
		if !w.published().Plan.At.Equal(made.Plan.At) || reviews() > n+5 {
			t.Error("a batch caused a second review")
		}
	})
}

// A plan that a strategy applies stays in force until its end: neither the strategy's changes nor a
// new leader cause another. The new leader makes the next one at that end.
func TestAppliedPlanStaysInForce(t *testing.T) {
	testPlanner(t, func(w *plannerWorld) {
		w.set(func() {
			w.perMin = 60_000
			paced := *w.observed
			paced.Autoscale.Strategy = "lt-ua"
			w.observed = &paced
		})
		w.pass(4 * time.Hour)
		plan := w.published()
		if plan.Strategy != "lt-ua" || plan.Until.Sub(plan.From) != time.Hour || len(plan.Targets) != 1 {
			t.Fatalf("got %+v", plan)
		}
		if g := plan.Targets[0]; g.Count < 1 || g.ReplicaTPS != 1000 || g.PeakTPS < 900 || g.Region != "local/us" {
			t.Errorf("got %+v", g)
		}
		w.trigger()
		next := newPlannerWorld(t)
		next.state.data, next.state.revision = w.state.data, w.state.revision // a copy: the first leader goes on in this test
		next.observed, next.counted = w.observed, w.counted
		next.trigger() // replicas were changed while it was a standby, before the plan was made
		ctx, end := context.WithCancel(w.t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { next.runLoop(ctx, next.lease) })
		time.Sleep(time.Until(plan.Until) - time.Minute)
		synctest.Wait()
		if r := next.published(); !r.From.Equal(plan.From) {
			t.Errorf("a new plan was made too early: %s, not %s", r.From, plan.From)
		}
		if r := next.planner.inForce.get(); r == nil || !r.From.Equal(plan.From) {
			t.Errorf("the new leader has not loaded the plan: %+v", r)
		}
		time.Sleep(time.Minute + loopInterval)
		synctest.Wait()
		if late := next.published().From.Sub(plan.Until); late < 0 || late > loopInterval {
			t.Errorf("the new leader planned %s after the end of the plan in force", late)
		}
		end()
		wg.Wait()
	})
}

// An expired plan has no targets.
func TestExpiredPlanHasNoTargets(t *testing.T) {
	from := time.Unix(1_800_000_000, 0)
	r := &telemetry.Review{
		From: from, Until: from.Add(time.Hour), Targets: []telemetry.PlannedCapacity{{Model: "m", Region: "local/us", Count: 3, ReplicaTPS: 1000, PeakTPS: 2500, StabilizationSeconds: 1800, Headroom: 1.8, StartUpSeconds: 600, OverloadTolerance: 0.0005}},
		Forecast: []telemetry.LoadForecast{{Model: "m", Region: "local/us", StepSeconds: 300, MeanTPS: []float64{1, 2}}},
	}
	base := from.Add(-time.Minute)
	got := hourlyTargets(r, from.Add(119*time.Minute), base)[modelRegion{"m", "local/us"}]
	if got == nil || got.Count != 3 || got.From != time.Minute || got.Until != 61*time.Minute || got.ForecastStep != 5*time.Minute || len(got.ForecastTPS) != 2 || got.Tracking != (plan.Tracking{StabilizationWindow: 30 * time.Minute, Headroom: 1.8, StartUp: 10 * time.Minute, OverloadTolerance: 0.0005}) {
		t.Errorf("got %+v", got)
	}
	if got := hourlyTargets(r, from.Add(121*time.Minute), base); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}
