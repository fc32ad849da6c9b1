package cloud_test

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A replica that its cloud is about to interrupt is replaced under another id while max permits both.
// It stays desired until it has terminated, because the cloud terminates it.
func TestTerminatingReplicasAreReplaced(t *testing.T) {
	const region = service.Region("aws/us-east-1") // min 2, max 4
	for _, tt := range []struct {
		name                    string
		have, terminating, want string // numbers
		count, short            int
	}{
		{name: "one of those of min", have: "0 1", terminating: "1", want: "0 1 2"},
		{name: "both", have: "0 1", terminating: "0 1", want: "0 1 2 3"},
		{name: "replacement runs", have: "0 1 2 for 1", terminating: "1", want: "0 1 2"},
		{name: "both, one was replaced", have: "0 1 2 for 1", terminating: "0 1", want: "0 1 2 3"},
		{name: "replacement also terminating", have: "0 1 2 for 1", terminating: "1 2", want: "0 1 2 3"},
		{name: "replacement terminating, the replaced machine stays", have: "0 1 2 for 1", terminating: "2", want: "0 1 2"},
		{name: "already terminated", have: "0 2", want: "0 2"},
		{name: "max does not permit both", have: "0 1 2 3", terminating: "0", want: "0 1 2 3"},
		{name: "max permits one of two", have: "0 1 2", terminating: "0 1", want: "0 1 2 3"},
		{name: "one more", have: "0 1", count: 3, want: "0 1 2"},
		{name: "fewer", have: "0 1 2 3", count: 3, want: "0 1 2"},
		{name: "fewer than min", have: "0 1 2", count: 1, want: "0 1"},
		{name: "more than max", have: "0 1", count: 9, want: "0 1 2 3"},
		{name: "one more besides a terminating one", have: "0 1", terminating: "0", count: 3, want: "0 1 2 3"},
		{name: "no capacity for another", have: "0 1", terminating: "1", short: 1, want: "0 1"},
		{name: "more than max exist", have: "0 1 2 3 4", terminating: "4", want: "0 1 2 3 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(parse(t, threeRegions))
			id := func(n string) string { return "us-east-1-" + n }
			have, replaces, _ := strings.Cut(tt.have, " for ")
			for n := range strings.FieldsSeq(have) {
				in.Have = append(in.Have, provision.Object{ID: id(n), Kind: provision.KindReplica, Region: region, Labels: map[string]string{"model": "llama"}, Handle: "i-" + n})
			}
			if replaces != "" {
				in.Have[len(in.Have)-1].Labels["instead"] = "i-" + replaces
			}
			in.NeedReplacement = map[string]bool{}
			for n := range strings.FieldsSeq(tt.terminating) {
				in.NeedReplacement[id(n)] = true
			}
			g := cloud.ReplicaGroup{Model: "llama", Region: region}
			in.Shortfall = map[cloud.ReplicaGroup]int{g: tt.short}
			if tt.count > 0 {
				in.Counts = map[cloud.ReplicaGroup]provision.ClassCounts{g: {provision.ReplicaClass{}: tt.count}}
			}
			var got []string
			layout := plan(t, in)
			for _, replica := range ids(layout.Desired, provision.KindReplica) {
				if n, ours := strings.CutPrefix(replica, "us-east-1-"); ours && !strings.Contains(n, "qwen") {
					got = append(got, n)
				}
			}
			if !slices.Equal(got, strings.Fields(tt.want)) {
				t.Errorf("got %q, want %s", got, tt.want)
			}
			in.Have = launchAll(layout.Desired)
			for i := range in.Have { // existing replicas keep their handles
				in.Have[i].Handle = "i-" + in.Have[i].ID[strings.LastIndex(in.Have[i].ID, "-")+1:]
			}
			if again := ids(plan(t, in).Desired, provision.KindReplica); !slices.Equal(again, ids(layout.Desired, provision.KindReplica)) {
				t.Errorf("after the launch, %q is desired", again)
			}
		})
	}
}

func TestFirstBalancerAndStorePort(t *testing.T) {
	spec := parse(t, threeRegions)
	if got := cloud.FirstBalancer(spec); got != "lb-us-east-1-0" {
		t.Errorf("got %s", got)
	}
	store := provision.FirewallRule{Port: cloud.PortStore, From: provision.FromWorld}
	for url, open := range map[string]bool{"": true, "nats://store.example.com:4222": false} {
		spec.Store.URL = url
		for _, w := range plan(t, input(spec)).Desired {
			if w.ID == "firewall-us-east-1-balancer" && slices.Contains(w.Rules, store) != open {
				t.Errorf("with the store at %q: %v", url, w.Rules)
			}
		}
	}
}
