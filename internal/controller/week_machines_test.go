package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const (
	weekMin, weekMax = 2, 4
	weekBoot         = 2 * time.Minute // launch until ready
	weekLife         = 3 * time.Hour   // mean time until a machine is interrupted
	weekNotice       = 3 * time.Minute // from a notice to the interruption: half of the machines receive one
	weekShortage     = 4 * time.Hour   // mean time between two shortages of a zone's spot machines, and of each
)

// weekService has replicas in three regions.
const weekService = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: llama, engine: {kind: vllm}, gpus: [{type: L4}]}]
regions:
  - {name: aws/us-east-1, replicas: {min: 2, max: 4}, capacity: [spot, on_demand]}
  - {name: aws/eu-west-1, replicas: {min: 2, max: 4}, capacity: [spot, on_demand]}
  - {name: aws/us-west-2, replicas: {min: 2, max: 4}}
`

// weekMachines are the machines of weekService in an in-memory cloud, which the deployer of controllers changes. They are
// interrupted at random, and zones have shortages of spot machines.
type weekMachines struct {
	*conformance.Memory
	spec    *service.Spec
	random  *rand.Rand
	ready   map[string]time.Duration // by handle
	ends    map[string]time.Duration // by handle
	notices map[string]time.Duration // by handle
	noticed map[string]bool          // replicas with a notice
	serving map[string]string        // balancers by replica
	short   map[string]bool          // zones
	shifts  map[string]time.Duration // when a zone changes
	dies    bool                     // the controller dies at its next change
	after   bool                     // once it is effective

	launches, interruptions, deaths, most int
}

func newWeekMachines(t *testing.T, seed uint64) (*weekMachines, []service.ControlledBalancer) {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(weekService))
	if err != nil {
		t.Fatal(err)
	}
	m := &weekMachines{
		Memory: &conformance.Memory{RegionOfferings: map[service.Region]provision.Offerings{}}, spec: spec, random: rand.New(rand.NewPCG(seed, 13)),
		ready: map[string]time.Duration{}, ends: map[string]time.Duration{}, notices: map[string]time.Duration{}, noticed: map[string]bool{}, serving: map[string]string{}, short: map[string]bool{}, shifts: map[string]time.Duration{},
	}
	var balancers []service.ControlledBalancer
	for _, r := range spec.Regions {
		id := provision.BalancerID(r.Name, 0)
		balancers = append(balancers, service.ControlledBalancer{ID: id, Region: r.Name, Admin: id})
		for _, zone := range []string{"a", "b"} {
			for capacity, price := range map[service.CapacityType]float64{service.CapacitySpot: 0.3, service.CapacityOnDemand: 0.8} {
				m.RegionOfferings[r.Name] = append(m.RegionOfferings[r.Name], provision.Offering{Type: "g6.xlarge", Region: r.Name, Zone: r.Name.ShortName() + zone, Capacity: capacity, GPU: "L4", GPUs: 1, PricePerHour: price})
			}
			m.shifts[r.Name.ShortName()+zone] = 0
		}
		m.RegionOfferings[r.Name] = append(m.RegionOfferings[r.Name], provision.Offering{Type: "c7i.large", Region: r.Name, Zone: r.Name.ShortName() + "a", Capacity: service.CapacityOnDemand, PricePerHour: 0.1})
	}
	m.CapacityError = func(o provision.Offering) *provision.CapacityError {
		if o.Capacity == service.CapacitySpot && m.short[o.Zone] {
			return &provision.CapacityError{Offering: o, Scope: provision.ScopeZone, Code: "InsufficientInstanceCapacity"}
		}
		return nil
	}
	return m, balancers
}

// later returns a random time after now.
func (m *weekMachines) later(now, mean time.Duration) time.Duration {
	return now + time.Duration(m.random.ExpFloat64()*float64(mean))
}

// running returns the replicas' machines that run, in the order of their launch.
func (m *weekMachines) running() []provision.Object {
	return slices.DeleteFunc(m.Objects(), func(o provision.Object) bool {
		return o.Kind != provision.KindReplica || o.TerminatedReason != ""
	})
}

// Advance implements controller.WeekMachines.
func (m *weekMachines) Advance(now time.Duration) (changed bool, next time.Duration) {
	next = now + weekLife
	for _, r := range m.spec.Regions {
		for _, zone := range []string{r.Name.ShortName() + "a", r.Name.ShortName() + "b"} {
			if now >= m.shifts[zone] {
				m.short[zone], m.shifts[zone] = !m.short[zone], m.later(now, weekShortage)
			}
		}
	}
	for _, o := range m.running() {
		if _, known := m.ready[o.Handle]; !known {
			m.launches++
			m.ready[o.Handle], m.ends[o.Handle] = now+weekBoot, m.later(now+weekBoot, weekLife)
			if m.random.IntN(2) == 0 {
				m.notices[o.Handle] = m.ends[o.Handle] - weekNotice
			}
		}
		if at, some := m.notices[o.Handle]; some && now >= at && !m.noticed[o.ID] {
			m.noticed[o.ID], changed = true, true
		} else if some && now < at {
			next = min(next, at)
		}
		switch serves := m.serving[o.ID] != ""; {
		case now >= m.ends[o.Handle]:
			m.ChangeObject(o.ID, func(o *provision.Object) { o.TerminatedReason, o.Interrupted = "interrupted", true })
			delete(m.serving, o.ID)
			delete(m.noticed, o.ID)
			m.interruptions++
			if m.dies = m.random.IntN(3) == 0; m.dies {
				m.after = m.random.IntN(2) == 0
			}
			changed = true
			continue
		case !serves && now >= m.ready[o.Handle]:
			m.serving[o.ID] = provision.BalancerID(o.Region, 0)
			changed = true
		case !serves:
			next = min(next, m.ready[o.Handle])
		}
		next = min(next, m.ends[o.Handle])
	}
	return changed, next
}

// Reconcile implements controller.WeekMachines: it launches what is missing, as every iteration of a leader.
func (m *weekMachines) Reconcile(ctx context.Context, now time.Duration, checkLeadership func() error) (died bool, err error) {
	begin := time.Unix(0, 0)
	dp := &deploy.Deployer{
		Spec: m.spec, Owner: "o", Provider: provision.MultiCloud{service.CloudAWS: m}, Now: func() time.Time { return begin.Add(now) },
		UserData: func(cloud.MachineInput) (string, error) { return "", nil }, NeedReplacement: maps.Clone(m.noticed),
		Filter: func(_ *deploy.MachinePlan, c provision.Change) bool {
			return c.Kind() == provision.KindReplica && (c.Action == provision.ActionLaunch || c.Action == provision.ActionTerminate && c.Observed.TerminatedReason != "")
		},
	}
	p, err := dp.Plan(ctx)
	if err != nil || len(p.Changes) == 0 {
		return false, err
	}
	if err := checkLeadership(); err != nil {
		return false, err
	}
	if m.dies {
		m.RestartAfterCrash()
		m.CrashAt, m.CrashAfterEffect = 1, m.after
	}
	_, err = dp.Up(provision.WithFence(ctx, checkLeadership), p, nil)
	if m.dies {
		m.RestartAfterCrash()
		m.dies = false
		m.deaths++
		if !errors.Is(err, conformance.ErrCrash) {
			return true, fmt.Errorf("the launch did not fail: %w", err)
		}
		return true, nil
	}
	return false, err
}

// Ready implements controller.WeekMachines.
func (m *weekMachines) Ready() map[string]string { return m.serving }

// Changes implements controller.WeekMachines.
func (m *weekMachines) Changes() int { return m.CountChanges() }

// Problem implements controller.WeekMachines: no ID runs twice, no region is above its maximum or, for longer than a launch
// after a fault, below its minimum.
func (m *weekMachines) Problem(since time.Duration) string {
	var problems []string
	running, serving, ids := map[service.Region]int{}, map[service.Region]int{}, map[string]bool{}
	for _, o := range m.running() {
		if ids[o.ID] {
			problems = append(problems, o.ID+" runs twice")
		}
		ids[o.ID] = true
		running[o.Region]++
		if m.serving[o.ID] != "" {
			serving[o.Region]++
		}
	}
	for _, r := range m.spec.Regions {
		m.most = max(m.most, running[r.Name])
		if running[r.Name] > weekMax {
			problems = append(problems, fmt.Sprintf("%d replicas in %s, more than replicas.max", running[r.Name], r.Name))
		}
		if serving[r.Name] < weekMin && since > weekBoot+2*10*time.Second {
			problems = append(problems, fmt.Sprintf("%d replicas serve in %s, fewer than replicas.min, %s after the last fault", serving[r.Name], r.Name, since))
		}
	}
	return strings.Join(problems, "; ")
}

// Over simulated days in which balancers, controllers, their store and machines of replicas fail in one service, several at
// once and controllers also in the middle of a launch: no replica has two owners of the same epoch or runs twice, none is
// without a live owner, and no region below replicas.min, for longer than the bound, none is above replicas.max, and a
// controller whose lease has expired changes nothing.
func TestWeekOfMachines(t *testing.T) {
	first, seeds, hours := controller.WeekSeeds()
	faults, rounds, launches, interruptions, deaths, most, longest := map[string]int{}, 0, 0, 0, 0, 0, time.Duration(0)
	for seed := first; seed < first+uint64(seeds); seed++ {
		m, balancers := newWeekMachines(t, seed)
		r := controller.RunWeekOfMachines(t, seed, balancers, m)
		for name, n := range r.Faults {
			faults[name] += n
		}
		rounds, launches, interruptions, deaths, most, longest = rounds+r.Rounds, launches+m.launches, interruptions+m.interruptions, deaths+m.deaths, max(most, m.most), max(longest, r.Longest)
		if t.Failed() {
			t.Fatalf("repeat with: go test ./internal/controller -run 'TestWeekOfMachines$' -week.seed=%d -week.seeds=1 -week.hours=%.0f", seed, hours.Hours())
		}
	}
	if deaths == 0 || interruptions == 0 || launches < interruptions {
		t.Errorf("%d interruptions, %d launches, %d controllers died during one", interruptions, launches, deaths)
	}
	t.Logf("%d seeds of %s, %d rounds; faults: %v; %d interruptions, %d launches, %d controllers died during one; at most %d replicas of %d in a region; longest time without a live owner while a controller led: %s",
		seeds, hours, rounds, faults, interruptions, launches, deaths, most, weekMax, longest)
}
