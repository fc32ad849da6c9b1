package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// eventList is a store of events in memory.
type eventList struct {
	mu     sync.Mutex
	events []telemetry.Event
}

func (l *eventList) AppendEvent(_ context.Context, e telemetry.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	return nil
}

func (l *eventList) ReadEvents(_ context.Context, q telemetry.EventQuery) ([]telemetry.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return q.Select(l.events), nil
}

// lines returns the events in one line each, sorted where they have one time.
func (l *eventList) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, e := range l.events {
		all = append(all, fmt.Sprintf("%s %s: %s: %s", e.Kind, e.Object, e.Message, e.Reason))
	}
	slices.Sort(all)
	return all
}

// Replicas of a dead balancer are adopted and return, with events that two controllers record only
// once.
func TestFailoverIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		list, stop := w.recordEvents(t)
		defer stop()
		w.rounds(t, 1)
		if got := list.lines(); len(got) != 0 {
			t.Errorf("the first assignment has events: %q", got)
		}
		w.lb["lb-us-0"].set(true)
		w.rounds(t, deadAfter)
		synctest.Wait()
		got := strings.Join(list.lines(), "\n")
		if !strings.Contains(got, "death lb-us-0: balancer lb-us-0 does not respond: connection refused") || !strings.Contains(got, "adoption us-0: lb-eu-0 adopts us-0: its balancer lb-us-0 does not respond") {
			t.Errorf("got\n%s", got)
		}
		w.lb["lb-us-0"].set(false)
		w.rounds(t, 1)
		synctest.Wait()
		got = strings.Join(list.lines(), "\n")
		if !strings.Contains(got, "recovery lb-us-0: balancer lb-us-0 responds again: ") || !strings.Contains(got, "return us-0: us-0 returns to lb-us-0: lb-us-0 responds again") {
			t.Errorf("got\n%s", got)
		}
		status, text := w.get(t, "/metrics")
		if status != http.StatusOK || !strings.Contains(text, `skyserve_service_events_recorded_total{kind="adoption"} `) || !strings.Contains(text, "skyserve_service_events_dropped_total 0") {
			t.Errorf("metrics: %d %s", status, text)
		}
		ids := map[string]bool{}
		for _, e := range list.events {
			if ids[e.ID] || e.Kind == telemetry.EventAdoption && !strings.HasPrefix(e.ID, "assignment-") {
				t.Errorf("ID %q", e.ID)
			}
			ids[e.ID] = true
		}
	})
}

// lateState is a store whose next writes are applied late: the caller gets an error first.
type lateState struct {
	*fakeState
	late  int // the number of writes to delay
	apply []func()
}

func (s *lateState) CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if s.late == 0 {
		return s.fakeState.CompareAndSwap(ctx, key, value, revision)
	}
	s.late--
	s.apply = append(s.apply, func() { _, _ = s.fakeState.CompareAndSwap(ctx, key, value, revision) })
	return 0, store.ErrUnavailable
}

