package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// countedWorld is a service in clouds with a replica above replicas.min, which an operator has added.
type countedWorld struct {
	*reconcilerWorld
	text string
	rc   *deploy.Reconciler
}

const aboveMin = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: llama, gpus: [{type: L4}]}]
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 6}}
  - {name: aws/eu-west-1, replicas: {min: 0, max: 1}}
`

func newCountedWorld(t *testing.T) *countedWorld {
	t.Helper()
	u := &countedWorld{reconcilerWorld: newReconcilerWorldOf(t, aboveMin), text: aboveMin}
	u.nextLeader()
	u.settle(t)
	u.add(t, 2)
	u.settle(t)
	u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2")
	return u
}

// add adds n replicas as an operator's command does.
func (u *countedWorld) add(t *testing.T, n int) {
	t.Helper()
	s := u.operator()
	w, err := s.PlanAddition(t.Context(), cloud.ReplicaGroup{Model: "llama", Region: "aws/us-east-1"}, n, provision.ReplicaClass{})
	if err == nil {
		err = s.ApplyDesired(t.Context(), w)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// nextLeader makes another controller the leader.
func (u *countedWorld) nextLeader() {
	u.rc = u.reconciler()
	u.rc.SetProber(allServe)
}

// settle lets the leader reconcile for some iterations.
func (u *countedWorld) settle(t *testing.T) {
	t.Helper()
	u.reconcileFor(t, u.rc, 20*time.Second, always)
}

func (u *countedWorld) want(t *testing.T, ids ...string) {
	t.Helper()
	if got := u.replicas(); !slices.Equal(got, ids) {
		t.Fatalf("there is %q, want %q", got, ids)
	}
}

// operator returns what an operator's command changes replicas with.
func (u *countedWorld) operator() *deploy.ReplicaScaler {
	dp := newDeployer(u.spec, u.Memory)
	dp.Owner = u.owner
	s := newScaling(dp)
	s.AnnounceRemoval = func(_ context.Context, replicas []provision.Object) {
		var r telemetry.Removals // a balancer stores it
		if text := u.store.values["removals"]; text != "" {
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				panic(err)
			}
		}
		for _, o := range replicas {
			var err error
			if r, err = r.With([]string{o.Handle}, time.Now()); err != nil {
				panic(err)
			}
		}
		text, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		u.store.values["removals"] = string(text)
	}
	return s
}

// remove removes a replica as an operator's command does.
func (u *countedWorld) remove(t *testing.T, id string) {
	t.Helper()
	s := u.operator()
	p, err := s.PlanRemoval(t.Context(), id)
	if err == nil {
		err = s.Remove(t.Context(), p, id)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Replicas above replicas.min that end without a notice are replaced, whoever leads then, and whether or not their cloud
// still lists them.
func TestLostReplicasAboveMinAreReplaced(t *testing.T) {
	for what, lose := range map[string]func(*provision.Object){
		"the cloud no longer lists them":  nil,
		"the cloud lists them as stopped": func(o *provision.Object) { o.TerminatedReason = "stopped" },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newCountedWorld(t)
				for _, lost := range [][]string{{"us-east-1-2"}, {"us-east-1-0", "us-east-1-1", "us-east-1-2"}} {
					u.nextLeader()
					for _, id := range lost {
						u.ChangeObject(id, lose)
					}
					u.settle(t)
					u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2")
				}
			})
		})
	}
}

// A replica above replicas.min that a strategy adds and that ends before the leader has listed it is replaced, too. One that
// is then removed is not.
func TestReplicaThatEndsAtOnceIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newCountedWorld(t)
		launch := controller.ReplicaLaunch{Model: "llama", Region: "aws/us-east-1", Count: 1}
		if _, err := u.rc.Apply(t.Context(), controller.CapacityChange{Launch: []controller.ReplicaLaunch{launch}}, always); err != nil {
			t.Error(err)
		}
		u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2", "us-east-1-3")
		u.ChangeObject("us-east-1-3", nil)
		u.settle(t)
		u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2", "us-east-1-3")
		u.remove(t, "us-east-1-3")
		u.settle(t)
		u.nextLeader()
		u.settle(t)
		u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2")
	})
}

// A replica that an operator, a strategy or a lower replicas.max removes is not replaced, and replicas.max that is raised
// again adds none.
func TestRemovedReplicaIsNotReplaced(t *testing.T) {
	for what, remove := range map[string]func(t *testing.T, u *countedWorld){
		"by an operator": func(t *testing.T, u *countedWorld) { u.remove(t, "us-east-1-2") },
		"by an operator who has added it while no controller led": func(t *testing.T, u *countedWorld) {
			u.remove(t, "us-east-1-2")
			u.settle(t)
			u.add(t, 1)
			u.remove(t, "us-east-1-2")
			u.nextLeader()
		},
		"by an operator while the leader lists": func(t *testing.T, u *countedWorld) {
			var once sync.Once // regions are listed at the same time
			u.listing = func() { once.Do(func() { u.remove(t, "us-east-1-2") }) }
		},
		"by an operator before another leads": func(t *testing.T, u *countedWorld) {
			u.remove(t, "us-east-1-2")
			u.nextLeader()
		},
		"by an operator while the region does not respond to the leader": func(t *testing.T, u *countedWorld) {
			u.unresponsive["aws/us-east-1"] = true
			u.settle(t)
			u.remove(t, "us-east-1-2")
			u.settle(t)
			u.unresponsive["aws/us-east-1"] = false
		},
		"by a strategy that deploys another model in its place": func(t *testing.T, u *countedWorld) {
			if _, err := u.rc.Apply(t.Context(), controller.CapacityChange{Remove: []string{"us-east-1-2"}}, always); err != nil {
				t.Error(err)
			}
		},
		"by a strategy": func(t *testing.T, u *countedWorld) {
			now := time.Now()
			for _, c := range []controller.CapacityChange{
				{Drain: []controller.ReplicaDrain{{ID: "us-east-1-2", Donation: service.Donation{Since: now, Until: now}}}},
				{Remove: []string{"us-east-1-2"}},
			} {
				u.settle(t)
				if _, err := u.rc.Apply(t.Context(), c, always); err != nil {
					t.Error(err)
				}
			}
		},
		"by a lower replicas.max": func(t *testing.T, u *countedWorld) {
			u.text = strings.Replace(aboveMin, "max: 6", "max: 2", 1)
			u.deliver(u.text)
			u.up(t)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newCountedWorld(t)
				remove(t, u)
				u.settle(t)
				u.want(t, "us-east-1-0", "us-east-1-1")
				u.text = aboveMin
				u.deliver(u.text)
				u.nextLeader()
				u.settle(t)
				u.want(t, "us-east-1-0", "us-east-1-1")
				u.ChangeObject("us-east-1-1", nil)
				u.settle(t)
				u.want(t, "us-east-1-0", "us-east-1-1")
			})
		})
	}
}

// The desired count stays while a replica is replaced before it ends: afterwards there are as many as before.
func TestReplacementKeepsTheDesiredCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newCountedWorld(t)
		old := u.objectNamed(t, "us-east-1-1")
		dp := newDeployer(u.spec, u.Memory)
		dp.Owner = u.owner
		s := newScaling(dp)
		if _, _, err := s.Preview(t.Context(), deploy.DesiredReplicas{}); err != nil { // reads the offerings
			t.Fatal(err)
		}
		if _, err := dp.ReplaceReplica(t.Context(), u.Objects(), old, provision.ReplicaClass{GPU: "L4", GPUs: 1}, nil); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			u.settle(t)
			u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2", "us-east-1-3")
			u.nextLeader()
		}
		u.ChangeObject("us-east-1-1", nil)
		u.settle(t)
		u.want(t, "us-east-1-0", "us-east-1-2", "us-east-1-3")
	})
}

// objectNamed returns an object.
func (u *countedWorld) objectNamed(t *testing.T, id string) provision.Object {
	t.Helper()
	all := u.Objects()
	i := slices.IndexFunc(all, func(o provision.Object) bool { return o.ID == id })
	if i < 0 {
		t.Fatalf("there is no %s", id)
	}
	return all[i]
}

// The replicas of a region that does not respond are not lost.
func TestUnresponsiveRegionKeepsItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newCountedWorld(t)
		u.unresponsive["aws/us-east-1"] = true
		u.settle(t)
		u.nextLeader()
		u.settle(t)
		u.ChangeObject("us-east-1-2", nil)
		u.unresponsive["aws/us-east-1"] = false
		u.settle(t)
		u.want(t, "us-east-1-0", "us-east-1-1", "us-east-1-2")
	})
}

// A restored backup has the desired counts of its time: the leader launches what is missing of them. Replicas beyond them
// stay and count.
func TestRestoredCounts(t *testing.T) {
	for what, tt := range map[string]struct {
		change func(t *testing.T, u *countedWorld) // after the backup
		want   []string
	}{
		"replicas that were lost with the store": {func(_ *testing.T, u *countedWorld) {
			u.store.values = map[string]string{}
			u.ChangeObject("us-east-1-1", nil)
			u.ChangeObject("us-east-1-2", nil)
		}, []string{"us-east-1-0", "us-east-1-1", "us-east-1-2"}},
		"a replica that was removed": {func(t *testing.T, u *countedWorld) { u.remove(t, "us-east-1-2") }, []string{"us-east-1-0", "us-east-1-1", "us-east-1-2"}},
		"a replica that was added":   {func(t *testing.T, u *countedWorld) { u.add(t, 1) }, []string{"us-east-1-0", "us-east-1-1", "us-east-1-2", "us-east-1-3"}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newCountedWorld(t)
				backup := maps.Clone(u.store.values)
				tt.change(t, u)
				u.nextLeader()
				u.settle(t)
				u.store.values = backup
				u.nextLeader() // the controller acquires its lease again
				u.settle(t)
				u.want(t, tt.want...)
				u.ChangeObject("us-east-1-0", nil)
				u.settle(t)
				u.want(t, tt.want...)
			})
		})
	}
}

// Counts of an earlier service with the same name, in a store that outlived it, are not used.
func TestCountsOfAnEarlierService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier := newCountedWorld(t)
		u := &countedWorld{reconcilerWorld: newReconcilerWorldOf(t, aboveMin), text: aboveMin}
		u.store = earlier.store
		u.nextLeader()
		u.settle(t)
		u.want(t, "us-east-1-0")
	})
}

// Replicas on this computer that end all at once, with the controller, are started again by the next `up`, also those above
// replicas.min; one that was removed is not.
func TestEndedLocalReplicasAreStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "local/us", "")
		s.Store = func(deploy.ReplicaDecisions) error { return nil }
		endAll := func(want string) {
			t.Helper()
			for _, o := range s.Objects() {
				s.ChangeObject(o.ID, func(o *provision.Object) { o.TerminatedReason = "process exited" })
			}
			dp := newDeployer(s.Spec, s.Memory)
			dp.DesiredCounts = s.Decisions.DesiredCounts("me")
			p, err := dp.Plan(t.Context())
			if err == nil {
				_, err = dp.Up(t.Context(), p, nil)
			}
			if got := s.runsOn(); err != nil || got != want {
				t.Fatalf("there is %s, %v, want %s", got, err, want)
			}
		}
		if undone := s.apply(t, provision.ClassCounts{onL4: 3}); undone != "" {
			t.Fatal(undone)
		}
		endAll("us-0 L4, us-1 L4, us-2 L4")
		p, err := s.PlanRemoval(t.Context(), "us-2")
		if err == nil {
			err = s.Remove(t.Context(), p, "us-2")
		}
		if err != nil {
			t.Fatal(err)
		}
		endAll("us-0 L4, us-1 L4")
	})
}

// A replica on this computer that ends while the command that adds it still runs counts, also if the command then fails.
func TestLocalReplicaThatEndsAtOnceCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "local/us", "")
		s.Progress = func(c provision.Change, p provision.ChangePhase, _ error) {
			if p == provision.PhaseDone {
				s.ChangeObject(c.ID(), func(o *provision.Object) { o.TerminatedReason = "process exited" })
			}
		}
		s.UpdateBalancers = func(context.Context, *deploy.MachinePlan, map[string]bool, map[string]bool) error {
			return context.Canceled
		}
		err := s.ApplyDesired(t.Context(), deploy.DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{s.group: {onL4: 3}}})
		if got := s.Decisions.DesiredCounts("me")[s.group]; !errors.Is(err, context.Canceled) || got != 3 {
			t.Errorf("%d are desired, want 3, %v", got, err)
		}
	})
}

// A removal that cannot be stored is not made: the controller would launch the replica again.
func TestRemovalThatIsNotStoredIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "local/us", "")
		if undone := s.apply(t, provision.ClassCounts{onL4: 3}); undone != "" {
			t.Fatal(undone)
		}
		full := errors.New("no space left on device")
		s.Store = func(deploy.ReplicaDecisions) error { return full }
		p, err := s.PlanRemoval(t.Context(), "us-2")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), p, "us-2"); !errors.Is(err, full) {
			t.Errorf("got %v, want %v", err, full)
		}
		if got := s.runsOn(); got != "us-0 L4, us-1 L4, us-2 L4" {
			t.Errorf("there is %s", got)
		}
	})
}
