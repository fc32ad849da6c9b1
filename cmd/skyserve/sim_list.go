package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
)

func newSimListCmd() *cobra.Command {
	output := "table"
	cmd := &cobra.Command{
		Use:   "list [NAME...]",
		Short: "List the scenarios that ship",
		Long: `List the scenarios that ship, or those named; a NAME may stand for several: fig10
is every fig10-... With -o yaml they are written as files that 'skyserve sim run'
takes: a place to start from; those of BF-IO (bfio-...) and SageServe (sage-...) have no such file.`,
		Example: "  skyserve sim list\n  skyserve sim list -o json\n  skyserve sim list -o yaml fig8a > mine.yaml",
		RunE: func(cmd *cobra.Command, names []string) error {
			return listScenarios(output, names, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "table, json or yaml")
	return cmd
}

// listedScenario is a scenario as `sim list -o json` prints it.
type listedScenario struct {
	Name      string         `json:"name"`
	Title     string         `json:"title"`
	Constants *sim.Constants `json:"constants"` // null for one of BF-IO's or SageServe's
}

func listScenarios(output string, names []string, out io.Writer) error {
	scenarios, fleets := sim.Scenarios(), listedFleets()
	if len(names) > 0 {
		scenarios, fleets = nil, nil
	}
	for _, name := range names {
		if eval.IsSage(name) {
			found, err := eval.SageNamed(name)
			if err != nil {
				return usage(err, "")
			}
			fleets = append(fleets, sageFleets(found)...)
			continue
		}
		if eval.IsBFIO(name) {
			found, err := bfioScenariosOf(name)
			if err != nil {
				return usage(err, "")
			}
			fleets = append(fleets, bfioFleets(found)...)
			continue
		}
		found, err := sim.Named(name)
		if err != nil {
			return usage(err, "")
		}
		scenarios = append(scenarios, found...)
	}
	switch output {
	case "yaml":
		return scenarioFile(scenarios, fleets, out)
	case "json":
		var listed []listedScenario
		for i := range scenarios {
			constants := scenarios[i].Constants()
			listed = append(listed, listedScenario{scenarios[i].Name, scenarios[i].Title, &constants})
		}
		for i := range fleets {
			listed = append(listed, listedScenario{Name: fleets[i].Name, Title: fleets[i].Title})
		}
		return json.NewEncoder(out).Encode(listed)
	case "table":
		return tableOfScenarios(scenarios, fleets, out)
	}
	return usage(fmt.Errorf("-o %s: want table, json or yaml", output), "")
}

// listedFleet is a scenario that is no sim.Scenario, as it is listed.
type listedFleet struct{ Name, Title, Workload, Workers, Load string }

// listedFleets are all of them.
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
		out = append(out, listedFleet{s.Name, s.Title, "interactive and deferred", "that come and go", s.Load})
	}
	return out
}

// bfioScenariosOf finds BF-IO's scenario of a name; bfio is all of them.
func bfioScenariosOf(name string) ([]eval.BFIOScenario, error) {
	if name == "bfio" {
		return eval.BFIOScenarios(), nil
	}
	s, err := eval.BFIONamed(name)
	if err != nil {
		return nil, err
	}
	return []eval.BFIOScenario{*s}, nil
}

// scenarioFile writes the one scenario that is listed as a file.
func scenarioFile(scenarios []sim.Scenario, fleets []listedFleet, out io.Writer) error {
	if n := len(scenarios) + len(fleets); n != 1 {
		return usage(fmt.Errorf("-o yaml: want the name of one scenario, got %d of them", n), "skyserve sim list shows them")
	}
	if len(fleets) > 0 {
		return usage(fmt.Errorf("-o yaml: %s has no file: want the name of another scenario", fleets[0].Name), "skyserve sim list shows them")
	}
	_, err := io.WriteString(out, scenarios[0].File())
	return err
}

// tableOfScenarios lists scenarios for people.
func tableOfScenarios(scenarios []sim.Scenario, fleets []listedFleet, out io.Writer) error {
	w := printable.NewTable(out)
	w.Rowf("NAME\tWORKLOAD\tREPLICAS\tCLIENTS\tDESCRIPTION")
	for i := range scenarios {
		s := &scenarios[i]
		var replicas, clients []string
		for _, r := range s.Regions {
			replicas = append(replicas, fmt.Sprintf("%s %d", r.Name, r.Replicas))
			clients = append(clients, fmt.Sprintf("%s %d", r.Name, r.Clients))
		}
		w.Rowf("%s\t%s\t%s\t%s\t%s", s.Name, s.Workload, strings.Join(replicas, ", "), strings.Join(clients, ", "), s.Title)
	}
	for i := range fleets {
		f := &fleets[i]
		w.Rowf("%s\t%s\t%s\t%s\t%s", f.Name, f.Workload, f.Workers, f.Load, f.Title)
	}
	return w.Flush()
}
