package main

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
	"skyserve/lbd/policy"
)

// simFuzzOptions are the flags of `skyserve sim fuzz-policy`.
type simFuzzOptions struct {
	eval.PolicyFuzz
	worst  int
	output outputFlags
}

func newSimFuzzCmd() *cobra.Command {
	o := simFuzzOptions{PolicyFuzz: eval.PolicyFuzz{Policy: "cost", Draws: 50, Seeds: 1}}
	cmd := &cobra.Command{
		Use:   "fuzz-policy",
		Short: "Search for scenarios in which a policy performs worse than others",
		Long: `Generate random scenarios, and run the policy under test and others on each. The policy's
throughput and P90 TTFT are divided by those of the other policy with the highest throughput,
and by those of skylb. The output has the median and the worst of these ratios, and the
scenarios with the lowest throughput ratios, each with the command that repeats it. Scenarios
vary in workload and its lengths, regions, replicas, the engines' speed and memory, round-trip
times, the probe interval, equal or 10:1 loads of the regions, and closed and open loops with
0.5 to 1.3 times the estimated capacity.
A run lasts at least ten times as long as one request at a full replica, but at most an hour.
Open loops have no warm-up: all policies receive the same requests, so a policy that served
more of them during a warm-up would have fewer left in the measured part, and look worse.
cache-aware:skylb is cache-aware with the constants that SGLang's router had at the time of
SkyLB's evaluation.

Each scenario runs once, so ratios vary by some percent between seeds, and the best other
policy may have won by chance: --seeds N compares the means of N runs. A single
scenario (--scenarios 1) prints the results of all policies; -o yaml prints its scenario
as a file for 'skyserve sim run'.`,
		Example: `  skyserve sim fuzz-policy
  skyserve sim fuzz-policy --scenarios 200 --seed-base 1000 --parallel 1
  skyserve sim fuzz-policy --scenarios 1 --seed-base 16 --seeds 5
  skyserve sim fuzz-policy --policy skylb --against least-load,cache-aware
  skyserve sim fuzz-policy --scenarios 1 --seed-base 16 -o yaml > scenario-17.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Policy, "policy", o.Policy, "the policy to test: "+strings.Join(policy.Names(), ", ")+"; docs/service-yaml.md explains them")
	flags.StringSliceVar(&o.Others, "against", nil, "the policies to compare it with, comma-separated (default: all others)")
	flags.IntVar(&o.Draws, "scenarios", o.Draws, "number `N` of scenarios")
	flags.Uint64Var(&o.SeedBase, "seed-base", 0, "the scenarios have the seeds `N`+1, N+2 and so on; the same seed gives the same scenario")
	flags.IntVar(&o.Seeds, "seeds", o.Seeds, "run each scenario with `N` seeds, starting with its own, and compare the means")
	flags.IntVar(&o.Workers, "parallel", 0, "scenarios that run at the same time (default: the number of processors)")
	flags.IntVar(&o.worst, "worst", 5, "print the `N` scenarios with the lowest throughput ratios")
	o.output.registerDocument(cmd)
	flags.Lookup("output").Usage += "; yaml is the drawn scenario"
	return cmd
}

func (o *simFuzzOptions) run(ctx context.Context, out, errOut io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	if o.worst < 0 || o.Workers < 0 {
		return usage(errors.New("--worst and --parallel: must be at least 0"), "")
	}
	if err := checkSeeds(o.Seeds); err != nil {
		return usage(err, "")
	}
	if err := o.Check(); err != nil {
		return usage(err, "")
	}
	if format.kind == outputYAML {
		if o.Draws != 1 {
			return usage(errors.New("-o yaml: prints one scenario: set --scenarios 1"), "")
		}
		s := sim.Mixture(o.SeedBase + 1)
		_, err := io.WriteString(out, s.YAML())
		return err
	}
	debug.SetGCPercent(400) // as in runSim
	shown := newProgress(errOut, "simulating", "scenarios")
	o.Progress = func(done int) { shown.setProgress(done, o.Draws) }
	report, err := eval.RunFuzz(ctx, o.PolicyFuzz)
	shown.clear()
	if err != nil {
		return err
	}
	if format.isDocument() {
		return format.writeDocument(out, report)
	}
	return report.WriteTable(out, o.worst)
}
