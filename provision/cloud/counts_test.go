package cloud_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// The desired counts per GPU and capacity type determine which replicas are launched and terminated. Other
// offerings follow in the order of service.yaml.
func TestCountsSelectClasses(t *testing.T) {
	const region = service.Region("aws/us-east-1") // min 2, max 4 replicas
	l4 := provision.ReplicaClass{GPU: "L4", GPUs: 1}
	h100 := provision.ReplicaClass{GPU: "H100", GPUs: 1}
	spot := provision.ReplicaClass{GPU: "L4", GPUs: 1, Capacity: service.CapacitySpot}
	for _, tt := range []struct {
		name    string
		exist   []provision.ReplicaClass // of the replicas 0, 1, ...
		counts  provision.ClassCounts
		wanted  []string // "number first-choice" of the replicas afterwards
		changes []string
	}{
		{"more on another GPU", []provision.ReplicaClass{l4, l4}, provision.ClassCounts{l4: 2, h100: 1}, []string{"0 L4", "1 L4", "2 H100"}, []string{"launch 2"}},
		{"a mix from nothing", nil, provision.ClassCounts{l4: 2, h100: 1}, []string{"0 L4", "1 L4", "2 H100"}, []string{"launch 0", "launch 1", "launch 2"}},
		{"fewer of one GPU", []provision.ReplicaClass{l4, h100, l4}, provision.ClassCounts{l4: 1, h100: 1}, []string{"0 L4", "1 L4"}, []string{"terminate 2"}},
		{"replicas of other classes are terminated first", []provision.ReplicaClass{h100, l4, l4}, provision.ClassCounts{l4: 2}, []string{"1 L4", "2 L4"}, []string{"terminate 0"}},
		{"same count of any class", []provision.ReplicaClass{h100, l4}, provision.ClassCounts{provision.ReplicaClass{}: 3}, []string{"0 L4", "1 L4", "2 L4"}, []string{"launch 2"}},
		{"replica of another class stays while the count matches", []provision.ReplicaClass{h100, l4}, provision.ClassCounts{l4: 2}, []string{"0 L4", "1 L4"}, nil},
		{"spot in addition to on demand", []provision.ReplicaClass{l4, l4}, provision.ClassCounts{l4: 2, spot: 1}, []string{"0 L4", "1 L4", "2 L4 spot"}, []string{"launch 2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := parse(t, threeRegions)
			spec.Regions[0].OnDemandBase = 0
			spec.Regions[0].Capacity = []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot}
			in := input(spec)
			in.Counts = map[cloud.ReplicaGroup]provision.ClassCounts{{Model: "llama", Region: region}: tt.counts}
			for n, class := range tt.exist {
				in.Have = append(in.Have, existingReplica(spec, in, region, n, class))
			}
			var got []string
			l := plan(t, in)
			for _, w := range replicasOf(l, region) {
				choice := fmt.Sprintf("%s %s", numberOf(w.ID), w.Offerings[0].GPU)
				if w.Offerings[0].Capacity == service.CapacitySpot {
					choice += " spot"
				}
				got = append(got, choice)
				var fallbacks []string
				for _, o := range w.Offerings {
					if !slices.Contains(fallbacks, o.GPU) {
						fallbacks = append(fallbacks, o.GPU)
					}
				}
				if slices.Sort(fallbacks); !reflect.DeepEqual(fallbacks, []string{"H100", "L4"}) {
					t.Errorf("%s can fall back to %v alone", w.ID, fallbacks)
				}
			}
			if !reflect.DeepEqual(got, tt.wanted) {
				t.Errorf("wants %q, want %q", got, tt.wanted)
			}
			var changes []string
			for _, c := range provision.Diff(l.Desired, in.Have) {
				if c.Kind() == provision.KindReplica && c.Region() == region && modelOf(c) == "llama" {
					changes = append(changes, fmt.Sprintf("%s %s", c.Action, numberOf(c.ID())))
				}
			}
			slices.Sort(changes)
			if !reflect.DeepEqual(changes, tt.changes) {
				t.Errorf("changes %q, want %q", changes, tt.changes)
			}
		})
	}
}

// replicasOf returns the desired replicas of llama in a region.
func replicasOf(l *cloud.Layout, region service.Region) (wants []provision.Desired) {
	for _, w := range l.Desired {
		if w.Kind == provision.KindReplica && w.Region == region && w.Labels["model"] == "llama" {
			wants = append(wants, w)
		}
	}
	return wants
}

func modelOf(c provision.Change) string {
	if c.Desired.Labels != nil {
		return c.Desired.Labels["model"]
	}
	return c.Observed.Labels["model"]
}

// numberOf returns the number at the end of a replica's id.
func numberOf(id string) string { return id[len(id)-1:] }

// existingReplica is a running replica of llama of a class.
func existingReplica(spec *service.Spec, in cloud.LayoutInput, region service.Region, n int, class provision.ReplicaClass) provision.Object {
	at := slices.IndexFunc(in.Offerings[region], func(o provision.Offering) bool {
		return class.Matches(o) && (class.Capacity != "" || o.Capacity == service.CapacityOnDemand)
	})
	in.Counts = map[cloud.ReplicaGroup]provision.ClassCounts{{Model: "llama", Region: region}: {provision.ReplicaClass{}: n + 1}}
	l, err := cloud.BuildLayout(cloud.LayoutInput{Spec: spec, Owner: in.Owner, Offerings: in.Offerings, UserData: in.UserData, Counts: in.Counts})
	if err != nil {
		panic(err)
	}
	id := provision.ReplicaID(spec, 0, region, n)
	for _, w := range l.Desired {
		if w.ID == id {
			o := launchAll([]provision.Desired{w})[0]
			o.Offering = &in.Offerings[region][at]
			return o
		}
	}
	panic("no replica " + id)
}
