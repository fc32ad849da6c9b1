package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
)

// slowMachines are machines whose reconciliation takes a time.
type slowMachines struct {
	takes   time.Duration
	started []time.Time // the calls
}

func (m *slowMachines) Reconcile(context.Context, func() error) (busy bool) {
	m.started = append(m.started, time.Now())
	time.Sleep(m.takes)
	return false
}

func (*slowMachines) Wait() {}

// A strategy decides as soon as its cooldown has ended, not at the loop's next interval: while memory stays full, and
// while it stays empty, one change follows the other after the cooldown and the duration of an iteration. Balancers
// receive a donation and a reclaim in the same iteration.
func TestChangesFollowEachOtherAfterCooldown(t *testing.T) {
	for _, iteration := range []time.Duration{0, 100 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second} {
		t.Run(fmt.Sprint(iteration), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &scalerWorld{T: t, actuator: newFakeActuator(t, strings.Replace(reactiveService, "max: 3", "max: 8", 1)), store: &fakeState{}, lease: &fakeLease{}}
				w.controlLoop = w.another()
				machines := &slowMachines{takes: iteration}
				w.machines = machines
				ctx, end := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { w.runLoop(ctx, w.lease) })
				defer wg.Wait()
				defer end()
				w.pass(3*time.Minute, 0.9)
				w.want(8, 0)
				w.pass(3*time.Minute, 0.1)
				w.want(1, 7)
				w.pass(3*time.Minute, 0.9)
				w.want(8, 0)
				events := w.published().Events
				for _, e := range events {
					if delivered := slices.ContainsFunc(machines.started, e.At.Equal) == (e.Kind != telemetry.EventLaunch) || iteration == 0; !delivered {
						t.Errorf("%s at %v: machines are reconciled at %v", e.Kind, e.At, machines.started)
					}
				}
				for i := 1; i < len(events); i++ {
					gap, limit := events[i].At.Sub(events[i-1].At), cooldown+iteration+busyInterval/2
					if events[i].Kind == events[i-1].Kind && (gap < cooldown || gap > limit) {
						t.Errorf("change %d, %s, follows after %v, want at least %v and at most %v", i, events[i].Kind, gap, cooldown, limit)
					}
				}
				if len(events) != 21 {
					t.Errorf("%d events, want 21", len(events))
				}
			})
		})
	}
}
