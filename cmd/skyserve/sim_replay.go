package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/eval"
	"skyserve/lbd/policy"
)

// simReplayOptions are the flags of `skyserve sim replay`.
type simReplayOptions struct {
	policies []string
	push     string
	profile  string
	speed    float64
	seeds    int
	output   outputFlags
}

func newSimReplayCmd() *cobra.Command {
	var o simReplayOptions
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Replay a balancer's record and compare its decisions",
		Long: `Recreate the balancer of a record, feed it every recorded event at its time and compare
its actions with the recorded ones. The same code makes the same decisions for the same
events; on a difference, the first one is shown and the exit code is 1. The measurements
of the recorded run are printed in the format of sim run.

FILE is a record of 'skyserve lb --record FILE', plain or gzipped.

With --policy or --push, the recorded requests are also replayed against simulated
engines (--profile, --speed), with the recorded policy and with the given ones. A record
shows only the effects of the decisions that were made: compare simulated rows with
simulated rows, not with the recorded one. Assumptions are listed in the output.
cache-aware:skylb is cache-aware with the constants that SGLang's router had at the time of
SkyLB's evaluation.`,
		Example: `  skyserve sim replay lb-us-0.jsonl
  skyserve sim replay lb-us-0.jsonl.gz -o json
  skyserve sim replay lb-us-0.jsonl --policy least-load,skylb --profile l4-llama3.1-8b
  skyserve sim replay lb-us-0.jsonl --push blind --speed 10`,
		Args: argsBetween(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range []string{"profile", "speed", "seeds"} {
				if cmd.Flags().Changed(name) && len(o.policies) == 0 && o.push == "" {
					return usage(fmt.Errorf("--%s: requires --policy or --push", name), "")
				}
			}
			return runReplay(cmd.Context(), &o, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.policies, "policy", nil, "alternative policies, comma-separated: "+strings.Join(policy.Names(), ", ")+"; docs/service-yaml.md explains them")
	flags.StringVar(&o.push, "push", "", "alternative push mode: pending, outstanding:N, blind; see skyserve lb --help (default: the recorded one)")
	flags.StringVar(&o.profile, "profile", engine.Profiles()[0].Name, "engine profile of the simulated replicas")
	flags.Float64Var(&o.speed, "speed", 1, "speed of the simulated replicas relative to real time (for a local service: engine.speed in its service.yaml)")
	flags.IntVar(&o.seeds, "seeds", 1, "simulate seeds 1 to `N`")
	o.output.registerDocument(cmd)
	return cmd
}

// whatIf returns the what-if comparison of the flags; requested is false if they request
// none.
func (o *simReplayOptions) whatIf() (w eval.WhatIf, requested bool, err error) {
	if !(o.speed > 0 && o.speed <= maxReplaySpeed) {
		return w, false, fmt.Errorf("--speed: must be greater than 0 and at most %d, got %v", maxReplaySpeed, o.speed)
	}
	if err := checkSeeds(o.seeds); err != nil {
		return w, false, err
	}
	w = eval.WhatIf{Policies: o.policies, Push: o.push, Speed: o.speed, Seeds: o.seeds}
	if w.Profile, err = engine.FindProfile(o.profile); err != nil {
		return w, false, fmt.Errorf("--profile: %w", err)
	}
	return w, len(o.policies) > 0 || o.push != "", w.Check()
}

// badInput returns the error of a command that only computes something from a file: the file is not valid (exit 2),
// unless the command was interrupted.
func badInput(ctx context.Context, err error, hint string) error {
	if ctx.Err() != nil {
		return err
	}
	return usage(err, hint)
}

// maxReplaySpeed keeps every step of an engine longer than zero.
const maxReplaySpeed = 1000

// runReplay replays a record and prints the report.
func runReplay(ctx context.Context, o *simReplayOptions, file string, out, errOut io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	w, requested, err := o.whatIf()
	if err != nil {
		return usage(err, "")
	}
	f, err := os.Open(file)
	if err != nil {
		return usage(fmt.Errorf("reading the record: %w", err), "'skyserve lb --record FILE' writes one")
	}
	defer f.Close()
	began := time.Now()
	var report *eval.ReplayReport
	if requested {
		report, err = eval.ReplayWhatIf(ctx, filepath.Base(file), f, w)
	} else {
		report, err = eval.ReplayRecord(ctx, filepath.Base(file), f)
	}
	if err != nil {
		return badInput(ctx, err, "'skyserve lb --record FILE' writes a record")
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	if format.isDocument() {
		err = format.writeDocument(out, report)
	} else {
		err = report.WriteTable(out)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if report.Replay.Truncated {
		printMessage(errOut, labelWarning, "%s ends in the middle of a line; the lines before it were replayed", file)
	}
	if d := report.Replay.Difference; d != nil {
		return failed(errors.New("replaying "+file+": "+d.String()), "another version of skyserve may decide differently: replay the record with the version that wrote it")
	}
	return nil
}
