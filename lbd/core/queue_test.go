package core

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/core/fair"
	"skyserve/lbd/policy"
)

// waiting returns a request that arrived at a time.
func waiting(seq uint64, at time.Duration, of Request) *request {
	r := &request{Request: of}
	r.initItem(seq, at)
	r.SortTime = at
	return r
}

// twin is a request of the reference queue: a copy, and its position.
type twin struct {
	request
	fair.Position
}

// before orders requests by position, then by rank, then by number.
func (a *twin) before(b *twin) bool {
	return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Due, b.Due), cmp.Compare(a.SortTime, b.SortTime), cmp.Compare(a.Seq, b.Seq)) < 0
}

// dumb is the reference queue, which sorts all requests at each call. It has its own copies of the
// requests and reads only their input fields.
type dumb struct {
	ordering ordering
	waiting  []*twin
	served   map[string]int64
	lifted   map[string]int64
	born     map[string]int
	left     string
}

func (d *dumb) open(tenant string) {
	if _, ok := d.born[tenant]; !ok {
		d.born[tenant] = len(d.born)
	}
}

func (d *dumb) has(tenant string) bool {
	return slices.ContainsFunc(d.waiting, func(r *twin) bool { return r.Tenant == tenant })
}

func (d *dumb) push(r request) {
	d.open(r.Tenant)
	if !d.has(r.Tenant) {
		least, any := d.served[d.left], false
		for _, o := range d.waiting {
			if s := d.served[o.Tenant]; !any || s < least {
				least, any = s, true
			}
		}
		if any || d.left != r.Tenant {
			d.lifted[r.Tenant] = max(d.lifted[r.Tenant], least)
			d.charge(r.Tenant, 0)
		}
	}
	d.waiting = append(d.waiting, &twin{request: r})
}

// charge adds tokens to those served to a tenant. The sum never falls below its floor.
func (d *dumb) charge(tenant string, tokens int64) {
	d.served[tenant] = max(d.served[tenant]+tokens, d.lifted[tenant])
}

func (d *dumb) remove(r *request) {
	d.waiting = slices.DeleteFunc(d.waiting, func(o *twin) bool { return o.ID == r.ID })
	d.left = r.Tenant
}

// ordered returns the waiting requests, in order.
func (d *dumb) ordered(now time.Duration) []*twin {
	list := slices.Clone(d.waiting)
	for _, r := range list {
		r.Position = d.ordering.position(r.Tier, r.WaitingSince, d.ordering.deadlines.For(r.Tier), now)
	}
	slices.SortFunc(list, func(a, b *twin) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return list
}

// first simulates the next n sends one by one.
func (d *dumb) first(now time.Duration, n int) (ids []string) {
	left := d.ordered(now)
	will := map[string]int64{}
	for t, s := range d.served {
		will[t] = s
	}
	for len(ids) < n && len(left) > 0 {
		turn := left[0].Position.Level
		best := d.whose(left, will, turn)
		i := slices.IndexFunc(left, func(r *twin) bool { return r.Tenant == best && r.Position.Level <= turn })
		ids = append(ids, left[i].ID)
		will[best] += left[i].sendCharge()
		left = slices.Delete(left, i, i+1)
	}
	return ids
}

// whose returns the tenant that is served next: of those with a request of the current level or a
// more urgent one, the least served. Of equals it is the one in the current level that was created
// first, then the one in the next level.
func (d *dumb) whose(left []*twin, will map[string]int64, turn int) string {
	best, bestLevel := "", -1
	for _, r := range left {
		level := r.Position.Level
		if level > turn {
			continue
		}
		t := r.Tenant
		better := bestLevel < 0 || will[t] < will[best] ||
			will[t] == will[best] && (level > bestLevel || level == bestLevel && d.born[t] < d.born[best])
		if better {
			best, bestLevel = t, level
		}
	}
	return best
}

func ids(rs []*request) (out []string) {
	for _, r := range rs {
		out = append(out, r.ID)
	}
	return out
}

func drawRequest(rt *rapid.T, n int, now time.Duration) *request {
	tier := rapid.SampledFrom([]service.Tier{"", service.TierFast, service.TierNormal, service.TierDeferred}).Draw(rt, "tier")
	tenant := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "tenant")
	r := waiting(uint64(n), now, Request{ID: fmt.Sprintf("q%d", n), Tier: tier, Tenant: tenant, PromptTokens: rapid.IntRange(0, 40).Draw(rt, "tokens")})
	r.SortTime = now - time.Duration(rapid.IntRange(0, 3).Draw(rt, "lead"))*time.Second
	return r
}

