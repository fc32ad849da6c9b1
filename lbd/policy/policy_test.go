package policy

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func replica(id string, outstanding, match int) Candidate {
	return Candidate{ID: id, Live: true, Available: true, Outstanding: outstanding, MatchBytes: match}
}

func full(c Candidate) Candidate { c.Available = false; return c }

func peer(id string, queued, match int) Candidate {
	return Candidate{ID: id, Peer: true, Live: true, Available: true, Queued: queued, MatchBytes: match}
}

// cached, kv, left and at add a figure to a candidate.
func cached(c Candidate, bytes int) Candidate          { c.CachedBytes = bytes; return c }
func kv(c Candidate, percent float64) Candidate        { c.KV = Known(percent / 100); return c }
func left(c Candidate, tokens int) Candidate           { c.RemainingTokens = tokens; return c }
func waiting(c Candidate, n int) Candidate             { c.Pending = Known(n); return c }
func prefilling(c Candidate, tokens int) Candidate     { c.PrefillTokens = tokens; return c }
func context(c Candidate, tokens int) Candidate        { c.ContextTokens = tokens; return c }
func at(c Candidate, distance time.Duration) Candidate { c.RTT = distance; return c }

func TestChoices(t *testing.T) {
	type round struct {
		candidates []Candidate
		want       string // id, "" = wait
		reason     string
	}
	cases := []struct {
		name, policy string
		rounds       []round
	}{
		{"takes turns", "round-robin", []round{
			{[]Candidate{replica("a", 9, 0), replica("b", 0, 0), replica("c", 0, 0)}, "a", ReasonRotation},
			{[]Candidate{replica("a", 9, 0), replica("b", 0, 0), replica("c", 0, 0)}, "b", ReasonRotation},
			{[]Candidate{replica("a", 9, 0), replica("b", 0, 0), full(replica("c", 0, 0))}, "a", ReasonRotation},
		}},
		{"waits if nothing is available", "round-robin", []round{{[]Candidate{full(replica("a", 0, 0))}, "", ReasonNoneAvailable}}},
		{"waits without candidates", "skylb", []round{{nil, "", ReasonNoneAvailable}}},
		{"least outstanding", "least-load", []round{
			{[]Candidate{replica("a", 2, 0), replica("b", 1, 0), replica("c", 3, 0)}, "b", ReasonLeastLoad},
		}},
		{"equal loads rotate, so that misses do not pile on the first", "least-load", []round{
			{[]Candidate{replica("a", 0, 0), replica("b", 0, 0), replica("c", 0, 0)}, "a", ReasonLeastLoad},
			{[]Candidate{replica("a", 0, 0), replica("b", 0, 0), replica("c", 0, 0)}, "b", ReasonLeastLoad},
			{[]Candidate{replica("a", 0, 0), replica("b", 0, 0), replica("c", 0, 0)}, "c", ReasonLeastLoad},
			{[]Candidate{replica("a", 0, 0), replica("b", 0, 0), replica("c", 0, 0)}, "a", ReasonLeastLoad},
		}},
		{"longest match wins over load", "skylb", []round{
			{[]Candidate{replica("a", 0, 100), replica("b", 9, 900)}, "b", ReasonPrefixMatch},
		}},
		{"a match below half the prompt does not count", "skylb", []round{
			{[]Candidate{replica("a", 0, 0), replica("b", 9, 499)}, "a", ReasonPrefixMiss},
			{[]Candidate{replica("a", 0, 0), replica("b", 9, 500)}, "b", ReasonPrefixMatch},
		}},
		{"a full replica with a match is passed over", "skylb", []round{
			{[]Candidate{replica("a", 3, 0), full(replica("b", 9, 900))}, "a", ReasonPrefixMiss},
		}},
		{"among equal matches the least loaded", "skylb", []round{
			{[]Candidate{replica("a", 3, 900), replica("b", 1, 900)}, "b", ReasonPrefixMatch},
		}},
		{"peers only when no replica is available", "skylb", []round{
			{[]Candidate{replica("a", 3, 0), peer("eu", 0, 900)}, "a", ReasonPrefixMiss},
			{[]Candidate{full(replica("a", 3, 0)), peer("asia", 0, 0), peer("eu", 0, 900)}, "eu", ReasonForward},
			{[]Candidate{full(replica("a", 3, 0)), peer("asia", 0, 0), peer("eu", 2, 0)}, "asia", ReasonForward},
			{[]Candidate{full(replica("a", 3, 0)), full(peer("asia", 0, 0))}, "", ReasonNoneAvailable},
		}},
		{"any match counts, and wins over load", "longest-prefix", []round{
			{[]Candidate{replica("a", 0, 0), replica("b", 9, 64)}, "b", ReasonPrefixMatch},
			{[]Candidate{replica("a", 2, 64), replica("b", 9, 128), replica("c", 1, 64)}, "b", ReasonPrefixMatch},
			{[]Candidate{replica("a", 2, 64), full(replica("b", 0, 128)), replica("c", 1, 64)}, "c", ReasonPrefixMatch},
		}},
		{"equal matches and loads rotate", "longest-prefix", []round{
			{[]Candidate{replica("a", 1, 64), replica("b", 1, 64)}, "a", ReasonPrefixMatch},
			{[]Candidate{replica("a", 1, 64), replica("b", 1, 64)}, "b", ReasonPrefixMatch},
			{[]Candidate{replica("a", 1, 0), replica("b", 0, 0)}, "b", ReasonPrefixMiss},
		}},
		{"one candidate needs no draw", "power-of-two", []round{
			{[]Candidate{replica("a", 9, 0), full(replica("b", 0, 0))}, "a", ReasonPowerOfTwo},
			{[]Candidate{full(replica("a", 9, 0)), peer("eu", 3, 0)}, "eu", ReasonForward},
		}},
		{"of two candidates the lighter", "power-of-two", []round{
			{[]Candidate{replica("a", 9, 0), replica("b", 3, 0)}, "b", ReasonPowerOfTwo},
			{[]Candidate{replica("a", 3, 0), replica("b", 9, 0)}, "a", ReasonPowerOfTwo},
		}},
		{"a match above the threshold", "cache-aware", []round{
			{[]Candidate{replica("a", 0, 0), replica("b", 9, 301)}, "b", ReasonPrefixMatch},
			{[]Candidate{cached(replica("a", 9, 0), 64), cached(replica("b", 0, 300), 300)}, "a", ReasonPrefixMiss},
		}},
		{"an imbalance of both kinds is evened out", "cache-aware", []round{
			{[]Candidate{replica("a", 1, 0), replica("b", 65, 900)}, "b", ReasonPrefixMatch}, // 64 more is within the limit
			{[]Candidate{replica("a", 1, 0), replica("b", 66, 900)}, "a", ReasonImbalance},
			{[]Candidate{replica("a", 200, 0), replica("b", 300, 900)}, "b", ReasonPrefixMatch}, // 1.5 times as many
			{[]Candidate{replica("a", 200, 0), replica("b", 301, 900)}, "a", ReasonImbalance},
		}},
		{"misses rotate among the emptiest", "cache-aware", []round{
			{[]Candidate{cached(replica("a", 0, 0), 64), replica("b", 0, 0), replica("c", 0, 0)}, "b", ReasonPrefixMiss},
			{[]Candidate{cached(replica("a", 0, 0), 64), replica("b", 0, 0), replica("c", 0, 0)}, "c", ReasonPrefixMiss},
			{[]Candidate{cached(replica("a", 0, 0), 64), replica("b", 1, 0), replica("c", 0, 0)}, "c", ReasonPrefixMiss},
		}},
		// The prompt has 1000 bytes and 250 tokens.
		{"uncached tokens times requests, each with this one", "lmetric", []round{
			{[]Candidate{replica("a", 1, 0), replica("b", 8, 800)}, "b", ReasonLowestProduct},  // 250*2 > 50*9
			{[]Candidate{replica("a", 1, 0), replica("b", 10, 800)}, "a", ReasonLowestProduct}, // 250*2 < 50*11
			{[]Candidate{prefilling(replica("a", 0, 0), 4000), replica("b", 3, 0)}, "b", ReasonLowestProduct},
			{[]Candidate{full(replica("a", 0, 1000)), replica("b", 3, 0)}, "b", ReasonLowestProduct},
		}},
		{"the earliest first token, with half of what runs", "gorgo", []round{
			{[]Candidate{replica("a", 9, 0), replica("b", 9, 800)}, "b", ReasonLowestTTFT},
			{[]Candidate{replica("a", 0, 0), prefilling(replica("b", 0, 800), 300)}, "a", ReasonLowestTTFT}, // 250 < 50+300
			{[]Candidate{replica("a", 0, 0), context(replica("b", 0, 800), 390)}, "b", ReasonLowestTTFT},    // 250 > 50+195
			{[]Candidate{replica("a", 0, 0), context(replica("b", 0, 800), 410)}, "a", ReasonLowestTTFT},    // 250 < 50+205
			{[]Candidate{full(replica("a", 0, 1000)), replica("b", 3, 0)}, "b", ReasonLowestTTFT},
			{[]Candidate{context(replica("a", 0, 0), 300), at(peer("b", 0, 0), 50*time.Millisecond)}, "b", ReasonForward},
			{[]Candidate{context(replica("a", 0, 0), 300), at(peer("b", 0, 0), 80*time.Millisecond)}, "a", ReasonLowestTTFT},
		}},
		{"equal replicas and peers take turns, whatever their ids", "gorgo", []round{
			{[]Candidate{replica("b", 0, 0), peer("a", 0, 0), peer("c", 0, 0)}, "b", ReasonLowestTTFT},
			{[]Candidate{replica("b", 0, 0), peer("a", 0, 0), peer("c", 0, 0)}, "a", ReasonForward},
			{[]Candidate{replica("b", 0, 0), peer("a", 0, 0), peer("c", 0, 0)}, "c", ReasonForward},
			{[]Candidate{replica("b", 0, 0), peer("a", 0, 0), peer("c", 0, 0)}, "b", ReasonLowestTTFT},
		}},
		{"three times the match and twice the queue", "scorer-sum", []round{
			{[]Candidate{waiting(replica("a", 0, 0), 0), waiting(replica("b", 0, 700), 4)}, "b", ReasonScorerSum}, // 2 < 2.1
			{[]Candidate{waiting(replica("a", 0, 0), 0), waiting(replica("b", 0, 600), 4)}, "a", ReasonScorerSum}, // 2 > 1.8
			{[]Candidate{waiting(replica("a", 0, 0), 4), waiting(replica("b", 9, 1), 4)}, "b", ReasonScorerSum},   // equal queues
		}},
		{"the longest match until it is saturated", "sticky", []round{
			{[]Candidate{replica("a", 0, 0), waiting(replica("b", 60, 64), 4)}, "b", ReasonPrefixMatch},
			{[]Candidate{replica("a", 3, 0), waiting(replica("b", 0, 64), 5), replica("c", 2, 0)}, "c", ReasonPrefixMiss},
			{[]Candidate{replica("a", 3, 32), kv(replica("b", 0, 64), 80), replica("c", 2, 0)}, "a", ReasonPrefixMatch},
			{[]Candidate{kv(replica("a", 3, 32), 90), kv(replica("b", 0, 0), 80)}, "b", ReasonSaturated},
		}},
		{"fewest tokens left, whatever the counts", "sageserve", []round{
			{[]Candidate{left(replica("a", 1, 0), 900), left(replica("b", 5, 0), 100)}, "b", ReasonRemaining},
			{[]Candidate{left(replica("a", 1, 0), 100), left(replica("b", 5, 0), 100)}, "a", ReasonRemaining},
			{[]Candidate{left(replica("a", 1, 0), 100), left(replica("b", 5, 0), 100)}, "b", ReasonRemaining},
		}},
		{"this region below 70 % of KV", "sageserve", []round{
			{[]Candidate{kv(replica("a", 0, 0), 90), kv(replica("b", 0, 0), 49), kv(peer("eu", 0, 0), 1)}, "a", ReasonRemaining},
			{[]Candidate{kv(replica("a", 0, 0), 90), kv(replica("b", 0, 0), 50), kv(peer("eu", 0, 0), 1)}, "eu", ReasonForward},
			{[]Candidate{kv(full(replica("a", 0, 0)), 90), kv(replica("b", 0, 0), 50), kv(peer("eu", 0, 0), 1)}, "eu", ReasonForward},
			{[]Candidate{replica("a", 0, 0), replica("b", 0, 0), kv(peer("eu", 0, 0), 1)}, "b", ReasonRemaining},
		}},
		{"else the nearest below it, else the least used", "sageserve", []round{
			{[]Candidate{kv(replica("a", 0, 0), 80), kv(at(peer("asia", 0, 0), 9), 10), kv(at(peer("eu", 2, 0), 5), 69)}, "eu", ReasonForward},
			{[]Candidate{kv(replica("a", 0, 0), 80), kv(at(peer("asia", 0, 0), 9), 69), kv(at(peer("eu", 0, 0), 5), 70)}, "asia", ReasonForward},
			{[]Candidate{kv(replica("a", 0, 0), 80), kv(at(peer("asia", 0, 0), 9), 75), kv(at(peer("eu", 0, 0), 5), 79)}, "asia", ReasonForward},
			{[]Candidate{kv(replica("a", 0, 0), 80), kv(at(peer("asia", 0, 0), 9), 80), at(peer("eu", 0, 0), 5)}, "a", ReasonRemaining},
			{[]Candidate{full(replica("a", 0, 0)), at(peer("asia", 2, 0), 5), at(peer("eu", 1, 0), 5)}, "eu", ReasonForward},
		}},
		{"requests without a session rotate", "skylb-ch", []round{
			{[]Candidate{replica("a", 9, 0), replica("b", 0, 0)}, "a", ReasonRotation},
			{[]Candidate{replica("a", 9, 0), replica("b", 0, 0)}, "b", ReasonRotation},
			{[]Candidate{full(replica("a", 9, 0)), peer("eu", 0, 0)}, "eu", ReasonForward},
		}},
		{"even without a session the loads are bounded", "consistent-hash", []round{
			{[]Candidate{replica("a", 9, 0), replica("b", 0, 0)}, "b", ReasonRotation},
		}},
	}
	for _, c := range cases {
		t.Run(c.policy+"/"+c.name, func(t *testing.T) {
			p, err := New(c.policy)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range c.rounds {
				got := p.Choose(&Facts{PromptBytes: 1000, PromptTokens: 250, Candidates: r.candidates})
				id := ""
				if got.Index != Wait {
					id = r.candidates[got.Index].ID
				}
				if id != r.want || got.Reason != r.reason {
					t.Errorf("round %d: chose %q because %s, want %q because %s", i, id, got.Reason, r.want, r.reason)
				}
			}
		})
	}
}

