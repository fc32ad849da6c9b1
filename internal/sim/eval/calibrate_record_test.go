package eval

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// simulatedRecord simulates a balancer with simulated engines and records every event at its time.
type simulatedRecord struct {
	t        *testing.T
	rng      *rand.Rand
	out      bytes.Buffer
	balancer *core.Balancer
	engines  map[string]*engine.Engine
	names    []string
	clients  []*recordedClient
	waiting  map[uint64]*recordedClient
	next     uint64

	networkDelay bool // tokens reach the balancer after a varying delay
	arrivals     []delivery
	lengths      func() int // tokens that a client adds to its prompt
	thinking     time.Duration
	uncounted    bool // the engine reports no token counts
}

// delivery is an event on its way to the balancer.
type delivery struct {
	at     time.Duration
	event  core.Event
	client *recordedClient // of the response
}

// recordedClient sends one conversation after another, with think time in between.
type recordedClient struct {
	prompt      []engine.Token
	turns       int
	nextRequest time.Duration // time of its next request; 0 while it waits
	response    int
}

// newSimulatedRecord creates engines with a profile.
func newSimulatedRecord(t *testing.T, p engine.Profile, replicas, clients int) *simulatedRecord {
	t.Helper()
	cfg := core.DefaultConfig(newPolicy(t, "least-load"))
	cfg.Push, cfg.ProbeInterval = core.PushMode{Kind: core.PushBlind}, time.Hour // reports never expire
	w := &simulatedRecord{t: t, rng: rand.New(rand.NewPCG(1, 2)), balancer: core.New(cfg), engines: map[string]*engine.Engine{}, waiting: map[uint64]*recordedClient{}, thinking: 2 * time.Second}
	w.lengths = func() int { return int(40 + 300*w.rng.ExpFloat64()) }
	w.out.Write(recordWith(t, cfg))
	for i := range replicas {
		e, err := engine.New(p, engine.ReportChanges)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("us-%d", i)
		w.engines[name], w.names = e, append(w.names, name)
		w.step(0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: name, Model: replayModel}})
		w.step(0, core.Event{Kind: core.EventReplicaReport, Target: name, Report: &core.ProbeReport{Ready: true, Pending: policy.Known(0)}})
	}
	for range clients {
		w.clients = append(w.clients, &recordedClient{nextRequest: 1 + time.Duration(w.rng.ExpFloat64()*float64(2*time.Second))})
	}
	return w
}

// step sends an event to the balancer, records it, and executes the actions.
func (w *simulatedRecord) step(at time.Duration, e core.Event) {
	actions := w.balancer.Step(at, e)
	if err := json.NewEncoder(&w.out).Encode(record.Line{T: at, Event: &e, Actions: actions}); err != nil {
		w.t.Fatal(err)
	}
	for _, a := range actions {
		var id uint64
		if _, err := fmt.Sscan(a.ID, &id); err != nil || a.Kind != core.ActionDispatch {
			continue
		}
		c := w.waiting[id]
		w.engines[a.Target].Submit(at, engine.Request{ID: id, Prompt: c.prompt, OutputLen: c.response})
	}
}

// run simulates the clients until a time.
func (w *simulatedRecord) run(until time.Duration) []byte {
	for {
		at, name, client, reported := until, "", (*recordedClient)(nil), false
		for _, n := range w.names {
			if next, ok := w.engines[n].NextAt(); ok && next < at {
				at, name = next, n
			}
		}
		for _, c := range w.clients {
			if c.nextRequest > 0 && c.nextRequest < at {
				at, name, client = c.nextRequest, "", c
			}
		}
		if len(w.arrivals) > 0 && w.arrivals[0].at <= at {
			reported = true
		}
		switch {
		case reported:
			w.deliver()
		case client != nil:
			w.sendTurn(at, client)
		case name != "":
			w.scheduleEvents(at, w.engines[name].Advance(at))
		default:
			return w.out.Bytes()
		}
	}
}