// An adoption whose write has no answer is recorded once it is found in the store, and only once.
func TestAdoptionByLateWriteIsRecorded(t *testing.T) {
	const died, returned = ": its balancer lb-us-0 does not respond", ": lb-us-0 responds again"
	adopted := []string{"adoption us-0: lb-eu-0 adopts us-0" + died, "adoption us-1: lb-eu-0 adopts us-1" + died}
	for name, c := range map[string]struct {
		late  int                          // the number of late writes
		after func(w *world, write func()) // after the first one failed; write applies the next late write
	}{
		"before the next read":            {1, func(w *world, write func()) { write(); w.load(t) }},
		"after a read":                    {1, func(w *world, write func()) { w.load(t); write(); w.load(t) }},
		"before a retry":                  {1, func(w *world, write func()) { w.load(t); write(); w.failRound(t) }},
		"after a retry":                   {1, func(w *world, write func()) { w.load(t); w.rounds(t, 1); write(); w.load(t) }},
		"after a retry that is late":      {2, func(w *world, write func()) { w.load(t); w.failRound(t); write(); write(); w.load(t) }},
		"before this process's next term": {1, func(w *world, write func()) { write(); w.lease.token = 8; w.load(t) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				late := &lateState{fakeState: w.state}
				w.kv = late
				list, stop := w.recordEvents(t)
				defer stop()
				moves := func() []string {
					synctest.Wait()
					return slices.DeleteFunc(list.lines(), func(l string) bool { return !strings.Contains(l, " us-") })
				}
				w.rounds(t, 1)
				w.lb["lb-us-0"].set(true)
				w.rounds(t, deadAfter-1)
				late.late = c.late
				w.state.down = true
				w.failRound(t)
				w.state.down = false
				c.after(w, func() { late.apply[0](); late.apply = late.apply[1:] })
				w.rounds(t, 1)
				if got := moves(); !slices.Equal(got, adopted) {
					t.Errorf("got %q, want %q", got, adopted)
				}
				w.lb["lb-us-0"].set(false)
				w.rounds(t, 1)
				want := append(slices.Clone(adopted), "return us-0: us-0 returns to lb-us-0"+returned, "return us-1: us-1 returns to lb-us-0"+returned)
				if got := moves(); !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		})
	}
}

// refusingEvents is a list of events that can be read but not written while it refuses them.
type refusingEvents struct {
	eventList
	refuses atomic.Bool
}

func (r *refusingEvents) AppendEvent(ctx context.Context, e telemetry.Event) error {
	if r.refuses.Load() {
		return store.ErrUnavailable
	}
	return r.eventList.AppendEvent(ctx, e)
}

// Events that wait for the store are reported to balancers each second until they are stored, the newest up to the limit.
func TestPendingEventsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &refusingEvents{}
		st.refuses.Store(true)
		q := store.NewEventQueue(st, "c", telemetry.Event{Actor: telemetry.ActorController}, slog.New(slog.DiscardHandler))
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { q.Run(ctx) })
		running.Go(func() {
			reportPending(ctx, q, func(_ context.Context, events []telemetry.Event) {
				got = append(got, fmt.Sprintf("%d to %s", len(events), events[len(events)-1].Object))
			})
		})
		wait := func(seconds int) (reports []string) {
			time.Sleep(time.Duration(seconds)*time.Second + time.Millisecond)
			synctest.Wait()
			reports, got = got, nil
			return reports
		}
		if reports := wait(2); len(reports) != 0 {
			t.Errorf("without events: %q", reports)
		}
		q.RecordState(telemetry.Event{Kind: telemetry.EventDeath, Object: "lb-us-0"})
		if reports := wait(2); !slices.Equal(reports, []string{"1 to lb-us-0", "1 to lb-us-0"}) {
			t.Errorf("an event waits: %q", reports)
		}
		for i := range telemetry.MaxPendingEvents {
			q.Record(telemetry.Event{Kind: telemetry.EventAdoption, Object: fmt.Sprint(i)})
		}
		if reports := wait(1); !slices.Equal(reports, []string{"200 to 199"}) {
			t.Errorf("more events than the limit: %q", reports)
		}
		st.refuses.Store(false)
		wait(10)
		if reports := wait(5); len(reports) != 0 || len(st.lines()) != 1+telemetry.MaxPendingEvents {
			t.Errorf("after all events are stored: %q", reports)
		}
		cancel()
		running.Wait()
	})
}

