package workload

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// response simulates a model: the text depends only on the request, so that equal requests get equal
// responses in any order.
func response(r Request) string {
	return Text(r.OutputTokens, keyOf(r.Session+r.Messages[len(r.Messages)-1].Content))
}

// drive runs a client until it has issued n requests, ending in-flight ones in the order that pick
// chooses, and returns the requests in order of issue.
func drive(t *testing.T, c Client, n int, pick func(inFlight int) int) []Request {
	t.Helper()
	all := c.Next()
	inFlight := slices.Clone(all)
	for len(all) < n {
		if len(inFlight) == 0 {
			t.Fatalf("nothing in flight after %d requests: the client stopped", len(all))
		}
		i := pick(len(inFlight))
		r := inFlight[i]
		inFlight = slices.Delete(inFlight, i, i+1)
		next := c.Done(r, response(r))
		all = append(all, next...)
		inFlight = append(inFlight, next...)
	}
	return all
}

func first(int) int { return 0 }

func mustClient(t *testing.T, kind Kind, o Options) Client {
	t.Helper()
	c, err := NewClient(kind, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sessions groups requests by session, in order of the sessions' starts.
func sessions(requests []Request) [][]Request {
	index := map[string]int{}
	var out [][]Request
	for _, r := range requests {
		i, ok := index[r.Session]
		if !ok {
			i = len(out)
			index[r.Session] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], r)
	}
	return out
}

func rendered(messages []Message) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.Content)
	}
	return b.String()
}

// countAll counts the tokens of messages separately.
func countAll(messages []Message) int {
	n := 0
	for _, m := range messages {
		n += CountTokens(m.Content)
	}
	return n
}

func TestTreeShape(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		heavy  bool
		levels []int
	}{
		{ToT15, false, []int{1, 2, 4, 8}},
		{ToT30, false, []int{2, 4, 8, 16}},
		{Mixed, true, []int{1, 4, 16, 64}},
		{Mixed, false, []int{1, 2, 4, 8}},
	} {
		size := 0
		for _, n := range c.levels {
			size += n
		}
		client := mustClient(t, c.kind, Options{Seed: 1, Region: "us", Heavy: c.heavy})
		trees := sessions(drive(t, client, 3*size+1, first))
		for i, tree := range trees[:3] {
			got := make([]int, len(c.levels))
			for _, r := range tree {
				got[r.Turn]++
			}
			if !slices.Equal(got, c.levels) {
				t.Errorf("%s heavy=%v, tree %d: calls by level %v, want %v", c.kind, c.heavy, i, got, c.levels)
			}
		}
	}
}

func TestTreePromptsGrowByResponseAndFollowUp(t *testing.T) {
	tree := sessions(drive(t, mustClient(t, ToT15, Options{Seed: 3, Region: "eu"}), 16, first))[0]
	added := []int{0, 45, 32, 25}
	byPrompt := map[string]Request{}
	for _, r := range tree {
		byPrompt[rendered(r.Messages)] = r
		if got := countAll(r.Messages); got != r.InputTokens {
			t.Errorf("level %d: InputTokens %d, the messages have %d", r.Turn, r.InputTokens, got)
		}
		if r.Turn == 0 {
			if CountTokens(r.Messages[0].Content) != 98 {
				t.Errorf("the preamble has %d tokens, want 98", CountTokens(r.Messages[0].Content))
			}
			continue
		}
		parent, ok := byPrompt[rendered(r.Messages[:len(r.Messages)-2])]
		if !ok {
			t.Fatalf("level %d: its context is not an earlier prompt of the tree", r.Turn)
		}
		if r.Messages[len(r.Messages)-2].Content != response(parent) {
			t.Errorf("level %d does not carry the response its parent got", r.Turn)
		}
		if want := parent.InputTokens + parent.OutputTokens + added[r.Turn]; r.InputTokens != want {
			t.Errorf("level %d: %d input tokens, want %d", r.Turn, r.InputTokens, want)
		}
	}
}

// siblingPairs returns the prompts of the two calls of every parent.
func siblingPairs(requests []Request, level int) [][2]string {
	byParent := map[string][]string{}
	var order []string
	for _, r := range requests {
		if r.Turn != level {
			continue
		}
		parent := r.Session
		if level > 0 {
			parent += rendered(r.Messages[:len(r.Messages)-1])
		}
		if byParent[parent] == nil {
			order = append(order, parent)
		}
		byParent[parent] = append(byParent[parent], rendered(r.Messages))
	}
	var pairs [][2]string
	for _, p := range order {
		if s := byParent[p]; len(s) == 2 {
			pairs = append(pairs, [2]string{s[0], s[1]})
		}
	}
	return pairs
}