// sendTurn sends a client's next turn.
func (w *simulatedRecord) sendTurn(at time.Duration, c *recordedClient) {
	if c.turns == 0 {
		c.turns, c.prompt = 1+w.rng.IntN(4), nil
	}
	c.turns--
	for range w.lengths() {
		c.prompt = append(c.prompt, engine.Token(w.rng.Uint32()))
	}
	c.nextRequest, c.response = 0, 1+int(150*w.rng.ExpFloat64())
	if w.rng.IntN(10) == 0 {
		c.response = 1 // the response ends with its first token
	}
	w.next++
	w.waiting[w.next] = c
	// Prompts of one word: the cache contents do not affect the routing.
	w.step(at, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: fmt.Sprint(w.next), Model: replayModel, PromptTokens: len(c.prompt)}})
}

// scheduleEvents schedules an engine's events for delivery to the balancer.
func (w *simulatedRecord) scheduleEvents(at time.Duration, events []engine.Event) {
	for _, e := range events {
		d := delivery{at: at, event: core.Event{ID: fmt.Sprint(e.ID)}}
		switch {
		case e.First():
			d.event.Kind = core.EventFirstToken
		case e.Kind == engine.Finished:
			d.event.Kind, d.client = core.EventFinished, w.waiting[e.ID]
			if !w.uncounted {
				d.event.Outcome = &core.Outcome{
					PromptTokens: policy.Known(e.PromptTokens), CachedTokens: policy.Known(e.CachedTokens), OutputTokens: policy.Known(e.OutputTokens),
				}
			}
			delete(w.waiting, e.ID)
		default:
			continue
		}
		if w.networkDelay {
			d.at += time.Duration((1 + 0.3*w.rng.ExpFloat64()) * float64(time.Millisecond))
		}
		w.arrivals = append(w.arrivals, d)
	}
	slices.SortStableFunc(w.arrivals, func(a, b delivery) int { return cmp.Compare(a.at, b.at) })
}

// deliver sends the earliest event to the balancer, and starts the think time of the client.
func (w *simulatedRecord) deliver() {
	d := w.arrivals[0]
	w.arrivals = w.arrivals[1:]
	w.step(d.at, d.event)
	if d.client != nil {
		d.client.nextRequest = d.at + 1 + time.Duration(w.rng.ExpFloat64()*float64(w.thinking))
	}
}

// constants returns the constants of a profile in seconds, by name.
func constants(p *engine.Profile) map[string]float64 {
	return map[string]float64{
		"prefill base": p.PrefillBase.Seconds(), "prefill per token": p.PrefillPerToken.Seconds(),
		"decode base": p.DecodeBase.Seconds(), "decode per request": p.DecodePerRequest.Seconds(), "decode per context token": p.DecodePerKVToken.Seconds(),
	}
}