var allOrders = []QueueOrder{OrderFCFS, OrderEDF, OrderPF, OrderDPA}

func drawOrdering(rt *rapid.T) ordering {
	return ordering{
		order:       rapid.SampledFrom(allOrders).Draw(rt, "order"),
		deadlines:   TierDeadlines{Fast: time.Second, Normal: 4 * time.Second, Deferred: 24 * time.Second},
		severeAfter: 2 * time.Second, urgentBefore: 500 * time.Millisecond,
	}
}

// pair applies every operation to a queue and to the reference queue.
type pair struct {
	q    *queue
	d    dumb
	now  time.Duration
	sent []*request
	n    int
}

func (p *pair) change(rt *rapid.T) {
	switch rapid.IntRange(0, 6).Draw(rt, "change") {
	case 0, 1, 2:
		p.n++
		r := drawRequest(rt, p.n, p.now)
		p.push(r)
	case 3: // send the first request
		if list := p.q.First(nil, p.now, 1); len(list) > 0 {
			p.send(list[0])
		}
	case 4: // remove a request in the middle
		if list := p.q.Waiting(nil); len(list) > 0 {
			p.remove(rapid.SampledFrom(list).Draw(rt, "gone"))
		}
	case 5:
		p.now += time.Duration(rapid.SampledFrom([]int{1, 400, 1500, 9000, 40_000}).Draw(rt, "ms")) * time.Millisecond
	default:
		p.end(rt)
	}
}

func (p *pair) push(r *request) {
	p.d.push(*r)
	p.q.pushRequest(p.now, r)
}

func (p *pair) remove(r *request) {
	p.q.removeRequest(r)
	p.d.remove(r)
}

func (p *pair) send(r *request) {
	p.remove(r)
	p.q.recordSent(r)
	p.d.charge(r.Tenant, r.sendCharge())
	p.sent = append(p.sent, r)
}

// end ends a request that was sent: served with the engine's figures, or failed
// and queued again.
func (p *pair) end(rt *rapid.T) {
	if len(p.sent) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.sent)-1).Draw(rt, "which")
	r := p.sent[i]
	p.sent = slices.Delete(p.sent, i, i+1)
	p.q.Ended(&r.Item)
	if rapid.Bool().Draw(rt, "failed") {
		p.q.chargeUnserved(r, &Outcome{Retryable: true}, 0)
		p.d.charge(r.Tenant, -r.sendCharge())
		p.push(r)
		return
	}
	out := &Outcome{PromptTokens: policy.Known(rapid.IntRange(0, 40).Draw(rt, "prompt")), OutputTokens: policy.Known(rapid.IntRange(0, 90).Draw(rt, "output"))}
	p.q.chargeServed(r, out)
	p.d.charge(r.Tenant, int64(out.PromptTokens.Value)-r.sendCharge()+int64(out.OutputTokens.Value))
}

// For random operations, the queue behaves like the reference queue.
func TestQueueMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := drawOrdering(rt)
		p := pair{q: newQueue("m", o), d: dumb{ordering: o, served: map[string]int64{}, lifted: map[string]int64{}, born: map[string]int{}}}
		for range rapid.IntRange(1, 80).Draw(rt, "changes") {
			p.change(rt)
			n := rapid.SampledFrom([]int{1, 3, 1000}).Draw(rt, "asked for")
			if got, want := ids(p.q.First(nil, p.now, n)), p.d.first(p.now, n); !slices.Equal(got, want) {
				rt.Fatalf("%s at %v: got %v, want %v", o.order, p.now, got, want)
			}
			checkQueue(rt, p.q, len(p.d.waiting))
		}
	})
}

