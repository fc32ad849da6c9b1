package controller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
)

// Flags of TestWeekOfFaults: make chaos-weeks sets them.
var (
	weekSeeds = flag.Int("week.seeds", 5, "number of seeds")
	weekFirst = flag.Uint64("week.seed", 1, "first seed")
	weekHours = flag.Int("week.hours", 24, "simulated hours of a seed")
)

const (
	// weekFault is the mean time between two faults, weekRepair that until a fault is repaired.
	weekFault, weekRepair = 20 * time.Minute, 5 * time.Minute
	// maxTakeover is the longest time without a leader after a crash: the stated bound across regions.
	maxTakeover = 15 * time.Second
	// maxOwnerless is the longest time that a leader with a store leaves a replica without a live owner: the probes of a dead
	// balancer, and one round each for a conflicting epoch and for a replica that is detached first.
	maxOwnerless = (deadAfter + 3) * roundInterval
	// settledRounds is the number of rounds after which nothing changes any more until the next fault.
	settledRounds = 16
)

// weekLease is the lease of one term.
type weekLease struct {
	fakeLease
	token uint64
}

func (l *weekLease) Token() uint64 { return l.token }

// weekWorld is a service whose time is simulated. Rounds in which nothing can change are skipped.
type weekWorld struct {
	config   service.ControllerConfig
	lb       map[string]*fakeBalancer
	homes    map[string]string // balancer by replica
	state    *fakeState
	random   *rand.Rand
	leader   *Controller // nil while none leads
	lease    *weekLease
	old      []*oldLeader // which do not know yet that their lease has expired
	term     uint64
	now      time.Duration
	leads    time.Duration            // when the next controller leads
	repairs  map[string]time.Duration // when a fault ends, by name
	rounds   int
	faults   map[string]int
	longest  time.Duration            // of all times without a live owner
	without  map[string]time.Duration // since when a replica has none, while it could have one
	affected time.Duration            // time of the last fault or repair
	machines WeekMachines             // nil = the replicas are always the same
	observed time.Duration            // when machines were last reconciled
}

// WeekMachines are the machines of the replicas of a simulated week. Those of TestWeekOfMachines are in another package,
// because they use the deployer, which imports this one.
type WeekMachines interface {
	// Advance advances the machines to a time. It returns true if one became ready or ended, and the time of the next such
	// event.
	Advance(now time.Duration) (changed bool, next time.Duration)
	// Reconcile makes the changes of a controller in one iteration; leadershipCheck checks its lease. died means that the controller
	// died during a change.
	Reconcile(ctx context.Context, now time.Duration, checkLeadership func() error) (died bool, err error)
	// Ready returns the replicas that serve, with the balancers of their regions.
	Ready() map[string]string
	// Changes counts the changes by controllers.
	Changes() int
	// Problem returns a broken bound; since is how long ago the last fault, repair or change of a machine was, while a
	// controller leads.
	Problem(since time.Duration) string
}

// machinesInterval is the interval of the control loop.
const machinesInterval = 5 * time.Second

// oldLeader is a controller that is partitioned from the store, or was stopped for a while.
type oldLeader struct {
	c     *Controller
	lease *weekLease
}

func newWeekWorld(balancers, replicas int, seed uint64) *weekWorld {
	w := &weekWorld{
		lb: map[string]*fakeBalancer{}, homes: map[string]string{}, state: &fakeState{}, random: rand.New(rand.NewPCG(seed, 11)),
		repairs: map[string]time.Duration{}, faults: map[string]int{}, without: map[string]time.Duration{},
		config: service.ControllerConfig{Service: "chat", StoreListen: "127.0.0.1:1"},
	}
	for i := range balancers {
		b := service.ControlledBalancer{ID: fmt.Sprintf("lb-r%d-0", i), Region: service.Region(fmt.Sprintf("local/r%d", i)), Admin: fmt.Sprintf("lb-r%d-0", i)}
		w.config.Balancers = append(w.config.Balancers, b)
		w.lb[b.ID] = &fakeBalancer{has: map[string]uint64{}, gone: map[string]uint64{}}
	}
	for i := range replicas {
		b := w.config.Balancers[i%balancers]
		r := service.ControlledReplica{ReplicaConfig: service.ReplicaConfig{ID: fmt.Sprintf("%s-%d", b.Region.ShortName(), i/balancers), Region: b.Region}, Primary: b.ID}
		w.config.Replicas = append(w.config.Replicas, r)
		w.homes[r.ID] = b.ID
		w.lb[b.ID].has[r.ID] = 0
	}
	return w
}

