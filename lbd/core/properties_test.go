package core

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// world is a small model around one balancer: it tracks the targets of requests, so that only
// possible events are drawn.
type world struct {
	holders map[string]string   // by request, if it has one
	adapter map[string]string   // by request
	served  map[string][]string // the latest list of each replica; none = unknown
	refused map[string][]string // the adapters that a replica rejected since then
	b       *Balancer
	// wrongHolds is set if the policy was told a wrong number of held requests.
	wrongHolds string
	now        time.Duration
	next       int
	at         map[string]string // request -> target, "" = queued
	log        []Event
	ended      map[string]string
	asked      int
	events     [][]byte
}

func newWorld(cfg Config) *world {
	w := &world{b: New(cfg), holders: map[string]string{}, adapter: map[string]string{}, served: map[string][]string{}, refused: map[string][]string{}, at: map[string]string{}, ended: map[string]string{}}
	if cfg.Policy.Traits().Holds {
		w.b.cfg.Policy = &holdChecker{cfg.Policy, w}
	}
	return w
}

// holdChecker is a policy that compares the candidates' numbers of held requests with those of the replicas.
type holdChecker struct {
	policy.Policy
	w *world
}

func (h *holdChecker) Choose(f *policy.Facts) policy.Choice {
	for i := range f.Candidates {
		c := &f.Candidates[i]
		if held := h.w.holdsFor(c.ID); !c.Peer && c.Held != held {
			h.w.wrongHolds = fmt.Sprintf("%s: told that %d requests are held for %s, not %d", f.ID, c.Held, c.ID, held)
		}
	}
	return h.Policy.Choose(f)
}

// holdsFor returns the number of requests that are counted as held for a replica.
func (w *world) holdsFor(id string) int {
	if t := findTarget(w.b.replicas, id); t != nil {
		return t.heldRequests
	}
	return 0
}

