package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// short returns a built-in scenario limited to a few simulated seconds.
func short(t testing.TB, name string, duration time.Duration) *Scenario {
	t.Helper()
	found, err := FindScenarios(name)
	if err != nil {
		t.Fatal(err)
	}
	found[0].Duration = duration
	return &found[0]
}

func push(t testing.TB, mode string) core.PushMode {
	t.Helper()
	p, err := core.ParsePush(mode)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t testing.TB, s *Scenario, setup Setup) *Result {
	t.Helper()
	r, err := Run(t.Context(), s, setup)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// drawScenario draws a small, valid service with load.
func drawScenario(rt *rapid.T) (*Scenario, Setup) {
	names := []string{"us", "eu", "asia"}[:rapid.IntRange(1, 3).Draw(rt, "regions")]
	s := common
	s.Name, s.Workload = "drawn", rapid.SampledFrom(workload.Kinds()).Draw(rt, "workload")
	for _, n := range names {
		s.Regions = append(s.Regions, Region{Name: n, Replicas: rapid.IntRange(0, 3).Draw(rt, "replicas"), Clients: rapid.IntRange(0, 12).Draw(rt, "clients")})
	}
	s.Regions[0].Replicas++
	s.Regions[len(names)-1].Clients++
	s.Duration = time.Duration(rapid.IntRange(1, 20).Draw(rt, "seconds")) * time.Second
	s.Forward = rapid.Bool().Draw(rt, "forward")
	s.MaxNew = rapid.SampledFrom([]int{1, 64, 512}).Draw(rt, "max new")
	s.MaxContext = rapid.SampledFrom([]int{workload.MinContext, 2048}).Draw(rt, "max context")
	s.Profile.KVTokens = rapid.SampledFrom([]int{2100, 4000, 21_000}).Draw(rt, "kv")
	s.PeerQueueLimit = rapid.IntRange(0, 10).Draw(rt, "tau")
	s.MaxWait = time.Duration(rapid.IntRange(1, 30).Draw(rt, "max wait")) * time.Second
	s.ClientTimeout = time.Duration(rapid.SampledFrom([]int{0, 1, 5}).Draw(rt, "client_timeout")) * time.Second
	s.Lengths = rapid.SampledFrom([]float64{1, 0.7, 1.3}).Draw(rt, "lengths")
	s.Sigma = rapid.SampledFrom([]float64{1, 2}).Draw(rt, "sigma")
	s.Rate = rapid.SampledFrom([]float64{0, 0, 0.5, 5}).Draw(rt, "rate")
	s.CacheEvents = rapid.Bool().Draw(rt, "cache events")
	s.Think = time.Duration(rapid.SampledFrom([]int{0, 0, 2}).Draw(rt, "think")) * time.Second
	mode, err := core.ParsePush(rapid.SampledFrom([]string{"blind", "pending", "outstanding:3"}).Draw(rt, "push"))
	if err != nil {
		rt.Fatal(err)
	}
	setup := Setup{
		Policy: rapid.SampledFrom(append(policy.Names(), Oracle)).Draw(rt, "policy"), Push: mode,
		Layout: rapid.SampledFrom([]Layout{Single, Regional}).Draw(rt, "layout"), Seed: rapid.Uint64Range(0, 99).Draw(rt, "seed"),
	}
	if setup.Policy == Oracle {
		setup.Layout = Everywhere
	}
	return &s, setup
}

// For any service, policy and seed: the invariants of audit.go hold, the figures are plausible, and a second
// run yields the same bytes.
func TestRandomRunsKeepInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, setup := drawScenario(rt)
		first, err := Run(context.Background(), s, setup)
		if err != nil {
			rt.Fatal(err)
		}
		checkFigures(rt, s, first)
		second, err := Run(context.Background(), s, setup)
		if err != nil {
			rt.Fatal(err)
		}
		a, _ := json.Marshal(first)
		b, _ := json.Marshal(second)
		if string(a) != string(b) {
			rt.Fatalf("the same seed yielded\n%s\nand then\n%s", a, b)
		}
	})
}

