package deploy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A replica of unknown class is replaced like any other.
func TestReplacementOfUnknownClass(t *testing.T) {
	s := ClassMismatch{Replica: provision.Object{ID: "us-0", Region: "local/us"}, Class: provision.ReplicaClass{GPU: "L4", GPUs: 1}}
	if got, want := s.String(), "us-0\tlocal/us\tany machine -> L4"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The desired state is reached at the least cost to clients: donated replicas are reclaimed before
// others are launched, only remaining replicas are replaced, and the last of the others are removed.
func TestDifference(t *testing.T) {
	const region = service.Region("aws/us-east-1")
	on := func(id, gpu, handle, replaces string) provision.Object {
		return provision.Object{ID: id, Kind: provision.KindReplica, Region: region, Handle: handle, Labels: map[string]string{"model": "llama", "instead": replaces}, Offering: &provision.Offering{GPU: gpu, GPUs: 1}}
	}
	l4, h100 := provision.ReplicaClass{GPU: "L4", GPUs: 1}, provision.ReplicaClass{GPU: "H100", GPUs: 1}
	four := []provision.Object{on("us-east-1-0", "L4", "", ""), on("us-east-1-1", "L4", "", ""), on("us-east-1-10", "H100", "", ""), on("us-east-1-2", "L4", "", "")}
	replaced := []provision.Object{on("us-east-1-0", "L4", "h", ""), on("us-east-1-1", "L4", "", ""), on("us-east-1-2", "H100", "", "h")}
	for _, tt := range []struct {
		name    string
		have    []provision.Object
		donated string // ids; those donated last come last
		drained string // ids
		counts  provision.ClassCounts
		want    string
	}{
		{"no change", four, "", "", provision.ClassCounts{l4: 3, h100: 1}, ""},
		{"two others", four, "", "", provision.ClassCounts{l4: 1, h100: 3}, "replace us-east-1-1 by H100, replace us-east-1-2 by H100"},
		{"another one, and one more", four, "", "", provision.ClassCounts{l4: 2, h100: 3}, "launch 1 H100, replace us-east-1-2 by H100"},
		{"fewer, some of them others", four, "", "", provision.ClassCounts{h100: 2}, "replace us-east-1-0 by H100, give up us-east-1-1, give up us-east-1-2"},
		{"fewer", four, "", "", provision.ClassCounts{l4: 2, h100: 1}, "give up us-east-1-2"},
		{"any class", four, "", "", provision.ClassCounts{provision.ReplicaClass{}: 4}, ""},
		{"one more of any", four, "", "", provision.ClassCounts{l4: 3, h100: 1, provision.ReplicaClass{}: 1}, "launch 1 any machine"},
		{"one that was donated", four, "us-east-1-1", "", provision.ClassCounts{l4: 3, h100: 1}, "reclaim us-east-1-1"},
		{"the one that was donated last", four, "us-east-1-1 us-east-1-0", "", provision.ClassCounts{l4: 2, h100: 1}, "reclaim us-east-1-0"},
		{"one on another GPU than the donated one", four, "us-east-1-1", "", provision.ClassCounts{l4: 2, h100: 2}, "launch 1 H100"},
		{"a donated one in the place of another", four, "us-east-1-10", "", provision.ClassCounts{l4: 2, h100: 1}, "reclaim us-east-1-10, give up us-east-1-2"},
		{"one that was replaced goes first", replaced, "", "", provision.ClassCounts{l4: 1, h100: 1}, "give up us-east-1-0"},
		{"the replaced one goes, others are next", replaced, "", "", provision.ClassCounts{h100: 2}, "replace us-east-1-1 by H100, give up us-east-1-0"},
		{"too many", four, "", "", provision.ClassCounts{l4: 7}, "llama in aws/us-east-1: replicas must be 1 to 6 (replicas.min and max of service.yaml), would be 7"},
		{"too few", four, "", "", provision.ClassCounts{l4: 0}, "llama in aws/us-east-1: replicas must be 1 to 6 (replicas.min and max of service.yaml), would be 0"},
		{"donated ones use the capacity", four, "us-east-1-0 us-east-1-1", "", provision.ClassCounts{l4: 1, h100: 5}, "launch 2 H100, llama in aws/us-east-1: replicas must be 1 to 6 (replicas.min and max of service.yaml), would be 8"},
		{"drained ones neither count nor go", four, "", "us-east-1-0 us-east-1-1", provision.ClassCounts{l4: 1, h100: 1}, ""},
		{"fewer, beside a drained one", four, "", "us-east-1-2", provision.ClassCounts{l4: 1, h100: 1}, "give up us-east-1-1"},
		{"another one for a drained one", four, "", "us-east-1-0", provision.ClassCounts{l4: 3, h100: 1}, "launch 1 L4"},
		{"more than zero, all are drained", four, "", "us-east-1-0 us-east-1-1 us-east-1-10 us-east-1-2", provision.ClassCounts{l4: 1}, "launch 1 L4"},
		{"drained ones use the capacity", four, "", "us-east-1-0 us-east-1-1", provision.ClassCounts{l4: 1, h100: 5}, "launch 2 H100, llama in aws/us-east-1: replicas must be 1 to 6 (replicas.min and max of service.yaml), would be 8, 2 of them drained ('skyserve replica drain us-east-1-0 us-east-1-1 --undo' lets them serve)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &service.Spec{Models: []service.Model{{Name: "llama"}}, Regions: []service.RegionSpec{{Name: region, Replicas: service.Bounds{Min: 1, Max: 6}}}}
			var decided ReplicaDecisions
			for i, id := range strings.Fields(tt.donated) {
				decided = decided.WithDonated(id, service.Donation{Since: time.Unix(int64(i), 0)})
			}
			for _, id := range strings.Fields(tt.drained) {
				decided = decided.WithDrained(id, true)
			}
			g := cloud.ReplicaGroup{Model: "llama", Region: region}
			d, outOfBounds := diffReplicas(spec, tt.have, decided, map[cloud.ReplicaGroup]provision.ClassCounts{g: tt.counts})
			var all []string
			for _, id := range d.reclaim {
				all = append(all, "reclaim "+id)
			}
			for class, n := range d.launch[g] { // of one class
				all = append(all, fmt.Sprintf("launch %d %s", n, class))
			}
			for _, s := range d.replace {
				all = append(all, fmt.Sprintf("replace %s by %s", s.Replica.ID, s.Class))
			}
			for _, o := range d.excess {
				all = append(all, "give up "+o.ID)
			}
			for _, err := range outOfBounds {
				all = append(all, err.Error())
			}
			if got := strings.Join(all, ", "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
