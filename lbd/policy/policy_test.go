package policy

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func replica(id string, outstanding, match int) Candidate {
	return Candidate{ID: id, Available: true, Outstanding: outstanding, Match: match}
}

func full(c Candidate) Candidate { c.Available = false; return c }

func peer(id string, queued, match int) Candidate {
	return Candidate{ID: id, Peer: true, Available: true, Queued: queued, Match: match}
}

func TestChoices(t *testing.T) {
	type round struct {
		facts  []Candidate
		want   string // id, "" = wait
		reason string
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
		{"nothing available waits", "round-robin", []round{{[]Candidate{full(replica("a", 0, 0))}, "", ReasonNoneAvailable}}},
		{"nothing at all waits", "skylb", []round{{nil, "", ReasonNoneAvailable}}},
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
		{"a full holder is passed over", "skylb", []round{
			{[]Candidate{replica("a", 3, 0), full(replica("b", 9, 900))}, "a", ReasonPrefixMiss},
		}},
		{"among equal holders the least loaded", "skylb", []round{
			{[]Candidate{replica("a", 3, 900), replica("b", 1, 900)}, "b", ReasonPrefixMatch},
		}},
		{"peers only when no replica is available", "skylb", []round{
			{[]Candidate{replica("a", 3, 0), peer("eu", 0, 900)}, "a", ReasonPrefixMiss},
			{[]Candidate{full(replica("a", 3, 0)), peer("asia", 0, 0), peer("eu", 0, 900)}, "eu", ReasonOffload},
			{[]Candidate{full(replica("a", 3, 0)), peer("asia", 0, 0), peer("eu", 2, 0)}, "asia", ReasonOffload},
			{[]Candidate{full(replica("a", 3, 0)), full(peer("asia", 0, 0))}, "", ReasonNoneAvailable},
		}},
	}
	for _, c := range cases {
		t.Run(c.policy+"/"+c.name, func(t *testing.T) {
			p, err := New(c.policy)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range c.rounds {
				got := p.Choose(&Facts{PromptBytes: 1000, Candidates: r.facts})
				id := ""
				if got.Index != Wait {
					id = r.facts[got.Index].ID
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
	if err == nil || err.Error() != `unknown policy "best": want one of least-load, round-robin, skylb` {
		t.Errorf("got %v", err)
	}
}

func drawCandidates(rt *rapid.T) []Candidate {
	var cs []Candidate
	for i := range rapid.IntRange(0, 6).Draw(rt, "replicas") {
		cs = append(cs, Candidate{
			ID: fmt.Sprintf("r%d", i), Available: rapid.Bool().Draw(rt, "available"),
			Outstanding: rapid.IntRange(0, 3).Draw(rt, "outstanding"), Match: 64 * rapid.IntRange(0, 4).Draw(rt, "match"),
		})
	}
	for i := range rapid.IntRange(0, 3).Draw(rt, "peers") {
		cs = append(cs, Candidate{
			ID: fmt.Sprintf("p%d", i), Peer: true, Available: rapid.Bool().Draw(rt, "available"),
			Queued: rapid.IntRange(0, 3).Draw(rt, "queued"), Match: 64 * rapid.IntRange(0, 4).Draw(rt, "match"),
		})
	}
	return cs
}

func TestEveryPolicyChoosesOnlyWhatIsAvailable(t *testing.T) {
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
			got := p.Choose(&Facts{PromptBytes: 256, Candidates: cs})
			switch {
			case got.Index == Wait && any:
				rt.Fatalf("%s waits although something is available: %+v", p.Name(), cs)
			case got.Index == Wait:
			case !cs[got.Index].Available:
				rt.Fatalf("%s chose %s, which is not available", p.Name(), cs[got.Index].ID)
			case cs[got.Index].Peer && anyReplica:
				rt.Fatalf("%s chose peer %s although a replica is available", p.Name(), cs[got.Index].ID)
			}
			if got.Reason == "" {
				rt.Fatalf("%s gives no reason", p.Name())
			}
		}
	})
}

func TestAnUnavailableCandidateChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom(Names()).Draw(rt, "policy")
		with, _ := New(name)
		without, _ := New(name)
		for range 5 {
			cs := drawCandidates(rt)
			dead := append([]Candidate{{ID: "a-dead", Match: 256}}, cs...)
			a := with.Choose(&Facts{PromptBytes: 256, Candidates: dead})
			b := without.Choose(&Facts{PromptBytes: 256, Candidates: cs})
			if a.Index != Wait {
				a.Index--
			}
			if a != b {
				rt.Fatalf("%s: %+v with a dead replica, %+v without", name, a, b)
			}
		}
	})
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
