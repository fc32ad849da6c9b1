package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const twoGPUs = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}, {type: H100}]
regions:
  - name: aws/us-east-1
    replicas: {min: 2, max: 3}
`

// runsOn is what the replicas there are run on, by id.
func (u *upkeep) runsOn() string {
	var all []string
	for _, o := range u.Objects() {
		if o.Kind == provision.KindReplica && o.Gone == "" {
			all = append(all, o.ID+" "+o.Offering.GPU)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// A replica that is to run on something else is launched beside the one that it takes the
// place of, as far as replicas.max leaves room and its cloud has it.
func TestExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpkeepOf(t, twoGPUs)
		f := newFleet(u.spec, u.Memory)
		f.Owner = u.owner
		h100 := provision.Class{GPU: "H100", GPUs: 1}
		exchange := func(id string) (string, error) {
			p, err := f.Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(p.Have, func(o provision.Object) bool { return o.ID == id })
			return f.Exchange(t.Context(), p.Have, p.Have[at], h100, nil)
		}
		u.Refuse = func(o provision.Offering) *provision.CapacityError {
			if o.GPU != "H100" {
				t.Errorf("asked for %s in the place of what serves", o)
			}
			return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
		}
		var refused *fleet.RefusedError
		if id, err := exchange("us-east-1-0"); id != "" || !errors.As(err, &refused) || err.Error() != "us-east-1-0 stays on on_demand L4: H100 was wanted: its cloud has no capacity" {
			t.Errorf("without capacity: launched %q, %v", id, err)
		}
		u.Refuse = nil
		f = newFleet(u.spec, u.Memory) // which remembers no refusal
		f.Owner = u.owner
		if id, err := exchange("us-east-1-0"); id != "us-east-1-2" || err != nil {
			t.Errorf("launched %q, %v", id, err)
		}
		if got := u.runsOn(); got != "us-east-1-0 L4, us-east-1-1 L4, us-east-1-2 H100" {
			t.Errorf("got %s", got)
		}
		if id, err := exchange("us-east-1-1"); id != "" || !errors.As(err, &refused) || !strings.Contains(err.Error(), "replicas.max") {
			t.Errorf("above max: launched %q, %v", id, err)
		}
	})
}

// Counts by GPU are followed, a few at a time where replicas.max leaves room for a few.
func TestFollow(t *testing.T) {
	for _, tt := range []struct {
		name    string
		counts  provision.Counts
		lacks   string // a GPU that cannot be had
		want    string
		refused bool
	}{
		{"all on another GPU", provision.Counts{{GPU: "H100", GPUs: 1}: 2}, "", "us-east-1-0 H100, us-east-1-2 H100", false},
		{"one of each", provision.Counts{{GPU: "L4", GPUs: 1}: 1, {GPU: "H100", GPUs: 1}: 1}, "", "us-east-1-0 L4, us-east-1-2 H100", false},
		{"one more on another GPU", provision.Counts{{GPU: "L4", GPUs: 1}: 2, {GPU: "H100", GPUs: 1}: 1}, "", "us-east-1-0 L4, us-east-1-1 L4, us-east-1-2 H100", false},
		{"one more, which falls back", provision.Counts{{GPU: "L4", GPUs: 1}: 2, {GPU: "H100", GPUs: 1}: 1}, "H100", "us-east-1-0 L4, us-east-1-1 L4, us-east-1-2 L4", true},
		{"another GPU that cannot be had", provision.Counts{{GPU: "H100", GPUs: 1}: 2}, "H100", "us-east-1-0 L4, us-east-1-1 L4", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUpkeepOf(t, twoGPUs)
				u.Refuse = func(o provision.Offering) *provision.CapacityError {
					if o.GPU != tt.lacks || tt.lacks == "" {
						return nil
					}
					return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
				}
				f := newFleet(u.spec, u.Memory)
				f.Owner, f.Counts = u.owner, map[cloud.Group]provision.Counts{{Model: "llama", Region: "aws/us-east-1"}: tt.counts}
				refused, err := f.Follow(t.Context(), nil, func(context.Context, *fleet.Plan) error { return nil })
				if err != nil || (refused != nil) != tt.refused {
					t.Errorf("refused %v, failed %v", refused, err)
				}
				if got := u.runsOn(); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		})
	}
}

// What is exchanged is what differs from a plan and stays in number.
func TestSwaps(t *testing.T) {
	const region = service.Region("aws/us-east-1")
	on := func(id, gpu string) provision.Object {
		return provision.Object{ID: id, Kind: provision.KindReplica, Region: region, Labels: map[string]string{"model": "llama"}, Offering: &provision.Offering{GPU: gpu, GPUs: 1}}
	}
	l4, h100 := provision.Class{GPU: "L4", GPUs: 1}, provision.Class{GPU: "H100", GPUs: 1}
	have := []provision.Object{on("us-east-1-0", "L4"), on("us-east-1-1", "L4"), on("us-east-1-10", "H100"), on("us-east-1-2", "L4")}
	for _, tt := range []struct {
		name   string
		counts provision.Counts
		want   string
	}{
		{"as it is", provision.Counts{l4: 3, h100: 1}, ""},
		{"two others", provision.Counts{l4: 1, h100: 3}, "us-east-1-1 H100, us-east-1-2 H100"},
		{"another one, and one more", provision.Counts{l4: 2, h100: 3}, "us-east-1-2 H100"},
		{"fewer, some of them others", provision.Counts{h100: 2}, "us-east-1-0 H100"},
		{"whatever there is", provision.Counts{provision.Class{}: 4}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, s := range fleet.Swaps(have, map[cloud.Group]provision.Counts{{Model: "llama", Region: region}: tt.counts}) {
				got = append(got, s.Of.ID+" "+s.On.GPU)
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("got %q, want %q", text, tt.want)
			}
		})
	}
}