func drawConfig(rt *rapid.T) Config {
	p, err := policy.New(rapid.SampledFrom(policy.Names()).Draw(rt, "policy"))
	if err != nil {
		rt.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.Push, err = ParsePush(rapid.SampledFrom([]string{"pending", "blind", "outstanding:2"}).Draw(rt, "push"))
	if err != nil {
		rt.Fatal(err)
	}
	cfg.Order = rapid.SampledFrom([]QueueOrder{OrderFCFS, OrderEDF, OrderPF, OrderDPA}).Draw(rt, "order")
	cfg.SevereAfter, cfg.UrgentBefore = time.Second, 200*time.Millisecond
	cfg.QueueLimit, cfg.MaxWait, cfg.TreeBytes, cfg.ShareBytes = 6, 3*time.Second, 4<<10, 2<<10
	cfg.ScaleToZero, cfg.MaxColdWait = rapid.SampledFrom([]map[string]bool{nil, {"m": true}, {"m": true, "n": true}}).Draw(rt, "scale to zero"), 5*time.Second
	cfg.TreeOrder = rapid.SampledFrom([]prefix.Order{prefix.LeastRecent, prefix.EarliestInserted}).Draw(rt, "tree order")
	return cfg
}

var (
	replicaNames = []string{"r0", "r1", "r2", "r3"}
	peerNames    = []string{"eu", "asia"}
)

// draw returns a possible next event.
func (w *world) draw(rt *rapid.T) Event {
	replica := rapid.SampledFrom(replicaNames).Draw(rt, "replica")
	peer := rapid.SampledFrom(peerNames).Draw(rt, "peer")
	model := rapid.SampledFrom([]string{"m", "n"}).Draw(rt, "model")
	switch rapid.IntRange(0, 19).Draw(rt, "kind") {
	case 0, 1, 2, 3:
		w.next++
		r := &Request{ID: fmt.Sprintf("q%d", w.next), Model: model, Prompt: letters(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 5, -1).Draw(rt, "prompt"))}
		r.Adapter = rapid.SampledFrom([]string{"", "", "sql", "law"}).Draw(rt, "adapter")
		w.adapter[r.ID] = r.Adapter
		r.Session = rapid.SampledFrom([]string{"", "s1", "s2"}).Draw(rt, "session")
		r.Tenant = rapid.SampledFrom([]string{"", "", "t1", "t2"}).Draw(rt, "tenant")
		r.Tier = rapid.SampledFrom([]service.Tier{"", service.TierFast, service.TierNormal, service.TierDeferred}).Draw(rt, "tier")
		r.PromptTokens = rapid.IntRange(0, 100).Draw(rt, "prompt tokens")
		r.Streamed = rapid.Bool().Draw(rt, "streamed")
		r.MaxTokens = rapid.SampledFrom([]int{0, 0, 10, 500}).Draw(rt, "max tokens")
		r.Fingerprint = uint64(rapid.IntRange(0, 3).Draw(rt, "fingerprint"))
		if rapid.IntRange(0, 4).Draw(rt, "forwarded") == 0 {
			r.From, r.Hop, r.Kills = peer, HopRemote, rapid.IntRange(0, 2).Draw(rt, "kills")
		}
		if rapid.IntRange(0, 5).Draw(rt, "held") == 0 {
			r.PinnedTo = rapid.SampledFrom([]string{replica, peer, "unheard-of"}).Draw(rt, "holder")
			w.holders[r.ID] = r.PinnedTo
		}
		return Event{Kind: EventArrived, Request: r}
	case 4:
		return Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: replica, Model: model}}
	case 5:
		return Event{Kind: EventReplicaRemoved, Target: replica}
	case 6:
		return Event{Kind: EventReplicaDraining, Target: replica}
	case 7, 8:
		rep := &ProbeReport{Ready: rapid.IntRange(0, 5).Draw(rt, "up") > 0, Age: time.Millisecond}
		if rapid.Bool().Draw(rt, "metrics") {
			rep.Pending = policy.Known(rapid.IntRange(0, 1).Draw(rt, "pending"))
			rep.KV = policy.Known(rapid.Float64Range(0, 1).Draw(rt, "kv"))
		}
		return Event{Kind: EventReplicaReport, Target: replica, Report: rep}
	case 9:
		return Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: peer, SameRegion: rapid.Bool().Draw(rt, "same")}}
	case 10:
		return Event{Kind: EventPeerRemoved, Target: peer}
	case 11:
		return Event{Kind: EventPeerReport, Target: peer, PeerReport: &PeerReport{
			Age: 50 * time.Millisecond, RTT: 100 * time.Millisecond, StoppedFingerprints: drawKillers(rt),
			Models: []ModelLoad{{Model: "m", Replicas: 2, Available: rapid.IntRange(0, 2).Draw(rt, "available"), Queued: rapid.IntRange(0, 3).Draw(rt, "queued"), Adapters: drawAdapters(rt)}},
		}}
	case 12:
		return Event{Kind: EventTick}
	case 19:
		return Event{Kind: EventReplicaNames, Target: replica, Names: drawNames(rt)}
	case 18:
		return drawLearned(rt, peer)
	case 13, 14:
		return Event{Kind: EventProgress, Target: replica, Tokens: rapid.IntRange(0, 300).Draw(rt, "tokens")}
	}
	return w.drawEnd(rt)
}

// drawNames returns a list of served names, which may be unknown and is not sorted.
func drawNames(rt *rapid.T) []string {
	return rapid.SampledFrom([][]string{nil, {"m"}, {"sql", "m"}, {"sql", "law", "m", "n"}}).Draw(rt, "names")
}

// drawAdapters returns the adapters of a peer's heartbeat.
func drawAdapters(rt *rapid.T) policy.Maybe[[]string] {
	return rapid.SampledFrom([]policy.Maybe[[]string]{{}, policy.Known([]string{}), policy.Known([]string{"sql", "law"})}).Draw(rt, "peer adapters")
}