// Complaint: 'skyserve events' printed "no events" while the events of the controller waited for the store. Every balancer
// receives them, also while another one does not respond.
func TestEveryBalancerReceivesPendingEvents(t *testing.T) {
	received := make(chan string, 10)
	var balancers []service.ControlledBalancer
	hang := make(chan struct{})
	for _, id := range []string{"lb-us-0", "lb-eu-0", "lb-asia-0"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if id == "lb-us-0" {
				<-hang
				return
			}
			var p telemetry.PendingEvents
			if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
				t.Error(err)
			}
			received <- fmt.Sprintf("%s: %s %s from %s: %s", id, r.Method, r.URL.Path, p.Source, p.Events[0].Message)
		}))
		defer srv.Close()
		balancers = append(balancers, service.ControlledBalancer{ID: id, Admin: srv.URL})
	}
	defer close(hang) // before the servers close
	w := newWorld()
	w.immutable.ID = "lb-us-0"
	w.loop = newControlLoop(slog.New(slog.DiscardHandler))
	w.loop.setBalancers(balancers, http.DefaultClient)
	go w.sendPending(t.Context(), []telemetry.Event{{ID: "1", Kind: telemetry.EventDeath, Message: "balancer lb-us-0 does not respond"}})
	got := []string{<-received, <-received}
	slices.Sort(got)
	const what = ": PUT /v1/service/events/pending from lb-us-0: balancer lb-us-0 does not respond"
	if want := []string{"lb-asia-0" + what, "lb-eu-0" + what}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// recordEvents writes the events of the controller to a list until stop is called.
func (w *world) recordEvents(t *testing.T) (list *eventList, stop func()) {
	list = &eventList{}
	w.events = store.NewEventQueue(list, "c", telemetry.Event{Actor: telemetry.ActorController}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.events.Run(ctx) })
	return list, func() {
		cancel()
		running.Wait()
	}
}

// A reload that changes the primary balancer of a replica moves it: no balancer failed, and none recovered. The move may
// wait for the first response of the new balancer. A replica whose adopter becomes its primary balancer does not move.
func TestMoveByReloadIsRecorded(t *testing.T) {
	const configured = ": the configuration names this balancer"
	for _, c := range []struct {
		name    string
		primary string   // the primary balancer of us-0 and us-1 after the reload
		dead    []string // balancers that do not respond when the configuration is reloaded
		want    []string // the events of moves after the reload, then those after lb-us-0 and the new balancer respond
		later   []string
	}{
		{"a live balancer", "lb-eu-0", nil, []string{
			"attach us-0: us-0 moves from lb-us-0 to lb-eu-0" + configured, "attach us-1: us-1 moves from lb-us-0 to lb-eu-0" + configured,
		}, nil},
		{"a balancer that boots", "lb-new-0", []string{"lb-new-0"}, nil, []string{
			"attach us-0: us-0 moves from lb-us-0 to lb-new-0" + configured, "attach us-1: us-1 moves from lb-us-0 to lb-new-0" + configured,
		}},
		{"the adopter", "lb-eu-0", []string{"lb-us-0"}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				list, stop := w.recordEvents(t)
				defer stop()
				// moves runs rounds and returns the events of replicas that they record.
				moves := func(rounds int) []string {
					*list = eventList{}
					w.rounds(t, rounds)
					synctest.Wait()
					return slices.DeleteFunc(list.lines(), func(l string) bool { return !strings.Contains(l, " us-") })
				}
				w.lb["lb-new-0"] = &fakeBalancer{has: map[string]uint64{}}
				for _, id := range c.dead {
					w.lb[id].set(true)
				}
				moves(deadAfter)
				next := w.without()
				next.Balancers = append(slices.Clone(next.Balancers), service.ControlledBalancer{ID: "lb-new-0", Region: "local/us", Admin: "lb-new-0"})
				for i, r := range next.Replicas {
					if r.Region == "local/us" {
						next.Replicas[i].Primary = c.primary
					}
				}
				w.reload(t, next)
				if got := moves(1); !slices.Equal(got, c.want) {
					t.Errorf("after the reload:\ngot  %q\nwant %q", got, c.want)
				}
				for _, id := range c.dead {
					w.lb[id].set(false)
				}
				if got := moves(1); !slices.Equal(got, c.later) {
					t.Errorf("after all balancers respond:\ngot  %q\nwant %q", got, c.later)
				}
				w.lb[c.primary].set(true)
				moves(deadAfter)
				w.lb[c.primary].set(false)
				if got := moves(1); len(got) != 2 || !strings.HasSuffix(got[0], "us-0 returns to "+c.primary+": "+c.primary+" responds again") {
					t.Errorf("after %s failed and recovered: got %q", c.primary, got)
				}
			})
		})
	}
}

