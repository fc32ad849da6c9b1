package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/whatif"
	"skyserve/lbd/policy"
	"skyserve/lbd/sim"
)

func newSimCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a service to compare policies",
		Long: `Simulate a service in virtual time: clients, balancers and replicas in several
regions. The balancers are the code that serves; only clients, wires and engines
are models. The same seed gives the same figures.`,
		Example: `  skyserve sim list
  skyserve sim run fig8c --policy round-robin,skylb --seeds 3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("sim %s: want list or run", args[0]), "run 'skyserve sim --help'")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimListCmd(), newSimRunCmd())
	return cmd
}

func newSimListCmd() *cobra.Command {
	output := "table"
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the scenarios that ship",
		Example: "  skyserve sim list\n  skyserve sim list -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listScenarios(output, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "table or json")
	return cmd
}

// listedScenario is a scenario as `sim list -o json` prints it.
type listedScenario struct {
	Name      string        `json:"name"`
	Title     string        `json:"title"`
	Constants sim.Constants `json:"constants"`
}

func listScenarios(output string, out io.Writer) error {
	scenarios := sim.Scenarios()
	switch output {
	case "json":
		var listed []listedScenario
		for i := range scenarios {
			listed = append(listed, listedScenario{scenarios[i].Name, scenarios[i].Title, scenarios[i].Constants()})
		}
		return json.NewEncoder(out).Encode(listed)
	case "table":
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
		fmt.Fprintf(w, "%s\tthe paper's lengths\t16 workers\toverload\tBF-IO Table 1: ranks that wait for the slowest\n", whatif.BFIOName)
		return w.Flush()
	}
	return usage(fmt.Errorf("-o %s: want table or json", output), "")
}

// simRunOptions are the flags of `skyserve sim run`.
type simRunOptions struct {
	policies []string
	pushes   []string
	layout   string
	seeds    int
	settings []string
	output   string
	quiet    bool
}

func newSimRunCmd() *cobra.Command {
	var o simRunOptions
	cmd := &cobra.Command{
		Use:   "run NAME...",
		Short: "Run scenarios and compare policies on them",
		Long: `Run scenarios for policies and seeds side by side and print what was measured
after the warm-up: the mean over the seeds and its spread (the standard
deviation). The row with the most output tokens a second has a star. REFERENCE
is what a faithful model of SkyLB's paper gave: output tokens a second and the
P90 of TTFT. A NAME may stand for several: fig10 is every fig10-...

A policy runs at its canonical push rule and layout unless --push or --layout
say otherwise: those that send blindly as one balancer in the US for all
replicas, the others as one balancer a region.

--set changes a scenario: ` + strings.Join(sim.SettingNames(), ", ") + `.

With -o json each scenario is one object on a line.`,
		Example: `  skyserve sim run fig8c
  skyserve sim run fig8a tot30 --policy least-load,skylb --seeds 5
  skyserve sim run fig10 --policy skylb
  skyserve sim run bfio-table1 --seeds 1
  skyserve sim run fig8c --policy skylb --push blind,pending,outstanding:16
  skyserve sim run fig8c --set duration=100s --set clients.us=80 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("want at least one scenario"), "skyserve sim list shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSim(cmd.Context(), &o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.policies, "policy", nil, "policies to compare, with commas: "+strings.Join(policy.Names(), ", ")+" (default: all)")
	flags.StringSliceVar(&o.pushes, "push", nil, "push rules to run each policy at: pending, outstanding:N, blind (default: the canonical one)")
	flags.StringVar(&o.layout, "layout", "", "single or regional: where the balancers stand (default: the canonical one)")
	flags.IntVar(&o.seeds, "seeds", 3, "run seeds 1 to `N`")
	flags.StringArrayVar(&o.settings, "set", nil, "change the scenario, as `KEY=VALUE`, repeatable")
	flags.StringVarP(&o.output, "output", "o", "table", "table or json")
	flags.BoolVar(&o.quiet, "quiet", false, "show no progress")
	return cmd
}

