package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/testkit"
	"skyserve/lbd/policy"
)

// contest is a balancer with replicas that generate one token a step for each request there, and
// tenants that always have requests waiting. It counts the service of each tenant by the engines'
// own counts.
type contest struct {
	b       *Balancer
	now     time.Duration
	step    time.Duration
	prompt  int
	next    int
	running []*job
	got     map[string]int // prompt and answer tokens computed for each tenant
	turns   map[string]int // requests sent
	tells   bool           // outcomes contain the tokens, as from the proxy
	length  func(tenant string) int
	ending  func(tenant string, length int) (at int, how EventKind)
}

// job is a request in the contest.
type job struct {
	id, tenant string
	length     int // of the whole answer
	had        int // tokens generated
	stopAt     int // the event that ends it then
	how        EventKind
	there      bool
}

func newContest(t fatal, policyName string, replicas, slots int) *contest {
	p, err := policy.New(policyName)
	if err != nil {
		t.Fatalf("%v", err)
	}
	cfg := DefaultConfig(p)
	cfg.Push, cfg.ProbeInterval, cfg.MaxWait, cfg.RetryBackoff, cfg.EjectAfter = PushMode{Kind: PushOutstanding, N: slots}, time.Hour, 100*time.Hour, 0, 0
	cfg.RetryBurst = 0
	return &contest{b: start(cfg, replicas), step: 100 * time.Millisecond, prompt: 10, got: map[string]int{}, turns: map[string]int{}, tells: true}
}

// ask adds a request of a tenant.
func (c *contest) ask(tenant string) {
	c.next++
	length := c.length(tenant)
	at, how := c.ending(tenant, length)
	j := &job{id: fmt.Sprintf("q%04d", c.next), tenant: tenant, length: length, stopAt: at, how: how}
	c.running = append(c.running, j)
	c.took(c.b.Step(c.now, Event{Kind: EventArrived, Request: &Request{
		ID: j.id, Model: "m", Tenant: tenant, Session: j.id, PromptTokens: c.prompt, MaxTokens: j.length,
	}}))
}

func (c *contest) took(actions []Action) {
	for _, a := range actions {
		if a.Kind != ActionDispatch {
			continue
		}
		j := c.running[slices.IndexFunc(c.running, func(j *job) bool { return j.id == a.ID })]
		j.there = true
		c.turns[j.tenant]++
		c.got[j.tenant] += c.prompt
	}
}

// run runs a number of steps.
func (c *contest) run(steps int, tenants ...string) {
	for range steps {
		c.now += c.step
		for _, tenant := range tenants {
			for c.waiting(tenant) < 4 {
				c.ask(tenant)
			}
		}
		for _, j := range slices.Clone(c.running) {
			if j.there {
				c.generate(j)
			}
		}
		c.took(c.b.Step(c.now, Event{Kind: EventTick}))
	}
}

func (c *contest) waiting(tenant string) (n int) {
	for _, j := range c.running {
		if j.tenant == tenant && !j.there {
			n++
		}
	}
	return n
}

// generate is one step of a request at its replica.
func (c *contest) generate(j *job) {
	j.had++
	c.got[j.tenant]++
	if j.had == 1 {
		c.took(c.b.Step(c.now, Event{Kind: EventFirstToken, ID: j.id}))
	}
	out := &Outcome{PromptTokens: policy.Known(c.prompt), OutputTokens: policy.Known(j.had)}
	if !c.tells {
		out = nil
	}
	switch {
	case j.had >= j.length:
		c.end(j, Event{Kind: EventFinished, ID: j.id, Outcome: &Outcome{PromptTokens: policy.Known(c.prompt), OutputTokens: policy.Known(j.had)}})
	case j.had >= j.stopAt && j.how == EventFailed: // its replica dies and another one continues
		j.how, j.there = "", false
		c.took(c.b.Step(c.now, Event{Kind: EventFailed, ID: j.id, Outcome: &Outcome{Retryable: true, PromptTokens: policy.Known(c.prompt), OutputTokens: policy.Known(j.had)}}))
	case j.had >= j.stopAt && j.how == EventCancelled:
		c.end(j, Event{Kind: EventCancelled, ID: j.id, Outcome: out})
	}
}