// A sibling identical to the first one gets the same response with the same length; every other request
// has its own response.
func TestIdenticalSiblingsShareResponses(t *testing.T) {
	requests := drive(t, mustClient(t, ToT30, Options{Seed: 5, Region: "us"}), 30*200, first)
	bySeq, alike := map[int]Request{}, 0
	for _, r := range requests {
		bySeq[r.Seq] = r
	}
	for _, r := range requests {
		of, ok := bySeq[r.AnswerOf]
		if !ok || of.AnswerOf != of.Seq || of.Seq > r.Seq || of.OutputTokens != r.OutputTokens || rendered(of.Messages) != rendered(r.Messages) {
			t.Fatalf("request %d has the response of %d", r.Seq, r.AnswerOf)
		}
		if r.AnswerOf != r.Seq {
			alike++
		}
	}
	near(t, "share of requests with the response of their sibling", float64(alike)/float64(len(requests)), 0.35, 0.03)
}

func TestSiblingsShareAPrefix(t *testing.T) {
	client := mustClient(t, ToT30, Options{Seed: 5, Region: "us"})
	requests := drive(t, client, 30*1500, first)
	for _, level := range []int{0, 1} {
		same, pairs := 0, siblingPairs(requests, level)
		for _, p := range pairs {
			if p[0] == p[1] {
				same++
				continue
			}
			if common := commonPrefix(p[0], p[1]); common < wordBytes*(98+8) {
				t.Fatalf("level %d: differing siblings share %d bytes", level, common)
			}
		}
		near(t, fmt.Sprintf("share of identical siblings at level %d", level), float64(same)/float64(len(pairs)), 0.7, 0.06)
	}
	for _, p := range siblingPairs(drive(t, mustClient(t, ToT15, Options{Seed: 5}), 15*50, first), 1) {
		if p[0] == p[1] {
			t.Fatal("tot15 siblings have the same prompt")
		}
	}
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func near(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)) {
		t.Errorf("%s: %.4g, want %.4g +-%.0f%%", what, got, want, 100*relative)
	}
}

func median(xs []int) float64 {
	s := slices.Clone(xs)
	slices.Sort(s)
	return float64(s[len(s)/2])
}

func mean(xs []int) float64 {
	sum := 0
	for _, x := range xs {
		sum += x
	}
	return float64(sum) / float64(len(xs))
}

func TestTreeLengths(t *testing.T) {
	client := mustClient(t, ToT15, Options{Seed: 7, Region: "asia"})
	outputs := make([][]int, 4)
	var questions []int
	for _, r := range drive(t, client, 15*2000, first) {
		outputs[r.Turn] = append(outputs[r.Turn], r.OutputTokens)
		if r.OutputTokens < 1 || r.OutputTokens > 512 {
			t.Fatalf("an output of %d tokens", r.OutputTokens)
		}
		if r.Turn == 0 {
			questions = append(questions, r.InputTokens-98)
		}
	}
	near(t, "question median", median(questions), 60, 0.03)
	near(t, "question mean", mean(questions), 60*math.Exp(0.35*0.35/2), 0.03)
	for level, want := range []float64{105, 150, 190, 110} {
		near(t, fmt.Sprintf("output median at level %d", level), median(outputs[level]), want, 0.03)
	}
	near(t, "output mean at level 0", mean(outputs[0]), 105*math.Exp(0.08), 0.03)
}

func TestTreeIsIndependentOfResponseOrder(t *testing.T) {
	for _, kind := range []Kind{ToT15, ToT30} {
		var want []string
		for i, pick := range []func(int) int{first, func(n int) int { return n - 1 }, rand.New(rand.NewPCG(1, 2)).IntN} {
			client := mustClient(t, kind, Options{Seed: 11, Region: "us", Client: 4})
			tree := sessions(drive(t, client, 31, pick))[0]
			var got []string
			for _, r := range tree {
				got = append(got, fmt.Sprint(r.Turn, r.OutputTokens, rendered(r.Messages)))
			}
			slices.Sort(got)
			if i == 0 {
				want = got
			} else if !slices.Equal(got, want) {
				t.Errorf("%s: another order of responses yielded other requests", kind)
			}
		}
	}
}

