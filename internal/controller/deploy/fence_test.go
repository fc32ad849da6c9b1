package deploy_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// lapse is a lease that is lost at the kth call of its leader. That call takes effect; without
// answered, its response is lost.
type lapse struct {
	mu sync.Mutex // calls that a cancelled change began may end during the next one
	lapseState
}

type lapseState struct {
	at       int // 0 = never
	answered bool
	cancel   context.CancelFunc // nil = the process was stopped and did not notice that time passed
	calls    int
	changes  map[int]bool // the numbers of calls that are not reads
	lost     bool
	late     []string // changes after the loss
}

var errLost = errors.New("lease lost")

// checkLeadership is the fence of the leader.
func (l *lapse) checkLeadership() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return errLost
	}
	return nil
}

// begin starts another observation and returns the state of the last one.
func (l *lapse) begin(next lapseState) (last lapseState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, l.lapseState = l.lapseState, next
	return last
}

func (l *lapse) decide(c testcloud.Call) testcloud.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost && !c.ReadOnly: // concurrent reads may be on their way
		l.late = append(l.late, c.Action)
		return testcloud.Served
	case l.lost:
		return testcloud.Served
	}
	l.calls++
	if l.changes != nil && !c.ReadOnly {
		l.changes[l.calls] = true
	}
	if l.calls != l.at {
		return testcloud.Served
	}
	l.lost = true
	if l.cancel != nil {
		l.cancel()
	}
	if l.answered {
		return testcloud.Served
	}
	return testcloud.ResponseLost
}

// leaderWorld is a service whose only replica has ended, in one region.
func leaderWorld(t *testing.T, spec *service.Spec, l *lapse) *operatorWorld {
	n := newOperatorWorld(t, &testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome { return l.decide(c) }})
	if _, err := up(spec, n.open(t)); err != nil {
		t.Fatal(err)
	}
	for _, m := range n.aws.Machines() {
		if !strings.HasPrefix(m.Tags["skyserve:id"], "lb-") {
			n.aws.TerminateInstance(m.ID)
		}
	}
	for _, i := range n.gce.Instances() {
		if !strings.Contains(i.Name, "-lb-") {
			n.gce.SetInstanceStatus(i.Name, "TERMINATED")
		}
	}
	return n
}

// lead launches what is missing, as a leader that has just started.
func (n *operatorWorld) lead(ctx context.Context, t *testing.T, spec *service.Spec) error {
	dp := newDeployer(spec, n.open(t))
	plan, err := dp.Plan(ctx)
	if err != nil {
		return err
	}
	_, err = dp.Up(ctx, plan, nil)
	return err
}

// A leader that loses its lease in the middle of a launch changes nothing more, whichever of its calls was the
// last, and whether its process notices at once or was stopped meanwhile. The next leader completes the launch,
// and there is no second machine.
func TestChangesEndWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, region := range []string{"aws/us-east-1", "gcp/us-central1"} {
			bounds := "replicas: {min: 1, max: 1}}\n"
			spec := parse(t, pair[:strings.Index(pair, "regions:")]+"regions:\n  - {name: "+region+", "+bounds)
			observed := &lapse{}
			n := leaderWorld(t, spec, observed)
			observed.begin(lapseState{changes: map[int]bool{}})
			if err := n.lead(t.Context(), t, spec); err != nil {
				t.Fatal(err)
			}
			want := n.state()
			whole := observed.begin(lapseState{})
			if len(whole.changes) == 0 {
				t.Fatalf("%s: the launch made no change", region)
			}
			for at := 1; at <= whole.calls; at++ {
				for i := range 4 {
					if read := !whole.changes[at]; read && (at%testkit.Stride(5) != 0 || at%8 != 2*i) {
						continue // a sample of the reads
					}
					l := &lapse{}
					n := leaderWorld(t, spec, l)
					ctx, cancel := context.WithCancel(t.Context())
					next := lapseState{at: at, answered: i%2 == 0}
					if i >= 2 {
						next.cancel = cancel
					}
					l.begin(next)
					err := n.lead(provision.WithFence(ctx, l.checkLeadership), t, spec)
					cancel()
					if last := l.begin(lapseState{}); len(last.late) > 0 {
						t.Errorf("%s, lease lost at call %d of %d (case %d): %v, then it called %q", region, at, whole.calls, i, err, last.late)
					}
					if err := n.lead(t.Context(), t, spec); err != nil {
						t.Errorf("%s, lease lost at call %d (case %d): the next leader: %v", region, at, i, err)
					}
					if got := n.state(); !slices.Equal(got, want) {
						t.Errorf("%s, lease lost at call %d (case %d): %v", region, at, i, difference(got, want))
					}
				}
			}
			t.Logf("%s: %d calls, %d of them changes", region, whole.calls, len(whole.changes))
		}
	})
}