func TestUnknownPolicyListsTheNames(t *testing.T) {
	_, err := New("best")
	if err == nil || err.Error() != `unknown policy "best": must be one of bf-io, cache-aware, cache-aware:skylb, consistent-hash, cost, dualmap, gorgo, least-load, lmetric, longest-prefix, power-of-two, round-robin, sageserve, scorer-sum, skylb, skylb-ch, sticky` {
		t.Errorf("got %v", err)
	}
}

func drawCandidates(rt *rapid.T) []Candidate {
	var cs []Candidate
	for i := range rapid.IntRange(0, 6).Draw(rt, "replicas") {
		c := drawCandidate(rt, fmt.Sprintf("r%d", i))
		c.Outstanding = rapid.IntRange(0, 3).Draw(rt, "outstanding")
		c.CachedBytes = 64 * rapid.IntRange(0, 3).Draw(rt, "cached")
		cs = append(cs, c)
	}
	for i := range rapid.IntRange(0, 3).Draw(rt, "peers") {
		c := drawCandidate(rt, fmt.Sprintf("p%d", i))
		c.Peer, c.RTT = true, time.Duration(rapid.IntRange(0, 2).Draw(rt, "rtt"))
		c.Queued = rapid.IntRange(0, 3).Draw(rt, "queued")
		cs = append(cs, c)
	}
	return cs
}

