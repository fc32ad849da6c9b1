package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
)

// unknownTenants adds n peers to a balancer that hold no response. If hold is not nil, they wait for
// it before they respond. maxConcurrent is their maximum number of concurrent lookups.
func (b *balancer) unknownTenants(n int, hold <-chan struct{}) (requested, maxConcurrent *atomic.Int64) {
	requested, maxConcurrent = new(atomic.Int64), new(atomic.Int64)
	var open atomic.Int64
	for i := range n {
		url := engine(b.t, func(w http.ResponseWriter, req *http.Request) {
			requested.Add(1)
			now := open.Add(1)
			for seen := maxConcurrent.Load(); now > seen && !maxConcurrent.CompareAndSwap(seen, now); seen = maxConcurrent.Load() {
			}
			if hold != nil {
				select {
				case <-hold:
				case <-req.Context().Done():
				}
			}
			open.Add(-1)
			w.WriteHeader(http.StatusNotFound)
		})
		b.AddPeer(service.PeerConfig{ID: fmt.Sprintf("lb-far-%d", i), Region: "local/far", URL: url}, nil)
	}
	return requested, maxConcurrent
}

// Lookups of stored responses count for the limits of a key like any other request. Beyond the limits, no
// peer is queried.
func TestLookupsCountAgainstLimits(t *testing.T) {
	o := roundRobin(t)
	o.Keys = limited(t, "requests_per_minute=2")
	b := start(t, o)
	requested, _ := b.unknownTenants(3, nil)
	got := map[int]int{}
	for i := range 50 {
		resp := b.about("GET", fmt.Sprintf("resp_%d", i), asAcme)
		read(t, resp)
		got[resp.StatusCode]++
		if resp.Header.Get("x-ratelimit-limit-requests") != "2" {
			t.Errorf("headers %v do not contain the limit", resp.Header)
		}
		if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if got[http.StatusNotFound] != 2 || got[http.StatusTooManyRequests] != 48 || requested.Load() != 6 {
		t.Errorf("returns %v with %d lookups at peers, want 2 of 404, 48 of 429, and 6", got, requested.Load())
	}
	b.isIdle("acme")
}

// A lookup that an engine served counts as a request; one that no engine could serve does not.
func TestLookupsCountInQuotas(t *testing.T) {
	o := roundRobin(t)
	o.Keys = limited(t, "requests_per_day=3")
	b := start(t, o)
	b.attachHolder("us-0")
	id, _ := b.respond("", false, asAcme)
	b.isIdle("acme")
	expect(t, b.about("GET", "resp_never", asAcme), 404, "response_not_found")
	b.isIdle("acme")
	expect(t, b.about("GET", id, asAcme), 200, "")
	b.isIdle("acme")
	expect(t, b.about("POST", id+"/cancel", asAcme), 200, "")
	b.isIdle("acme")
	expect(t, b.about("GET", id, asAcme), 429, "insufficient_quota")
	expect(t, b.about("DELETE", id, asAcme), 429, "insufficient_quota")
	b.isIdle("acme")
	usage := b.KeyUsage()
	if len(usage) != 1 || usage[0].Model != testModel || usage[0].Usage.Requests != 3 || usage[0].Usage.Tokens() != 12 {
		t.Errorf("usage %+v, want 3 requests of the model and one answer's tokens", usage)
	}
}

// A response that no balancer has is looked up once, for both lookups of it and requests that
// continue it.
func TestMissesAreRemembered(t *testing.T) {
	o := roundRobin(t)
	o.Keys = apiKeys("sk-one", "sk-two")
	o.Limits.MissTTL = time.Hour
	b := start(t, o)
	requested, _ := b.unknownTenants(3, nil)
	b.responderAt("us-0")
	const one, two = "Authorization: Bearer sk-one", "Authorization: Bearer sk-two"
	for range 5 {
		expect(t, b.about("GET", "resp_us-0_1", one), 404, "response_not_found")
		expect(t, b.post(responsesPath, responseBody("resp_us-0_1", false), one), 400, "previous_response_not_found")
	}
	if requested.Load() != 3 {
		t.Errorf("the peers were asked %d times, want once each", requested.Load())
	}
	expect(t, b.about("GET", "resp_us-0_1", two), 404, "response_not_found") // another tenant's is a different response
	if requested.Load() != 6 {
		t.Errorf("the peers were asked %d times, want once each for each tenant", requested.Load())
	}
	id, _ := b.respond("", false, one)
	if id != "resp_us-0_1" {
		t.Fatalf("got the response %s", id)
	}
	b.respond(id, false, one) // the response exists now, although a miss was stored
	expect(t, b.post(responsesPath, responseBody(id, false), two), 400, "previous_response_not_found")
}

// The number of concurrent lookups at the peers is limited: lookups of one response are shared, and
// each tenant has a share of the limit.
func TestPeerLookupsAreLimited(t *testing.T) {
	o := roundRobin(t)
	o.Keys = apiKeys("sk-one", "sk-two", "sk-three")
	o.Limits.MaxLookups, o.Limits.MaxTenantLookups, o.Limits.LookupTimeout = 5, 3, time.Hour
	b := start(t, o)
	hold := make(chan struct{})
	requested, limit := b.unknownTenants(1, hold)
	var pending sync.WaitGroup
	var mu sync.Mutex
	got := map[string]map[int]int{"sk-one": {}, "sk-two": {}, "sk-three": {}}
	lookup := func(key, id string) {
		pending.Go(func() {
			resp := b.about("GET", id, "Authorization: Bearer "+key)
			_ = resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			got[key][resp.StatusCode]++
			if resp.StatusCode != http.StatusNotFound && resp.Header.Get("Retry-After") == "" {
				t.Errorf("%d without Retry-After", resp.StatusCode)
			}
		})
	}
	count := func(key string, status int) int {
		mu.Lock()
		defer mu.Unlock()
		return got[key][status]
	}
	for i := range 3 {
		lookup("sk-one", fmt.Sprintf("resp_%d", i))
		lookup("sk-one", fmt.Sprintf("resp_%d", i)) // waits for the result of the same lookup
	}
	b.until(func() bool { return requested.Load() == 3 })
	b.until(func() bool { return b.lookups.waiterCount() == 6 })
	for i := range 10 {
		lookup("sk-one", fmt.Sprintf("resp_%d", 10+i))
	}
	b.until(func() bool { return count("sk-one", 429) == 10 })
	lookup("sk-two", "resp_a")
	lookup("sk-two", "resp_b")
	b.until(func() bool { return requested.Load() == 5 })
	for i := range 10 {
		lookup("sk-three", fmt.Sprintf("resp_%d", 10+i))
	}
	b.until(func() bool { return count("sk-three", 503) == 10 })
	close(hold)
	pending.Wait()
	if requested.Load() != 5 || limit.Load() != 5 || count("sk-one", 404) != 6 || count("sk-two", 404) != 2 {
		t.Errorf("%d lookups, %d concurrent, responses %v", requested.Load(), limit.Load(), got)
	}
	if b.lookups.waiterCount() != 0 || len(b.lookups.pending) != 0 || len(b.lookups.byTenant) != 0 {
		t.Errorf("remaining: %+v", b.lookups)
	}
}

// The memory of misses is a list ordered by expiry, of limited length.
func TestMissesAreLimitedAndExpire(t *testing.T) {
	const limit, ttl = 5, 10 * time.Second
	type miss struct {
		id  responseID
		end time.Duration
	}
	m := misses{maxEntries: limit, ttl: ttl}
	var twin []miss
	random := rand.New(rand.NewPCG(1, 1))
	now := time.Duration(0)
	for range 5000 {
		now += time.Duration(random.IntN(3)) * time.Second
		twin = slices.DeleteFunc(twin, func(x miss) bool { return x.end <= now })
		id := responseID{fmt.Sprint(random.IntN(2)), fmt.Sprint(random.IntN(6))}
		at := slices.IndexFunc(twin, func(x miss) bool { return x.id == id })
		switch random.IntN(3) {
		case 0:
			if m.has(id, now) != (at >= 0) {
				t.Fatalf("at %s %v is a miss: %v, want %v", now, id, at < 0, at >= 0)
			}
		case 1:
			m.addMiss(id, now)
			if at >= 0 {
				twin = slices.Delete(twin, at, at+1)
			}
			twin = append(twin, miss{id, now + ttl})
			twin = twin[max(0, len(twin)-limit):]
		case 2:
			m.dropMiss(id)
			if at >= 0 {
				twin = slices.Delete(twin, at, at+1)
			}
		}
		if len(m.byID) > limit || m.order.Len() != len(m.byID) {
			t.Fatalf("%d are kept in a list of %d", len(m.byID), m.order.Len())
		}
	}
}
