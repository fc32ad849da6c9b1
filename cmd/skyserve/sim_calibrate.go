package main

import (
	"context"
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
	output outputFlags
}

func newSimCalibrateCmd() *cobra.Command {
	defaults := engine.DefaultFitOptions()
	o := simCalibrateOptions{fit: eval.CalibrateOptions{Fit: defaults}}
	cmd := &cobra.Command{
		Use:   "calibrate --from FILE",
		Short: "Fit an engine profile to measurements or a balancer's record",
		Long: `Fit the profile of a simulated engine to measurements of a real one, and print it as the
engines section of a scenario file. The error on held-out measurements is printed to
standard error.

FILE, plain or gzipped, is one of:

A table of benchmark runs, as CSV with the columns model, hardware, prompt_size,
batch_size, token_size, prompt_time, token_time, e2e_time and tensor_parallel. It yields
one profile per model, hardware and tensor parallelism, whose step times are curves over
the measured sizes. Times are in milliseconds with token_time per token (splitwise-sim), or
in seconds with token_time for all tokens (SageServe); the command finds out which from
e2e_time.

A record of 'skyserve lb --record FILE'. It yields one profile per model, with constants
instead of curves, from the times at which requests were sent, received their first token
and ended, and from the requests that were at the replica at the same time. It requires 50
requests with the engine's token counts, some concurrent, some alone, of different lengths.
Whether a prefill step also generates tokens of running requests (mixed_steps, as in vLLM) is
fitted too.`,
		Example: `  skyserve sim calibrate --from perf.csv --model llama2-70b --hardware h100-80gb > engines.yaml
  skyserve sim calibrate --from lb-us-0.jsonl --name ours --kv-tokens 180000
  skyserve sim calibrate --from lb-us-0.jsonl --speed 10 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCalibrate(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "`FILE` with measurements or a record")
	flags.StringVar(&o.fit.Model, "model", "", "only this model")
	flags.StringVar(&o.fit.Hardware, "hardware", "", "with a table: only this hardware")
	flags.IntVar(&o.fit.TensorParallel, "tensor-parallel", 0, "with a table: only this tensor parallelism")
	flags.StringVar(&o.fit.Fit.Name, "name", "", "name of the profile (default: derived from the input)")
	flags.IntVar(&o.fit.Fit.KVTokens, "kv-tokens", 0, "size of the KV cache in tokens (default: the maximum observed)")
	flags.IntVar(&o.fit.Fit.ChunkTokens, "chunk", defaults.ChunkTokens, "maximum number of prompt tokens per prefill step")
	flags.IntVar(&o.fit.Fit.MaxRunning, "max-num-seqs", defaults.MaxRunning, "maximum number of running requests")
	flags.Float64Var(&o.fit.Speed, "speed", 1, "with a record: speed of its simulated engines relative to real time (for a local service: engine.speed in its service.yaml)")
	o.output.register(cmd, []string{outputYAML, outputJSON, outputPath + "PATH"})
	return cmd
}

// checkOptions validates the flags.
func (o *simCalibrateOptions) checkOptions() error {
	f := &o.fit
	switch {
	case o.from == "":
		return fmt.Errorf("--from is required")
	case f.TensorParallel < 0:
		return fmt.Errorf("--tensor-parallel: must be at least 1, got %d", f.TensorParallel)
	case f.Fit.KVTokens != 0 && f.Fit.KVTokens < 2:
		return fmt.Errorf("--kv-tokens: must be at least 2, got %d", f.Fit.KVTokens)
	case f.Fit.ChunkTokens < 1:
		return fmt.Errorf("--chunk: must be at least 1, got %d", f.Fit.ChunkTokens)
	case f.Fit.MaxRunning < 1:
		return fmt.Errorf("--max-num-seqs: must be at least 1, got %d", f.Fit.MaxRunning)
	case f.Fit.Name != engine.SafeName(f.Fit.Name):
		return fmt.Errorf("--name: must consist of lowercase letters, digits, dots and dashes, got %q", f.Fit.Name)
	case !(f.Speed > 0 && f.Speed <= maxReplaySpeed):
		return fmt.Errorf("--speed: must be greater than 0 and at most %d, got %v", maxReplaySpeed, f.Speed)
	}
	return nil
}

// runCalibrate fits the profiles and prints them.
func runCalibrate(ctx context.Context, o *simCalibrateOptions, out, errOut io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	if err := o.checkOptions(); err != nil {
		return usage(err, "run 'skyserve sim calibrate --help'")
	}
	f, err := os.Open(o.from)
	if err != nil {
		return usage(fmt.Errorf("reading measurements: %w", err), "'skyserve lb --record FILE' writes a record")
	}
	defer f.Close()
	c, err := eval.Calibrate(ctx, filepath.Base(o.from), f, o.fit)
	if err != nil {
		return badInput(ctx, err, "'skyserve sim calibrate --help' describes the files")
	}
	if format.kind == outputYAML {
		err = c.WriteYAML(out) // with comments
	} else {
		err = format.writeDocument(out, c)
	}
	if err == nil {
		err = c.WriteTable(errOut)
	}
	if err != nil {
		return fmt.Errorf("writing the profiles: %w", err)
	}
	return nil
}
