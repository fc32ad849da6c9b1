package deploy

import (
	"errors"
	"testing"
	"time"

	"skyserve/internal/agent"
)

// A balancer that cannot listen seems ready to its agent while it starts, so the agent's count of attempts begins again.
func TestTakenPortEndsTheWait(t *testing.T) {
	const text = "listening on 127.0.0.1:25001: address already in use"
	taken := agent.Status{Phase: agent.PhaseFailed, Failure: &agent.Failure{Kind: agent.FailurePortInUse, Attempts: 1, Message: text}}
	again := agent.Status{Phase: agent.PhaseReady}
	permanent := taken
	permanent.Failure = &agent.Failure{Kind: agent.FailurePortInUse, Attempts: 3, Permanent: true, Message: text}
	for _, tt := range []struct {
		name     string
		statuses []agent.Status // one a second
		failsAt  int            // in seconds; -1 = never
	}{
		{"starts slowly", []agent.Status{again, again, again, again, again, again, again}, -1},
		{"an earlier process ends", []agent.Status{taken, taken, again, again, again, again, again}, -1},
		{"stays taken", []agent.Status{taken, taken, again, taken, again, taken, taken}, 5},
		{"of before the wait", []agent.Status{permanent, permanent, permanent, permanent, permanent, permanent, again}, -1},
		{"permanent", []agent.Status{taken, permanent}, 1},
	} {
		watch, failedAt := portWatch{}, -1
		began := time.Unix(1e9, 0)
		for second, s := range tt.statuses {
			err := watch.check(began.Add(time.Duration(second)*time.Second), map[string]AgentReport{"lb-us-0": {Status: s}, "lb-eu-0": {Err: errors.New("no response")}})
			if err == nil {
				continue
			}
			if failed := FailedStarts(err); len(failed) != 1 || failed[0].ID != "lb-us-0" || failed[0].Failure.Message != text {
				t.Errorf("%s: %v", tt.name, err)
			}
			failedAt = second
			break
		}
		if failedAt != tt.failsAt {
			t.Errorf("%s: failed after %d s, want %d", tt.name, failedAt, tt.failsAt)
		}
	}
}