// checkQueue compares a queue's counts with each other.
func checkQueue(t fatal, q *queue, want int) {
	if q.Len() != want || len(q.Waiting(nil)) != want {
		t.Fatalf("%d wait: counted %d, %d in all levels", want, q.Len(), len(q.Waiting(nil)))
	}
}

// The names of tenants have no effect, not even on ties.
func TestTenantNamesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := drawOrdering(rt)
		names := rapid.Permutation([]string{"a", "b", "c", "d"}).Draw(rt, "names")
		other := map[string]string{"a": names[0], "b": names[1], "c": names[2], "d": names[3]}
		x, y := newQueue("m", o), newQueue("m", o)
		now := time.Duration(0)
		for i := range rapid.IntRange(1, 60).Draw(rt, "requests") {
			now += time.Duration(rapid.IntRange(0, 900).Draw(rt, "ms")) * time.Millisecond
			r := drawRequest(rt, i, now)
			of := r.Request
			of.Tenant = other[r.Tenant]
			s := waiting(r.Seq, r.WaitingSince, of)
			s.SortTime = r.SortTime
			x.pushRequest(now, r)
			y.pushRequest(now, s)
			if rapid.Bool().Draw(rt, "serve") {
				serve(x, now)
				serve(y, now)
			}
			if got, want := ids(y.First(nil, now, 100)), ids(x.First(nil, now, 100)); !slices.Equal(got, want) {
				rt.Fatalf("%v with other names %v, want %v", got, other, want)
			}
		}
	})
}

// serve sends the first request, which ends immediately.
func serve(q *queue, now time.Duration) *request {
	r := q.First(nil, now, 1)[0]
	q.removeRequest(r)
	q.recordSent(r)
	q.Ended(&r.Item)
	return r
}

// With one tenant only the order decides, regardless of the served tokens.
func TestOneTenantKeepsOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := dumb{ordering: drawOrdering(rt), served: map[string]int64{}, lifted: map[string]int64{}, born: map[string]int{}}
		q := newQueue("m", d.ordering)
		now := time.Duration(0)
		for i := range rapid.IntRange(1, 60).Draw(rt, "requests") {
			now += time.Duration(rapid.IntRange(0, 900).Draw(rt, "ms")) * time.Millisecond
			r := drawRequest(rt, i, now)
			r.Tenant = ""
			r.initItem(r.Seq, r.WaitingSince)
			d.push(*r)
			q.pushRequest(now, r)
		}
		list := q.First(nil, now, 1000)
		for i, want := range d.ordered(now) {
			if len(list) != q.Len() || list[i].ID != want.ID {
				rt.Fatalf("%v: of %d the queue lists %v; %s goes at place %d", q.ordering.order, q.Len(), ids(list), want.ID, i)
			}
		}
	})
}

// A tenant that floods the queue delays only itself: a single request of another tenant is among
// the next two, in every order and tier, unless the flood's tier is more urgent, and regardless of
// the flood's waiting time.
func TestFloodStarvesNoTenant(t *testing.T) {
	tiers := service.Tiers()
	for _, order := range allOrders {
		for level, flood := range tiers {
			for _, tier := range tiers[:level+1] {
				for _, later := range []time.Duration{0, 2 * time.Second, 2 * time.Minute, 11 * time.Hour} {
					q := newQueue("m", ordering{order: order, deadlines: DefaultDeadlines(), severeAfter: 5 * time.Second, urgentBefore: time.Second})
					for i := range 1000 {
						q.pushRequest(0, waiting(uint64(i), 0, Request{Tenant: "flood", Tier: flood, PromptTokens: 100}))
					}
					for range 10 {
						serve(q, 0)
					}
					q.pushRequest(later, waiting(2000, later, Request{Tenant: "one", Tier: tier, PromptTokens: 100}))
					first, second := serve(q, later), serve(q, later)
					if first.Tenant != "one" && second.Tenant != "one" {
						t.Errorf("%s: a flood of %s holds back one %s that came after %v", order, flood, tier, later)
					}
				}
			}
		}
	}
}