func drawCandidate(rt *rapid.T, id string) Candidate {
	c := Candidate{
		ID: id, Available: rapid.Bool().Draw(rt, "available"),
		MatchBytes:      64 * rapid.IntRange(0, 4).Draw(rt, "match"),
		RemainingTokens: rapid.IntRange(0, 2).Draw(rt, "remaining"),
	}
	c.Live = c.Available || rapid.Bool().Draw(rt, "live")
	if rapid.Bool().Draw(rt, "tells kv") {
		c.KV = Known(rapid.Float64Range(0, 1).Draw(rt, "kv"))
	}
	return c
}

func drawFacts(rt *rapid.T, cs []Candidate) *Facts {
	return &Facts{Model: "m", Session: rapid.SampledFrom([]string{"", "s1", "s2"}).Draw(rt, "session"), PromptBytes: 256, Candidates: cs}
}

func TestPoliciesChooseOnlyAvailable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p, err := New(rapid.SampledFrom(Names()).Draw(rt, "policy"))
		if err != nil {
			rt.Fatal(err)
		}
		for range 5 {
			cs := drawCandidates(rt)
			any, anyReplica := false, false
			for _, c := range cs {
				any = any || c.Available
				anyReplica = anyReplica || (c.Available && !c.Peer)
			}
			got := p.Choose(drawFacts(rt, cs))
			switch {
			case got.Index == Wait && any:
				rt.Fatalf("%s waits although something is available: %+v", p.Name(), cs)
			case got.Index == Wait:
			case got.Hold && p.Traits().Holds && cs[got.Index].Live && !cs[got.Index].Peer:
			case !cs[got.Index].Available:
				rt.Fatalf("%s chose %s, which is not available", p.Name(), cs[got.Index].ID)
			case cs[got.Index].Peer && anyReplica && !p.Traits().Peers:
				rt.Fatalf("%s chose peer %s although a replica is available", p.Name(), cs[got.Index].ID)
			}
			if got.Reason == "" {
				rt.Fatalf("%s gives no reason", p.Name())
			}
		}
	})
}

