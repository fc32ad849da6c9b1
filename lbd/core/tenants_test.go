package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// flooded returns a balancer whose only replica is busy with one of 400 requests of a tenant while
// the others wait.
func flooded(t *testing.T, policyName string, limit int) *Balancer {
	t.Helper()
	p, err := policy.New(policyName)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.Push, cfg.QueueLimit = PushMode{Kind: PushOutstanding, N: 1}, limit
	b := New(cfg)
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
	b.Step(0, Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true, Pending: policy.Known(0)}})
	for i := range 400 {
		arrive(b, 0, fmt.Sprintf("flood%d", i), "flood")
	}
	return b
}

func arrive(b *Balancer, now time.Duration, id, tenant string) []Action {
	return b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Tenant: tenant, Session: tenant, PromptTokens: 100}})
}

// With every policy, a tenant that floods the balancer delays another by one request in addition to
// the running one, not by hundreds.
func TestFloodStarvesNoTenantUnderAnyPolicy(t *testing.T) {
	for _, name := range policy.Names() {
		b := flooded(t, name, 4096)
		arrive(b, time.Millisecond, "one", "other")
		var sent []string
		for id := "flood0"; len(sent) < 2; id = sent[len(sent)-1] {
			actions := b.Step(2*time.Millisecond, Event{Kind: EventFinished, ID: id})
			if len(actions) != 1 || actions[0].Kind != ActionDispatch {
				t.Fatalf("%s: after %s came %v, want the next request", name, id, outline(actions))
			}
			sent = append(sent, actions[0].ID)
		}
		if !slices.Contains(sent, "one") {
			t.Errorf("%s: the next two were %v, without the one of the other tenant", name, sent)
		}
	}
}

// A full queue evicts requests of the tenant that filled it, newest first, until others have the
// same number. Then it rejects new requests.
func TestFullQueueIsShared(t *testing.T) {
	b := flooded(t, "least-load", 100)
	for i := range 60 {
		got := outline(arrive(b, time.Millisecond, fmt.Sprintf("one%d", i), "other"))
		want := []string{"reject" + fmt.Sprintf("flood%d", 100-i) + RejectQueueFull, fmt.Sprintf("holdone%d", i)}
		if i >= 50 {
			want = []string{fmt.Sprintf("rejectone%d", i) + RejectQueueFull}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("request %d: %v, want %v", i, got, want)
		}
	}
	if c := b.Snapshot(time.Millisecond).Counts; c.Queued != 100 || c.Outstanding != 1 || c.Rejected != 299+60 {
		t.Errorf("counted %+v", c)
	}
}

// A request that no replica served costs its tenant nothing.
func TestFailuresAreNotCharged(t *testing.T) {
	b := flooded(t, "least-load", 1)
	before := b.queue("m").Served("flood")
	b.Step(time.Millisecond, Event{Kind: EventFailed, ID: "flood0", Outcome: &Outcome{Retryable: true}})
	if got := b.queue("m").Served("flood"); got != before || b.counts.Outstanding != 1 {
		t.Errorf("charged %d tokens with %d outstanding after a failure, want %d with 1", got, b.counts.Outstanding, before)
	}
}

// A queue that is full of requests for one model does not reject a request that falls back to another
// model with an available replica. Others are rejected, and a fallback to a busy model too.
func TestFullQueueAdmitsFallback(t *testing.T) {
	b := flooded(t, "least-load", 100)
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "s", Model: "small"}})
	b.Step(0, Event{Kind: EventReplicaReport, Target: "s", Report: &ProbeReport{Ready: true, Pending: policy.Known(0)}})
	for _, c := range []struct {
		id       string
		fallback bool
		want     string
	}{
		{"direct", false, "rejectdirect" + RejectQueueFull},
		{"first", true, "dispatchfirstsleast_load"},
		{"second", true, "rejectsecond" + RejectQueueFull},
	} {
		request := &Request{ID: c.id, Model: "small", Tenant: "flood", Session: "flood", PromptTokens: 100, Fallback: c.fallback}
		actions := b.Step(time.Millisecond, Event{Kind: EventArrived, Request: request})
		got := string(actions[0].Kind) + actions[0].ID + actions[0].Target + actions[0].Reason
		if len(actions) != 1 || got != c.want {
			t.Errorf("%s: got %s, want %s", c.id, got, c.want)
		}
	}
}