// Every strategy action has an event of its kind with the plan that required it.
func TestActionsNameKindAndPlan(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for kind, message := range map[telemetry.EventKind]string{
		telemetry.EventLaunch: "launched us-3", telemetry.EventReclaim: "reclaimed us-3", telemetry.EventRedeploy: "redeployed us-3",
		telemetry.EventReplace: "launched replacement us-3", telemetry.EventDonate: "donated us-3", telemetry.EventTermination: "removed us-3",
		telemetry.EventDrain: "draining before removal: us-3", telemetry.EventScaleToZero: "scaling to zero, draining us-3",
		telemetry.EventScaleFromZero: "scaling from zero, starting us-3",
	} {
		a := scalingAction{at: at, kind: kind, model: "m", region: "local/us", replicas: []string{"us-3"}, active: 2, reason: "why", plan: &at}
		events := a.events()
		want := telemetry.Event{At: at, Actor: telemetry.ActorAutoscaler, Kind: kind, Region: "local/us", Object: "us-3", Model: "m", Message: message, Reason: "why; replicas before: 2", Plan: &at}
		if len(events) != 1 || events[0] != want {
			t.Errorf("got %+v, want %+v", events, want)
		}
	}
}

// A computed plan has an event with its time and cost. A result without a plan says what could not be met, and no cost.
func TestPlanIsRecorded(t *testing.T) {
	now, then := 1.5, 2.25
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	current := telemetry.PlanCost{Current: &now}
	for _, c := range []struct {
		plan            telemetry.PlanSummary
		minutes         int
		message, reason string
	}{
		{
			telemetry.PlanSummary{Status: "optimal", CostPerHour: telemetry.PlanCost{Current: &now, Planned: &then}, Changes: make([]telemetry.PlanChange, 2)},
			90,
			"plan computed: 2 changes, $1.50/h -> $2.25/h", "forecast from 90 minutes of traffic, status optimal",
		},
		{
			telemetry.PlanSummary{Status: "infeasible", CostPerHour: current, Infeasible: []string{"local/us has a capacity of 2 L4; m needs at least 3 there", "x has no GPU"}},
			1,
			"no plan satisfies all constraints; current cost $1.50/h",
			"local/us has a capacity of 2 L4; m needs at least 3 there; x has no GPU; forecast from 1 minute of traffic, status infeasible",
		},
		{
			telemetry.PlanSummary{Status: "unknown", CostPerHour: current},
			0,
			"no plan found: the solver reached its limit of work; retry with 'skyserve plan --solver highs'; current cost $1.50/h",
			"forecast from 0 minutes of traffic, status unknown",
		},
		{
			telemetry.PlanSummary{Status: "infeasible", CostPerHour: telemetry.PlanCost{Current: new(float64)}, Infeasible: []string{"x has no GPU"}},
			2,
			"no plan satisfies all constraints; current cost $0.00/h",
			"x has no GPU; forecast from 2 minutes of traffic, status infeasible",
		},
	} {
		c.plan.At = at
		e := planEvent(&c.plan, c.minutes)
		if e.Kind != telemetry.EventPlan || !e.Plan.Equal(at) || e.ID != "plan-2026-11-24T12:00:00Z" || e.Message != c.message || e.Reason != c.reason {
			t.Errorf("%s:\ngot  %+v\nwant %s: %s", c.plan.Status, e, c.message, c.reason)
		}
	}
}