// Complaint: of two models whose requests arrive in turn, each uses only one of its idle replicas.
func TestEveryModelUsesAllItsIdleReplicas(t *testing.T) {
	for _, name := range Names() {
		p, _ := New(name)
		chosen := map[string]int{}
		for range 20 {
			for _, model := range []string{"a", "b"} {
				f := Facts{Model: model, PromptTokens: 10, Candidates: []Candidate{replica(model+"1", 0, 0), replica(model+"2", 0, 0)}}
				if choice := p.Choose(&f); choice.Index != Wait {
					chosen[f.Candidates[choice.Index].ID]++
				}
			}
		}
		if len(chosen) != 4 {
			t.Errorf("%s: requests by replica: %v", name, chosen)
		}
	}
	p, chosen := NewBFIO(DefaultBFIO()), map[string]int{}
	for range 4 {
		for _, model := range []string{"a", "b"} {
			pool := Pool{Model: model, Waiting: make([]WaitingRequest, 1), Ranks: []Rank{{Candidate: replica(model+"1", 0, 0), FreeSlots: 1}, {Candidate: replica(model+"2", 0, 0), FreeSlots: 1}}}
			chosen[pool.Ranks[p.Assign(&pool)[0].Index].ID]++
		}
	}
	if len(chosen) != 4 {
		t.Errorf("pools: requests by rank: %v", chosen)
	}
}