func checkFigures(rt *rapid.T, s *Scenario, r *Result) {
	f, n := r.Figures, r.Totals
	if n.InFlight < 0 || n.Issued != n.Completed+n.Failed+n.Cancelled+n.InFlight {
		rt.Fatalf("totals do not add up: %+v", n)
	}
	if s.ClientTimeout == 0 && n.Cancelled > 0 {
		rt.Fatalf("%d cancelled by clients without a timeout", n.Cancelled)
	}
	if !s.Forward && f.Forwarded > 0 {
		rt.Fatalf("%v forwarded by balancers with push disabled", f.Forwarded)
	}
	if f.PrefixHitRate != nil && !(*f.PrefixHitRate >= 0 && *f.PrefixHitRate < 1) {
		rt.Fatalf("prefix hit rate %v", *f.PrefixHitRate)
	}
	// A first token takes two ways inside a region and a prefill step at least.
	minimum := milliseconds(s.LocalRTT + s.Profile.PrefillBase)
	if f.TTFT != nil && (f.TTFT.P10 < minimum || f.TTFT.Max > f.E2E.Max) {
		rt.Fatalf("TTFT %+v, E2E %+v: at least %v ms are needed", f.TTFT, f.E2E, minimum)
	}
}

// Random scenarios cover the rare paths of a request, not only the usual one.
func TestRarePathsAreCovered(t *testing.T) {
	s := short(t, "fig8a", 30*time.Second)
	s.ClientTimeout = 4 * time.Second
	for i := range s.Regions {
		s.Regions[i].Replicas = 1 - min(i, 1) // only the first has one
	}
	r := run(t, s, Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 1})
	if r.Totals.Cancelled == 0 || r.Figures.Forwarded == 0 || r.Replicas[0].Cancelled == 0 {
		t.Errorf("want requests cancelled by impatient clients, forwarded by regions without replicas and aborted in the engine, got %+v, %v forwarded, %d aborted",
			r.Totals, r.Figures.Forwarded, r.Replicas[0].Cancelled)
	}
	s.ClientTimeout, s.MaxWait = 0, time.Second
	r = run(t, s, Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 1})
	if r.Figures.Rejected == 0 {
		t.Error("no request was rejected although none may wait for more than a second")
	}
}

// The times of an idle service are the sums of their parts: network delays, prefill, and decode steps.
func TestSingleClientTimes(t *testing.T) {
	s := common
	s.Name, s.Workload, s.Warmup, s.Duration = "one", workload.ToT15, 0, 4*time.Second
	s.Regions = []Region{{Name: "us", Clients: 1}, {Name: "eu", Replicas: 1}}
	s.Links = []Link{{"us", "eu", 100 * time.Millisecond}}
	w, err := newWorld(&s, Setup{Policy: "least-load", Push: core.PushMode{Kind: core.PushBlind}, Layout: Single, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	first := w.clientsFirst(t)
	for !first.started {
		w.stepEvent()
	}
	p := s.Profile
	want := s.LocalRTT + 100*time.Millisecond + p.PrefillBase + time.Duration(len(first.prompt))*p.PrefillPerToken
	// Before the first report nothing is sent: the wait ends with it.
	if got := first.first - first.issued; got < want || got > want+s.Interval+50*time.Millisecond {
		t.Errorf("first token after %v, want %v and at most the time to the first report more", got, want)
	}
}

// clientsFirst advances time until the first request is issued.
func (w *world) clientsFirst(t *testing.T) *clientRequest {
	for {
		if e := w.queue.peek(); e.kind == evIssue {
			issue := e.issue
			w.stepEvent()
			return issue[0]
		}
		w.stepEvent()
	}
}

// A balancer's keys extend like conversations: the key of a prompt and its response is a prefix of the
// next turn's key.
func TestKeysExtend(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, more := rapid.IntRange(0, 100).Draw(rt, "tokens"), rapid.IntRange(0, 100).Draw(rt, "more")
		tokens := engine.Tokenize(nil, workload.Text(n+more, rapid.Uint64().Draw(rt, "text")))
		seed := rapid.Uint64().Draw(rt, "seed")
		whole, begin := keyOf(nil, tokens, seed), keyOf(nil, tokens[:n], seed)
		if extended := keyOf(begin, tokens, seed); fmt.Sprint(extended) != fmt.Sprint(whole) || fmt.Sprint(whole[:len(begin)]) != fmt.Sprint(begin) {
			rt.Fatalf("%d tokens and %d more: %v extended to %v, in one step %v", n, more, begin, extended, whole)
		}
		if len(whole) != (n+more)/16 {
			rt.Fatalf("%d tokens have %d blocks", n+more, len(whole))
		}
	})
}

