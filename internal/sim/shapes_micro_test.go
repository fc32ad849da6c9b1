package sim

import (
	"slices"
	"testing"

	"skyserve/lbd/core"
)

// Claims refer to policies and push modes that their scenario compares.
func TestClaimsMatchComparedPolicies(t *testing.T) {
	for _, s := range Scenarios() {
		compared := func(side *Side) bool {
			return side == nil ||
				(len(s.Policies) == 0 || slices.Contains(s.Policies, side.Policy)) &&
					(side.Push == "" || len(s.Pushes) == 0 || slices.Contains(s.Pushes, side.Push))
		}
		for _, c := range s.Claims {
			if !compared(&c.Side) || !compared(c.Than) || c.Min > c.Max {
				t.Errorf("%s: claim %+v, compared %v at %v", s.Name, c, s.Policies, s.Pushes)
			}
		}
		for _, mode := range s.Pushes {
			if _, err := core.ParsePush(mode); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
	}
}

// Figure 9's scenarios differ only in the clients; those with SkyLB's trie have the same service.
func TestFigure9SweepsTheClients(t *testing.T) {
	for name, want := range map[string][]int{"fig9-trie": {30, 40, 50}, "fig9": {30, 40, 45, 50, 60, 30, 40, 50}} {
		found, err := FindScenarios(name)
		if err != nil {
			t.Fatal(err)
		}
		var clients []int
		for _, s := range found {
			clients = append(clients, s.Regions[0].Clients)
			if len(s.Regions) != 1 || s.Regions[0].Replicas != 4 || len(s.Policies) != 1 || s.Workload != found[0].Workload {
				t.Errorf("%s: %+v, policies %v, workload %s", s.Name, s.Regions, s.Policies, s.Workload)
			}
			if !slices.Equal(s.Pushes, found[0].Pushes) {
				t.Errorf("%s: pushes %v, want %v", s.Name, s.Pushes, found[0].Pushes)
			}
		}
		if !slices.Equal(clients, want) {
			t.Errorf("%s sweeps %v clients, want %v", name, clients, want)
		}
	}
}

// Each scenario of figure 6 has a note about the fit to the paper's gap.
func TestFigure6NotesDescribeTheFit(t *testing.T) {
	found, err := FindScenarios("fig6")
	if err != nil || len(found) != 3 {
		t.Fatalf("%d scenarios, %v", len(found), err)
	}
	for _, s := range found {
		if s.Note == "" || len(s.Claims) != 1 || !s.Claims[0].Figure.Share() {
			t.Errorf("%s: note %q, claims %+v", s.Name, s.Note, s.Claims)
		}
	}
}
