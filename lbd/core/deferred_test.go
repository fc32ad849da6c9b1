package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

// Two requests are released below 50 % of the memory, one below 60 % (SageServe section 6.2).
func TestDeferredReleaseFollowsKVUtilisation(t *testing.T) {
	for _, c := range []struct {
		utilisation float64
		want        int
	}{{0, 2}, {0.49, 2}, {0.5, 1}, {0.59, 1}, {0.6, 0}, {1, 0}} {
		if got := DefaultDeferred().ReleaseCount(c.utilisation); got != c.want {
			t.Errorf("Release(%g) = %d, want %d", c.utilisation, got, c.want)
		}
	}
}

// With a longer wait, work is parked for the night; due requests are still released.
func TestDeferredWaitIsShareOfDeadline(t *testing.T) {
	for _, c := range []struct {
		wait  float64
		hours float64
	}{{0, 10}, {0.5, 12}, {0.83, 19.92}} {
		d := DeferredRule{ReleaseOneBelow: 0.6, ReleaseTwoBelow: 0.5, MaxParkedShare: c.wait}
		if got := d.UrgentAfter(24 * time.Hour).Hours(); got < c.hours-0.01 || got > c.hours+0.01 {
			t.Errorf("wait %g: urgent after %g h, want %g", c.wait, got, c.hours)
		}
	}
}

// deferring is a balancer with one replica whose memory is full, so that deferred requests are
// parked until roomy reports free capacity.
func deferring(t fatal, limit int) *Balancer {
	p, err := policy.New("least-load")
	if err != nil {
		t.Fatalf("%v", err)
	}
	cfg := DefaultConfig(p)
	cfg.Push, cfg.QueueLimit, cfg.ProbeInterval = PushMode{Kind: PushBlind}, limit, time.Hour
	b := New(cfg)
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
	b.Step(0, memory(0.9))
	return b
}

// memory returns a report with this KV utilisation of the replica.
func memory(kv float64) Event {
	return Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true, Pending: policy.Known(0), KV: policy.Known(kv)}}
}

func deferred(b *Balancer, now time.Duration, id, tenant string, tokens int) []Action {
	return b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Tenant: tenant, Tier: service.TierDeferred, PromptTokens: tokens}})
}