// calibrate fits a profile to a record and fails the test on errors.
func calibrate(t *testing.T, record []byte, o CalibrateOptions) *Calibration {
	t.Helper()
	c, err := Calibrate(t.Context(), "r.jsonl", bytes.NewReader(record), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// checkConstants compares a fitted profile with the simulated one.
func checkConstants(t *testing.T, c *Calibration, want *engine.Profile, within float64) {
	t.Helper()
	got, ran := constants(&c.Engines[0].Profile), constants(want)
	for _, name := range slices.Sorted(maps.Keys(ran)) {
		if off := got[name]/ran[name] - 1; math.Abs(off) > within {
			t.Errorf("%s: %s is %.4g s, want %.4g: %.1f%% off", want.Name, name, got[name], ran[name], 100*off)
		}
	}
}

// The fit recovers the constants of engines from a record, under light and heavy load.
func TestCalibrateRecoversConstants(t *testing.T) {
	testkit.NotUnderRace(t, "simulates and fits in one goroutine")
	l4, h100 := engine.Profiles()[0], engine.Profiles()[2]
	l4Mixed, h100Mixed := l4, h100
	l4Mixed.MixedSteps, h100Mixed.MixedSteps = true, true
	for _, p := range []engine.Profile{l4, h100, l4Mixed, h100Mixed} {
		p.KVTokens = 1_000_000
		for _, clients := range []int{6, 40} {
			w := newSimulatedRecord(t, p, 2, clients)
			c := calibrate(t, w.run(200*time.Second), CalibrateOptions{Fit: engine.FitOptions{ChunkTokens: p.ChunkTokens, KVTokens: 5}})
			checkConstants(t, c, &p, 0.015)
			if e := c.Engines[0].Errors; e[1].Quantity != "decode step" || e[1].Mean > 0.01 || e[0].N == 0 || e[0].Median > 0.1 {
				t.Errorf("%s, %d clients: errors are %+v", p.Name, clients, e)
			}
			if got := c.Engines[0].Profile.MixedSteps; got != p.MixedSteps {
				t.Errorf("%s, %d clients: mixed steps %t, want %t", p.Name, clients, got, p.MixedSteps)
			}
			if got := c.Engines[0]; got.KVTokens != 5 || got.Name != "recorded-llama" || got.MaxRunning != 256 || c.Format != CalibratedRecord {
				t.Errorf("options became %+v", got)
			}
		}
	}
}

// A varying network delay changes the result only a little.
func TestCalibrateToleratesNetworkDelay(t *testing.T) {
	p := engine.Profiles()[0]
	p.KVTokens = 1_000_000
	w := newSimulatedRecord(t, p, 2, 8)
	w.networkDelay = true
	c := calibrate(t, w.run(400*time.Second), CalibrateOptions{})
	checkConstants(t, c, &p, 0.05)
	if !strings.Contains(strings.Join(c.Assumed, "\n"), " ms besides its prefill, in the network and the balancer") {
		t.Errorf("assumed is %q", c.Assumed)
	}
}

// Speed scales the constants of engines that run ten times faster.
func TestCalibrateScalesBySpeed(t *testing.T) {
	p := engine.Profiles()[0]
	p.KVTokens = 1_000_000
	fast := p.Scaled(0.1)
	w := newSimulatedRecord(t, fast, 1, 6)
	w.thinking /= 10
	checkConstants(t, calibrate(t, w.run(40*time.Second), CalibrateOptions{Speed: 10}), &p, 0.02)
}

// Reports of the replicas reveal requests from other sources.
func TestCalibrateReportsForeignRequests(t *testing.T) {
	w := newSimulatedRecord(t, engine.Profiles()[0], 1, 6)
	w.run(100 * time.Second)
	for i := range 100 {
		at := 100*time.Second + time.Duration(i)*time.Second
		w.step(at, core.Event{Kind: core.EventReplicaReport, Target: "us-0", Report: &core.ProbeReport{Ready: true, Pending: policy.Known(4), Running: policy.Known(16)}})
	}
	c := calibrate(t, w.out.Bytes(), CalibrateOptions{})
	if !strings.Contains(strings.Join(c.Assumed, "\n"), "% more requests than this balancer sent: other clients use them") {
		t.Errorf("assumed is %q", c.Assumed)
	}
}

// The part of a record that is missing at its end is not a part of the fit, which must not look complete.
func TestCalibrateReportsTruncatedRecord(t *testing.T) {
	w := newSimulatedRecord(t, engine.Profiles()[0], 1, 6)
	w.run(100 * time.Second)
	const want = "the record ends in the middle of a line: the fit uses the lines before"
	for text, truncated := range map[string]bool{w.out.String(): false, w.out.String()[:w.out.Len()-3]: true} {
		all := strings.Join(calibrate(t, []byte(text), CalibrateOptions{}).Assumed, "\n")
		if strings.Contains(all, want) != truncated {
			t.Errorf("truncated %v: assumed is\n%s", truncated, all)
		}
	}
}

// The error for an insufficient record lists the missing data.
func TestCalibrateRejectsInsufficientRecords(t *testing.T) {
	p := engine.Profiles()[0]
	p.KVTokens = 1_000_000
	for _, c := range []struct {
		name string
		make func(w *simulatedRecord)
		run  time.Duration
		o    CalibrateOptions
		want string
	}{
		{"nothing", func(*simulatedRecord) {}, 1, CalibrateOptions{}, "reading r.jsonl: the record contains no request that was sent to a replica"},
		{"a few", func(*simulatedRecord) {}, 20 * time.Second, CalibrateOptions{}, "reading r.jsonl: fitting llama: must contain at least 50 requests with 2 output tokens or more and token counts from the engine, got "},
		{"no counts", func(w *simulatedRecord) { w.uncounted = true }, 100 * time.Second, CalibrateOptions{}, "token counts from the engine, got 0 of "},
		{"never together", func(w *simulatedRecord) { w.clients = w.clients[:1] }, 1000 * time.Second, CalibrateOptions{}, "missing for decode_per_request: requests that ran with different numbers of other requests"},
		{"another model", func(*simulatedRecord) {}, 100 * time.Second, CalibrateOptions{Model: "gpt"}, `reading r.jsonl: the record contains no request for model "gpt", only for llama`},
		{"hardware", func(*simulatedRecord) {}, 100 * time.Second, CalibrateOptions{Hardware: "a100"}, "reading r.jsonl: a record does not contain the hardware of its replicas"},
	} {
		w := newSimulatedRecord(t, p, 1, 6)
		c.make(w)
		if _, err := Calibrate(t.Context(), "r.jsonl", bytes.NewReader(w.run(c.run)), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// An attempt ends when its request leaves the replica: completed, failed and retried on another replica,
// cancelled, or at the end of the record.
func TestReadAttemptsTracksDispatches(t *testing.T) {
	ready := &core.ProbeReport{Ready: true, Pending: policy.Known(0)}
	ask := func(id string) core.Event {
		return core.Event{Kind: core.EventArrived, Request: &core.Request{ID: id, Model: "m", PromptTokens: 32}}
	}
	done := &core.Outcome{PromptTokens: policy.Known(40), CachedTokens: policy.Known(10), OutputTokens: policy.Known(3)}
	text := recordOf(t, "round-robin",
		recordedEvent{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "a", Model: "m"}}},
		recordedEvent{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "b", Model: "m"}}},
		recordedEvent{0, core.Event{Kind: core.EventReplicaReport, Target: "a", Report: ready}},
		recordedEvent{0, core.Event{Kind: core.EventReplicaReport, Target: "b", Report: ready}},
		recordedEvent{1, ask("completed")},                                        // at a
		recordedEvent{2, ask("completed")},                                        // rejected: duplicate ID
		recordedEvent{3, ask("retried")},                                          // at b
		recordedEvent{4, ask("cancelled")},                                        // at a
		recordedEvent{5, core.Event{Kind: core.EventFirstToken, ID: "completed"}}, //
		recordedEvent{6, core.Event{Kind: core.EventFailed, ID: "retried", Outcome: &core.Outcome{Retryable: true}}}, // retried at a
		recordedEvent{7, core.Event{Kind: core.EventFirstToken, ID: "retried"}},
		recordedEvent{8, core.Event{Kind: core.EventCancelled, ID: "cancelled"}},
		recordedEvent{9, core.Event{Kind: core.EventFinished, ID: "completed", Outcome: done}},
		recordedEvent{10, core.Event{Kind: core.EventFinished, ID: "retried", Outcome: done}},
		recordedEvent{11, ask("uncounted")},
		recordedEvent{12, core.Event{Kind: core.EventFirstToken, ID: "uncounted"}},
		recordedEvent{13, core.Event{Kind: core.EventFinished, ID: "uncounted"}},
		recordedEvent{14, ask("flying")},
		recordedEvent{15, core.Event{Kind: core.EventTick}},
	)
	r, err := openRecord("r", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := readAttempts(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range s.all {
		got = append(got, fmt.Sprintf("%s %d-%d-%d %d/%d %d %v", f.replica, f.sent, f.first, f.end, f.cached, f.prompt, f.output, f.usable))
	}
	want := []string{
		"a 1-5-9 10/40 3 true",
		"b 3-0-6 0/32 0 false",
		"a 4-0-8 0/32 0 false",
		"a 6-7-10 10/40 3 true",
		"b 11-12-13 0/32 0 false",
		"a 14-0-15 0/32 0 false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("attempts are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s.failed != 3 || s.uncounted != 1 || s.outstanding["a"] != 0 || s.outstanding["b"] != 0 {
		t.Errorf("failed %d, uncounted %d, outstanding %v", s.failed, s.uncounted, s.outstanding)
	}
}