func TestFailedNodeDropsItsSubtree(t *testing.T) {
	client := mustClient(t, ToT15, Options{Seed: 1})
	root := client.Next()[0]
	children := client.Done(root, " yes")
	if next := client.Failed(children[0]); len(next) != 0 {
		t.Fatalf("a failed node with a sibling in flight issued %d requests", len(next))
	}
	if again := client.Failed(children[0]); again != nil {
		t.Fatal("a request that ended twice issued more")
	}
	grand := client.Done(children[1], " no")
	if len(grand) != 2 || grand[0].Session != root.Session {
		t.Fatalf("the sibling's children: %d", len(grand))
	}
	client.Failed(grand[0])
	next := client.Failed(grand[1])
	if len(next) != 1 || next[0].Session == root.Session || next[0].Turn != 0 {
		t.Fatalf("after the last node failed: %d requests, want the next tree's root", len(next))
	}
}

func TestChatTurnsAndLengths(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct {
		kind         Kind
		user, output logNormal
	}{
		{Arena, logNormal{40, 1.0}, logNormal{160, 0.75}},
		{WildChat, logNormal{90, 1.4}, logNormal{280, 0.7}},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			client := mustClient(t, c.kind, Options{Seed: 2, Region: "us"})
			var users, outputs, turns []int
			templated, conversations, busyHalf := 0, 0, 0
			for _, r := range drive(t, client, 30000, first) {
				fresh := CountTokens(r.Messages[len(r.Messages)-1].Content)
				if r.Turn == 0 {
					conversations++
					turns = append(turns, 0)
					if isTemplated(r) {
						templated++
						fresh -= 400
					}
					var user int
					if _, err := fmt.Sscanf(r.User, "us-user-%d", &user); err != nil || user < 0 || user >= 60 {
						t.Fatalf("user %q", r.User)
					}
					if user < 15 {
						busyHalf++
					}
				}
				turns[len(turns)-1]++
				users = append(users, fresh)
				outputs = append(outputs, r.OutputTokens)
				checkChat(t, r)
			}
			near(t, "user median", median(users), c.user.median, 0.05)
			near(t, "output median", median(outputs), c.output.median, 0.03)
			if c.kind == Arena {
				near(t, "user mean", mean(users), 40*math.Exp(0.5), 0.06)
			}
			turns = turns[:len(turns)-1] // the last conversation was cut off
			near(t, "turns", mean(turns), 3, 0.03)
			if slices.Min(turns) < 2 || slices.Max(turns) > 10 {
				t.Errorf("turns from %d to %d, want within 2..10", slices.Min(turns), slices.Max(turns))
			}
			near(t, "share with a template", float64(templated)/float64(conversations), 0.15, 0.1)
			near(t, "share of the first quarter of the users", float64(busyHalf)/float64(conversations), 0.5, 0.05)
		})
	}
}

// isTemplated reports whether a conversation starts with a template: only then do two conversations
// share words after the header.
func isTemplated(r Request) bool {
	for i := range uint64(8) {
		if strings.HasPrefix(r.Messages[1].Content, Text(400, keyOf("template/us", i))) {
			return true
		}
	}
	return false
}

func checkChat(t *testing.T, r Request) {
	t.Helper()
	switch {
	case r.Session != r.User:
		t.Fatalf("session %q is not the user %q", r.Session, r.User)
	case CountTokens(r.Messages[0].Content) != 30:
		t.Fatalf("the header has %d tokens", CountTokens(r.Messages[0].Content))
	case len(r.Messages) != 2*r.Turn+2:
		t.Fatalf("turn %d has %d messages", r.Turn, len(r.Messages))
	case r.InputTokens+r.OutputTokens > DefaultMaxContext:
		t.Fatalf("a context of %d tokens", r.InputTokens+r.OutputTokens)
	case r.OutputTokens < 1 || r.OutputTokens > 512:
		t.Fatalf("an output of %d tokens", r.OutputTokens)
	}
}

func TestNextTurnHasTheActualResponse(t *testing.T) {
	client := mustClient(t, Arena, Options{Seed: 1, Region: "eu"})
	r := client.Next()[0]
	if again := client.Done(Request{Seq: r.Seq + 1}, "?"); again != nil {
		t.Fatal("a request that is not in flight issued more")
	}
	next := client.Done(r, "forty-two, of course")[0]
	if got := next.Messages[2]; got != (Message{"assistant", "forty-two, of course"}) {
		t.Fatalf("the response before the second turn is %v", got)
	}
	if !strings.HasPrefix(rendered(next.Messages), rendered(r.Messages)) {
		t.Fatal("the second turn does not begin with the first")
	}
	if got := countAll(next.Messages); got != next.InputTokens {
		t.Fatalf("InputTokens %d, the messages have %d", next.InputTokens, got)
	}
	after := client.Failed(next)[0]
	if after.Turn != 0 || len(after.Messages) != 2 {
		t.Fatalf("after a failure: turn %d with %d messages, want a new conversation", after.Turn, len(after.Messages))
	}
}

