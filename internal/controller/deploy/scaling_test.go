package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// newScaling returns the scaling of a service whose balancers immediately use all replicas.
func newScaling(dp *deploy.Deployer) *deploy.ReplicaScaler {
	return &deploy.ReplicaScaler{
		Deployer:        dp,
		Store:           func(deploy.ReplicaDecisions) error { return nil },
		UpdateBalancers: func(context.Context, *deploy.MachinePlan, map[string]bool, map[string]bool) error { return nil },
	}
}

// A plan's counts are by GPU and capacity type for the service's own machines; for machines of static
// regions they are differences.
func TestWantedByPlan(t *testing.T) {
	spec := &service.Spec{
		Regions: []service.RegionSpec{{Name: "aws/us-east-1"}, {Name: "static/paris"}, {Name: "local/us"}},
		Models: []service.Model{
			{Name: "m", GPUs: []service.GPU{{Type: "L4"}, {Type: "H100", Count: 8}}},
			{Name: "n", GPUs: []service.GPU{{Type: "L4"}}},
			{Name: "sim", Engine: service.Engine{Kind: service.EngineSim}},
		},
	}
	spot, onDemand := "spot", "on_demand"
	got := deploy.DesiredBy(spec, plan.Proposal{Changes: []plan.ReplicaChange{
		{Model: "m", Region: "aws/us-east-1", GPU: "L4", CapacityType: &spot, Current: 1, Planned: 3},
		{Model: "m", Region: "aws/us-east-1", GPU: "8xH100", CapacityType: &onDemand, Current: 2, Planned: 1},
		{Model: "n", Region: "aws/us-east-1", GPU: "L4", CapacityType: &onDemand, Current: 1, Planned: 0},
		{Model: "m", Region: "static/paris", GPU: "L4", Current: 1, Delta: 1, Planned: 2},
		{Model: "n", Region: "local/us", GPU: "L4", CapacityType: &onDemand, Planned: 2},
		{Model: "sim", Region: "aws/us-east-1", GPU: "L4", CapacityType: &onDemand, Planned: 2},
	}})
	want := map[cloud.ReplicaGroup]provision.ClassCounts{
		{Model: "m", Region: "aws/us-east-1"}:   {{GPU: "L4", GPUs: 1, Capacity: "spot"}: 3, {GPU: "H100", GPUs: 8, Capacity: "on_demand"}: 1},
		{Model: "n", Region: "aws/us-east-1"}:   {{GPU: "L4", GPUs: 1, Capacity: "on_demand"}: 0},
		{Model: "n", Region: "local/us"}:        {{GPU: "L4", GPUs: 1}: 2},
		{Model: "sim", Region: "aws/us-east-1"}: {{Capacity: "on_demand"}: 2}, // with the assumed GPU
	}
	if !maps.EqualFunc(got.Counts, want, func(a, b provision.ClassCounts) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("got %v, want %v", got.Counts, want)
	}
	if more := map[cloud.ReplicaGroup]int{{Model: "m", Region: "static/paris"}: 1}; !maps.Equal(got.StaticDelta, more) {
		t.Errorf("got %v, want %v", got.StaticDelta, more)
	}
}

// scaledService is a service of one region with replicas in memory, and the steps of changing them.
type scaledService struct {
	reconcilerWorld
	*deploy.ReplicaScaler
	group cloud.ReplicaGroup
	steps []string
}

