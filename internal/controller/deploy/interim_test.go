package deploy

import (
	"fmt"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Between two files each name belongs to the model that it belonged to before, and the earlier models keep the number of
// their replicas.
func TestInterim(t *testing.T) {
	const local = "\nregions: [{name: local/us, replicas: {min: 1, max: 3}}]\n"
	for name, c := range map[string]struct {
		last, next string // without the name and the regions
		moved      string
		interim    string // the names of each model
		problem    string
	}{
		"the same":                  {last: "models: [{name: a, aliases: [x]}]", next: "models: [{name: a, aliases: [x, y]}]"},
		"a model is removed":        {last: "models: [{name: a}, {name: b}]", next: "models: [{name: a}]"},
		"renamed":                   {last: "models: [{name: a, aliases: [x]}]", next: "models: [{name: b, aliases: [a, x, y]}]", moved: "a x", interim: "b y; a x 2-2"},
		"interrupted, then again":   {last: "models: [{name: b, aliases: [y]}, {name: a, aliases: [x], regions: {local/us: {min: 2, max: 2}}}]", next: "models: [{name: b, aliases: [a, x, y]}]", moved: "a x", interim: "b y; a x 2-2"},
		"replaced beside another":   {last: "models: [{name: a, aliases: [x]}, {name: c}]", next: "models: [{name: c}, {name: b, aliases: [x]}]", moved: "x", interim: "c; b; a x 2-2"},
		"an alias moves":            {last: "models: [{name: a, aliases: [x]}]", next: "models: [{name: a}, {name: b, aliases: [x]}]", moved: "x", interim: "a x; b"},
		"a split gets a new model":  {last: "models: [{name: a}]\nsplits: [{name: s, weights: {a: 1}}]", next: "models: [{name: b}]\nsplits: [{name: s, weights: {b: 1}}]", moved: "s", interim: "b; a 2-2; split s"},
		"weights of a split change": {last: "models: [{name: a}, {name: b}]\nsplits: [{name: s, weights: {a: 1, b: 1}}]", next: "models: [{name: a}, {name: b}]\nsplits: [{name: s, weights: {a: 1, b: 2}}]"},
		"an alias becomes a model":  {last: "models: [{name: a, aliases: [x]}]", next: "models: [{name: x, aliases: [a]}]", moved: "a x", problem: "duplicates"},
		"machines of your own":      {last: "models: [{name: a}]", next: "models: [{name: b, aliases: [a]}]", moved: "a", problem: "static regions"},
	} {
		t.Run(name, func(t *testing.T) {
			regions := local
			if strings.Contains(c.problem, "static") {
				regions = strings.Replace(local, "]\n", ", {name: static/own, endpoints: [\"http://10.0.0.1:8000\"]}]\n", 1)
			}
			parse := func(models string) *service.Spec {
				spec, err := service.Parse("service.yaml", []byte("name: chat\n"+models+regions))
				if err != nil {
					t.Fatal(err)
				}
				return spec
			}
			last, next := parse(c.last), parse(c.next)
			if moved := strings.Join(MovedNames(next, last), " "); moved != c.moved {
				t.Errorf("moved: %q, want %q", moved, c.moved)
			}
			if c.moved == "" {
				return
			}
			replica := func(id string, region service.Region) provision.Object {
				return provision.Object{ID: id, Kind: provision.KindReplica, Region: region, Labels: map[string]string{"model": "a"}}
			}
			ended := replica("us-2", "local/us")
			ended.TerminatedReason = "crashed"
			have := []provision.Object{replica("us-0", "local/us"), replica("us-1", "local/us"), ended, replica("eu-0", "local/eu")}
			in, err := NewInterim(next, last, have)
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("error %v, want %q", err, c.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := outlineOf(in.Spec); got != c.interim {
				t.Errorf("the interim service has %q, want %q", got, c.interim)
			}
			removed := ModelNamed(next, "a") == nil
			if kept := []bool{in.Retains(have[0]), in.Retains(ended), in.Retains(have[3])}; kept[0] != removed || kept[1] || kept[2] {
				t.Errorf("retains a running, an ended one, and one in a region that is removed: %v", kept)
			}
			if moved := MovedNames(in.Spec, last); len(moved) > 0 {
				t.Errorf("these names belong to other models already: %v", moved)
			}
		})
	}
}

// outlineOf returns the names of a service's models, with their own bounds, and of its splits.
func outlineOf(spec *service.Spec) string {
	var parts []string
	for _, m := range spec.Models {
		part := strings.Join(append([]string{m.Name}, m.Aliases...), " ")
		if b, own := m.Regions["local/us"]; own {
			part += fmt.Sprintf(" %d-%d", b.Min, b.Max)
		}
		parts = append(parts, part)
	}
	for _, s := range spec.Splits {
		parts = append(parts, "split "+s.Name)
	}
	return strings.Join(parts, "; ")
}