// lead starts a controller with an empty memory and the next term.
func (w *weekWorld) lead() {
	w.term++
	w.lease = &weekLease{token: w.term}
	w.leader = newController(w.config, w.state, nil, func(base string) adminAPI { return w.lb[base] }, slog.New(slog.DiscardHandler))
}

// loseLeader ends the term. The controller is dead, or continues with its expired lease until forget.
func (w *weekWorld) loseLeader(continues bool) {
	if w.leader == nil {
		return
	}
	w.lease.lose()
	if continues {
		w.old = append(w.old, &oldLeader{w.leader, w.lease})
	}
	w.leader = nil
	w.leads = w.now + leaseTTL + time.Duration(w.random.Int64N(int64(maxTakeover-leaseTTL)))
}

// inject injects a random fault.
func (w *weekWorld) inject() {
	end := w.now + time.Duration(w.random.ExpFloat64()*float64(weekRepair))
	b := w.config.Balancers[w.random.IntN(len(w.config.Balancers))].ID
	name := []string{"balancer", "balancer", "stuck", "leader", "partition", "store", "restart"}[w.random.IntN(7)]
	w.faults[name]++
	w.affected = w.now
	switch lb := w.lb[b]; name {
	case "balancer": // dead, or unreachable
		lb.set(true)
		w.repairs["balancer "+b] = end
	case "stuck": // it detaches nothing
		lb.stuck = true
		w.repairs["stuck "+b] = min(end, w.now+time.Minute)
	case "leader":
		w.loseLeader(false)
	case "partition":
		w.loseLeader(true)
		w.repairs["partition"] = end
	case "store":
		w.state.down = true
		w.repairs["store"] = min(end, w.now+time.Minute)
	case "restart": // with the replicas of its configuration
		w.restart(b)
	}
}

// restart starts a balancer's process again.
func (w *weekWorld) restart(id string) {
	lb := w.lb[id]
	lb.has, lb.gone = map[string]uint64{}, map[string]uint64{}
	for r, home := range w.homes {
		if home == id {
			lb.has[r] = 0
		}
	}
}

// repair ends faults.
func (w *weekWorld) repair() {
	for name, end := range w.repairs {
		if w.now < end {
			continue
		}
		delete(w.repairs, name)
		w.affected = w.now
		var kind, b string
		_, _ = fmt.Sscan(name, &kind, &b) // some have no balancer
		switch kind {
		case "balancer":
			if w.lb[b].set(false); w.random.IntN(2) == 0 {
				w.restart(b)
			}
		case "stuck":
			w.lb[b].stuck = false
		case "partition":
			w.old = nil
		case "store":
			w.state.down = false
		}
	}
}

