package policy

import (
	"math"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
)

// fill sends n requests without cached prefixes to a fleet, each of a new session, and returns the
// number for each candidate.
func fill(p Policy, cs []Candidate, n int) []int {
	got := make([]int, len(cs))
	for i := range n {
		c := p.Choose(&Facts{Model: "m", Session: session(i), PromptBytes: 256, Candidates: cs})
		got[c.Index]++
		cs[c.Index].Outstanding++
		cs[c.Index].RemainingTokens += 100
		cs[c.Index].CachedBytes += 256
	}
	return got
}

func TestPrefixMissesSpread(t *testing.T) {
	for _, name := range Names() {
		p, _ := New(name)
		const n = 80
		for i, got := range fill(p, fleet(4), n) {
			if got < n/8 || got > n/2 {
				t.Errorf("%s: replica %d got %d of %d misses, want about %d", name, i, got, n, n/4)
			}
		}
	}
}

// Also if prompts are too short for the tree and requests end immediately, so that neither trees
// nor loads distinguish the replicas.
func TestShortPrefixMissesSpread(t *testing.T) {
	for _, name := range Names() {
		p, _ := New(name)
		cs, got := fleet(4), make([]int, 4)
		for i := range 80 {
			got[p.Choose(&Facts{Model: "m", Session: session(i), Candidates: cs}).Index]++
		}
		for i, n := range got {
			if n < 10 || n > 40 {
				t.Errorf("%s: replica %d got %d of 80 short prompts", name, i, n)
			}
		}
	}
}

// A replica with the prefix is chosen even if it has a higher load than the others, by most policies
// that use prefixes.
func TestMatchOutweighsHigherLoad(t *testing.T) {
	for _, name := range Names() {
		p, _ := New(name)
		if !p.Traits().Prefix || name == "cost" || name == "lmetric" || name == "gorgo" || name == "dualmap" { // they weigh load against prefixes, or map prefixes to replicas
			continue
		}
		cs := fleet(4)
		cs[2].Outstanding, cs[2].MatchBytes = 20, 200
		for range 5 {
			if got := p.Choose(&Facts{Model: "m", PromptBytes: 256, Candidates: cs}); got.Index != 2 || got.Reason != ReasonPrefixMatch && name != "scorer-sum" {
				t.Errorf("%s: chose %+v, want the longest match", name, got)
			}
		}
		// It is not chosen for prompts that it has not cached.
		cs[2].MatchBytes = 0
		if got := p.Choose(&Facts{Model: "m", PromptBytes: 256, Candidates: cs}); got.Index == 2 {
			t.Errorf("%s: a miss went to the busiest", name)
		}
	}
}

// With equal costs, an idle replica precedes a peer whose queue is not empty.
func TestTieGoesToTargetWithoutQueue(t *testing.T) {
	p := NewGORGO()
	for range 4 {
		if got := p.Choose(&Facts{Model: "m", PromptTokens: 100, Candidates: append(fleet(1), peer("us", 3, 0))}); got.Index != 0 {
			t.Errorf("chose %+v", got)
		}
	}
}

func TestPowerOfTwoIsNearlyAsEvenAsLeastLoad(t *testing.T) {
	spread := func(got []int) int {
		lo, hi := math.MaxInt, 0
		for _, n := range got {
			lo, hi = min(lo, n), max(hi, n)
		}
		return hi - lo
	}
	// With random choices, the difference between minimum and maximum would be about 4 standard
	// deviations of 10.
	if got := spread(fill(NewPowerOfTwo(), fleet(16), 1600)); got > 10 {
		t.Errorf("1,600 requests on 16 replicas: %d between the heaviest and the lightest", got)
	}
}

func TestPowerOfTwoDrawsAreDistinctAndRepeatable(t *testing.T) {
	a, b := NewPowerOfTwo(), NewPowerOfTwo()
	first := 0
	for range 200 {
		f := &Facts{Candidates: fleet(5)}
		x, y := a.Choose(f), b.Choose(f)
		if x != y {
			t.Fatalf("two policies drew %+v and %+v", x, y)
		}
		if x.Index == 0 {
			first++
		}
	}
	pair := []Candidate{replica("a", 1, 0), replica("b", 0, 0)}
	for range 50 {
		if got := a.Choose(&Facts{Candidates: pair}); got.Index != 1 {
			t.Fatal("one of two was drawn twice")
		}
	}
	if first < 20 || first > 60 {
		t.Errorf("the first of five equals was drawn %d times of 200", first)
	}
}

func TestCacheAwarePresetsMatchSGLang(t *testing.T) {
	cs := []Candidate{replica("a", 0, 0), replica("b", 33, 900)}
	f := &Facts{PromptBytes: 1000, Candidates: cs}
	if got := NewCacheAware(CacheAwareSkyLB()).Choose(f); got != (Choice{Index: 0, Reason: ReasonImbalance}) {
		t.Errorf("SkyLB's baseline at 33 more: %+v", got)
	}
	if got := NewCacheAware(CacheAwareSGLang()).Choose(f); got != (Choice{Index: 1, Reason: ReasonPrefixMatch}) {
		t.Errorf("the later routers at 33 more: %+v", got)
	}
	cs[1] = cached(replica("b", 0, 400), 400)
	if got := NewCacheAware(CacheAwareSkyLB()).Choose(f); got != (Choice{Index: 0, Reason: ReasonPrefixMiss}) {
		t.Errorf("SkyLB's baseline at a match of .4: %+v", got)
	}
}

func TestCanonicalPush(t *testing.T) {
	want := map[string]string{
		"round-robin": "blind", "least-load": "blind", "power-of-two": "blind", "consistent-hash": "blind",
		"cache-aware": "blind", "cache-aware:skylb": "blind", "sageserve": "blind", "skylb": "pending", "skylb-ch": "pending", "longest-prefix": "pending",
		"cost": "pending", "bf-io": "blind", "lmetric": "blind", "gorgo": "blind", "dualmap": "blind", "scorer-sum": "blind", "sticky": "blind",
	}
	for _, name := range Names() {
		if got := CanonicalPush(name); got != want[name] {
			t.Errorf("%s: %q, want %q", name, got, want[name])
		}
	}
	if got := CanonicalPush("unheard-of"); got != "pending" {
		t.Errorf("unknown name: %q", got)
	}
}

func TestPoliciesMatchServiceYAML(t *testing.T) {
	words := service.ImplementedPolicies()
	slices.Sort(words)
	// A preset (name:preset) is for comparisons; service.yaml accepts only the name.
	named := slices.DeleteFunc(Names(), func(name string) bool { return strings.Contains(name, ":") })
	if !slices.Equal(words, named) {
		t.Errorf("service.yaml takes %v, the policies are %v", words, named)
	}
}

// SGLang's router sends equal matches to one replica until the fleet is imbalanced; the later
// preset balances them.
func TestCacheAwareSkyLBSendsEqualMatchesToTheFirstID(t *testing.T) {
	const n = 32
	for name, want := range map[string]int{"cache-aware:skylb": n, "cache-aware": n / 4} {
		p, _ := New(name)
		cs := fleet(4)
		slices.Reverse(cs)
		for i := range cs {
			cs[i].MatchBytes = 256
		}
		for i := range n {
			cs[p.Choose(&Facts{Model: "m", Session: session(i), PromptBytes: 400, Candidates: cs}).Index].Outstanding++
		}
		if got := cs[3].Outstanding; cs[3].ID != fleet(1)[0].ID || got != want {
			t.Errorf("%s: %s has %d of %d equal matches, want %d", name, cs[3].ID, got, n, want)
		}
	}
}
