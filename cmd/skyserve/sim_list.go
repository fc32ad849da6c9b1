package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"skyserve/internal/whatif"
	"skyserve/lbd/sim"
)

func newSimListCmd() *cobra.Command {
	output := "table"
	cmd := &cobra.Command{
		Use:   "list [NAME...]",
		Short: "List the scenarios that ship",
		Long: `List the scenarios that ship, or those named; a NAME may stand for several: fig10
is every fig10-... With -o yaml they are written as files that 'skyserve sim run'
takes: a place to start from.`,
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
	Name      string        `json:"name"`
	Title     string        `json:"title"`
	Constants sim.Constants `json:"constants"`
}

func listScenarios(output string, names []string, out io.Writer) error {
	scenarios := sim.Scenarios()
	if len(names) > 0 {
		scenarios = nil
	}
	for _, name := range names {
		found, err := sim.Named(name)
		if err != nil {
			return usage(err, "")
		}
		scenarios = append(scenarios, found...)
	}
	switch output {
	case "yaml":
		if len(scenarios) != 1 {
			return usage(fmt.Errorf("-o yaml: want the name of one scenario, got %d of them", len(scenarios)), "skyserve sim list shows them")
		}
		_, err := io.WriteString(out, scenarios[0].File())
		return err
	case "json":
		var listed []listedScenario
		for i := range scenarios {
			listed = append(listed, listedScenario{scenarios[i].Name, scenarios[i].Title, scenarios[i].Constants()})
		}
		return json.NewEncoder(out).Encode(listed)
	case "table":
		return tableOfScenarios(scenarios, len(names) == 0, out)
	}
	return usage(fmt.Errorf("-o %s: want table, json or yaml", output), "")
}

// tableOfScenarios lists scenarios for people, and BF-IO's table where all are meant.
func tableOfScenarios(scenarios []sim.Scenario, all bool, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tWORKLOAD\tREPLICAS\tCLIENTS\tDESCRIPTION")
	for i := range scenarios {
		s := &scenarios[i]
		var replicas, clients []string
		for _, r := range s.Regions {
			replicas = append(replicas, fmt.Sprintf("%s %d", r.Name, r.Replicas))
			clients = append(clients, fmt.Sprintf("%s %d", r.Name, r.Clients))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, s.Workload, strings.Join(replicas, ", "), strings.Join(clients, ", "), s.Title)
	}
	if all {
		fmt.Fprintf(w, "%s\tthe paper's lengths\t16 workers\toverload\tBF-IO Table 1: ranks that wait for the slowest\n", whatif.BFIOName)
	}
	return w.Flush()
}
