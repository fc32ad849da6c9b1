package core

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// conversation is the i-th request of a service whose clients continue twenty
// conversations in turn, which all begin with a system prompt.
func conversation(system string, i int) Request {
	c, turn := i%20, i/20
	prompt := letters(system + string(rune('A'+c)))
	for range min(turn, 40) {
		prompt = append(prompt, prompt[len(prompt)-1]*31+uint64(c))
	}
	return Request{ID: fmt.Sprint(i), Session: fmt.Sprint("s", c), Prompt: prompt, PromptTokens: 16 * len(prompt), MaxTokens: 100, Fingerprint: uint64(1 + i)}
}

// A replica that fails immediately must not appear idle. One of three replicas fails every request.
// Under every policy all requests are served, and the failing replica receives at most its share;
// with the circuit breaker, almost none.
func TestFastFailuresDoNotLookIdle(t *testing.T) {
	failures := map[string]*Outcome{
		"500":     {Retryable: true, EngineMayHaveDied: true, Cause: "answered 500"},
		"refused": {Retryable: true, Refused: true, Cause: "answered 401"},
	}
	for name, failure := range failures {
		for _, breaker := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, circuit breaker %v", name, breaker), func(t *testing.T) {
				forEachPolicy(t, func(t *testing.T, cfg Config) {
					most := 0.02
					if !breaker {
						cfg.EjectAfter, cfg.RetryBurst = 0, 0
						most = 0.40
					}
					w := newTrial(t, cfg, 3)
					w.serve = func(_, replica string) (time.Duration, *Outcome) {
						if replica == "r0" {
							return 10 * time.Millisecond, failure
						}
						return 500 * time.Millisecond, nil
					}
					const n = 1000
					for i := range n {
						w.ask(conversation("ssss", i))
						w.pass(20 * time.Millisecond)
					}
					w.pass(2 * time.Second)
					if got := w.share("r0"); got > most {
						t.Errorf("%.1f %% of what was sent went to the replica that fails, want %.0f %% at most", 100*got, 100*most)
					}
					for id, end := range w.ends {
						if end != "finished" {
							t.Fatalf("%s ended as %q after tries at %v", id, end, w.tries[id])
						}
					}
					if len(w.ends) != n {
						t.Errorf("%d requests ended", len(w.ends))
					}
				})
			})
		}
	}
}

// A replica that immediately returns client errors does not receive more than its share.
func TestClientErrorsDoNotAttractTraffic(t *testing.T) {
	forEachPolicy(t, func(t *testing.T, cfg Config) {
		w := newTrial(t, cfg, 3)
		w.serve = func(_, replica string) (time.Duration, *Outcome) {
			if replica == "r0" {
				return 10 * time.Millisecond, &Outcome{ClientError: true}
			}
			return 500 * time.Millisecond, nil
		}
		for i := range 1000 {
			w.ask(conversation("", i)) // without a system prompt, which longest-prefix would follow to a single replica
			w.pass(20 * time.Millisecond)
		}
		if got := w.share("r0"); got > 0.40 {
			t.Errorf("%.1f %% of the requests went to the replica that answers with errors", 100*got)
		}
	})
}

// The load of a failed request is gone once the request would have ended.
func TestFailedLoadExpires(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 2)
	w.serve = func(_, replica string) (time.Duration, *Outcome) {
		if replica == "r0" {
			return 0, &Outcome{Retryable: true, Cause: "500"}
		}
		return 300 * time.Millisecond, nil
	}
	for i := range 20 {
		w.ask(conversation("", i))
		w.pass(50 * time.Millisecond)
	}
	if load := w.b.ModelLoads(w.now); load[0].Outstanding <= w.b.Snapshot(w.now).Counts.Outstanding {
		t.Errorf("peers get %d outstanding, without the failed ones", load[0].Outstanding)
	}
	w.pass(20 * time.Second)
	if load := w.b.ModelLoads(w.now); load[0].Outstanding != 0 || load[0].ContextTokens != 0 {
		t.Errorf("after all requests ended peers get %+v", load[0])
	}
}