// stepMachines reconciles the machines by the leader, and by every controller that believes it leads.
func (w *weekWorld) stepMachines(t *testing.T) (next time.Duration) {
	t.Helper()
	changed, next := w.machines.Advance(w.now)
	if changed {
		w.affected = w.now
	}
	w.updateReplicas()
	if w.now-w.observed >= machinesInterval {
		w.observed = w.now
		for _, o := range w.old {
			before := w.machines.Changes()
			_, err := w.machines.Reconcile(t.Context(), w.now, leadershipCheck(t.Context(), o.lease))
			if after := w.machines.Changes(); after != before {
				t.Errorf("at %s: a controller without a lease made %d changes of machines (%v)", w.now, after-before, err)
			}
		}
		if w.leader != nil && !w.state.down {
			died, err := w.machines.Reconcile(t.Context(), w.now, leadershipCheck(t.Context(), w.lease))
			if died {
				w.faults["during a launch"]++
				w.affected = w.now
				w.loseLeader(false)
			} else if err != nil {
				t.Errorf("at %s: reconciling machines: %v", w.now, err)
			}
			changed, next = w.machines.Advance(w.now)
			if changed {
				w.affected = w.now
			}
		}
	}
	since := w.now - w.affected
	if w.leader == nil || w.state.down {
		since = 0
	}
	if problem := w.machines.Problem(since); problem != "" {
		t.Errorf("at %s: %s", w.now, problem)
	}
	return next
}

// updateReplicas makes the replicas that serve those of the configuration: the machine of one that does not is gone, and
// the leader delivers new ones to their balancers.
func (w *weekWorld) updateReplicas() {
	ready := w.machines.Ready()
	for r := range w.homes {
		if _, serves := ready[r]; !serves {
			delete(w.homes, r)
			delete(w.without, r)
			for _, lb := range w.lb {
				delete(lb.has, r)
			}
		}
	}
	if w.leader != nil && !w.state.down {
		for r, home := range ready {
			if _, known := w.homes[r]; !known {
				w.homes[r] = home
				if lb := w.lb[home]; !lb.dead {
					lb.has[r] = 0
				}
			}
		}
	}
	var replicas []service.ControlledReplica
	for _, r := range slices.Sorted(maps.Keys(w.homes)) {
		region := w.config.Balancers[slices.IndexFunc(w.config.Balancers, func(b service.ControlledBalancer) bool { return b.ID == w.homes[r] })].Region
		replicas = append(replicas, service.ControlledReplica{ReplicaConfig: service.ReplicaConfig{ID: r, Region: region}, Primary: w.homes[r]})
	}
	if reflect.DeepEqual(replicas, w.config.Replicas) {
		return
	}
	w.affected = w.now
	if w.config.Replicas = replicas; w.leader != nil {
		next := w.config
		w.leader.mu.Lock()
		w.leader.reloaded = &next
		w.leader.mu.Unlock()
	}
}

// step runs a round of the leader, and of every controller that believes it leads.
func (w *weekWorld) step(t *testing.T) {
	t.Helper()
	if w.leader == nil && w.now >= w.leads && !w.state.down {
		w.lead()
		if err := w.leader.loadAssignment(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.affected = w.now
	}
	for _, o := range w.old {
		before := w.attached()
		if err := o.c.runRound(t.Context(), o.lease); err != nil && !errors.Is(err, errLeaseLost) && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("at %s: a controller without a lease: %v", w.now, err)
		}
		if after := w.attached(); after != before {
			t.Errorf("at %s: a controller without a lease changed replicas from %s to %s", w.now, before, after)
		}
	}
	if w.leader != nil {
		err := w.leader.runRound(t.Context(), w.lease)
		if err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrConflict) {
			t.Errorf("at %s: %v", w.now, err)
		}
	}
	w.rounds++
	w.checkOwners(t)
}

// attached describes the replicas of all balancers.
func (w *weekWorld) attached() string {
	var text []string
	for _, b := range w.config.Balancers {
		text = append(text, fmt.Sprint(b.ID, w.lb[b.ID].has))
	}
	return fmt.Sprint(text)
}