// drawLearned returns cache updates that a peer could send, of own and other replicas.
func drawLearned(rt *rapid.T, peer string) Event {
	ev := Event{Kind: EventPeerCacheUpdates, Target: peer}
	for range rapid.IntRange(0, 4).Draw(rt, "entries") {
		e := CacheUpdate{
			Replica: rapid.SampledFrom(append([]string{"x", "y"}, replicaNames...)).Draw(rt, "of"),
			Process: rapid.SampledFrom([]string{"", "", "", "other"}).Draw(rt, "process"),
			Age:     time.Duration(rapid.IntRange(0, 5000).Draw(rt, "age")) * time.Millisecond,
		}
		if e.CacheLost = rapid.IntRange(0, 4).Draw(rt, "forgotten") == 0; !e.CacheLost {
			e.Key = letters(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 5, -1).Draw(rt, "key"))
			e.IncludesResponse, e.SessionAge = rapid.Bool().Draw(rt, "answered"), 2*e.Age
		}
		ev.CacheUpdates = append(ev.CacheUpdates, e)
	}
	return ev
}

// drawKillers draws the killers of a peer's heartbeat.
func drawKillers(rt *rapid.T) (killers []StoppedFingerprint) {
	for range rapid.IntRange(-8, 2).Draw(rt, "killers") {
		killers = append(killers, StoppedFingerprint{
			Fingerprint: uint64(rapid.IntRange(0, 5).Draw(rt, "killer")),
			Age:         time.Duration(rapid.IntRange(-1, 700_000).Draw(rt, "stopped")) * time.Millisecond,
		})
	}
	return killers
}

// drawEnd returns an end event of a request in flight, or of one that is not.
func (w *world) drawEnd(rt *rapid.T) Event {
	ids := []string{"unheard-of"}
	for id := range w.at {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	id := rapid.SampledFrom(ids).Draw(rt, "id")
	switch rapid.IntRange(0, 4).Draw(rt, "end") {
	case 0:
		return Event{Kind: EventFirstToken, ID: id}
	case 1:
		return Event{Kind: EventFailed, ID: id, Outcome: &Outcome{
			Retryable: rapid.Bool().Draw(rt, "retryable"), Unreachable: rapid.Bool().Draw(rt, "unreachable"), EngineMayHaveDied: rapid.Bool().Draw(rt, "broke"),
			Refused: rapid.Bool().Draw(rt, "refused"), FaultUnclear: rapid.Bool().Draw(rt, "unsure"), LacksModel: rapid.Bool().Draw(rt, "lacks"), Kills: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "kills there"),
		}}
	case 2:
		return Event{Kind: EventCancelled, ID: id}
	case 3:
		return Event{Kind: EventBounced, ID: id, Outcome: &Outcome{LacksModel: rapid.Bool().Draw(rt, "lacks"), Kills: rapid.SampledFrom([]int{0, 0, 1}).Draw(rt, "kills there")}}
	}
	out := &Outcome{Key: letters("abab"), ClientError: rapid.IntRange(0, 4).Draw(rt, "client error") == 0}
	if rapid.Bool().Draw(rt, "tells tokens") {
		out.OutputTokens = policy.Known(rapid.IntRange(0, 600).Draw(rt, "output"))
	}
	return Event{Kind: EventFinished, ID: id, Outcome: out}
}