// newScaledService creates a service in a region, with replicas beyond its minimum.
func newScaledService(t *testing.T, region service.Region, autoscale string) *scaledService {
	text := strings.NewReplacer("aws/us-east-1", string(region), "regions:", "autoscale: {"+autoscale+"}\nregions:").Replace(twoGPUs)
	if region.Cloud() == service.CloudLocal {
		text = strings.NewReplacer("kind: vllm", "kind: sim", "balancer: {auth: {keys_from: env:KEYS}, insecure: true}\n", "").Replace(text)
	}
	spec := parse(t, text)
	s := &scaledService{reconcilerWorld: reconcilerWorld{Memory: newCloud(spec)}, group: cloud.ReplicaGroup{Model: "llama", Region: region}}
	if region.Cloud() == service.CloudLocal {
		for _, gpu := range []string{"L4", "H100"} {
			s.RegionOfferings[region] = append(s.RegionOfferings[region], provision.Offering{Type: "local", Region: region, Capacity: service.CapacityOnDemand, GPU: gpu, GPUs: 1})
		}
	}
	if _, err := up(spec, s.Memory); err != nil {
		t.Fatal(err)
	}
	dp := newDeployer(spec, s.Memory)
	dp.Drain = func(_ context.Context, o provision.Object) { s.steps = append(s.steps, "drain "+o.ID) }
	s.ReplicaScaler = newScaling(dp)
	s.Store = func(d deploy.ReplicaDecisions) error {
		s.steps = append(s.steps, "decide")
		return nil
	}
	s.UpdateBalancers = func(_ context.Context, _ *deploy.MachinePlan, idle, fresh map[string]bool) error {
		s.steps = append(s.steps, fmt.Sprintf("use, idle %v, new %v", slices.Sorted(maps.Keys(idle)), slices.Sorted(maps.Keys(fresh))))
		return nil
	}
	s.Progress = func(c provision.Change, p provision.ChangePhase, _ error) {
		if p == provision.PhaseDone {
			s.steps = append(s.steps, string(c.Action)+" "+c.ID())
		}
	}
	return s
}

// A change of replicas starts the balancers on this computer that have ended: the controller waits for the end of the
// command, which waits for the balancers.
func TestChangeOfReplicasStartsEndedBalancers(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, s *scaledService) error{
		"drain":  func(t *testing.T, s *scaledService) error { return s.Drain(t.Context(), "us-1", true) },
		"resume": func(t *testing.T, s *scaledService) error { return s.Drain(t.Context(), "us-0", false) },
		"donate": func(t *testing.T, s *scaledService) error { return s.Donate(t.Context(), "us-1") },
		"add": func(t *testing.T, s *scaledService) error {
			return s.ApplyDesired(t.Context(), deploy.DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{s.group: {onL4: 2}}})
		},
		"remove": func(t *testing.T, s *scaledService) error {
			p, err := s.PlanRemoval(t.Context(), "us-1")
			if err == nil {
				err = s.Remove(t.Context(), p, "us-1")
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScaledService(t, "local/us", "donate_for: 1h")
				if what != "add" {
					s.apply(t, provision.ClassCounts{onL4: 3})
				}
				if err := s.Drain(t.Context(), "us-0", true); err != nil {
					t.Fatal(err)
				}
				s.ChangeObject("lb-us-0", func(o *provision.Object) { o.TerminatedReason = "process exited" })
				running := 0
				s.UpdateBalancers = func(context.Context, *deploy.MachinePlan, map[string]bool, map[string]bool) error {
					running = len(slices.DeleteFunc(s.Objects(), func(o provision.Object) bool {
						return o.ID != "lb-us-0" || o.TerminatedReason != ""
					}))
					return nil
				}
				if err := change(t, s); err != nil || running != 1 {
					t.Errorf("the balancer runs %d times when it gets the change, want once, %v", running, err)
				}
			})
		})
	}
}

// apply applies the desired counts and returns what could not be applied.
func (s *scaledService) apply(t *testing.T, counts provision.ClassCounts) string {
	t.Helper()
	s.steps = nil
	return undoneText(t, s.ApplyDesired(t.Context(), deploy.DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{s.group: counts}}))
}

// undoneText returns the errors of the changes that could not be applied; empty without any.
func undoneText(t *testing.T, err error) string {
	t.Helper()
	var u *deploy.PartialError
	if err != nil && !errors.As(err, &u) {
		t.Fatal(err)
	}
	text, _ := strings.CutPrefix(fmt.Sprint(err), "applied partially: ")
	if err == nil {
		return ""
	}
	return text
}