// A dead replica (not Live) receives no requests. Its outstanding requests, its match and its measured times do not
// affect the choice among the other candidates. (Its requests end, or fail and are queued again.)
func TestDeadReplicaChangesNothing(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, rapid.MakeCheck(func(rt *rapid.T) { checkDeadReplica(rt, name) }))
	}
}

func checkDeadReplica(rt *rapid.T, name string) {
	seconds := func(label string) time.Duration {
		return time.Duration(rapid.IntRange(0, 100).Draw(rt, label)) * time.Second
	}
	with, _ := New(name)
	without, _ := New(name)
	for range 5 {
		cs := drawCandidates(rt)
		for i := range cs {
			cs[i].Residence, cs[i].ContextTokens = seconds("residence"), 1000*cs[i].Outstanding
			if cs[i].Peer {
				cs[i].ExpectedWait, cs[i].Replicas, cs[i].RTT = seconds("wait"), 1, seconds("rtt")/100
			}
		}
		dead := append([]Candidate{{ID: "a-dead", MatchBytes: 256, Outstanding: rapid.IntRange(0, 50).Draw(rt, "outstanding there"), Residence: seconds("residence there")}}, cs...)
		f := drawFacts(rt, cs)
		f.PromptTokens, f.Queued = 1000, rapid.IntRange(1, 20).Draw(rt, "queued")
		f.Waited, f.MaxWait, f.CachedShare = seconds("waited"), time.Minute, 0.5
		b := without.Choose(f)
		f.Candidates = dead
		a := with.Choose(f)
		if a.Index != Wait {
			a.Index--
		}
		if a != b {
			rt.Fatalf("%s: %+v with a dead replica, %+v without", name, a, b)
		}
	}
}

func TestMaybeIsNullWhenUnknown(t *testing.T) {
	for _, c := range []struct {
		v    Maybe[int]
		want string
	}{{Known(0), "0"}, {Known(3), "3"}, {Maybe[int]{}, "null"}} {
		b, err := json.Marshal(c.v)
		if err != nil || string(b) != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.v, b, err, c.want)
		}
		var back Maybe[int]
		if err := json.Unmarshal(b, &back); err != nil || back != c.v {
			t.Errorf("%s read back as %+v, %v", b, back, err)
		}
	}
}