// step processes an event and compares the actions with the model.
func (w *world) step(t fatal, ev Event) []Action {
	w.now += 37 * time.Millisecond
	w.log = append(w.log, ev)
	target := w.at[ev.ID]
	w.trackNames(ev, target)
	actions := w.b.Step(w.now, ev)
	switch ev.Kind {
	case EventArrived:
		w.asked++
		w.at[ev.Request.ID] = ""
	case EventFinished:
		if target != "" {
			w.end(t, ev.ID, "finished")
		}
	case EventFailed, EventBounced:
		// Queued again, unless there is another action. Replicas do not bounce.
		if ev.Kind == EventFailed || slices.Contains(peerNames, target) {
			if _, ok := w.at[ev.ID]; ok {
				w.at[ev.ID] = ""
			}
		}
	case EventCancelled:
		if _, ok := w.at[ev.ID]; ok {
			w.end(t, ev.ID, "cancelled")
		}
	}
	for _, a := range actions {
		switch a.Kind {
		case ActionDispatch, ActionForward:
			if a.Target == "" || a.Decision == nil || a.Reason == "" {
				t.Fatalf("unexplained %+v", a)
			}
			if holder := w.holders[a.ID]; holder != "" && holder != a.Target {
				t.Fatalf("%s, which %s alone can serve, goes to %s", a.ID, holder, a.Target)
			}
			w.checkAdapter(t, a)
			w.at[a.ID] = a.Target
		case ActionReject, ActionBounce:
			w.end(t, a.ID, string(a.Kind))
		}
	}
	b, err := json.Marshal(struct {
		E Event
		A []Action
	}{ev, actions})
	if err != nil {
		t.Fatalf("%v", err)
	}
	w.events = append(w.events, b)
	return actions
}

// trackNames updates the latest list of each replica, and what it rejected since.
func (w *world) trackNames(ev Event, target string) {
	switch ev.Kind {
	case EventReplicaNames:
		if findTarget(w.b.replicas, ev.Target) != nil {
			w.served[ev.Target], w.refused[ev.Target] = ev.Names, nil
		}
	case EventReplicaAdded:
		if t := findTarget(w.b.replicas, ev.Replica.ID); t == nil || t.model != ev.Replica.Model {
			delete(w.served, ev.Replica.ID)
			delete(w.refused, ev.Replica.ID)
		}
	case EventFailed:
		if ev.Outcome.LacksModel && findTarget(w.b.replicas, target) != nil {
			w.refused[target] = append(w.refused[target], w.adapter[ev.ID])
		}
	case EventBounced:
		if ev.Outcome.LacksModel && slices.Contains(peerNames, target) {
			w.refused[target] = append(w.refused[target], w.adapter[ev.ID])
		}
	case EventPeerReport:
		delete(w.refused, ev.Target)
	case EventPeerRemoved:
		delete(w.refused, ev.Target)
	}
}

// checkAdapter checks that a request is not sent to a replica that lacks its adapter, nor to a peer that has bounced
// it since its last report.
func (w *world) checkAdapter(t fatal, a Action) {
	names, adapter := w.served[a.Target], w.adapter[a.ID]
	if adapter == "" {
		return
	}
	if names != nil && !slices.Contains(names, adapter) || slices.Contains(w.refused[a.Target], adapter) {
		t.Fatalf("%s needs the adapter %s and goes to %s, which lists %v and rejected %v", a.ID, adapter, a.Target, names, w.refused[a.Target])
	}
}

type fatal interface{ Fatalf(string, ...any) }

func (w *world) end(t fatal, id, how string) {
	if before, twice := w.ended[id]; twice {
		t.Fatalf("request %s %s, after it had %s", id, how, before)
	}
	w.ended[id] = how
	delete(w.at, id)
}