func TestSmallContextEndsConversations(t *testing.T) {
	client := mustClient(t, WildChat, Options{Seed: 4, Region: "us", MaxContext: 2048})
	for _, r := range drive(t, client, 3000, first) {
		if r.InputTokens+r.OutputTokens > 2048 {
			t.Fatalf("turn %d: %d + %d tokens", r.Turn, r.InputTokens, r.OutputTokens)
		}
	}
	client = mustClient(t, Mixed, Options{Seed: 4, MaxContext: MinContext})
	for _, r := range drive(t, client, 3000, first) {
		if r.InputTokens+r.OutputTokens > MinContext {
			t.Fatalf("level %d: %d + %d tokens", r.Turn, r.InputTokens, r.OutputTokens)
		}
	}
}

// fingerprint hashes all requests of a client.
func fingerprint(t *testing.T, requests []Request) uint64 {
	t.Helper()
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(requests); err != nil {
		t.Fatal(err)
	}
	return h.Sum64()
}

func TestEqualSeedsYieldEqualRequests(t *testing.T) {
	for _, kind := range Kinds() {
		make1 := func(seed uint64, region string, client int) uint64 {
			o := Options{Seed: seed, Region: region, Client: client, Tier: service.TierNormal}
			return fingerprint(t, drive(t, mustClient(t, kind, o), 200, first))
		}
		want := make1(1, "us", 0)
		if make1(1, "us", 0) != want {
			t.Errorf("%s: the same seed yielded other requests", kind)
		}
		for _, other := range []uint64{make1(2, "us", 0), make1(1, "eu", 0), make1(1, "us", 1)} {
			if other == want {
				t.Errorf("%s: another seed, region or client yielded the same requests", kind)
			}
		}
	}
}

func TestNewClientErrors(t *testing.T) {
	for _, c := range []struct {
		kind    Kind
		context int
		want    string
	}{
		{"tot16", 0, `unknown workload "tot16": must be tot15, tot30, mixed, arena, wildchat, groups, shared, bursts, programs, completion or contexts`},
		{Arena, 100, "creating a arena client: context: must be at least 1024 tokens, got 100"},
	} {
		if _, err := NewClient(c.kind, Options{MaxContext: c.context}); err == nil || err.Error() != c.want {
			t.Errorf("NewClient(%s): error %v, want %s", c.kind, err, c.want)
		}
	}
}

func TestRegionsAndCounts(t *testing.T) {
	for _, c := range []struct {
		regions []string
		want    string
	}{
		{nil, ""},
		{[]string{"eu", "us"}, "us"},
		{[]string{"eu", "us-east-1"}, "us-east-1"},
		{[]string{"eu", "russia"}, "eu"},
		{[]string{"gcp/europe-west4", "aws/us-east-1", "gcp/us-central1"}, "aws/us-east-1"},
	} {
		if got := HeavyRegion(c.regions); got != c.want {
			t.Errorf("HeavyRegion(%v) = %q, want %q", c.regions, got, c.want)
		}
	}
	if DefaultClients(Mixed, true) != 2 || DefaultClients(Mixed, false) != 20 || DefaultClients(ToT15, true) != 40 {
		t.Error("the default numbers of clients are not those of the paper")
	}
	if !IsKnown("tot15") || IsKnown("tot15.csv") {
		t.Error("IsKnown does not distinguish workloads from files")
	}
}

func BenchmarkToT15Request(b *testing.B) {
	c, err := NewClient(ToT15, Options{Seed: 1, Region: "us"})
	if err != nil {
		b.Fatal(err)
	}
	reply := Text(150, 1)
	inFlight := c.Next()
	b.ReportAllocs()
	for b.Loop() {
		r := inFlight[0]
		inFlight = append(inFlight[1:], c.Done(r, reply)...)
	}
}

func BenchmarkText(b *testing.B) {
	b.ReportAllocs()
	dst := make([]byte, 0, 512*wordBytes)
	b.SetBytes(512 * wordBytes)
	for b.Loop() {
		dst = AppendText(dst[:0], 512, 7)
	}
}