// released returns the requests that a report of much free capacity releases.
func released(b *Balancer, now time.Duration) (ids []string) {
	for _, a := range b.Step(now, memory(0.1)) {
		if a.Kind == ActionDispatch {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// While interactive requests arrive, each replica has a bounded number of deferred ones, whatever its memory.
// Without interactive requests there is no bound, and requests near their deadline are sent in any case.
func TestDeferredAreFewWhileInteractiveArrive(t *testing.T) {
	b := deferring(t, 4096)
	b.cfg.Deferred.MaxPerReplica = 3
	for i := range 100 {
		deferred(b, 0, fmt.Sprint("d", i), "acme", 100)
	}
	sent := 0
	report := func(at time.Duration) int {
		n := len(released(b, at))
		sent += n
		return n
	}
	arrive := func(at time.Duration, id string) {
		b.Step(at, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Tier: service.TierFast, PromptTokens: 100}})
	}
	arrive(time.Second, "i1")
	for i := range 10 {
		report(time.Second + time.Duration(i)*100*time.Millisecond)
	}
	if sent != 3 {
		t.Errorf("%d deferred requests are sent beside an interactive one, want 3", sent)
	}
	b.Step(3*time.Second, Event{Kind: EventFinished, ID: "d0", Outcome: &Outcome{}})
	if n := report(3 * time.Second); n != 1 {
		t.Errorf("after one has ended, %d are sent, want 1", n)
	}
	if n := report(time.Minute); n != 2 {
		t.Errorf("without interactive requests %d are sent for a report, want 2", n)
	}
	arrive(time.Minute, "i2")
	b.Step(time.Minute, Event{Kind: EventArrived, Request: &Request{ID: "urgent", Model: "m", Tier: service.TierDeferred, PromptTokens: 100, TimeToDeadline: time.Hour}})
	urgent := false
	for _, a := range b.Step(time.Minute+30*time.Minute, Event{Kind: EventTick}) {
		urgent = urgent || a.Kind == ActionDispatch && a.ID == "urgent"
	}
	if !urgent {
		t.Error("a request after 10 of 24 hours of its time is not sent")
	}
}

// A tenant with many parked requests delays another tenant's deferred requests only by its share,
// not by all of its own.
func TestDeferredReleaseAlternatesTenants(t *testing.T) {
	b := deferring(t, 4096)
	for i := range 100 {
		deferred(b, 0, fmt.Sprint("flood", i), "flood", 100)
	}
	for i := range 5 {
		deferred(b, time.Second, fmt.Sprint("one", i), "one", 100)
	}
	var order []string
	for i := range 5 {
		order = append(order, released(b, 2*time.Second+time.Duration(i))...)
	}
	own := 0
	for _, id := range order {
		if strings.HasPrefix(id, "one") {
			own++
		}
	}
	if len(order) != 10 || own < 4 {
		t.Errorf("of the first ten releases %d are of the tenant that came second: %v", own, order)
	}
	if !slices.IsSortedFunc(slices.DeleteFunc(order, func(id string) bool { return !strings.HasPrefix(id, "one") }), strings.Compare) {
		t.Errorf("a tenant's own requests do not go in the order in which they came: %v", order)
	}
}

// Fairness of deferred requests counts tokens, including answers. A tenant's interactive requests
// do not count.
func TestDeferredReleasesAreChargedInTokens(t *testing.T) {
	b := deferring(t, 4096)
	b.cfg.Deferred.MaxPerReplica = 0 // two releases a report, although an interactive request arrives
	for i := range 300 {
		deferred(b, 0, fmt.Sprint("long", i), "long", 1000)
		deferred(b, 0, fmt.Sprint("short", i), "short", 100)
		deferred(b, 0, fmt.Sprint("wordy", i), "wordy", 100)
	}
	b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "chat", Model: "m", Tenant: "short", PromptTokens: 1_000_000}})
	count := map[string]int{}
	for i := range 100 {
		for _, id := range released(b, time.Duration(i)) {
			tenant := strings.TrimRight(id, "0123456789")
			count[tenant]++
			output := 0
			if tenant == "wordy" {
				output = 400
			}
			b.Step(time.Duration(i), Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(output)}})
		}
	}
	for tenant, each := range map[string]int{"long": 1000, "short": 100, "wordy": 500} {
		if got := count[tenant] * each; got < 14_000 || got > 17_000 {
			t.Errorf("%s: %d releases of %d tokens, want about 15,400 tokens: %v", tenant, count[tenant], each, count)
		}
	}
}

// For random arrivals: two tenants that always have parked requests are served equally, to within
// one or two requests.
func TestDeferredReleaseIsFairOverTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := deferring(rt, 4096)
		tenants, longest := []string{"a", "b", "c"}, rapid.IntRange(1, 500).Draw(rt, "longest")
		waiting, sizes, got, next := map[string]int{}, map[string]int{}, map[string]int{}, 0
		park := func(tenant string, now time.Duration) {
			next++
			id := fmt.Sprint(tenant, "-", next)
			sizes[id] = rapid.IntRange(1, longest).Draw(rt, "tokens")
			deferred(b, now, id, tenant, sizes[id])
			waiting[tenant]++
		}
		for step := range 120 {
			now := time.Duration(step) * time.Second
			for _, tenant := range tenants[:2] { // always
				for waiting[tenant] < 4 {
					park(tenant, now)
				}
			}
			if rapid.IntRange(0, 4).Draw(rt, "third") == 0 {
				park(tenants[2], now)
			}
			for _, id := range released(b, now) {
				tenant, _, _ := strings.Cut(id, "-")
				waiting[tenant]--
				got[tenant] += sizes[id]
				b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(0)}})
			}
		}
		if d := got["a"] - got["b"]; d > 2*longest || d < -2*longest {
			rt.Fatalf("released %v tokens, none larger than %d", got, longest)
		}
		if got["c"] > got["a"]+2*longest {
			rt.Fatalf("who comes now and then got more than who waits all the time: %v", got)
		}
	})
}