func (w *world) checkCounts(t fatal) {
	c := w.b.Snapshot(w.now).Counts
	if sum := c.Finished + c.Rejected + c.Cancelled + c.Bounced + int64(c.Queued) + int64(c.Outstanding); sum != c.Arrived || c.Arrived != int64(w.asked) {
		t.Fatalf("%d arrived, %d accounted for: %+v", w.asked, sum, c)
	}
	if c.Queued < 0 || c.Outstanding < 0 || c.Queued+c.Outstanding != len(w.at) {
		t.Fatalf("%d in flight, counted %+v", len(w.at), c)
	}
	total := 0
	for _, r := range w.b.Snapshot(w.now).Replicas {
		if r.Outstanding < 0 {
			t.Fatalf("replica %s has %d outstanding", r.ID, r.Outstanding)
		}
		total += r.Outstanding
	}
	if total > c.Outstanding {
		t.Fatalf("replicas carry %d, counted %d", total, c.Outstanding)
	}
	if w.wrongHolds != "" {
		t.Fatalf("%s", w.wrongHolds)
	}
	for _, replica := range w.b.replicas {
		waiting := 0 // requests that may be held for it
		for _, r := range w.b.requests {
			if r.target == nil && r.waitsFor == replica {
				waiting++
			}
		}
		if replica.heldRequests < 0 || replica.heldRequests > waiting {
			t.Fatalf("%d requests are held for %s, and %d wait for it", replica.heldRequests, replica.id, waiting)
		}
	}
	byModel := 0
	for _, q := range w.b.queues {
		byModel += q.outstanding
	}
	if byModel != c.Outstanding {
		t.Fatalf("models have %d outstanding, counted %d", byModel, c.Outstanding)
	}
}

// checkModels compares the counts per model with the requests themselves.
func (w *world) checkModels(t fatal) {
	want := map[string]ModelView{}
	for model := range w.b.cfg.ScaleToZero {
		want[model] = ModelView{Model: model}
	}
	for _, r := range w.b.replicas {
		want[r.model] = ModelView{Model: r.model}
	}
	used := map[string]bool{}
	for _, r := range w.b.requests {
		if used[r.Model] = true; r.target != nil {
			continue
		}
		m := want[r.Model]
		if m.Model = r.Model; r.Tier == service.TierDeferred {
			m.Deferred++
		} else {
			m.Queued++
		}
		want[r.Model] = m
	}
	got := w.b.Snapshot(w.now).Models
	if !slices.IsSortedFunc(got, func(x, y ModelView) int { return cmp.Compare(x.Model, y.Model) }) || len(got) != len(want) {
		t.Fatalf("models %+v, want %+v, sorted", got, want)
	}
	for _, m := range got {
		if m.Idle < 0 || used[m.Model] && m.Idle != 0 {
			t.Fatalf("%s has a request, told it is idle for %v", m.Model, m.Idle)
		}
		if m.FirstTokens, m.Late, m.Idle, m.Cold = 0, 0, 0, false; m != want[m.Model] {
			t.Fatalf("told %+v, want %+v", m, want[m.Model])
		}
	}
}

// A policy that holds requests knows at each decision how many are held for each replica. One that is sent, rejected or
// cancelled is no longer held.
func TestHeldRequestsAreCounted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := drawConfig(rt)
		cfg.Policy, cfg.Push = policy.NewCost(), PushMode{Kind: PushPending}
		w := newWorld(cfg)
		for range rapid.IntRange(50, 200).Draw(rt, "events") {
			w.step(rt, w.draw(rt))
			w.checkCounts(rt)
		}
	})
}

// Every request ends exactly once and is counted at every moment. When traffic ends, every counter
// is zero.
func TestNoRequestIsLostAndCountersReachZero(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(drawConfig(rt))
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			w.step(rt, w.draw(rt))
			w.checkCounts(rt)
			w.checkModels(rt)
		}
		var left []string
		for id := range w.at {
			left = append(left, id)
		}
		slices.Sort(left)
		for _, id := range left {
			if _, there := w.at[id]; there {
				w.step(rt, Event{Kind: EventCancelled, ID: id})
			}
		}
		w.checkCounts(rt)
		v := w.b.Snapshot(w.now)
		if v.Counts.Queued != 0 || v.Counts.Outstanding != 0 || len(w.b.requests) != 0 {
			rt.Fatalf("traffic ended, still counted: %+v", v.Counts)
		}
		for _, ts := range [][]*target{w.b.replicas, w.b.peers} {
			for _, x := range ts {
				if x.outstanding != 0 || len(x.unconfirmed) != 0 || x.work != (work{}) {
					rt.Fatalf("%s: %d outstanding, %d unconfirmed, %+v to do after the end", x.id, x.outstanding, len(x.unconfirmed), x.work)
				}
			}
		}
		for range 2 { // in the first, replicas are found to be lost
			w.now += time.Hour
			w.step(rt, Event{Kind: EventTick})
		}
		for _, x := range w.b.replicas {
			if x.failedLoad.count != 0 || len(x.failedLoad.list) != 0 || x.failedLoad.context != 0 || x.failedLoad.remaining != 0 || len(x.openFailures) != 0 || x.isolation.request != nil {
				rt.Fatalf("%s: an hour later %+v still counts, %d failures are open, %v is isolated", x.id, x.failedLoad, len(x.openFailures), x.isolation.request)
			}
		}
		if k := &w.b.suspects; len(k.list) != 0 || len(k.byFingerprint) != 0 {
			rt.Fatalf("an hour later %d and %d suspects are remembered", len(k.list), len(k.byFingerprint))
		}
	})
}

