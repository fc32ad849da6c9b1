package main

import (
	"context"
	"encoding/json"
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
	output   string
}

func newSimReplayCmd() *cobra.Command {
	var o simReplayOptions
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Repeat the decisions of a recorded balancer",
		Long: `Make the balancer of a record again, feed it every recorded event at its time
and compare what it does with what was recorded. The same code with the same
events decides the same: where it does not, the first difference is shown and
the exit code is 1. What the recorded run measured is printed as sim run prints
its rows.

FILE is what 'skyserve lb --record FILE' wrote, plain or compressed with gzip.

With --policy or --push the requests of the record are then asked again, as they
came, of simulated engines (--profile, --speed), under the recorded policy and
under the one given. A record cannot tell what would have followed another
decision: compare the simulated rows with each other. What had to be assumed is
printed.`,
		Example: `  skyserve sim replay lb-us-0.jsonl
  skyserve sim replay lb-us-0.jsonl.gz -o json
  skyserve sim replay lb-us-0.jsonl --policy least-load,skylb --profile l4-llama3.1-8b
  skyserve sim replay lb-us-0.jsonl --push blind --speed 10`,
		Args: argsBetween(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runReplay(cmd.Context(), &o, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.policies, "policy", nil, "policies to try instead, with commas: "+strings.Join(policy.Names(), ", "))
	flags.StringVar(&o.push, "push", "", "push rule to try instead: pending, outstanding:N, blind (default: the recorded one)")
	flags.StringVar(&o.profile, "profile", engine.Profiles()[0].Name, "what each simulated replica is")
	flags.Float64Var(&o.speed, "speed", 1, "how many times faster the replicas run; those of a local service run 10 times")
	flags.IntVar(&o.seeds, "seeds", 1, "simulate seeds 1 to `N`")
	flags.StringVarP(&o.output, "output", "o", "table", "table or json")
	return cmd
}

// whatIf is the question that the flags ask; asked is false when they ask none.
func (o *simReplayOptions) whatIf() (w eval.WhatIf, asked bool, err error) {
	if o.output != "table" && o.output != "json" {
		return w, false, fmt.Errorf("-o %s: want table or json", o.output)
	}
	if !(o.speed > 0 && o.speed <= maxReplaySpeed) {
		return w, false, fmt.Errorf("--speed: must be above 0 and at most %d, got %v", maxReplaySpeed, o.speed)
	}
	w = eval.WhatIf{Policies: o.policies, Push: o.push, Speed: o.speed, Seeds: o.seeds}
	if w.Profile, err = engine.ProfileNamed(o.profile); err != nil {
		return w, false, fmt.Errorf("--profile: %w", err)
	}
	return w, len(o.policies) > 0 || o.push != "", w.Check()
}

// maxReplaySpeed keeps every step of an engine longer than nothing.
const maxReplaySpeed = 1000

// runReplay repeats one record and prints what came of it.
func runReplay(ctx context.Context, o *simReplayOptions, file string, out, talk io.Writer) error {
	w, asked, err := o.whatIf()
	if err != nil {
		return usage(err, "")
	}
	f, err := os.Open(file)
	if err != nil {
		return usage(fmt.Errorf("reading the record: %w", err), "skyserve lb --record FILE writes one")
	}
	defer f.Close()
	began := time.Now()
	var report *eval.ReplayReport
	if asked {
		report, err = eval.ReplayWhatIf(ctx, filepath.Base(file), f, w)
	} else {
		report, err = eval.ReplayRecord(ctx, filepath.Base(file), f)
	}
	if err != nil {
		return err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	if o.output == "json" {
		err = json.NewEncoder(out).Encode(report)
	} else {
		err = report.WriteTable(out)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if report.Replay.Cut {
		fmt.Fprintf(talk, "%s ends in the middle of a line; what is before it was repeated\n", file)
	}
	if d := report.Replay.Difference; d != nil {
		return failed(errors.New("repeating "+file+": "+d.String()), "another version of skyserve decides differently: repeat it with the one that recorded it")
	}
	return nil
}
