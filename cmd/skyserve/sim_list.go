package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
)

func newSimListCmd() *cobra.Command {
	var o outputFlags
	cmd := &cobra.Command{
		Use:   "list [NAME...]",
		Short: "List the built-in scenarios",
		Long: `List the built-in scenarios, or those named. A NAME may be a prefix: fig10 selects every
fig10-... scenario. -o yaml prints one as a file for 'skyserve sim run' to start from.
The scenarios of BF-IO (bfio-...) and SageServe (sage-...) cannot be printed as files.`,
		Example: "  skyserve sim list\n  skyserve sim list -o json\n  skyserve sim list -o yaml fig8a > mine.yaml",
		RunE: func(cmd *cobra.Command, names []string) error {
			return listScenarios(&o, names, cmd.OutOrStdout())
		},
	}
	o.registerList(cmd)
	return cmd
}

// listedScenario is a scenario in the output of `sim list -o json`.
type listedScenario struct {
	Name      string         `json:"name"`
	Title     string         `json:"title"`
	Constants *sim.Constants `json:"constants"` // null for the scenarios of BF-IO and SageServe
}

func listScenarios(o *outputFlags, names []string, out io.Writer) error {
	format, err := o.parse()
	if err != nil {
		return err
	}
	scenarios, fleets := sim.Scenarios(), listedFleets()
	if len(names) > 0 {
		scenarios, fleets = nil, nil
	}
	for _, name := range names {
		if eval.IsSageName(name) {
			found, err := eval.FindSageScenarios(name)
			if err != nil {
				return usage(err, "")
			}
			fleets = append(fleets, sageFleets(found)...)
			continue
		}
		if eval.IsBFIOName(name) {
			found, err := bfioScenariosOf(name)
			if err != nil {
				return usage(err, "")
			}
			fleets = append(fleets, bfioFleets(found)...)
			continue
		}
		found, err := findScenarios(name)
		if err != nil {
			return err
		}
		scenarios = append(scenarios, found...)
	}
	if format.kind == outputYAML {
		return scenarioFile(scenarios, fleets, out)
	}
	listed := []listedScenario{}
	for i := range scenarios {
		constants := scenarios[i].Constants()
		listed = append(listed, listedScenario{scenarios[i].Name, scenarios[i].Title, &constants})
	}
	for i := range fleets {
		listed = append(listed, listedScenario{Name: fleets[i].Name, Title: fleets[i].Title})
	}
	return format.write(out, listed, tableOfScenarios(scenarios, fleets))
}

// listedFleet is a listed scenario that is not a sim.Scenario.
type listedFleet struct{ Name, Title, Workload, Workers, Load string }

// listedFleets returns all of them.
func listedFleets() []listedFleet {
	return append(bfioFleets(eval.BFIOScenarios()), sageFleets(eval.SageScenarios())...)
}

func bfioFleets(scenarios []eval.BFIOScenario) (out []listedFleet) {
	for _, s := range scenarios {
		out = append(out, listedFleet{s.Name, s.Title, "the paper's lengths", s.Workers, s.Load})
	}
	return out
}

func sageFleets(scenarios []eval.SageScenario) (out []listedFleet) {
	for _, s := range scenarios {
		out = append(out, listedFleet{s.Name, s.Title, "interactive and deferred", "autoscaled", s.Load})
	}
	return out
}

// bfioScenariosOf returns BF-IO's scenario of a name; the name bfio selects all.
func bfioScenariosOf(name string) ([]eval.BFIOScenario, error) {
	if name == "bfio" {
		return eval.BFIOScenarios(), nil
	}
	s, err := eval.FindBFIOScenario(name)
	if err != nil {
		return nil, err
	}
	return []eval.BFIOScenario{*s}, nil
}

// scenarioFile prints the only listed scenario as a file.
func scenarioFile(scenarios []sim.Scenario, fleets []listedFleet, out io.Writer) error {
	if n := len(scenarios) + len(fleets); n != 1 {
		return usage(fmt.Errorf("-o yaml: requires the name of one scenario, got %d scenarios", n), "'skyserve sim list' lists the scenarios")
	}
	if len(fleets) > 0 {
		return usage(fmt.Errorf("-o yaml: is not available for bfio-... and sage-... scenarios, got %s", fleets[0].Name), "'skyserve sim list' lists the scenarios")
	}
	_, err := io.WriteString(out, scenarios[0].YAML())
	return err
}

// tableOfScenarios returns the table of scenarios.
func tableOfScenarios(scenarios []sim.Scenario, fleets []listedFleet) list {
	t := list{titles: []string{"NAME", "WORKLOAD", "REPLICAS", "CLIENTS", "DESCRIPTION"}, fitting: printable.Fitting{Optional: []string{"CLIENTS", "REPLICAS"}, Whole: []string{"NAME"}, Readable: map[string]int{"DESCRIPTION": 24}}}
	for i := range scenarios {
		s := &scenarios[i]
		var replicas, clients []string
		for _, r := range s.Regions {
			replicas = append(replicas, fmt.Sprintf("%s %d", r.Name, r.Replicas))
			clients = append(clients, fmt.Sprintf("%s %d", r.Name, r.Clients))
		}
		t.rows = append(t.rows, listRow{name: s.Name, cells: []string{s.Name, string(s.Workload), strings.Join(replicas, ", "), strings.Join(clients, ", "), s.Title}})
	}
	for _, f := range fleets {
		t.rows = append(t.rows, listRow{name: f.Name, cells: []string{f.Name, f.Workload, f.Workers, f.Load, f.Title}})
	}
	return t
}

// findScenarios returns the scenarios of a name, or an error of usage with the most similar name.
func findScenarios(name string) ([]sim.Scenario, error) {
	found, err := sim.FindScenarios(name)
	if err == nil {
		return found, nil
	}
	var names []string
	for _, s := range sim.Scenarios() {
		names = append(names, s.Name)
	}
	return nil, usage(err, didYouMean(name, names))
}