// The same events result in the same bytes, also after a round trip through JSON, so a recorded log
// can be replayed.
func TestReplayGivesSameDecisions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := drawConfig(rt)
		w := newWorld(cfg)
		for range rapid.IntRange(1, 50).Draw(rt, "events") {
			w.step(rt, w.draw(rt))
		}
		again := cfg
		again.Policy, _ = policy.New(cfg.Policy.Name())
		replay := newWorld(again)
		for i, ev := range w.log {
			b, err := json.Marshal(ev)
			if err != nil {
				rt.Fatal(err)
			}
			var read Event
			if err := json.Unmarshal(b, &read); err != nil {
				rt.Fatal(err)
			}
			replay.step(rt, read)
			if string(replay.events[i]) != string(w.events[i]) {
				rt.Fatalf("event %d: first\n%s\nthen\n%s", i, w.events[i], replay.events[i])
			}
		}
	})
}

// The order in which replicas were added has no effect, and neither has a replica that never
// responds.
func TestReplicaOrderAndDeadReplicasAreIgnored(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := drawConfig(rt)
		other := cfg
		other.Policy, _ = policy.New(cfg.Policy.Name())
		a, b := newWorld(cfg), newWorld(other)
		order := rapid.Permutation(replicaNames).Draw(rt, "order")
		b.step(rt, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "never", Model: "m"}})
		for i := range replicaNames {
			a.now, b.now = 0, 0 // all at one moment, because the time of addition decides which updates of a replica count
			a.step(rt, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: replicaNames[i], Model: "m"}})
			b.step(rt, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: order[i], Model: "m"}})
		}
		b.now = a.now
		for range 40 {
			ev := a.draw(rt)
			if ev.Kind == EventReplicaRemoved || (ev.Kind == EventReplicaAdded && ev.Replica.Model != "m") {
				continue // once the last one of m is removed, only "never" keeps requests waiting
			}
			if got, want := outline(b.step(rt, ev)), outline(a.step(rt, ev)); !reflect.DeepEqual(got, want) {
				rt.Fatalf("%+v: %v with the replicas in order %v, %v in order %v", ev, got, order, want, replicaNames)
			}
			b.now = a.now
		}
	})
}

func outline(actions []Action) []string {
	var out []string
	for _, a := range actions {
		out = append(out, fmt.Sprint(a.Kind, a.ID, a.Target, a.Reason))
	}
	return out
}

func TestPushModeRoundTrip(t *testing.T) {
	for in, want := range map[string]string{"": "pending", "pending": "pending", "blind": "blind", "outstanding:24": "outstanding:24"} {
		p, err := ParsePush(in)
		if err != nil || p.String() != want {
			t.Errorf("%q: %v, %v; want %s", in, p, err, want)
		}
	}
	for _, in := range []string{"outstanding", "outstanding:0", "outstanding:-1", "outstanding:x", "Blind"} {
		if _, err := ParsePush(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}