// checkOwners checks that no two balancers have a replica with the same epoch, and for how long none that lives has it
// while a leader with a store could attach it: not while a balancer that cannot detach may have it.
func (w *weekWorld) checkOwners(t *testing.T) {
	t.Helper()
	live, stuck := 0, false
	for _, b := range w.lb {
		if !b.dead {
			live++
		}
		stuck = stuck || b.stuck
	}
	repairable := live > 0 && !stuck && w.leader != nil && !w.state.down
	for r := range w.homes {
		epochs, owned := map[uint64]string{}, false
		for _, b := range w.config.Balancers {
			lb := w.lb[b.ID]
			epoch, has := lb.has[r]
			if !has {
				continue
			}
			if other, twice := epochs[epoch]; twice && epoch > 0 {
				t.Errorf("at %s: %s and %s own %s with epoch %d", w.now, other, b.ID, r, epoch)
			}
			epochs[epoch] = b.ID
			owned = owned || !lb.dead
		}
		since, known := w.without[r]
		since = max(since, w.affected) // another fault starts the bound again
		switch {
		case !repairable:
			delete(w.without, r)
		case owned:
			if known {
				w.longest = max(w.longest, w.now-since)
			}
			delete(w.without, r)
		case !known:
			w.without[r] = w.now
		case w.now-since > maxOwnerless:
			t.Errorf("at %s: %s has no live owner since %s", w.now, r, since)
		}
	}
}

// runWeek simulates a week.
func (w *weekWorld) runWeek(t *testing.T) {
	t.Helper()
	fault := time.Duration(0)
	for end := time.Duration(*weekHours) * time.Hour; w.now < end && !t.Failed(); {
		w.repair()
		if w.now >= fault {
			w.inject()
			fault = w.now + time.Duration(w.random.ExpFloat64()*float64(weekFault))
		}
		event := end
		if w.machines != nil {
			event = w.stepMachines(t)
		}
		w.step(t)
		w.now += roundInterval
		if settled := w.now-w.affected > settledRounds*roundInterval && w.leader != nil; settled {
			next := min(fault, event)
			for _, end := range w.repairs {
				next = min(next, end)
			}
			w.now = max(w.now, next.Truncate(roundInterval))
		}
	}
}

// WeekResult is what a simulated week had.
type WeekResult struct {
	Rounds  int
	Faults  map[string]int
	Longest time.Duration // of all times in which a replica had no live owner while a controller led
}

// RunWeekOfMachines simulates a week of faults of a service with machines, in the regions of balancers.
func RunWeekOfMachines(t *testing.T, seed uint64, balancers []service.ControlledBalancer, m WeekMachines) WeekResult {
	t.Helper()
	w := newWeekWorld(0, 0, seed)
	w.machines, w.config.Balancers = m, balancers
	for _, b := range balancers {
		w.lb[b.ID] = &fakeBalancer{has: map[string]uint64{}, gone: map[string]uint64{}}
	}
	w.lead()
	w.runWeek(t)
	return WeekResult{w.rounds, w.faults, w.longest}
}

// WeekSeeds returns the seeds of the flags, and the command that repeats one.
func WeekSeeds() (first uint64, seeds int, hours time.Duration) {
	return *weekFirst, *weekSeeds, time.Duration(*weekHours) * time.Hour
}

// Over simulated days of random faults, several at once, no replica has two owners of the same epoch, none is without a
// live owner for longer than the bound while a controller leads, and a controller whose lease has expired changes nothing.
func TestWeekOfFaults(t *testing.T) {
	var longest time.Duration
	rounds, faults := 0, map[string]int{}
	for seed := *weekFirst; seed < *weekFirst+uint64(*weekSeeds); seed++ {
		w := newWeekWorld(3+int(seed%3), 9, seed)
		w.lead()
		w.runWeek(t)
		for name, n := range w.faults {
			faults[name] += n
		}
		longest, rounds = max(longest, w.longest), rounds+w.rounds
		if t.Failed() {
			t.Fatalf("repeat with: go test ./internal/controller -run 'TestWeekOfFaults$' -week.seed=%d -week.seeds=1 -week.hours=%d", seed, *weekHours)
		}
	}
	names := []string{}
	for name, n := range faults {
		names = append(names, fmt.Sprint(name, " ", n))
	}
	slices.Sort(names)
	t.Logf("%d seeds of %d hours, %d rounds; faults: %v; longest time without a live owner while a controller led: %s", *weekSeeds, *weekHours, rounds, names, longest)
}