// Requests that are old enough to join interactive requests are released regardless of fairness.
func TestDeferredDeadlineOverridesFairness(t *testing.T) {
	b := deferring(t, 4096)
	for i := range 10 {
		deferred(b, 0, fmt.Sprint("old", i), "flood", 1_000_000)
	}
	deferred(b, 9*time.Hour, "new", "other", 1)
	var gone []string
	b.Step(10*time.Hour, memory(0.9))
	for _, a := range b.Step(10*time.Hour, Event{Kind: EventTick}) {
		gone = append(gone, a.ID)
	}
	if len(gone) != 10 || slices.Contains(gone, "new") {
		t.Errorf("after 10 hours %v go, want the ten that are so old", gone)
	}
}

// Requests of a tenant that filled the queue with deferred work are evicted for another's, newest
// first, until both have the same number. For interactive work they are evicted before those of
// others.
func TestFullDeferredQueueIsShared(t *testing.T) {
	b := deferring(t, 100)
	for i := range 100 {
		deferred(b, 0, fmt.Sprint("flood", i), "flood", 1)
	}
	if got := outline(deferred(b, 1, "more", "flood", 1)); !slices.Equal(got, []string{"rejectmore" + RejectQueueFull}) {
		t.Errorf("another one of the same tenant: %v", got)
	}
	for i := range 60 {
		got := outline(deferred(b, 1, fmt.Sprint("one", i), "other", 1))
		want := []string{fmt.Sprint("rejectflood", 99-i, RejectQueueFull), fmt.Sprint("holdone", i)}
		if i >= 50 {
			want = []string{fmt.Sprint("rejectone", i, RejectQueueFull)}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("request %d: %v, want %v", i, got, want)
		}
	}
	deferred(b, 2, "third0", "third", 1) // of two tenants with the same number, one is evicted
	actions := outline(b.Step(3, Event{Kind: EventArrived, Request: &Request{ID: "chat", Model: "m", Tenant: "flood"}}))
	if len(actions) != 2 || !strings.HasPrefix(actions[0], "rejectone") || !strings.HasPrefix(actions[1], "dispatchchat") {
		t.Errorf("an interactive request: %v, want a deferred one of the tenant with the most to give way", actions)
	}
	if c := b.Snapshot(3).Counts; c.Queued != 99 || c.Outstanding != 1 {
		t.Errorf("counted %+v", c)
	}
}

// A request with a deadline of its own is urgent after its share of the time since its creation, in any
// order of arrival, and is rejected at its deadline.
func TestOwnDeadlineOfDeferredRequest(t *testing.T) {
	b := deferring(t, 4096)
	arrive := func(id string, age, due time.Duration) {
		b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Tier: service.TierDeferred, PromptTokens: 10, Age: age, TimeToDeadline: due}})
	}
	arrive("day", 0, 0)
	arrive("new", 0, 2*time.Hour)                 // urgent after 50 minutes
	arrive("old", 40*time.Minute, 80*time.Minute) // urgent after 10 minutes
	var sent []string
	tick := func(now time.Duration) {
		for _, a := range b.Step(now, memory(0.9)) {
			if a.Kind == ActionDispatch {
				sent = append(sent, a.ID)
			}
		}
		for _, a := range b.Step(now, Event{Kind: EventTick}) {
			if a.Kind == ActionDispatch {
				sent = append(sent, a.ID)
			}
		}
	}
	for _, c := range []struct {
		at   time.Duration
		want string
	}{{9 * time.Minute, ""}, {10 * time.Minute, "old"}, {49 * time.Minute, "old"}, {50 * time.Minute, "old new"}, {9 * time.Hour, "old new"}, {10 * time.Hour, "old new day"}} {
		tick(c.at)
		if got := strings.Join(sent, " "); got != c.want {
			t.Errorf("after %v: sent %q, want %q", c.at, got, c.want)
		}
	}
	if got := b.maxWait(&request{Request: Request{Model: "m", Tier: service.TierDeferred, TimeToDeadline: 7 * time.Second}}); got != 7*time.Second {
		t.Errorf("it waits up to %v", got)
	}
}
