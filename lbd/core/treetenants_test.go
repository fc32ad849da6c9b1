package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// A tenant that constantly sends new prompts does not evict those of others from the tree, however
// they were inserted.
func TestTenantCannotEvictOthersFromTree(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.TreeBytes, cfg.Push, cfg.ProbeInterval = 64<<10, PushMode{Kind: PushBlind}, time.Hour
	b, rng := neighbour(cfg, "b", "r0"), rand.New(rand.NewPCG(3, 4))
	asked, shared := fresh(rng, 30), fresh(rng, 30)
	serve := func(now time.Duration, id, tenant string, key []uint64) {
		ask(t, b, now, Request{ID: id, Tenant: tenant, Prompt: key[:20]})
		b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{Key: key}})
	}
	serve(1, "q", "honest", asked)
	b.Step(1, Event{Kind: EventPeerCacheUpdates, Target: "b", CacheUpdates: []CacheUpdate{{Replica: "x", Tenant: "honest", Key: shared}}})
	for i := range 2000 {
		now := time.Duration(i) * time.Millisecond
		serve(now, fmt.Sprint("flood", i), "flood", fresh(rng, 30))
		if i%100 == 0 {
			b.Step(now, Event{Kind: EventPeerCacheUpdates, Target: "b", CacheUpdates: []CacheUpdate{{Replica: "x", Tenant: "flood", Key: fresh(rng, 30)}}})
		}
	}
	if got := held(b, "r0", asked); got != asked.Bytes() {
		t.Errorf("%d bytes of what the other tenant was answered are known", got)
	}
	if got := held(b, "x", shared); got != shared.Bytes() {
		t.Errorf("%d bytes of the other tenant's prefix shared by a neighbour are known", got)
	}
	b.Step(maxSharedAge+2*time.Second, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true, Pending: policy.Known(0)}})
	b.Step(maxSharedAge+2*time.Second, Event{Kind: EventTick})
	for i := range 2000 {
		serve(maxSharedAge+2*time.Second, fmt.Sprint("later", i), "flood", fresh(rng, 30))
	}
	if got := held(b, "r0", asked); got > 0 {
		t.Errorf("%d bytes of who was away for so long are kept", got)
	}
}

// The update about a prompt that a balancer sends to its neighbours contains the tenant.
func TestSharedPrefixesIncludeTenant(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	b := neighbour(DefaultConfig(p), "b", "r0")
	ask(t, b, 0, Request{ID: "q", Tenant: "acme", Prompt: letters("abc")})
	b.Step(1, Event{Kind: EventFinished, ID: "q", Outcome: &Outcome{}})
	if got, _, _ := b.CacheUpdates(2, 0, false, everything); len(got) != 1 || got[0].Tenant != "acme" {
		t.Errorf("shared %+v", got)
	}
}

// An unlimited number of tenants uses limited memory: their numbers are reused, and tenants beyond
// the bound share one.
func TestTreeTenantsAreBounded(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.TreeBytes, cfg.Push = 32<<10, PushMode{Kind: PushBlind}
	b, rng := start(cfg, 1), rand.New(rand.NewPCG(3, 4))
	for i := range 3 * maxTreeTenants {
		id := fmt.Sprint("q", i)
		ask(t, b, 0, Request{ID: id, Tenant: id, Prompt: fresh(rng, 3)})
		b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
	}
	if len(b.caches.tenants.byTenant) != maxTreeTenants || b.caches.tenants.next != maxTreeTenants+commonTenant+1 || b.caches.replicas.Weight(commonTenant) == 0 {
		t.Errorf("%d tenants have numbers below %d, the rest %d bytes", len(b.caches.tenants.byTenant), b.caches.tenants.next, b.caches.replicas.Weight(commonTenant))
	}
	for _, at := range []time.Duration{maxSharedAge, 2 * maxSharedAge} { // released, then forgotten
		b.Step(at, idle("r0"))
		b.Step(at, Event{Kind: EventTick})
		for i := range 500 {
			id := fmt.Sprint(at, i)
			ask(t, b, at, Request{ID: id, Prompt: fresh(rng, 3)})
			b.Step(at, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
		}
	}
	b.Step(3*maxSharedAge, Event{Kind: EventTick})
	if len(b.caches.tenants.byTenant) != 0 || b.caches.tenants.first != nil || b.caches.tenants.last != nil || len(b.caches.tenants.free) != maxTreeTenants {
		t.Errorf("%d tenants are known, %d numbers are free", len(b.caches.tenants.byTenant), len(b.caches.tenants.free))
	}
}
