package service

import (
	"slices"
	"strings"
	"testing"
)

func TestModelsThatScaleToZero(t *testing.T) {
	for name, c := range map[string]struct {
		models, regions, strategy string
		onDemand, byHand          string
	}{
		"min 0 in every region": {
			"{name: a}", "{name: local/us, replicas: {min: 0, max: 2}}, {name: local/eu, replicas: {min: 0}}", "reactive", "a", "",
		},
		"min 1 in one region": {
			"{name: a}", "{name: local/us, replicas: {min: 0, max: 2}}, {name: local/eu}", "reactive", "", "",
		},
		"bounds of the model": {
			`{name: a, regions: {local/us: {min: 0, max: 2}}}, {name: b}`, "{name: local/us}", "auto", "a", "",
		},
		"nowhere allowed": {
			`{name: a, regions: {local/us: {min: 0, max: 0}}}`, "{name: local/us}", "lt-i", "", "",
		},
		"strategy manual": {
			"{name: a}, {name: b}", "{name: local/us, replicas: {min: 0}}", "manual", "", "a b",
		},
		"machines of a static region": {
			"{name: a}", `{name: static/paris, endpoints: ["http://10.0.0.1:8000"], replicas: {min: 0}}, {name: local/us, replicas: {min: 0}}`, "reactive", "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := "name: chat\nmodels: [" + c.models + "]\nregions: [" + c.regions + "]\nautoscale: {strategy: " + c.strategy + "}\n"
			spec, err := Parse("service.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			onDemand, byHand := spec.ModelsStartingEmpty()
			if !slices.Equal(onDemand, strings.Fields(c.onDemand)) || !slices.Equal(byHand, strings.Fields(c.byHand)) {
				t.Errorf("ModelsStartingEmpty: got %q and %q, want %q and %q", onDemand, byHand, c.onDemand, c.byHand)
			}
			for _, m := range spec.Models {
				if got := spec.ScalesToZero(m.Name); got != slices.Contains(onDemand, m.Name) {
					t.Errorf("ScalesToZero(%s): got %v", m.Name, got)
				}
			}
		})
	}
}

// A model that nothing can ever serve is a warning: its requests get 503.
func TestModelWithoutAnyReplicaIsWarned(t *testing.T) {
	for _, tt := range []struct {
		model, region string
		warned        bool
	}{
		{"{name: n, engine: {kind: sim}}", "{name: local/us, replicas: {min: 0, max: 1}}", false},
		{"{name: n, engine: {kind: sim}, regions: {local/us: {max: 0}}}", "{name: local/us}", true},
		{"{name: n, engine: {kind: sim}, regions: {local/us: {max: 0}}, fallback: [m]}", "{name: local/us}", false},
		{"{name: n}", "{name: static/paris, endpoints_file: engines.txt}", false},
	} {
		text := "name: chat\nmodels: [{name: m, engine: {kind: sim}}, " + tt.model + "]\nregions: [" + tt.region + "]\n"
		spec, err := Parse("service.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		const want = "models[1].regions: max is 0 in every region, so n never has a replica, and its requests get 503; raise max in a region"
		if got := strings.Join(spec.Warnings(), "\n"); (got == want) != tt.warned || !tt.warned && got != "" {
			t.Errorf("%s in %s: %q", tt.model, tt.region, got)
		}
	}
}