var (
	onL4   = provision.ReplicaClass{GPU: "L4", GPUs: 1}
	onH100 = provision.ReplicaClass{GPU: "H100", GPUs: 1}
)

// Counts by GPU are applied, a few at a time where replicas.max limits them.
func TestApplyWanted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		counts provision.ClassCounts
		lacks  string // a GPU without capacity
		want   string
		undone string
	}{
		{"all on another GPU", provision.ClassCounts{onH100: 2}, "", "us-east-1-0 H100, us-east-1-2 H100", ""},
		{"one of each", provision.ClassCounts{onL4: 1, onH100: 1}, "", "us-east-1-0 L4, us-east-1-2 H100", ""},
		{"one more on another GPU", provision.ClassCounts{onL4: 2, onH100: 1}, "", "us-east-1-0 L4, us-east-1-1 L4, us-east-1-2 H100", ""},
		{"one more, which falls back", provision.ClassCounts{onL4: 2, onH100: 1}, "H100", "us-east-1-0 L4, us-east-1-1 L4, us-east-1-2 L4", "replacing us-east-1-2 (on_demand L4) with H100: replicas.max does not allow a replacement before the old replica is removed"},
		{"another GPU without capacity", provision.ClassCounts{onH100: 2}, "H100", "us-east-1-0 L4, us-east-1-1 L4", "replacing us-east-1-0 (on_demand L4) with H100: the cloud has no capacity for it; replacing us-east-1-1 (on_demand L4) with H100: the cloud has no capacity for it"},
		{"more than is allowed", provision.ClassCounts{onL4: 4}, "", "us-east-1-0 L4, us-east-1-1 L4", "llama in aws/us-east-1: replicas must be 2 to 3 (replicas.min and max of service.yaml), would be 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScaledService(t, "aws/us-east-1", "")
				s.CapacityError = func(o provision.Offering) *provision.CapacityError {
					if o.GPU != tt.lacks || tt.lacks == "" {
						return nil
					}
					return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
				}
				if undone := s.apply(t, tt.counts); undone != tt.undone {
					t.Errorf("not applied: %q, want %q", undone, tt.undone)
				}
				if got := s.runsOn(); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if tt.undone == "" {
					if undone := s.apply(t, tt.counts); undone != "" || len(s.steps) > 0 {
						t.Errorf("applying it again: %q, %q", undone, s.steps)
					}
				}
			})
		})
	}
}

// Removing excess replicas makes replacements possible that replicas.max did not allow before.
func TestExcessReplicasFreeCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "aws/us-east-1", "")
		if undone := s.apply(t, provision.ClassCounts{onL4: 3}); undone != "" {
			t.Fatal(undone)
		}
		if undone := s.apply(t, provision.ClassCounts{onH100: 2}); undone != "" {
			t.Errorf("not applied: %s", undone)
		}
		if got, want := s.runsOn(), "us-east-1-0 H100, us-east-1-2 H100"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// Increases of capacity come first, each step once the previous one is complete; removed replicas are