// A plan has an event if it is the first one, changes the capacity, or follows a failure of planning. A repeated
// failure has one event. A new leader records no event of a plan that the store has.
func TestPlanningIsRecorded(t *testing.T) {
	var events []telemetry.Event
	record := func(w *plannerWorld) { w.planner.recordEvent = func(e telemetry.Event) { events = append(events, e) } }
	testPlanner(t, func(w *plannerWorld) {
		// next returns the events since the last call; a plan names the event of its capacity.
		next := func(what string, want ...telemetry.EventKind) {
			t.Helper()
			var kinds []telemetry.EventKind
			for _, e := range events {
				kinds = append(kinds, e.Kind)
			}
			if !slices.Equal(kinds, want) {
				t.Errorf("%s: got %+v, want %v", what, events, want)
			}
			if r := w.published(); slices.Contains(kinds, telemetry.EventPlan) {
				if last := events[len(events)-1]; last.ID != "plan-"+r.PlanEvent.Format(time.RFC3339Nano) || last.Object != r.PlanEvent.Format(time.RFC3339) {
					t.Errorf("%s: the plan names the event of %s, the event is %+v", what, r.PlanEvent, last)
				}
			}
			events = nil
		}
		w.set(func() { w.perMin = 150_000 })
		w.pass(2 * time.Minute)
		next("the first two minutes", telemetry.EventPlan)
		first := w.published()
		w.pass(5 * time.Hour)
		next("a constant load")
		r := w.published()
		inputs := &scalingInputs{review: &r, targets: map[modelRegion]*plan.HourlyTarget{{}: nil}, current: CurrentState{Spec: w.observed}}
		if r.Plan.At.Equal(first.Plan.At) || !r.PlanEvent.Equal(first.PlanEvent) || !inputs.planTime().Equal(first.PlanEvent) {
			t.Errorf("changes that follow the plan of %s must name the event of %s, not %s", r.Plan.At, first.PlanEvent, r.PlanEvent)
		}
		leader := newPlannerWorld(t)
		leader.state, leader.planner.kv, leader.observed, leader.counted = w.state, w.state, w.observed, w.counted
		record(leader)
		ctx, end := context.WithCancel(w.t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { leader.runLoop(ctx, leader.lease) })
		leader.pass(time.Minute)
		end()
		wg.Wait()
		next("a new leader")
		w.set(func() { w.perMin = 450_000 })
		w.trigger()
		w.pass(25 * time.Minute)
		w.pass(2 * time.Hour)
		if len(events) == 0 {
			t.Fatal("three times the load has no event")
		}
		for _, e := range events {
			if e.Kind != telemetry.EventPlan {
				t.Errorf("got %+v", e)
			}
		}
		events = nil
		w.pass(24 * time.Hour)
		events = nil
		w.set(func() { w.err = errors.New("no balancer responds") })
		w.pass(3 * time.Hour)
		if len(events) != 1 || events[0].Reason != "no balancer responds" {
			t.Errorf("got %+v", events)
		}
		next("planning fails", telemetry.EventFailure)
		w.set(func() { w.err = nil })
		w.pass(3 * time.Hour)
		next("planning works again", telemetry.EventPlan)
	}, record)
}

// Every action of the scaler is both recorded and published.
func TestScalingIsRecorded(t *testing.T) {
	var recorded []telemetry.Event
	testScaler(t, reactiveService, func(w *scalerWorld) {
		w.scaler.recordEvent = func(e telemetry.Event) { recorded = append(recorded, e) } // before the first action
		w.pass(12*time.Second, 0.8)
		w.pass(2*time.Minute, 0.8)
		w.pass(10*time.Second, 0.1)
		if published := w.published().Events; len(recorded) != 3 || !slices.Equal(recorded, published) {
			t.Errorf("recorded %+v, published %+v", recorded, published)
		}
	})
}