func (c *contest) end(j *job, ev Event) {
	c.running = slices.DeleteFunc(c.running, func(o *job) bool { return o == j })
	c.took(c.b.Step(c.now, ev))
}

func always(n int) func(string) int { return func(string) int { return n } }

// justBefore disconnects one token before the end, for the tenant of that name.
func justBefore(name string) func(string, int) (int, EventKind) {
	return func(tenant string, length int) (int, EventKind) {
		if tenant == name {
			return length - 1, EventCancelled
		}
		return 0, ""
	}
}

// A tenant that disconnects just before the end of each answer is not served more than one that
// reads to the end, whether or not the events contain token counts.
func TestEarlyDisconnectGainsNoShare(t *testing.T) {
	testkit.Slow(t)
	everyPolicy(t, func(t *testing.T, cfg Config) {
		for _, tells := range []bool{true, false} {
			c := newContest(t, cfg.Policy.Name(), 1, 4)
			c.tells = tells
			c.length, c.ending = always(1000), justBefore("quits")
			c.run(20_000, "quits", "reads")
			if quits, reads := c.got["quits"], c.got["reads"]; float64(quits) > 1.2*float64(reads) || float64(reads) > 1.2*float64(quits) {
				t.Errorf("told %v: the one that hangs up got %d tokens in %d turns, the other %d in %d", tells, quits, c.turns["quits"], reads, c.turns["reads"])
			}
		}
	})
}

// A long answer is charged while it is generated, not only at its end: the next request is that of
// the tenant that was served less by then.
func TestAnswerIsChargedWhileGenerated(t *testing.T) {
	for _, streamed := range []bool{true, false} {
		p, err := policy.New("least-load")
		if err != nil {
			t.Fatal(err)
		}
		cfg := DefaultConfig(p)
		cfg.Push, cfg.ProbeInterval = PushMode{Kind: PushOutstanding, N: 2}, time.Hour
		b := start(cfg, 1)
		ask(t, b, 0, Request{ID: "long0", Tenant: "long", PromptTokens: 10})
		ask(t, b, 0, Request{ID: "short0", Tenant: "short", PromptTokens: 100})
		if streamed {
			b.Step(1, Event{Kind: EventFirstToken, ID: "long0"})
		}
		for _, tenant := range []string{"long", "short"} {
			b.Step(2, Event{Kind: EventArrived, Request: &Request{ID: tenant + "1", Model: "m", Tenant: tenant, PromptTokens: 10}})
		}
		b.Step(20*time.Second, Event{Kind: EventTick})
		actions := b.Step(20*time.Second, Event{Kind: EventFinished, ID: "short0", Outcome: &Outcome{OutputTokens: policy.Known(20)}})
		if len(actions) != 1 || actions[0].ID != "short1" {
			t.Errorf("streamed %v: after 20 s of a long answer the next turn is %v, want short1's", streamed, outline(actions))
		}
	}
}

// For random histories and any way in which a tenant ends its requests: it is served at most a
// small factor more than another tenant with the same demand, apart from the requests in the slots.
func TestCancellationGainsNoShare(t *testing.T) {
	testkit.Slow(t)
	rapid.Check(t, func(rt *rapid.T) {
		replicas, slots := rapid.IntRange(1, 3).Draw(rt, "replicas"), rapid.IntRange(1, 3).Draw(rt, "slots")
		c := newContest(rt, rapid.SampledFrom([]string{"least-load", "cost", "skylb", "bf-io"}).Draw(rt, "policy"), replicas, slots)
		longest := rapid.IntRange(5, 40).Draw(rt, "longest")
		c.prompt = rapid.IntRange(0, 20).Draw(rt, "prompt")
		c.length = func(string) int { return rapid.IntRange(2, longest).Draw(rt, "length") }
		habit := rapid.IntRange(1, 100).Draw(rt, "gives up after, in percent")
		fails := rapid.IntRange(0, 3).Draw(rt, "one in how many fails")
		c.ending = func(tenant string, length int) (int, EventKind) {
			switch {
			case tenant == "honest":
				return 0, ""
			case fails > 0 && rapid.IntRange(0, fails).Draw(rt, "fails") == 0:
				return rapid.IntRange(1, length).Draw(rt, "at"), EventFailed
			}
			return max(1, length*habit/100), EventCancelled
		}
		c.run(1500, "honest", "other")
		slack := 2 * replicas * slots * (longest + c.prompt)
		if honest, other := c.got["honest"], c.got["other"]; other > honest*3/2+slack {
			rt.Fatalf("the tenant that gives up got %d tokens, the honest one %d; the slots hold %d", other, honest, slack)
		}
	})
}

