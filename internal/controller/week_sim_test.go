package controller

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
}

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
		r := service.ControlledReplica{ReplicaConfig: service.ReplicaConfig{ID: fmt.Sprintf("%s-%d", b.Region.Place(), i/balancers), Region: b.Region}, Home: b.ID}
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
	w.leader = newController(w.config, w.state, nil, func(base string) admin { return w.lb[base] }, slog.New(slog.DiscardHandler))
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
		w.step(t)
		w.now += roundInterval
		if settled := w.now-w.affected > settledRounds*roundInterval && w.leader != nil; settled {
			next := fault
			for _, end := range w.repairs {
				next = min(next, end)
			}
			w.now = max(w.now, next.Truncate(roundInterval))
		}
	}
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
