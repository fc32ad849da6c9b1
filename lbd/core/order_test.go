package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core/fair"
	"skyserve/lbd/policy"
)

func TestOrderRoundTrip(t *testing.T) {
	for in, want := range map[string]QueueOrder{"": OrderFCFS, "fcfs": OrderFCFS, "edf": OrderEDF, "pf": OrderPF, "dpa": OrderDPA} {
		if got, err := ParseOrder(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, word := range service.AllOrders() {
		if _, err := ParseOrder(word); err != nil {
			t.Errorf("service.yaml takes %q, the balancer does not: %v", word, err)
		}
	}
	for _, in := range []string{"lifo", "EDF", "fcfs "} {
		if _, err := ParseOrder(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

// Section 6.5's classes, at their edges: with targets of 1 s and 60 s, tau_n = 5 s
// and tau_p = 500 ms, of requests that arrived at 0.
func TestDPAClasses(t *testing.T) {
	o := ordering{order: OrderDPA, deadlines: DefaultDeadlines(), severeAfter: 5 * time.Second, urgentBefore: 500 * time.Millisecond}
	for _, c := range []struct {
		tier  service.Tier
		now   time.Duration
		stage int
		turns time.Duration
	}{
		{service.TierFast, 0, stageFast, 500 * time.Millisecond},
		{service.TierFast, 500*time.Millisecond - 1, stageFast, 500 * time.Millisecond},
		{service.TierFast, 500 * time.Millisecond, stageUrgentFast, time.Second + 1},
		{service.TierFast, time.Second, stageUrgentFast, time.Second + 1},
		{service.TierFast, time.Second + 1, stageRecent, 6*time.Second + 1},
		{service.TierFast, 6 * time.Second, stageRecent, 6*time.Second + 1},
		{service.TierFast, 6*time.Second + 1, stageFirst, fair.Never},
		{service.TierNormal, 0, stageNormal, 59500 * time.Millisecond},
		{service.TierNormal, 60 * time.Second, stageUrgentNormal, 60*time.Second + 1},
		{service.TierNormal, 61 * time.Second, stageRecent, 65*time.Second + 1},
		{service.TierNormal, time.Hour, stageFirst, fair.Never},
		{service.TierDeferred, 0, stageDeferred, 10 * time.Hour},
		{service.TierDeferred, 10*time.Hour - 1, stageDeferred, 10 * time.Hour},
		{service.TierDeferred, 10 * time.Hour, stageNormal, 24*time.Hour - 500*time.Millisecond},
		{service.TierDeferred, 24 * time.Hour, stageUrgentNormal, 24*time.Hour + 1},
		{service.TierDeferred, 25 * time.Hour, stageFirst, fair.Never},
	} {
		got := o.position(c.tier, 0, o.deadlines.For(c.tier), c.now)
		want := fair.Position{Level: tierLevel(c.tier), Stage: c.stage, ChangesAt: c.turns}
		if got != want {
			t.Errorf("%s at %v: got %+v, want %+v", c.tier, c.now, got, want)
		}
	}
}

// Batch work is behind all interactive work in every order but fcfs, until 10 of
// its 24 hours have passed; a model's own deadline keeps that share.
func TestDeferredRequestWaitsUntilUrgent(t *testing.T) {
	for _, c := range []struct{ deadline, urgent time.Duration }{{0, 10 * time.Hour}, {48 * time.Hour, 20 * time.Hour}, {24 * time.Minute, 10 * time.Minute}} {
		for _, order := range []QueueOrder{OrderEDF, OrderPF, OrderDPA} {
			o := ordering{order: order, deadlines: TierDeadlines{Deferred: c.deadline}, severeAfter: 5 * time.Second, urgentBefore: time.Second}
			before, after := o.position(service.TierDeferred, 0, o.deadlines.For(service.TierDeferred), c.urgent-1), o.position(service.TierDeferred, 0, o.deadlines.For(service.TierDeferred), c.urgent)
			if before.Stage != stageDeferred || before.ChangesAt != c.urgent || after.Stage >= stageDeferred {
				t.Errorf("%s, deadline %v: %+v before %v, %+v at it", order, c.deadline, before, c.urgent, after)
			}
		}
	}
}

// A model's own targets apply to its queue, and to no other.
func TestModelTargetsOverrideDefaults(t *testing.T) {
	cfg := DefaultConfig(leastLoad(t))
	cfg.Order, cfg.MaxWait = OrderEDF, time.Hour
	cfg.ModelDeadlines = map[string]TierDeadlines{"m": {Normal: 300 * time.Millisecond}}
	if got := servedBy(cfg, "m"); !slices.Equal(got, []string{"normal", "fast"}) {
		t.Errorf("m, whose IW-N is due sooner than its IW-F, served %v", got)
	}
	if got := servedBy(cfg, "n"); !slices.Equal(got, []string{"fast", "normal"}) {
		t.Errorf("n, which has the usual targets, served %v", got)
	}
}

func leastLoad(t testing.TB) policy.Policy {
	p, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// servedBy queues an IW-F and then an IW-N request for a busy replica of a model and returns the
// order in which they were sent.
func servedBy(cfg Config, model string) (sent []string) {
	cfg.Push = PushMode{Kind: PushOutstanding, N: 1}
	b := New(cfg)
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: model}})
	b.Step(0, Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true}})
	for _, r := range []Request{{ID: "busy"}, {ID: "fast", Tier: service.TierFast}, {ID: "normal", Tier: service.TierNormal}} {
		r.Model = model
		b.Step(0, Event{Kind: EventArrived, Request: &r})
	}
	for id := "busy"; id != ""; {
		actions := b.Step(0, Event{Kind: EventFinished, ID: id})
		if id = ""; len(actions) > 0 {
			id = actions[0].ID
			sent = append(sent, id)
		}
	}
	return sent
}

// day contains the waits of two tiers under one order.
type day struct {
	waits map[service.Tier][]time.Duration
}

// q3 is the third quartile of a tier's waits.
func (d day) q3(tier service.Tier) time.Duration {
	w := d.waits[tier]
	slices.Sort(w)
	return w[len(w)*3/4]
}

// busyDay sends bursts of interactive requests, half of each tier, to one replica that serves ten
// requests per second, one after the other.
func busyDay(t *testing.T, order QueueOrder, seed uint64) day {
	cfg := DefaultConfig(leastLoad(t))
	cfg.Push, cfg.Order, cfg.MaxWait, cfg.LostIntervals = PushMode{Kind: PushOutstanding, N: 1}, order, time.Hour, 1<<30
	// The bursts make the queue some 10 s long, beyond both targets.
	cfg.Deadlines = TierDeadlines{Fast: time.Second, Normal: 6 * time.Second}
	cfg.SevereAfter, cfg.UrgentBefore = 15*time.Second, time.Second
	b := New(cfg)
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
	b.Step(0, Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true}})
	rng := rand.New(rand.NewPCG(seed, 65))
	d := day{waits: map[service.Tier][]time.Duration{}}
	tiers, arrived := map[string]service.Tier{}, map[string]time.Duration{}
	running, until := "", time.Duration(0)
	send := func(now time.Duration, actions []Action) {
		for _, a := range actions {
			if a.Kind == ActionDispatch {
				running, until = a.ID, now+100*time.Millisecond
				d.waits[tiers[a.ID]] = append(d.waits[tiers[a.ID]], now-arrived[a.ID])
			}
		}
	}
	serveUntil := func(now time.Duration) {
		for running != "" && until <= now {
			id := running
			running = ""
			send(until, b.Step(until, Event{Kind: EventFinished, ID: id}))
		}
	}
	now := time.Duration(0)
	for i := range 6000 {
		rate := 5.0 // per second; a burst every other minute
		if now/time.Minute%2 == 1 {
			rate = 13
		}
		now += time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
		serveUntil(now)
		id := fmt.Sprint(i)
		tiers[id], arrived[id] = service.Tiers()[rng.IntN(2)], now
		send(now, b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Tier: tiers[id]}}))
	}
	serveUntil(1 << 62)
	return d
}

