package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// The memory of decisions reports the time of its oldest entry, and contains exactly the entries
// since then.
func TestRememberedDecisions(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxDecisions = 3
	b := start(t, o)
	if m := b.DecisionMemory(); m.Recorded != 0 || m.Since != nil || m.Limit != 3 || m.Balancer != "lb-us-0" || m.Region != "local/us" {
		t.Errorf("before the first request: %+v", m)
	}
	b.attach("us-0", engine(t, whole(plainReply)))
	for i := range 5 {
		expect(t, b.post(chatPath, plainBody, fmt.Sprintf("X-Request-ID: r%d", i)), http.StatusOK, "")
	}
	b.settled()
	m := b.DecisionMemory()
	oldest, found := b.Decision("r2")
	if m.Recorded != 3 || !found || m.Since == nil || !m.Since.Equal(oldest.At) {
		t.Errorf("%+v, want three since %s", m, oldest.At)
	}
	if _, found := b.Decision("r1"); found {
		t.Error("more is remembered than the limit allows")
	}
	// A repeated id is stored once.
	expect(t, b.post(chatPath, plainBody, "X-Request-ID: r4"), http.StatusOK, "")
	b.settled()
	if m := b.DecisionMemory(); m.Recorded != 2 {
		t.Errorf("%+v, want two ids", m)
	}
}

// A decision contains its explanation, and no text of the request.
func TestDecisionContainsRequest(t *testing.T) {
	o := roundRobin(t)
	o.Keys = apiKeys("the-key")
	b := start(t, o)
	b.attach("us-0", engine(t, status(500)))
	b.attach("us-1", engine(t, whole(plainReply)))
	expect(t, b.post(chatPath, plainBody, "X-Request-ID: r1", "Authorization: Bearer the-key"), http.StatusOK, "")
	b.settled()
	d, _ := b.Decision("r1")
	if !strings.HasPrefix(d.Tenant, "key-") || d.Session == "" || d.PromptBytes == 0 || d.PromptEstimate != (d.PromptBytes+3)/4 {
		t.Errorf("got %+v", d)
	}
	if len(d.Attempts) != 2 {
		t.Fatalf("attempts %+v, want one that failed and one that did not", d.Attempts)
	}
	first, second := d.Attempts[0], d.Attempts[1]
	if first.Failure != "us-0 returned 500" || first.EndedMillis == nil || *first.EndedMillis < first.AtMillis || *first.EndedMillis > second.AtMillis {
		t.Errorf("the first attempt %+v", first)
	}
	if second.Failure != "" || second.EndedMillis != nil {
		t.Errorf("the second attempt %+v", second)
	}
}

func TestBounceIsRecorded(t *testing.T) {
	us, _ := pair(t, "")
	us.receiveReport("lb-eu-0") // without a replica
	answered := make(chan *http.Response)
	go func() { answered <- us.post(chatPath, plainBody, "X-Request-ID: r1") }()
	us.until(func() bool { c := us.View().Counts; return c.ForwardedOut == 1 && c.Queued == 1 })
	us.attach("us-0", engine(t, whole(plainReply)))
	expect(t, <-answered, http.StatusOK, "")
	us.settled()
	if d, _ := us.Decision("r1"); d.Attempts[0].Kind != core.ActionForward || d.Attempts[0].Failure != "lb-eu-0 bounced the request" || d.Attempts[0].EndedMillis == nil {
		t.Errorf("attempts %+v", d.Attempts)
	}
}

// A decision shows the replica for which a request is queued, also after the request was sent.
func TestDecisionContainsReservedReplica(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(plainReply)))
	e := &record.RequestRecord{Request: "r1"}
	f := &inFlight{id: "r1", entry: e, actions: make(chan action, 1)}
	b.mu.Lock()
	b.inFlight["r1"] = f
	b.deliverAction(1, &core.Action{Kind: core.ActionQueue, ID: "r1", Target: "us-0"})
	kept := e.HeldFor
	b.deliverAction(2, &core.Action{Kind: core.ActionDispatch, ID: "r1", Target: "us-0", Decision: &core.Decision{}})
	delete(b.inFlight, "r1")
	b.mu.Unlock()
	if kept != "us-0" || e.HeldFor != "" || len(e.Attempts) != 1 || e.Attempts[0].HeldFor != "us-0" {
		t.Errorf("kept for %q, then %+v", kept, e)
	}
}

// A streamed request waits while its replica computes the same prompt for another one, and its record says
// so. A prompt of 100,000 tokens is ahead of both.
func TestRequestAwaitsTheSamePrompt(t *testing.T) {
	o := testOptions(t)
	o.Core.Policy = policy.NewCost()
	b := start(t, o)
	release := make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		speak("a", "b")(w, r)
	}))
	body := func(prompt string) string {
		return `{"model":"` + testModel + `","stream":true,"messages":[{"role":"user","content":"` + prompt + `"}]}`
	}
	done := make(chan *http.Response)
	for i, prompt := range []string{strings.Repeat("ahead of both ", 30_000), strings.Repeat("the same ", 2000), strings.Repeat("the same ", 2000)} {
		go func() { done <- b.post(chatPath, body(prompt), fmt.Sprintf("X-Request-ID: r%d", i)) }()
		b.until(func() bool { c := b.View().Counts; return c.Outstanding+c.Queued == i+1 })
	}
	if c := b.View().Counts; c.Queued != 1 {
		t.Errorf("%d requests are queued, want the last", c.Queued)
	}
	close(release)
	for range 3 {
		read(t, <-done)
	}
	b.settled()
	if d, _ := b.Decision("r2"); len(d.Attempts) != 1 || !d.Attempts[0].SharedPrefill {
		t.Errorf("attempts %+v", d.Attempts)
	}
}