// drained.
func TestApplyWantedOrder(t *testing.T) {
	for _, tt := range []struct {
		name, region, autoscale string
		first, counts           provision.ClassCounts
		want                    string
	}{
		{"one more", "aws/us-east-1", "", nil, provision.ClassCounts{onL4: 3}, "launch us-east-1-2; use, idle [], new [us-east-1-2]"},
		{"one fewer", "aws/us-east-1", "", provision.ClassCounts{onL4: 3}, provision.ClassCounts{onL4: 2}, "drain us-east-1-2; terminate us-east-1-2; use, idle [], new []"},
		{"one fewer, where cloud machines are removed", "aws/us-east-1", "donate: true", provision.ClassCounts{onL4: 3}, provision.ClassCounts{onL4: 2}, "drain us-east-1-2; terminate us-east-1-2; use, idle [], new []"},
		{"one fewer, which is donated", "local/us", "donate: true", provision.ClassCounts{onL4: 3}, provision.ClassCounts{onL4: 2}, "decide; use, idle [us-2], new []; drain us-2"},
		{"one fewer, not donated", "local/us", "donate: false", provision.ClassCounts{onL4: 3}, provision.ClassCounts{onL4: 2}, "decide; drain us-2; terminate us-2; use, idle [], new []"},
		{"another GPU, where the excess is donated", "local/us", "donate: true", nil, provision.ClassCounts{onL4: 1, onH100: 1}, "launch us-2; decide; use, idle [], new [us-2]; drain us-1; terminate us-1; use, idle [], new []"},
		{"another GPU", "aws/us-east-1", "", nil, provision.ClassCounts{onL4: 1, onH100: 1}, "launch us-east-1-2; use, idle [], new [us-east-1-2]; drain us-east-1-1; terminate us-east-1-1; use, idle [], new []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScaledService(t, service.Region(tt.region), tt.autoscale)
				if undone := s.apply(t, tt.first); tt.first != nil && undone != "" {
					t.Fatal(undone)
				}
				if undone := s.apply(t, tt.counts); undone != "" {
					t.Errorf("not applied: %s", undone)
				}
				if got := strings.Join(s.steps, "; "); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// Preview returns the changes before they are applied.
func TestPreview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "aws/us-east-1", "")
		preview := func(counts provision.ClassCounts) string {
			t.Helper()
			p, swaps, err := s.Preview(t.Context(), deploy.DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{s.group: counts}})
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, c := range p.Changes {
				all = append(all, string(c.Action)+" "+c.ID())
			}
			for _, swap := range swaps {
				all = append(all, fmt.Sprintf("%s -> %s", swap.Replica.ID, swap.Class))
			}
			return strings.Join(all, ", ")
		}
		for _, tt := range []struct {
			counts provision.ClassCounts
			want   string
		}{
			{provision.ClassCounts{onL4: 2}, ""},
			{provision.ClassCounts{onL4: 2, onH100: 1}, "launch us-east-1-2"},
			{provision.ClassCounts{onL4: 1, onH100: 1}, "us-east-1-1 -> H100"},
			{provision.ClassCounts{onL4: 4}, ""},
		} {
			if got := preview(tt.counts); got != tt.want {
				t.Errorf("%v: got %q, want %q", tt.counts, got, tt.want)
			}
		}
		if before := s.CountChanges(); s.apply(t, provision.ClassCounts{onL4: 3}) != "" || preview(provision.ClassCounts{onL4: 2}) != "terminate us-east-1-2" || s.CountChanges() != before+1 {
			t.Errorf("one fewer: %q", preview(provision.ClassCounts{onL4: 2}))
		}
	})
}

// A preview of one more replica is compared with the quotas: its region has no other capacity, and no other region exists.
func TestFitsQuotasCountsPreviewed(t *testing.T) {
	s := newScaledService(t, "aws/us-east-1", "")
	p, _, err := s.Preview(t.Context(), deploy.DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{s.group: {onL4: 3}}})
	if err != nil || len(p.Changes) != 1 {
		t.Fatalf("%d changes, %v", len(p.Changes), err)
	}
	for limit, want := range map[float64]bool{0: false, 64: true} {
		quotas := []provision.Quota{{Region: s.group.Region, Code: "L-DB2E81BA", Limit: limit}}
		for _, others := range []string{"L-3819A6DF", "L-417A185B", "L-C4BD4855", "L-7212CCBC"} {
			quotas = append(quotas, provision.Quota{Region: s.group.Region, Code: others})
		}
		if fits, err := s.FitsQuotas(p, quotas); fits != want || err != nil {
			t.Errorf("limit %v: fits %t, %v", limit, fits, err)
		}
	}
}