// A conversation's prompt is the same whether it extends the previous one or is tokenised from the
// start.
func TestPromptsContinueConversations(t *testing.T) {
	w, err := newWorld(short(t, "fig8a", time.Second), Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	c, reused := w.clients[0], 0
	before := w.newRequest(c, nil, c.workload.Next()[0])
	for range 40 {
		next := c.workload.Done(before.request, before.text)[0]
		f := w.newRequest(c, before, next)
		if whole := promptOf(nil, next.Messages); fmt.Sprint(f.prompt) != fmt.Sprint(whole) {
			t.Fatalf("turn %d: the prompt is not the conversation", next.Turn)
		}
		if next.Turn > 0 {
			if got := len(before.wholeKey(5)); fmt.Sprint(f.key[:got]) != fmt.Sprint(before.wholeKey(5)) {
				t.Fatalf("turn %d: its key does not begin with the last turn and its response", next.Turn)
			}
			reused++
		}
		before = f
	}
	if reused == 0 {
		t.Error("no conversation had a second turn")
	}
}

// Every built-in scenario is valid, and all its references parse.
func TestBuiltInScenarios(t *testing.T) {
	for _, s := range Scenarios() {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
		for _, h := range allShapes() {
			if h.name == s.Name && h.reference != "" && len(s.Reference) != strings.Count(h.reference, ",")+1 {
				t.Errorf("%s: read %d references of %q", s.Name, len(s.Reference), h.reference)
			}
		}
		for name, ref := range s.Reference {
			if !(ref.OutputTokensPerSecond > 1000 && ref.TTFTP90Seconds > 0.1) {
				t.Errorf("%s: reference of %s is %+v", s.Name, name, ref)
			}
		}
	}
	if group, err := FindScenarios("fig10"); err != nil || len(group) != 10 {
		t.Errorf("fig10 is %d scenarios, %v", len(group), err)
	}
}

// The paper's order on trees: prefix policies outperform load balancing, which outperforms round-robin.
func TestPrefixPoliciesWinOnTrees(t *testing.T) {
	s := short(t, "fig8c", 60*time.Second)
	at := func(name, mode string, l Layout) float64 {
		return run(t, s, Setup{Policy: name, Push: push(t, mode), Layout: l, Seed: 1}).Figures.OutputTokensPerSecond
	}
	rr, ll, sky := at("round-robin", "blind", Single), at("least-load", "blind", Single), at("skylb", "pending", Regional)
	if !(rr < ll && 1.15*ll < sky) {
		t.Errorf("output tokens per second: round-robin %.0f, least-load %.0f, skylb %.0f", rr, ll, sky)
	}
}

func TestSettings(t *testing.T) {
	s := short(t, "fig8a", time.Second)
	for _, set := range [][2]string{
		{"duration", "7s"},
		{"clients", "5"},
		{"clients.eu", "6"},
		{"replicas.asia", "1"},
		{"rtt_scale", "0.5"},
		{"forward", "false"},
		{"kv", "38000"},
		{"warmup", "0.2"},
		{"max_new", "64"},
		{"tau", "3"},
		{"unconfirmed", "1000"},
		{"workload", "tot15"},
		{"lengths", "1.3"},
		{"sigma", "2"},
		{"rate", "4.5"},
		{"think", "1500ms"},
		{"engine", "light"},
		{"order", "edf"},
		{"balancers.us", "2"},
		{"profile.us", "h100-llama3.1-8b"},
		{"profiles.asia", "l4-llama3.1-8b-38k, h100-llama3.1-8b"},
	} {
		if err := s.Set(set[0], set[1]); err != nil {
			t.Error(err)
		}
	}
	c := s.Constants()
	got := fmt.Sprintln(c.Duration, c.Regions, c.Links, c.Forward, c.KVTokens, c.Warmup, c.MaxNew, c.PeerQueueLimit, c.Unconfirmed, c.Workload, c.Lengths, c.Sigma, c.Rate, c.Think, c.Engine, c.Order)
	want := "7 [{us 3 5 [h100-llama3.1-8b] 2} {eu 2 6 [] 0} {asia 1 5 [l4-llama3.1-8b-38k h100-llama3.1-8b] 0}] [{us eu 50} {us asia 80} {eu asia 110}] false 38000 0.2 64 3 1000 tot15 1.3 2 4.5 1500 light edf\n"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(c.Others) != 2 || c.Others[0].KVTokens != 362_000 || c.Others[1].Profile != "l4-llama3.1-8b-38k" {
		t.Errorf("the other profiles are %+v", c.Others)
	}
	for i, want := range []int{362_000, 38_000} {
		if got := s.profile(&s.Regions[i], 7).KVTokens; got != want {
			t.Errorf("replica 8 of %s has %d KV tokens, want %d", s.Regions[i].Name, got, want)
		}
	}
	if err := s.Set("kv", "30000"); err != nil || s.minKV() != 30_000 || s.profile(&s.Regions[0], 0).Name != "h100-llama3.1-8b" {
		t.Errorf("kv sets %d, %v", s.minKV(), err)
	}
	if err := s.Set("profile", "l4-llama3.1-8b"); err != nil || len(s.Constants().Others) > 0 {
		t.Errorf("profile leaves %+v, %v", s.Constants().Others, err)
	}
	if fresh := short(t, "fig8a", time.Second); fresh.Regions[0].Clients != 80 || fresh.Links[0].RTT != 100*time.Millisecond {
		t.Errorf("setting changed the built-in scenario: %+v", fresh)
	}
}

// Files and scripts that set a setting by its former name keep working.
func TestFormerSettingNames(t *testing.T) {
	for _, name := range []string{"client_timeout", "patience"} {
		s := short(t, "fig8a", time.Second)
		if err := s.Set(name, "5s"); err != nil || s.ClientTimeout != 5*time.Second {
			t.Errorf("--set %s=5s: the client timeout is %s (%v)", name, s.ClientTimeout, err)
		}
		file, err := ParseFile("test.yaml", []byte("profile: l4-llama3.1-8b\nworkload: tot15\nregions: [{name: us, replicas: 1, clients: 1}]\n"+name+": 5s\n"))
		if err != nil || file.ClientTimeout != 5*time.Second {
			t.Errorf("%s in a file: %v", name, err)
		}
	}
	for _, s := range AllSettings() {
		if name := strings.TrimSuffix(s.Name, "[.REGION]"); s.Meaning == "" || !slices.Contains(SettingNames(), name) {
			t.Errorf("setting %+v has no meaning or cannot be set", s)
		}
	}
	if slices.Contains(SettingNames(), "patience") {
		t.Error("help lists a former name")
	}
}

func TestSettingErrors(t *testing.T) {
	ok := Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional}
	for _, c := range []struct{ name, value, want string }{
		{"speed", "3", `unknown setting "speed": must be one of balancers, balancers.REGION, cache_events, client_timeout, clients,`},
		{"clients.mars", "3", `setting clients.mars: unknown region "mars": must be one of us, eu`},
		{"clients.us", "x", `setting clients.us: must be an integer, got "x"`},
		{"clients", "many", `setting clients: must be an integer, got "many"`},
		{"duration", "4", `setting duration: must be a duration such as 100ms or 90s, got "4"`},
		{"profile", "h100", `setting profile: unknown engine profile "h100": must be one of l4-llama3.1-8b, `},
		{"forward", "perhaps", `setting forward: must be true or false, got "perhaps"`},
		{"warmup", "1", `checking scenario fig8a: warmup: must be at least 0 and below 1, got 1`},
		{"kv", "1000", `checking scenario fig8a: max_context: must be at least 1024 and below the 1000 KV tokens of a replica, got 16384`},
		{"replicas", "0", `checking scenario fig8a: regions: must have at least one replica, got none`},
		{"clients", "0", `checking scenario fig8a: regions: must have at least one client, got none`},
		{"rtt_scale", "0", `checking scenario fig8a: links: the round-trip time between us and eu must be greater than 0, got 0s`},
		{"home", "mars", `checking scenario fig8a: home: unknown region "mars"`},
		{"lengths", "0", `checking scenario fig8a: lengths: must be greater than 0 and at most 100, got 0`},
		{"sigma", "11", `checking scenario fig8a: length_spread: must be greater than 0 and at most 10, got 11`},
		{"clients", "1000000", `checking scenario fig8a: regions[0].clients: must be at least 0 and at most 100000, got 1000000`},
		{"clients", "60000", `checking scenario fig8a: regions: must have at most 100000 clients together, got 180000`},
		{"rate", "-1", `checking scenario fig8a: rate: must be at least 0 and at most 100000 sessions per second, got -1`},
		{"rate", "NaN", `setting rate: must be a number, got "NaN"`},
		{"profile.us", "h100", `setting profile.us: unknown engine profile "h100"`},
		{"profiles.mars", "l4-llama3.1-8b", `setting profiles.mars: unknown region "mars"`},
		{"engine", "steam", `checking scenario fig8a: engine: must be full or light, got "steam"`},
		{"order", "alphabetic", `setting order: unknown `},
		{"balancers", "65", `checking scenario fig8a: regions[0].balancers: must be at least 0 and at most 64, got 65`},
		{"workload", "poetry", `checking scenario fig8a: workload: must be tot15, `},
	} {
		s := short(t, "fig8a", time.Second)
		err := s.Set(c.name, c.value)
		if err == nil {
			_, err = Run(t.Context(), s, ok)
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s=%s: got %v, want %s", c.name, c.value, err, c.want)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ended, short(t, "fig8a", time.Second), ok); !errors.Is(err, context.Canceled) {
		t.Errorf("a run with an ended context returns %v", err)
	}
	if _, err := FindScenarios("fig7"); err == nil || !strings.HasPrefix(err.Error(), `unknown scenario "fig7": must be one of fig8a, `) {
		t.Errorf("got %v", err)
	}
}

// The audit must detect violations.
func TestAuditFindsViolations(t *testing.T) {
	testkit.Slow(t)
	for name, spoil := range map[string]func(*world){
		"a request vanishes from a balancer": func(w *world) { clear(w.nodes[0].legs) },
		"a request vanishes from an engine":  func(w *world) { clear(w.replicas[0].jobs) },
		"a response comes from nowhere":      func(w *world) { w.tally.completed, w.tally.issued = 1<<20, 1<<21 },
		"more ends than requests":            func(w *world) { w.tally.failures = 1 << 20 },
		"an event lies in the past":          func(w *world) { w.now += time.Hour; w.stepEvent() },
		"tokens come from nowhere": func(w *world) {
			w.sendEvent(w.nodes[0], core.Event{Kind: core.EventProgress, Target: w.replicas[0].id, Tokens: 1 << 30})
		},
		"an engine acts unseen": func(w *world) { w.replicas[0].engine.Advance(w.now + time.Minute) },
	} {
		w, err := newWorld(short(t, "fig8c", time.Minute), Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		for range 20_000 {
			w.stepEvent()
		}
		if err := w.audit(); err != nil {
			t.Fatal(err)
		}
		if seen := w.nodes[0].core.Snapshot(w.now).Replicas[0]; seen.Tokens == 0 || !seen.Pending.Known {
			t.Fatalf("the balancer received no report of %s: %+v", seen.ID, seen)
		}
		spoil(w)
		if w.audit() == nil {
			t.Errorf("%s: the audit has no entries", name)
		}
	}
}

// Clients with think time pause between a response and their next request, for its mean on average and
// equally with every policy.
func TestThinkTime(t *testing.T) {
	s := short(t, "fig8a", 100*time.Second)
	s.Regions = []Region{{Name: "us", Clients: 20, Replicas: 4}}
	s.Think = 10 * time.Second
	w, err := newWorld(s, Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	sum := time.Duration(0)
	const n = 2000
	for i := range n {
		f := &clientRequest{client: w.clients[i%len(w.clients)]}
		f.request.Seq = i
		sum += w.thinkTime(f)
	}
	if mean := sum / n; mean < 9*time.Second || mean > 11*time.Second {
		t.Errorf("the mean of %d think times is %v, want about %v", n, mean, s.Think)
	}
	thinking := run(t, s, w.setup)
	s.Think = 0
	if busy := run(t, s, w.setup); thinking.Totals.Issued >= busy.Totals.Issued*3/4 {
		t.Errorf("clients issued %d requests with think time, %d without", thinking.Totals.Issued, busy.Totals.Issued)
	}
	again := *s
	again.Think = 10 * time.Second
	if got := run(t, &again, w.setup); got.Totals != thinking.Totals {
		t.Errorf("a second run has totals %+v, the first %+v", got.Totals, thinking.Totals)
	}
}
