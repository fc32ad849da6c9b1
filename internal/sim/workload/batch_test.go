package workload

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"skyserve/internal/testkit"
)

// The owner of prefixes and the number of concurrent calls distinguish the four workloads of calls.
func TestCallsSharePrefixesByKind(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct {
		kind        Kind
		shared, own int // prefixes of several users, and of one alone
		tokens      int // of each
		maxCalls    int // calls at once
		mixes       bool
	}{
		{Groups, 64, 0, 2048, 1, false},
		{Shared, 20, 60, 400, 1, false},
		{Bursts, 0, 30, 400, 4, false},
		{Programs, 20, 0, 400, 4, true},
		{Contexts, 150, 0, 6000, 1, false},
	} {
		users, prefixes := map[string]map[string]bool{}, map[string]int{}
		highest, mixed := 0, false
		for _, calls := range callsOf(t, c.kind, 6000) {
			highest = max(highest, len(calls))
			for _, r := range calls {
				prefix := r.Messages[0].Content
				if n := CountTokens(prefix); n != c.tokens || r.InputTokens != countAll(r.Messages) {
					t.Fatalf("%s: a prefix of %d tokens, want %d, in a prompt of %d", c.kind, n, c.tokens, r.InputTokens)
				}
				mixed = mixed || prefix != calls[0].Messages[0].Content
				prefixes[prefix]++
				if users[prefix] == nil {
					users[prefix] = map[string]bool{}
				}
				users[prefix][r.User] = true
			}
		}
		own := 0
		for _, of := range users {
			if len(of) == 1 {
				own++
			}
		}
		if own != c.own || len(users)-own != c.shared || highest != c.maxCalls || mixed != c.mixes {
			t.Errorf("%s: %d prefixes of several users, %d of one, %d calls at once, differing %v", c.kind, len(users)-own, own, highest, mixed)
		}
		if c.kind == Groups {
			for _, n := range prefixes {
				near(t, "calls of a group", float64(n), 6000.0/64, 0.6)
			}
		}
	}
}

// Two requests of one user have 2.47 times as much in common as those of two
// users, in the paper's measure: the common prefix over the shorter one.
func TestUsersShareAsInChatbotArena(t *testing.T) {
	testkit.Slow(t)
	users := map[string][]Request{}
	own, all := 0, 0.0
	prefixes := map[string]map[string]bool{}
	for _, calls := range callsOf(t, Shared, 3000) {
		r := calls[0]
		users[r.User] = append(users[r.User], r)
		prefix := r.Messages[0].Content
		if prefixes[prefix] == nil {
			prefixes[prefix] = map[string]bool{}
		}
		prefixes[prefix][r.User] = true
		all++
	}
	var within, across average
	names := slices.Sorted(maps.Keys(users))
	for i, name := range names {
		for k, r := range users[name] {
			if len(prefixes[r.Messages[0].Content]) == 1 {
				own++
			}
			for _, other := range users[name][k+1:] {
				within.add(similarity(r, other))
			}
			for _, stranger := range names[i+1:] {
				for _, other := range users[stranger] {
					across.add(similarity(r, other))
				}
			}
		}
	}
	near(t, "share of calls with a prefix of their user's own", float64(own)/all, 0.26, 0.1)
	near(t, "similarity within users over that across users", within.value()/across.value(), 2.47, 0.1)
}

// similarity returns the common prefix of two prompts relative to the shorter one.
func similarity(a, b Request) float64 {
	common := 0
	if prefix := a.Messages[0].Content; prefix == b.Messages[0].Content {
		common = len(prefix) / wordBytes
	}
	return float64(common) / float64(min(a.InputTokens, b.InputTokens))
}

type average struct{ sum, n float64 }

func (m *average) add(x float64)  { m.sum, m.n = m.sum+x, m.n+1 }
func (m *average) value() float64 { return m.sum / m.n }

// A user's bursts have one to four calls, single calls most often; the calls of a program have no
// prefix that identifies its user.
func TestBurstsAndPrograms(t *testing.T) {
	for _, kind := range []Kind{Bursts, Programs} {
		sizes, calls := [5]int{}, 0
		prefixes := map[string]map[string]bool{} // by user
		for _, s := range callsOf(t, kind, 4000) {
			sizes[len(s)]++
			calls += len(s)
			for _, r := range s {
				if prefixes[r.User] == nil {
					prefixes[r.User] = map[string]bool{}
				}
				prefixes[r.User][r.Messages[0].Content] = true
			}
		}
		// The square of a uniform draw lies below k/4 with a chance of sqrt(k/4).
		for size := 1; size <= 4; size++ {
			want := 4000 * (math.Sqrt(float64(size)/4) - math.Sqrt(float64(size-1)/4))
			near(t, fmt.Sprintf("%s: sessions of %d calls", kind, size), float64(sizes[size]), want, 0.1)
		}
		near(t, string(kind)+": calls a session", float64(calls)/4000, 1.927, 0.03)
		want := map[Kind]int{Bursts: 1, Programs: 20}[kind]
		if n := len(prefixes["us-user-0"]); n != want {
			t.Errorf("%s: the busiest user has %d prefixes, want %d", kind, n, want)
		}
	}
}

// callsOf returns the first calls of a client, session by session.
func callsOf(t *testing.T, kind Kind, n int) [][]Request {
	t.Helper()
	client := mustClient(t, kind, Options{Seed: 3, Region: "us"})
	all := make([][]Request, 0, n)
	for range n {
		all = append(all, client.Next())
	}
	return all
}

// The next calls start after all of the last ones have ended, successfully or not.
func TestNextCallsWaitForAll(t *testing.T) {
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

// A client with Once issues the same requests as the first session of any other, and then none.
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
				next := once.Done(r, response(r))
				if fails {
					next = once.Failed(r)
				}
				open = append(open[1:], next...)
				if asked > 100 {
					t.Fatalf("%s: the session does not end", kind)
				}
			}
			if asked == 0 {
				t.Errorf("%s: an empty session", kind)
			}
		}
	}
}

// The factors scale medians and spreads; 1 changes nothing.
func TestLengthFactors(t *testing.T) {
	testkit.Slow(t)
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
			t.Errorf("NewClient accepts %+v", o)
		}
	}
	// With the minimum context, even the longest tails allow every session a request.
	for _, kind := range Kinds() {
		client := mustClient(t, kind, Options{Lengths: MaxLengths, Sigma: MaxSigma, MaxContext: MinContext})
		for range 200 {
			if len(client.Next()) == 0 {
				t.Fatalf("%s: an empty session", kind)
			}
		}
	}
}

func percentile(xs []int, p float64) int {
	s := slices.Clone(xs)
	slices.Sort(s)
	return s[int(p*float64(len(s)))]
}