// Operators can remove replicas within the bounds of service.yaml.
func TestRemoveReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "aws/us-east-1", "")
		if _, err := s.PlanRemoval(t.Context(), "us-east-1-0"); err == nil || !strings.Contains(err.Error(), "must be 2 to 3") {
			t.Errorf("below replicas.min: %v", err)
		}
		if _, err := s.PlanRemoval(t.Context(), "us-east-1-7"); err == nil || err.Error() != `the service has no replica "us-east-1-7"` {
			t.Errorf("an unknown replica: %v", err)
		}
		w, err := s.PlanAddition(t.Context(), s.group, 1, onH100)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ApplyDesired(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if _, err := s.PlanAddition(t.Context(), s.group, 1, onH100); err == nil || !strings.Contains(err.Error(), "would be 4") {
			t.Errorf("above replicas.max: %v", err)
		}
		p, err := s.PlanRemoval(t.Context(), "us-east-1-0")
		if err == nil {
			err = s.Remove(t.Context(), p, "us-east-1-0")
		}
		if got, want := s.runsOn(), "us-east-1-1 L4, us-east-1-2 H100"; err != nil || got != want {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	})
}

const paris = `
name: chat
models: [{name: m, engine: {kind: vllm}}]
regions: [{name: static/paris, replicas: {min: 1, max: 2}, endpoints: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]}]
`

// Machines of static regions are donated until they are reclaimed, the last of the list first.
func TestApplyWantedToStaticRegions(t *testing.T) {
	g := cloud.ReplicaGroup{Model: "m", Region: "static/paris"}
	spec := parse(t, paris)
	s := newScaling(newDeployer(spec, newCloud(spec)))
	for _, tt := range []struct {
		more   int
		idle   string
		undone string
	}{
		{-1, "paris-10-0-0-2-8000", ""},
		{1, "", ""},
		{1, "", "m in static/paris: add 1: list the machines under endpoints in service.yaml"},
	} {
		text := undoneText(t, s.ApplyDesired(t.Context(), deploy.DesiredReplicas{StaticDelta: map[cloud.ReplicaGroup]int{g: tt.more}}))
		if idle := strings.Join(slices.Sorted(maps.Keys(s.Decisions.NotServing())), " "); idle != tt.idle || text != tt.undone {
			t.Errorf("%+d: idle %q, not done %q", tt.more, idle, text)
		}
		for id := range s.Decisions.NotServing() {
			if d := s.Decisions.Donation(id); d == nil || !d.Until.IsZero() {
				t.Errorf("%+d: %s is donated: %+v", tt.more, id, d)
			}
		}
	}
	if err := s.Donate(t.Context(), "paris-10-0-0-1-8000"); err != nil {
		t.Fatal(err)
	}
	if d := s.Decisions.Donation("paris-10-0-0-1-8000"); d == nil || !d.Until.IsZero() || time.Since(d.Since) > time.Hour {
		t.Errorf("donated: %+v", d)
	}
	if _, err := s.PlanRemoval(t.Context(), "paris-10-0-0-1-8000"); err == nil || !strings.Contains(err.Error(), "listed in service.yaml") {
		t.Errorf("removing a static machine: %v", err)
	}
}

// A donated replica is reclaimed first, and operators can only donate what replicas.min allows.
func TestDonateReplica(t *testing.T) {
	s := newScaledService(t, "local/us", "donate: true, donate_for: 1h")
	if err := s.Donate(t.Context(), "us-1"); err == nil || !strings.Contains(err.Error(), "must be 2 to 3") {
		t.Errorf("below replicas.min: %v", err)
	}
	if undone := s.apply(t, provision.ClassCounts{onL4: 3}); undone != "" {
		t.Fatal(undone)
	}
	if err := s.Donate(t.Context(), "us-1"); err != nil {
		t.Fatal(err)
	}
	if d := s.Decisions.Donation("us-1"); d == nil || d.Until.Sub(d.Since) != time.Hour {
		t.Errorf("donated: %+v", d)
	}
	if undone := s.apply(t, provision.ClassCounts{onL4: 3}); undone != "" || strings.Join(s.steps, "; ") != "decide; use, idle [], new [us-1]" {
		t.Errorf("one more: %q, not done %q", s.steps, undone)
	}
	for _, drained := range []bool{true, false} {
		if err := s.Drain(t.Context(), "us-0", drained); err != nil || s.Decisions.IsDrained("us-0") != drained {
			t.Errorf("drained %t: %+v, %v", drained, s.Decisions, err)
		}
	}
	for _, id := range []string{"us-7", "lb-us-0"} {
		if err := s.Drain(t.Context(), id, true); err == nil || err.Error() != fmt.Sprintf("the service has no replica %q", id) {
			t.Errorf("%s, which is no replica, is drained: %v", id, err)
		}
	}
}