// Fairness counts tokens: a tenant with requests ten times as long has a tenth as many served, and
// answers count too.
func TestTenantsShareByTokens(t *testing.T) {
	q := newQueue("m", ordering{})
	for i := range 600 {
		q.pushRequest(0, waiting(uint64(3*i), 0, Request{Tenant: "long", PromptTokens: 1000}))
		q.pushRequest(0, waiting(uint64(3*i+1), 0, Request{Tenant: "short", PromptTokens: 100}))
		q.pushRequest(0, waiting(uint64(3*i+2), 0, Request{Tenant: "wordy", PromptTokens: 100}))
	}
	count := map[string]int{}
	for range 420 {
		r := serve(q, 0)
		count[r.Tenant]++
		if r.Tenant == "wordy" {
			q.chargeServed(r, &Outcome{OutputTokens: policy.Known(400)})
		}
	}
	// Each about 32,500 tokens: with requests of 1000, of 100 and of 500.
	if want := map[string]int{"long": 33, "short": 322, "wordy": 65}; !reflect.DeepEqual(count, want) {
		t.Errorf("served %v, want %v", count, want)
	}
}

// An idle tenant accumulates no credit: when it returns, it is served as much as those that stayed,
// and has no priority for its absence.
func TestIdleTenantGainsNoCredit(t *testing.T) {
	q := newQueue("m", ordering{})
	push := func(i int, tenant string) {
		q.pushRequest(0, waiting(uint64(i), 0, Request{Tenant: tenant, PromptTokens: 10}))
	}
	push(0, "idler")
	serve(q, 0)
	for i := range 500 {
		push(i+1, "steady")
		serve(q, 0) // the queue is empty in between
	}
	for i := range 20 {
		push(1000+2*i, "idler")
		push(1001+2*i, "steady")
	}
	idler := 0
	for range 20 {
		if serve(q, 0).Tenant == "idler" {
			idler++
		}
	}
	if idler != 10 {
		t.Errorf("of 20 services %d went to the tenant that had been away, want 10", idler)
	}
}

// fill puts 4096 requests of 50 tenants into a queue.
func fill(order QueueOrder, tenants int) *queue {
	q := newQueue("m", ordering{order: order, deadlines: DefaultDeadlines(), severeAfter: 5 * time.Second, urgentBefore: time.Second})
	tiers := service.Tiers()
	for i := range 4096 {
		at := time.Duration(i) * time.Millisecond
		q.pushRequest(at, waiting(uint64(i), at, Request{
			Tenant: fmt.Sprint(i * i % tenants), Tier: tiers[i%len(tiers)], PromptTokens: 100 + i%1000,
		}))
	}
	return q
}

func BenchmarkQueue(b *testing.B) {
	for _, order := range allOrders {
		for _, tenants := range []int{1, 50, 4096} {
			q := fill(order, tenants)
			now := 5 * time.Second
			pool := q.First(nil, now, 128)
			name := fmt.Sprintf("order=%s/tenants=%d/", order, tenants)
			for _, n := range []int{1, 128} {
				b.Run(fmt.Sprintf("%sfirst=%d", name, n), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						pool = q.First(pool[:0], now, n)
					}
				})
			}
			b.Run(name+"turn", func(b *testing.B) { // one request is sent, ends and arrives again
				b.ReportAllocs()
				for b.Loop() {
					pool = q.First(pool[:0], now, 1)
					r := pool[0]
					q.removeRequest(r)
					q.recordSent(r)
					q.Ended(&r.Item)
					now += time.Millisecond
					r.WaitingSince, r.SortTime, r.Seq = now, now, r.Seq+4096
					q.pushRequest(now, r)
				}
			})
		}
	}
}

// A replica that is updated or added while it drains receives no waiting request.
func TestUpdatedDrainingReplicaGetsNothing(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 1)
	b.Step(0, Event{Kind: EventReplicaDraining, Target: "r0"})
	b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "x", Model: "m"}})
	for _, id := range []string{"r0", "r1"} {
		sent := b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m", Draining: true}})
		if sent = append(sent, b.Step(0, idle(id))...); len(sent) > 0 {
			t.Errorf("%s: got %+v", id, sent)
		}
	}
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r1", Model: "m"}})
	if v := b.Snapshot(0); v.Counts.Queued != 0 {
		t.Errorf("%d requests wait although r1 no longer drains", v.Counts.Queued)
	}
}
