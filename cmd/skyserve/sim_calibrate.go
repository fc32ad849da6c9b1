package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/eval"
)

// simCalibrateOptions are the flags of `skyserve sim calibrate`.
type simCalibrateOptions struct {
	from   string
	fit    eval.CalibrateOptions
	output string
}

func newSimCalibrateCmd() *cobra.Command {
	defaults := engine.DefaultFitOptions()
	o := simCalibrateOptions{fit: eval.CalibrateOptions{Fit: defaults}}
	cmd := &cobra.Command{
		Use:   "calibrate --from FILE",
		Short: "Fit an engine profile to measurements or to a service's own log",
		Long: `Fit what a simulated replica is to what a real one did, and print it as the
engines of a scenario file. How far the fitted profile is from measurements that
it had not seen is printed beside it, on stderr.

FILE, plain or compressed with gzip, is one of two:

A table of a benchmark's runs, as CSV with the columns model, hardware,
prompt_size, batch_size, token_size, prompt_time, token_time, e2e_time and
tensor_parallel: one profile for each model, hardware and tensor parallelism, as
curves. Times are milliseconds and token_time that of a token (splitwise-sim), or
seconds and token_time that of all tokens (SageServe): which it is shows in
e2e_time.

What 'skyserve lb --record FILE' wrote: one profile for a model, as constants,
from when its requests were sent, began to be answered and ended, and from which
others were at the replica meanwhile. It takes 50 requests with the engine's token
counts, some of them together, some alone, of different lengths.`,
		Example: `  skyserve sim calibrate --from perf.csv --model llama2-70b --hardware h100-80gb > engines.yaml
  skyserve sim calibrate --from lb-us-0.jsonl --name ours --kv 180000
  skyserve sim calibrate --from lb-us-0.jsonl --speed 10 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCalibrate(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "`FILE` of measurements or of a record")
	flags.StringVar(&o.fit.Model, "model", "", "only this model")
	flags.StringVar(&o.fit.Hardware, "hardware", "", "of a table: only this hardware")
	flags.IntVar(&o.fit.TensorParallel, "tensor-parallel", 0, "of a table: only this tensor parallelism")
	flags.StringVar(&o.fit.Fit.Name, "name", "", "the profile's name (default: of what it was fitted to)")
	flags.IntVar(&o.fit.Fit.KVTokens, "kv", 0, "tokens that the KV memory holds (default: the most that was seen in it)")
	flags.IntVar(&o.fit.Fit.ChunkTokens, "chunk", defaults.ChunkTokens, "most prompt tokens that one prefill step takes")
	flags.IntVar(&o.fit.Fit.MaxRunning, "max-running", defaults.MaxRunning, "most requests that run at once")
	flags.Float64Var(&o.fit.Speed, "speed", 1, "of a record: how many times faster than real its engines ran; those of a local service run 10 times")
	flags.StringVarP(&o.output, "output", "o", "yaml", "yaml or json")
	return cmd
}

// check says what the flags must not be.
func (o *simCalibrateOptions) check() error {
	f := &o.fit
	switch {
	case o.from == "":
		return fmt.Errorf("--from: want the file to fit to")
	case o.output != "yaml" && o.output != "json":
		return fmt.Errorf("-o %s: want yaml or json", o.output)
	case f.TensorParallel < 0:
		return fmt.Errorf("--tensor-parallel: must be at least 1, got %d", f.TensorParallel)
	case f.Fit.KVTokens != 0 && f.Fit.KVTokens < 2:
		return fmt.Errorf("--kv: must be at least 2, got %d", f.Fit.KVTokens)
	case f.Fit.ChunkTokens < 1:
		return fmt.Errorf("--chunk: must be at least 1, got %d", f.Fit.ChunkTokens)
	case f.Fit.MaxRunning < 1:
		return fmt.Errorf("--max-running: must be at least 1, got %d", f.Fit.MaxRunning)
	case f.Fit.Name != engine.SafeName(f.Fit.Name):
		return fmt.Errorf("--name: must be of small letters, digits, dots and dashes, got %q", f.Fit.Name)
	case !(f.Speed > 0 && f.Speed <= maxReplaySpeed):
		return fmt.Errorf("--speed: must be above 0 and at most %d, got %v", maxReplaySpeed, f.Speed)
	}
	return nil
}

// runCalibrate fits and prints.
func runCalibrate(ctx context.Context, o *simCalibrateOptions, out, talk io.Writer) error {
	if err := o.check(); err != nil {
		return usage(err, "run 'skyserve sim calibrate --help'")
	}
	f, err := os.Open(o.from)
	if err != nil {
		return usage(fmt.Errorf("reading measurements: %w", err), "skyserve lb --record FILE writes a record")
	}
	defer f.Close()
	c, err := eval.Calibrate(ctx, filepath.Base(o.from), f, o.fit)
	if err != nil {
		return err
	}
	if o.output == "json" {
		err = json.NewEncoder(out).Encode(c)
	} else {
		err = c.WriteYAML(out)
	}
	if err == nil {
		err = c.WriteTable(talk)
	}
	if err != nil {
		return fmt.Errorf("writing the profiles: %w", err)
	}
	return nil
}
