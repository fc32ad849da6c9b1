package controller

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// hungLease is a lease whose renewals hang for a time.
type hungLease struct {
	slowLease
	hangs func(renewal int) time.Duration
}

func (l *hungLease) Renew(ctx context.Context) error {
	l.took = l.hangs(l.renewals)
	return l.slowLease.Renew(ctx)
}

func newHungLease(hangs func(int) time.Duration) *hungLease {
	return &hungLease{slowLease{until: time.Now().Add(leaseTTL)}, hangs}
}

// A change in progress ends before another controller can acquire the lease, also while the renewal of the
// lease hangs.
func TestChangeEndsBeforeLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		start := time.Now()
		l := newHungLease(func(renewal int) time.Duration {
			if renewal == 1 {
				return 4 * time.Second
			}
			return 0
		})
		var begun, ended []time.Duration
		machines := machinesFunc(func(ctx context.Context, checkLeadership func() error) {
			if err := errors.Join(checkLeadership(), provision.CheckFence(ctx)); err != nil {
				t.Errorf("a change begins: %v", err)
			}
			begun = append(begun, time.Since(start))
			<-ctx.Done() // a cloud that hangs
			if checkLeadership() == nil || provision.CheckFence(ctx) == nil {
				t.Error("changes are allowed after the lease")
			}
			ended = append(ended, time.Since(start))
		})
		w.loop = &controlLoop{machines: machines, wake: make(chan struct{}, 1)}
		if err := w.runTerm(t.Context(), l); !errors.Is(err, errLeaseLost) {
			t.Errorf("the term ended: %v", err)
		}
		// The first renewal extends the lease to 4 s. The second one is sent at 2 s and takes until 6 s.
		if want := 4*time.Second - leaseMargin; len(ended) == 0 || ended[0] != want {
			t.Errorf("changes ended %v, want the first after %s", ended, want)
		}
		if len(begun) != 1 {
			t.Errorf("changes began %v", begun)
		}
	})
}

// After a lapse the term continues if nobody acquired the lease.
func TestTermSurvivesLateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := newHungLease(func(renewal int) time.Duration {
			if renewal == 3 {
				return leaseTTL - time.Millisecond
			}
			return 0
		})
		contexts := map[context.Context]int{}
		w.loop = &controlLoop{wake: make(chan struct{}, 1), machines: machinesFunc(func(ctx context.Context, _ func() error) { contexts[ctx]++ })}
		ctx, end := context.WithTimeoutCause(t.Context(), time.Minute, errDead)
		defer end()
		if err := w.runTerm(ctx, l); !errors.Is(err, errDead) || len(contexts) != 2 {
			t.Errorf("the term ended: %v; changes had %d contexts, want 2", err, len(contexts))
		}
	})
}

// hangingBalancer is a balancer whose probes hang from a time on, for as long as deadAfter rounds.
type hangingBalancer struct {
	*fakeBalancer
	from time.Time
}

func (b hangingBalancer) Healthy(ctx context.Context) error {
	if since := time.Since(b.from); since >= 0 && since < deadAfter*roundInterval {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return b.fakeBalancer.Healthy(ctx)
}

// A probe that the controller cancels, in a round or between two rounds, is no failure of the balancer.
func TestCancelledProbeIsDiscarded(t *testing.T) {
	for name, renewals := range map[string][]time.Duration{
		"in a round":     {0, 0, 0, leaseTTL - time.Millisecond},
		"between rounds": {1750 * time.Millisecond, 0, leaseTTL - time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.balancers[0].admin = hangingBalancer{w.lb[w.balancers[0].ID], time.Now().Add(4500 * time.Millisecond)}
				l := newHungLease(func(renewal int) time.Duration { return append(renewals, make([]time.Duration, 10)...)[renewal] })
				list := &eventList{}
				w.events = store.NewEventQueue(list, "c", telemetry.Event{Actor: telemetry.ActorController}, slog.New(slog.DiscardHandler))
				ctx, end := context.WithTimeoutCause(t.Context(), 10*time.Second, errDead)
				defer end()
				go w.events.Run(ctx)
				if err := w.runTerm(ctx, l); !errors.Is(err, errDead) {
					t.Errorf("the term ended: %v", err)
				}
				synctest.Wait()
				if got := list.lines(); len(got) != 0 {
					t.Errorf("got the events\n%s", strings.Join(got, "\n"))
				}
			})
		})
	}
}

// A leader that finds the assignment of a later one ends its term and changes nothing.
func TestSupersededLeaderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.lb["lb-us-0"].has = map[string]uint64{}
		later, err := json.Marshal(Assignment{Owners: map[string]string{"us-0": "lb-eu-0"}, Token: 8})
		if err != nil {
			t.Fatal(err)
		}
		w.state.data, w.state.revision = later, 9
		if err := w.runTerm(t.Context(), w.lease); !errors.Is(err, errSuperseded) {
			t.Errorf("got %v", err)
		}
		w.check(t, map[string][]string{"lb-us-0": {}})
		if err := storeValue(t.Context(), w.lease, w.state, "plan", map[string]int{"token": 7}); !errors.Is(err, errSuperseded) {
			t.Errorf("storing a value: %v", err)
		}
	})
}