// chargedTo returns the current charge of a tenant.
func chargedTo(b *Balancer, tenant string) int64 { return b.queue("m").Served(tenant) }

// alone is a balancer with one idle replica and the account of one tenant.
func alone(t *testing.T) *Balancer {
	t.Helper()
	p, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.ProbeInterval, cfg.RetryBackoff = time.Hour, 0
	return start(cfg, 2)
}

// The final charge of a request for each outcome: its prompt once and the generated tokens, also if
// several replicas worked on it.
func TestChargeByOutcome(t *testing.T) {
	known := func(output, earlier int) *Outcome {
		return &Outcome{OutputTokens: policy.Known(output), EarlierTokens: earlier}
	}
	retryable := func(o *Outcome) *Outcome { o.Retryable = true; return o }
	ends := func(kind EventKind, out *Outcome) Event { return Event{Kind: kind, ID: "q", Outcome: out} }
	for name, c := range map[string]struct {
		events []Event
		want   int64
	}{
		"cancelled":                                      {[]Event{ends(EventCancelled, known(900, 0))}, 1000},
		"cancelled before anything came":                 {[]Event{ends(EventCancelled, known(0, 0))}, 100},
		"cancelled, and more of it than there can be":    {[]Event{ends(EventCancelled, known(1<<40, 0))}, 100 + maxTokens},
		"failed for good after some of it":               {[]Event{ends(EventFailed, known(40, 0))}, 140},
		"failed for good, and nobody says how much":      {[]Event{ends(EventFailed, &Outcome{})}, 100},
		"refused by one replica":                         {[]Event{ends(EventFailed, retryable(&Outcome{})), ends(EventFinished, known(30, 0))}, 130},
		"refused by one replica, then cancelled":         {[]Event{ends(EventFailed, retryable(&Outcome{})), ends(EventCancelled, known(7, 0))}, 107},
		"continued by another one":                       {[]Event{ends(EventFailed, retryable(known(40, 0))), ends(EventFinished, known(90, 40))}, 190},
		"continued by another one, then cancelled":       {[]Event{ends(EventFailed, retryable(known(40, 0))), ends(EventCancelled, known(60, 40))}, 160},
		"broken off, then asked for anew":                {[]Event{ends(EventFailed, retryable(known(500, 0))), ends(EventFinished, known(20, 0))}, 120},
		"broken off, then given up soon":                 {[]Event{ends(EventFailed, retryable(known(500, 0))), ends(EventCancelled, known(3, 0))}, 600},
		"broken off by every replica until it was given": {[]Event{ends(EventFailed, retryable(known(500, 0))), ends(EventFailed, known(300, 0))}, 600},
		"served by the engine's own figures":             {[]Event{ends(EventFinished, &Outcome{PromptTokens: policy.Known(80), OutputTokens: policy.Known(30)})}, 110},
	} {
		b := alone(t)
		ask(t, b, 0, Request{ID: "q", Tenant: "t", PromptTokens: 100})
		for _, ev := range c.events {
			b.Step(time.Millisecond, ev)
		}
		if got := chargedTo(b, "t"); got != c.want {
			t.Errorf("%s: charged %d tokens, want %d", name, got, c.want)
		}
		if len(b.requests) != 0 {
			t.Errorf("%s: it has not ended", name)
		}
	}
}

