package cloud_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A change of the models in service.yaml launches and removes the replicas of the models that were added and removed. All
// others keep their machines and their ids, and no id belongs to two models: a machine would be taken for a replica of a
// model that it does not serve.
func TestReplicasKeepTheirModel(t *testing.T) {
	service := func(models ...string) string {
		text := "name: chat\nmodels:\n"
		for _, m := range models {
			name, alias, _ := strings.Cut(m, "=")
			text += "  - {name: " + name + ", engine: {kind: vllm}, gpus: [{type: L4}]"
			if alias != "" {
				text += ", aliases: [" + alias + "]"
			}
			text += "}\n"
		}
		return text + "balancer: {auth: {keys_from: env:KEYS}, insecure: true}\nregions:\n  - {name: aws/us-east-1, replicas: {min: 1, max: 2}}\n"
	}
	for _, tt := range []struct {
		name         string
		before, then []string
		ended        bool // the replicas have ended
		changes      []string
	}{
		{"nothing", []string{"a", "b"}, []string{"a", "b"}, false, nil},
		{"the only model is renamed", []string{"a"}, []string{"b"}, false, []string{"launch us-east-1-b-0 of b", "terminate us-east-1-0 of a"}},
		{"the only model is renamed after its replica ended", []string{"a"}, []string{"b"}, true, []string{"launch us-east-1-b-0 of b", "terminate us-east-1-0 of a"}},
		{"the former name is an alias", []string{"a"}, []string{"b=a"}, false, []string{"launch us-east-1-a-0 of b", "terminate us-east-1-0 of a"}},
		{"one is added before", []string{"a"}, []string{"b", "a"}, false, []string{"launch us-east-1-b-0 of b"}},
		{"one is added after", []string{"a"}, []string{"a", "b"}, false, []string{"launch us-east-1-b-0 of b"}},
		{"their order changes", []string{"a", "b"}, []string{"b", "a"}, false, nil},
		{"their order changes after they ended", []string{"a", "b"}, []string{"b", "a"}, true, []string{"launch us-east-1-0 of a", "launch us-east-1-b-0 of b"}},
		{"the first is removed", []string{"a", "b"}, []string{"b"}, false, []string{"terminate us-east-1-0 of a"}},
		{"one gets an alias", []string{"a", "b"}, []string{"a", "b=chat"}, false, nil},
		{"two have the same short name", []string{"a"}, []string{"a", "x/b", "y/b"}, false, []string{"launch us-east-1-b-0 of x/b", "launch us-east-1-b-40568699-0 of y/b"}},
	} {
		spec := parse(t, service(tt.before...))
		have := launchAll(plan(t, input(spec)).Desired)
		for i := range have {
			if have[i].Kind == provision.KindReplica && tt.ended {
				have[i].TerminatedReason = "process exited"
			}
		}
		in := input(parse(t, service(tt.then...)))
		in.Have = have
		var got []string
		for _, c := range provision.Diff(plan(t, in).Desired, have) {
			if c.Kind() == provision.KindReplica {
				got = append(got, fmt.Sprintf("%s %s of %s", c.Action, c.ID(), modelOf(c)))
			}
		}
		if slices.Sort(got); !reflect.DeepEqual(got, tt.changes) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.changes)
		}
	}
}

// A replica above replicas.min that has ended is launched again if it is desired, and within replicas.max. Without a desired
// count, the existing replicas stay.
func TestEndedReplicaAboveMinIsLaunchedAgain(t *testing.T) {
	for _, tt := range []struct {
		text    string
		desired int
		want    []string
	}{
		{"models: [{name: a, engine: {kind: sim}}]\nregions: [{name: local/us, replicas: {min: MIN, max: 3}}]\n", 3, []string{"launch us-2 of a"}},
		{"models: [{name: a, engine: {kind: sim}}]\nregions: [{name: local/us, replicas: {min: MIN, max: 3}}]\n", 4, []string{"launch us-2 of a"}},
		{"models: [{name: a, gpus: [{type: L4}]}]\nbalancer: {auth: {keys_from: env:KEYS}, insecure: true}\nregions: [{name: aws/us-east-1, replicas: {min: MIN, max: 3}}]\n", 4, []string{"launch us-east-1-2 of a"}},
		{"models: [{name: a, gpus: [{type: L4}]}]\nbalancer: {auth: {keys_from: env:KEYS}, insecure: true}\nregions: [{name: aws/us-east-1, replicas: {min: MIN, max: 3}}]\n", 0, nil},
	} {
		withMin := func(count string) *service.Spec {
			return parse(t, "name: chat\n"+strings.Replace(tt.text, "MIN", count, 1))
		}
		have := launchAll(plan(t, input(withMin("3"))).Desired)
		for i := range have {
			if strings.HasSuffix(have[i].ID, "-2") {
				have[i].TerminatedReason = "process exited"
			}
		}
		in := input(withMin("1"))
		in.Have = have
		in.DesiredCounts = map[cloud.ReplicaGroup]int{{Model: "a", Region: in.Spec.Regions[0].Name}: tt.desired}
		var got []string
		for _, c := range provision.Diff(plan(t, in).Desired, have) {
			if c.Kind() == provision.KindReplica && c.Action != provision.ActionTerminate {
				got = append(got, fmt.Sprintf("%s %s of %s", c.Action, c.ID(), modelOf(c)))
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q, want %q, of %s", got, tt.want, tt.text)
		}
	}
}

// Replicas on this computer that have ended are started again before others are created.
func TestEndedReplicaIsPreferredToANewOne(t *testing.T) {
	spec := parse(t, "name: chat\nmodels: [{name: a, engine: {kind: sim}}]\nregions: [{name: local/us, replicas: {min: 2, max: 3}}]\n")
	in := input(spec)
	in.DesiredCounts = map[cloud.ReplicaGroup]int{{Model: "a", Region: "local/us"}: 3}
	for _, o := range launchAll(plan(t, in).Desired) {
		if o.TerminatedReason = "process exited"; o.ID != "us-1" {
			in.Have = append(in.Have, o)
		}
	}
	in.DesiredCounts = nil
	if got := ids(plan(t, in).Desired, provision.KindReplica); !slices.Equal(got, []string{"us-0", "us-2"}) {
		t.Errorf("got %q, want us-0 and us-2", got)
	}
}