// A request that every replica rejects ends with their rejection, after one attempt at each, and no
// circuit breaker opens: the cause may be the client's key.
func TestRequestRefusedByEveryReplica(t *testing.T) {
	forEachPolicy(t, func(t *testing.T, cfg Config) {
		w := newTrial(t, cfg, 3)
		w.serve = func(request, replica string) (time.Duration, *Outcome) {
			if request[0] == 'x' {
				return 10 * time.Millisecond, &Outcome{Retryable: true, Refused: true, Cause: "answered 401"}
			}
			return 50 * time.Millisecond, nil
		}
		for i := range 200 {
			r := conversation("", i)
			r.ID = "x" + r.ID
			w.ask(r)
			w.pass(100 * time.Millisecond)
			if w.ends[r.ID] != RejectRefused || len(w.tries[r.ID]) != 3 {
				t.Fatalf("%s ended as %q after tries at %v", r.ID, w.ends[r.ID], w.tries[r.ID])
			}
		}
		for _, r := range w.b.Snapshot(w.now).Replicas {
			if !r.Ready {
				t.Errorf("%s: %s", r.ID, r.Reason)
			}
		}
		w.ask(Request{ID: "good"})
		w.pass(time.Second)
		if w.ends["good"] != "finished" {
			t.Errorf("a request that nobody refuses ended as %q", w.ends["good"])
		}
	})
}

// If one replica rejects a request and the other fails it, not all have rejected it: the request is
// retried.
func TestRefusalWithFailureIsRetried(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 2)
	failures := 0
	w.serve = func(_, replica string) (time.Duration, *Outcome) {
		if replica == "r1" {
			return 0, &Outcome{Retryable: true, Refused: true, Cause: "answered 429"}
		}
		if failures++; failures == 1 {
			return 0, &Outcome{Retryable: true, Cause: "answered 500"}
		}
		return 0, nil
	}
	w.ask(Request{ID: "a"})
	w.pass(5 * time.Second)
	if w.ends["a"] != "finished" {
		t.Errorf("it ended as %q after tries at %v", w.ends["a"], w.tries["a"])
	}
}

// If all replicas reject a request, its own failures are reverted, but not those of other requests:
// a replica that fails its requests stays ejected.
func TestRefusalDoesNotCloseBreaker(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 2)
	w.serve = func(request, replica string) (time.Duration, *Outcome) {
		switch {
		case request == "refused" && replica == "r0":
			return 0, &Outcome{Retryable: true, Refused: true, Cause: "answered 401"}
		case request == "refused":
			return 2 * time.Second, &Outcome{Retryable: true, Refused: true, Cause: "answered 401"}
		case replica == "r0":
			return 0, &Outcome{Retryable: true, Cause: "answered 500"}
		}
		return 0, nil
	}
	w.ask(Request{ID: "refused"})
	w.pass(10 * time.Millisecond)
	if !slices.Equal(w.tries["refused"], []string{"r0", "r1"}) {
		t.Fatalf("it was tried at %v", w.tries["refused"])
	}
	for i := 0; !w.b.replicas[0].breaker.Ejected(w.now) && i < 20; i++ {
		w.ask(Request{ID: fmt.Sprint(i)})
		w.pass(10 * time.Millisecond)
	}
	if w.ends["refused"] != "" {
		t.Fatal("it ended before the replica was ejected")
	}
	w.pass(2 * time.Second)
	if w.ends["refused"] != RejectRefused || !w.b.replicas[0].breaker.Ejected(w.now) {
		t.Errorf("it ended as %q, and the broken replica is used again", w.ends["refused"])
	}
}

// A replica whose client errors other replicas contradict is ejected; retries for them do not spend the
// retry budget. Client errors that another replica confirms are no failures of anyone.
func TestContradictedClientErrorEjects(t *testing.T) {
	for _, contradicted := range []bool{true, false} {
		t.Run(fmt.Sprint(contradicted), func(t *testing.T) {
			cfg := roundRobinConfig()
			cfg.RetryShare, cfg.RetryBurst = 0, 1
			w := newTrial(t, cfg, 3)
			w.serve = func(request, replica string) (time.Duration, *Outcome) {
				switch {
				case replica == "r0":
					return 0, &Outcome{Retryable: true, Refused: true, FaultUnclear: true, Cause: "returned 400"}
				case !contradicted && len(w.tries[request]) == 2:
					return 0, &Outcome{ClientError: true}
				}
				return 10 * time.Millisecond, nil
			}
			for i := range 60 {
				id := fmt.Sprint(i)
				w.ask(Request{ID: id})
				w.pass(50 * time.Millisecond)
				if w.ends[id] != "finished" || len(w.tries[id]) > 2 {
					t.Fatalf("%s ended as %q after tries at %v", id, w.ends[id], w.tries[id])
				}
			}
			if got := w.b.replicas[0].breaker.Ejected(w.now); got != contradicted {
				t.Errorf("ejected: %v, want %v", got, contradicted)
			}
		})
	}
}
