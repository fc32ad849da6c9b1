package core

import (
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// A request whose answer was interrupted may wait for another replica as long as a new request: the
// time of the answer does not count.
func TestBrokenStreamRestartsMaxWait(t *testing.T) {
	for name, c := range map[string]struct {
		talked  bool
		rejects bool
	}{"before its first token": {false, true}, "after it": {true, false}} {
		cfg := DefaultConfig(policy.NewSkyLB())
		cfg.MaxWait, cfg.ProbeInterval = 10*time.Second, time.Hour
		b := start(cfg, 1)
		ask(t, b, 0, Request{ID: "q"})
		if c.talked {
			b.Step(time.Second, Event{Kind: EventFirstToken, ID: "q"})
		}
		b.Step(30*time.Second, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: false}})
		b.Step(30*time.Second, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true}})
		actions := b.Step(31*time.Second, Event{Kind: EventTick})
		if rejected := len(actions) == 1 && actions[0].Reason == RejectWaitExceeded; rejected != c.rejects {
			t.Errorf("%s: a second after the failure %+v, want rejected: %v", name, actions, c.rejects)
		}
		if c.rejects {
			continue
		}
		if actions = b.Step(39*time.Second, idle("r0")); len(actions) != 1 || actions[0].Kind != ActionDispatch || actions[0].Decision.Waited != 9*time.Second {
			t.Errorf("%s: when the replica is back: %+v, want a dispatch after 9 s", name, actions)
		}
		b.Step(40*time.Second, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: false}})
		b.Step(40*time.Second, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true}})
		if actions = b.Step(40*time.Second, Event{Kind: EventTick}); len(actions) != 1 || actions[0].Reason != RejectWaitExceeded {
			t.Errorf("%s: after 10 s without a token: %+v, want it rejected", name, actions)
		}
		if b.counts.Rejected != 1 || b.counts.Outstanding+b.counts.Queued != 0 {
			t.Errorf("%s: counts %+v", name, b.counts)
		}
	}
}

// The tokens of an answer's first replica do not affect the pace of its last one, and are charged
// once.
func TestContinuedAnswerCountsOwnTokens(t *testing.T) {
	b := start(DefaultConfig(policy.NewSkyLB()), 1)
	ask(t, b, 0, Request{ID: "q", Tenant: "k", PromptTokens: 100})
	b.Step(0, Event{Kind: EventFirstToken, ID: "q"})
	b.Step(time.Second, idle("r0"))
	b.Step(time.Second, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true}})
	b.Step(1100*time.Millisecond, Event{Kind: EventTick})
	b.Step(2*time.Second, Event{Kind: EventFirstToken, ID: "q"})
	out := Outcome{PromptTokens: policy.Known(100), OutputTokens: policy.Known(60), EarlierTokens: 49}
	b.Step(3*time.Second, Event{Kind: EventFinished, ID: "q", Outcome: &out})
	step := policy.NominalStep(1, 0).Seconds()
	b.Step(3*time.Second, Event{Kind: EventTick})
	pace := &findTarget(b.replicas, "r0").pace
	if want := 0.1 / step; !pace.Known() || pace.Value() < 0.9*want || pace.Value() > 1.1*want {
		t.Errorf("the pace is %+v, want about %.2f: 11 tokens in a second", pace, want)
	}
	if got := b.queue("m").Served("k"); got != 160 {
		t.Errorf("the tenant was served %d tokens, want 160", got)
	}
	if got := b.queue("m").answerLengths.expected(); got != 60 {
		t.Errorf("answers are expected to have %d tokens, want 60", got)
	}
	if out.OutputTokens.Value != 60 {
		t.Errorf("the outcome was changed to %+v", out)
	}
}

func TestOutcomeAtLastTarget(t *testing.T) {
	known := func(n, earlier int) *Outcome { return &Outcome{OutputTokens: policy.Known(n), EarlierTokens: earlier} }
	for _, c := range []struct {
		out  *Outcome
		want int
	}{{known(5, 0), 5}, {known(5, 3), 2}, {known(5, 9), 0}, {known(5, -1), 5}} {
		if got := c.out.withoutEarlierTokens().OutputTokens.Value; got != c.want {
			t.Errorf("of %+v %d tokens are the last target's, want %d", c.out, got, c.want)
		}
	}
	if (*Outcome)(nil).withoutEarlierTokens() != nil || (&Outcome{EarlierTokens: 3}).withoutEarlierTokens().OutputTokens.Known {
		t.Error("figures were made up")
	}
}
