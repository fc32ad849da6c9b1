package workload

import (
	"fmt"
	"slices"
	"testing"
)

// Whose the prefixes of calls are, and how many come at once, is what makes the
// four workloads of calls.
func TestCallsShareTheirPrefixesAsTheirKindSays(t *testing.T) {
	for _, c := range []struct {
		kind             Kind
		prefixes, tokens int
		most             int  // calls at once
		ofUser           bool // a user has one prefix, and nobody else has it
		mixes            bool // calls made at once differ in it
	}{
		{Groups, 64, 2048, 1, false, false},
		{Shared, 48, 900, 1, false, false},
		{Bursts, 60, 900, 8, true, false},
		{Programs, 48, 900, 4, false, true},
	} {
		client := mustClient(t, c.kind, Options{Seed: 3, Region: "us"})
		users, prefixes := map[string]map[string]bool{}, map[string]int{}
		most, mixed := 0, false
		for range 4000 {
			calls := client.Next()
			most = max(most, len(calls))
			for i, r := range calls {
				prefix := r.Messages[0].Content
				if n := CountTokens(prefix); n != c.tokens || r.InputTokens != countAll(r.Messages) {
					t.Fatalf("%s: a prefix of %d tokens, want %d, in a prompt of %d", c.kind, n, c.tokens, r.InputTokens)
				}
				mixed = mixed || i > 0 && prefix != calls[0].Messages[0].Content
				prefixes[prefix]++
				if users[prefix] == nil {
					users[prefix] = map[string]bool{}
				}
				users[prefix][r.User] = true
			}
		}
		if len(prefixes) != c.prefixes || most != c.most || mixed != c.mixes {
			t.Errorf("%s: %d prefixes, %d calls at once, differing %v", c.kind, len(prefixes), most, mixed)
		}
		for _, of := range users {
			if (len(of) == 1) != c.ofUser {
				t.Errorf("%s: %d users have one prefix", c.kind, len(of))
				break
			}
		}
		if c.kind == Groups {
			for _, n := range prefixes {
				near(t, "calls of a group", float64(n), 4000.0/64, 0.6)
			}
		}
	}
}

// The next calls come when all of the last ones have ended, one way or another.
func TestCallsWaitForEachOther(t *testing.T) {
	client := mustClient(t, Bursts, Options{Seed: 1})
	calls := client.Next()
	for len(calls) < 3 {
		for _, r := range calls {
			calls = client.Done(r, "")
		}
	}
	for i, r := range calls {
		next := client.Failed(r)
		if (len(next) > 0) != (i == len(calls)-1) {
			t.Fatalf("%d of %d calls ended: %d more", i+1, len(calls), len(next))
		}
		if again := client.Done(r, ""); len(again) > 0 {
			t.Fatal("a call ended twice")
		}
	}
}

// A client of one session asks what the first session of any other asks, and
// then nothing.
func TestOnceEndsWithTheSession(t *testing.T) {
	for _, kind := range Kinds() {
		for _, fails := range []bool{false, true} {
			o := Options{Seed: 9, Region: "us"}
			endless := mustClient(t, kind, o)
			o.Once = true
			once := mustClient(t, kind, o)
			open := once.Next()
			if want := endless.Next(); fingerprint(t, open) != fingerprint(t, want) {
				t.Errorf("%s: one session begins with something else than the first of many", kind)
			}
			asked := 0
			for ; len(open) > 0; asked++ {
				r := open[0]
				next := once.Done(r, answer(r))
				if fails {
					next = once.Failed(r)
				}
				open = append(open[1:], next...)
				if asked > 100 {
					t.Fatalf("%s: the session does not end", kind)
				}
			}
			if asked == 0 {
				t.Errorf("%s: a session of nothing", kind)
			}
		}
	}
}

// The factors move medians and spreads, and 1 moves nothing.
func TestLengthFactors(t *testing.T) {
	lengths := func(kind Kind, o Options) (in, out []int) {
		o.Seed, o.Region = 4, "us"
		for _, r := range drive(t, mustClient(t, kind, o), 6000, first) {
			if r.Turn == 0 && kind != Arena || r.Turn == 1 && kind == Arena {
				in = append(in, CountTokens(r.Messages[len(r.Messages)-1].Content))
				out = append(out, r.OutputTokens)
			}
		}
		return in, out
	}
	for _, kind := range []Kind{Arena, ToT15, Groups} {
		in, out := lengths(kind, Options{})
		sameIn, sameOut := lengths(kind, Options{Lengths: 1, Sigma: 1})
		if fmt.Sprint(in, out) != fmt.Sprint(sameIn, sameOut) {
			t.Errorf("%s: factors of 1 change the lengths", kind)
		}
		longIn, longOut := lengths(kind, Options{Lengths: 1.3})
		near(t, string(kind)+" input", median(longIn), 1.3*median(in), 0.08)
		near(t, string(kind)+" output", median(longOut), 1.3*median(out), 0.08)
		wideIn, _ := lengths(kind, Options{Sigma: 2})
		near(t, string(kind)+" median of wide inputs", median(wideIn), median(in), 0.12)
		if percentile(wideIn, 0.9) <= percentile(in, 0.9) {
			t.Errorf("%s: twice the sigma leaves the P90 at %v", kind, percentile(in, 0.9))
		}
	}
	for _, o := range []Options{{Lengths: -1}, {Lengths: 101}, {Sigma: 11}} {
		if _, err := NewClient(Arena, o); err == nil {
			t.Errorf("NewClient takes %+v", o)
		}
	}
	// In the least context, the longest tails still leave every session a request.
	for _, kind := range Kinds() {
		client := mustClient(t, kind, Options{Lengths: MaxLengths, Sigma: MaxSigma, MaxContext: MinContext})
		for range 200 {
			if len(client.Next()) == 0 {
				t.Fatalf("%s: a session of nothing", kind)
			}
		}
	}
}

func percentile(xs []int, p float64) int {
	s := slices.Clone(xs)
	slices.Sort(s)
	return s[int(p*float64(len(s)))]
}