// rising reports whether each wait is longer than the previous one.
func rising(waits ...time.Duration) bool {
	for i, w := range waits[1:] {
		if w <= waits[i] {
			return false
		}
	}
	return true
}

// SageServe's figure 15a in its order: orders favour IW-F at the cost of IW-N. fcfs treats them
// equally, pf differs most, edf and dpa are in between.
func TestOrdersFavourFastTierLikeSageServe(t *testing.T) {
	for seed := range uint64(3) {
		fast, normal := map[QueueOrder]time.Duration{}, map[QueueOrder]time.Duration{}
		for _, o := range allOrders {
			d := busyDay(t, o, seed)
			if n := len(d.waits[service.TierFast]) + len(d.waits[service.TierNormal]); n != 6000 {
				t.Fatalf("%s served %d of 6000", o, n)
			}
			fast[o], normal[o] = d.q3(service.TierFast), d.q3(service.TierNormal)
		}
		t.Logf("seed %d: Q3 of IW-F %v, of IW-N %v", seed, fast, normal)
		if !rising(fast[OrderPF], fast[OrderDPA], fast[OrderEDF], fast[OrderFCFS]) {
			t.Errorf("seed %d: IW-F waits %v, want pf < dpa < edf < fcfs", seed, fast)
		}
		if !rising(normal[OrderFCFS], normal[OrderEDF], normal[OrderDPA], normal[OrderPF]) {
			t.Errorf("seed %d: IW-N waits %v, want fcfs < edf < dpa < pf", seed, normal)
		}
	}
}