// A fallback replica for a region without capacity is not excess in its own region.
func TestFallbackReplicaIsNotExcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := parse(t, strings.Replace(twoGPUs, "regions:", "regions:\n  - {name: aws/us-west-2, replicas: {min: 1, max: 2}}", 1))
		m := newCloud(spec)
		if _, err := up(spec, m); err != nil {
			t.Fatal(err)
		}
		m.CapacityError = func(o provision.Offering) *provision.CapacityError {
			if o.Region != "aws/us-east-1" || o.GPU == "" {
				return nil
			}
			return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
		}
		s := newScaling(newDeployer(spec, m))
		counts := map[cloud.ReplicaGroup]provision.ClassCounts{
			{Model: "llama", Region: "aws/us-east-1"}: {onL4: 3},
			{Model: "llama", Region: "aws/us-west-2"}: {onL4: 1},
		}
		for range 2 {
			if err := s.ApplyDesired(t.Context(), deploy.DesiredReplicas{Counts: counts}); err != nil {
				t.Fatal(err)
			}
			u := reconcilerWorld{Memory: m}
			if got, want := u.runsOn(), "us-east-1-0 L4, us-east-1-1 L4, us-west-2-0 L4, us-west-2-1 L4"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})
}

// Services with cloud regions reject decisions about single replicas, which would not be stored.
func TestCloudServiceRejectsDecisions(t *testing.T) {
	spec := parse(t, strings.Replace(twoGPUs, "regions:", "regions:\n  - {name: static/paris, endpoints: [\"http://10.0.0.1:8000\"], replicas: {min: 0, max: 1}}", 1))
	m := newCloud(spec)
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	s := newScaling(newDeployer(spec, m))
	for what, decide := range map[string]func(id string) error{
		"drain":   func(id string) error { return s.Drain(t.Context(), id, true) },
		"donate":  func(id string) error { return s.Donate(t.Context(), id) },
		"reclaim": func(id string) error { return s.Reclaim(t.Context(), id) },
	} {
		for _, id := range []string{"us-east-1-0", "paris-10-0-0-1-8000"} {
			err := decide(id)
			if !errors.Is(err, deploy.ErrNoManualDecisions) || errors.Is(err, deploy.ErrNoStaticDecisions) != (id != "us-east-1-0") {
				t.Errorf("%s %s: %v", what, id, err)
			}
		}
	}
	err := s.ApplyDesired(t.Context(), deploy.DesiredReplicas{StaticDelta: map[cloud.ReplicaGroup]int{{Model: "llama", Region: "static/paris"}: -1}})
	if got := undoneText(t, err); !strings.HasPrefix(got, "llama in static/paris: remove 1: ") {
		t.Errorf("not applied: %q", got)
	}
	if s.Changed || len(s.Decisions.NotServing()) > 0 {
		t.Errorf("decided: %+v", s.Decisions)
	}
}

// A balancer that does not respond is reported, and the replica is drained at the others.
func TestDrainPassesHungBalancer(t *testing.T) {
	s := newScaledService(t, "local/us", "strategy: manual")
	hung, drained := &deploy.UnconfirmedError{Err: errors.New("waiting for lb-eu-0")}, ""
	s.UpdateBalancers = func(context.Context, *deploy.MachinePlan, map[string]bool, map[string]bool) error { return hung }
	s.OnDrained = func(id string) { drained = id }
	if err := s.Drain(t.Context(), "us-0", true); !errors.Is(err, error(hung)) || drained != "us-0" || !slices.Equal(s.steps, []string{"decide", "drain us-0"}) {
		t.Errorf("got %v, drained %q, steps %q", err, drained, s.steps)
	}
}