// While a request waits for a retry it is not free: the computed tokens stay charged, and the
// second send does not charge them again.
func TestRetryIsChargedOnce(t *testing.T) {
	b := alone(t)
	ask(t, b, 0, Request{ID: "q", Tenant: "t", PromptTokens: 100})
	if got := chargedTo(b, "t"); got != 100 {
		t.Fatalf("sent: charged %d tokens, want the prompt's 100", got)
	}
	actions := b.Step(time.Millisecond, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true, OutputTokens: policy.Known(50)}})
	if len(actions) != 1 || actions[0].Kind != ActionDispatch {
		t.Fatalf("after a failure: %+v", actions)
	}
	if got := chargedTo(b, "t"); got != 150 {
		t.Errorf("sent again: charged %d tokens, want 150", got)
	}
}

// Without a token count, the generated tokens are estimated from the time at the replica and its
// pace, up to the request's bound.
func TestGeneratedIsEstimatedFromTimeAndPace(t *testing.T) {
	for name, c := range map[string]struct {
		request  Request
		after    time.Duration
		from, to int
	}{
		"half of it":              {Request{MaxTokens: 1000}, 5 * time.Second, 450, 550},
		"all of it":               {Request{MaxTokens: 1000}, 20 * time.Second, 1000, 1000},
		"no bound":                {Request{}, 5 * time.Second, 450, 550},
		"no bound, for very long": {Request{}, time.Hour, maxUnboundedAnswer, maxUnboundedAnswer},
		"several answers at once": {Request{MaxTokens: 1000, Completions: 4}, 5 * time.Second, 1800, 2200},
		"several, each bounded":   {Request{MaxTokens: 100, Completions: 4}, time.Minute, 400, 400},
		"an embedding":            {Request{Completions: -1}, time.Minute, 0, 0},
		"a long prompt first":     {Request{PromptTokens: 10_000, MaxTokens: 1000}, 10 * time.Millisecond, 0, 0},
	} {
		b := alone(t)
		now := time.Duration(0)
		for i := range 20 { // 500 tokens in 5 s each: an engine of 100 tokens a second
			id := fmt.Sprint("before", i)
			for _, at := range []string{"a", "b"} { // one at each replica
				ask(t, b, now, Request{ID: id + at, PromptTokens: 1})
			}
			now += 5 * time.Second
			for _, at := range []string{"a", "b"} {
				b.Step(now, Event{Kind: EventFinished, ID: id + at, Outcome: &Outcome{OutputTokens: policy.Known(500)}})
			}
		}
		c.request.ID, c.request.Tenant = "q", "t"
		if c.request.PromptTokens == 0 {
			c.request.PromptTokens = 1
		}
		ask(t, b, now, c.request)
		if got := b.GeneratedTokens(now+c.after, "q"); got < c.from || got > c.to {
			t.Errorf("%s: %d tokens after %s, want %d to %d", name, got, c.after, c.from, c.to)
		}
	}
	if got := alone(t).GeneratedTokens(0, "unheard-of"); got != 0 {
		t.Errorf("%d tokens of a request that is not there", got)
	}
}

// An account never falls below the value to which it was raised, whatever is refunded later.
// Otherwise a tenant could accumulate credit with charges that are refunded.
func TestRefundGivesNoCredit(t *testing.T) {
	b := flooded(t, "least-load", 4096)
	arrive(b, 0, "early", "saver")
	q := b.queue("m")
	early := b.requests["early"]
	q.removeRequest(early)
	q.recordSent(early)
	q.setCharge(b.requests["flood1"], 5000)
	q.removeRequest(b.requests["flood1"]) // the last that left the queue was served 5000
	for q.Len() > 0 {
		q.removeRequest(q.First(nil, 0, 1)[0])
	}
	q.pushRequest(0, waiting(1<<20, 0, Request{Tenant: "saver", PromptTokens: 1}))
	lifted := q.Served("saver")
	if lifted < 5000 {
		t.Fatalf("it was lifted to %d, want 5000 at least", lifted)
	}
	q.setCharge(early, 0)
	if got := q.Served("saver"); got != lifted {
		t.Errorf("what was given back took it from %d to %d", lifted, got)
	}
}