func runSim(ctx context.Context, o *simRunOptions, names []string, out, talk io.Writer) error {
	if slices.Contains(names, whatif.BFIOName) {
		if len(names) > 1 || len(o.policies)+len(o.pushes)+len(o.settings) > 0 || o.layout != "" {
			return usage(fmt.Errorf("%s: runs by itself, and takes --seeds, -o and --quiet only", whatif.BFIOName), "")
		}
		return o.runBFIO(ctx, out)
	}
	plans, err := o.plans(names)
	if err != nil {
		return usage(err, "")
	}
	for i := range plans {
		if err := o.runPlan(ctx, plans[i], i > 0, out, talk); err != nil {
			return err
		}
	}
	return nil
}

// runBFIO replays Table 1 of the BF-IO paper.
func (o *simRunOptions) runBFIO(ctx context.Context, out io.Writer) error {
	if o.output != "table" && o.output != "json" {
		return usage(fmt.Errorf("-o %s: want table or json", o.output), "")
	}
	if o.seeds < 1 {
		return usage(fmt.Errorf("--seeds: must be at least 1, got %d", o.seeds), "")
	}
	began := time.Now()
	report, err := whatif.RunBFIO(ctx, o.seeds, func() time.Duration { return time.Since(began) })
	if err != nil {
		return err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	if o.output == "json" {
		return json.NewEncoder(out).Encode(report)
	}
	return report.WriteTable(out)
}

// plans reads the flags; nothing runs unless every plan can.
func (o *simRunOptions) plans(names []string) ([]whatif.Plan, error) {
	if o.output != "table" && o.output != "json" {
		return nil, fmt.Errorf("-o %s: want table or json", o.output)
	}
	var plans []whatif.Plan
	for _, name := range names {
		scenarios, err := sim.Named(name)
		if err != nil {
			return nil, err
		}
		for _, s := range scenarios {
			for _, setting := range o.settings {
				key, value, found := strings.Cut(setting, "=")
				if !found {
					return nil, fmt.Errorf("--set %s: want KEY=VALUE", setting)
				}
				if err := s.Set(key, value); err != nil {
					return nil, fmt.Errorf("--set %s: %w", setting, err)
				}
			}
			plan := whatif.Plan{Scenario: s, Policies: o.policies, Pushes: o.pushes, Layout: sim.Layout(o.layout), Seeds: o.seeds}
			if err := plan.Check(); err != nil {
				return nil, err
			}
			plans = append(plans, plan)
		}
	}
	return plans, nil
}

// runPlan runs one scenario and prints it.
func (o *simRunOptions) runPlan(ctx context.Context, plan whatif.Plan, more bool, out, talk io.Writer) error {
	const clear = "\r\x1b[K" // the line that progress is shown in
	if !o.quiet && isTerminal(talk) {
		plan.Progress = func(done, all int) { fmt.Fprintf(talk, "%s%s: %d of %d runs", clear, plan.Scenario.Name, done, all) }
	}
	began := time.Now()
	report, err := whatif.Run(ctx, plan)
	if plan.Progress != nil {
		fmt.Fprint(talk, clear)
	}
	if err != nil {
		return err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	if o.output == "json" {
		return json.NewEncoder(out).Encode(report)
	}
	if more {
		fmt.Fprintln(out)
	}
	if err := report.WriteTable(out); err != nil {
		return err
	}
	_, err = fmt.Fprintln(talk, simSpeed(report))
	return err
}

// simSpeed says how fast the simulator was.
func simSpeed(r *whatif.Report) string {
	requests := 0
	for i := range r.Rows {
		requests += r.Rows[i].Requests
	}
	seconds := r.WallMillis / 1000
	return fmt.Sprintf("%d requests in %.1f s: %.0f a second", requests, seconds, float64(requests)/seconds)
}
