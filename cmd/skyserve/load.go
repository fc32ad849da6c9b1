package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/service"
	"skyserve/internal/sim/load"
	"skyserve/internal/sim/workload"
)

// defaultLoad is how long a generated workload runs: long enough for caches to
// fill and a tail to show. A trace runs to its end.
const defaultLoad = time.Minute

// loadOptions are the flags of `skyserve load`.
type loadOptions struct {
	name      string
	workload  string
	targets   []string
	clients   []string
	weights   []string
	duration  time.Duration
	timeout   time.Duration
	seed      uint64
	model     string
	tier      string
	apiKey    string
	ignoreEOS bool
	trace     workload.TraceOptions
	output    string
	quiet     bool
	maxFailed int
}

func newLoadCmd() *cobra.Command {
	var o loadOptions
	cmd := &cobra.Command{
		Use:   "load [NAME]",
		Short: "Generate load and report what its users would have seen",
		Long: `Generate load and report throughput, latencies, prefix hits and errors.

A generated workload is a closed loop: each region has a number of clients, and
a client asks again when it was answered.
  tot15     Tree of Thoughts, 15 requests a question, siblings at once
  tot30     the same with two calls a node, 30 requests
  mixed     trees of 85 requests in the US, of 15 elsewhere
  arena     conversations with the lengths of Chatbot Arena
  wildchat  conversations with the longer lengths of WildChat
  groups    single calls that share one of 64 long prompts, all as frequent
  shared    single calls that share long prompts, few of them most of the time
  bursts    up to eight calls at once with a user's own long prompt
  programs  up to four calls at once, each with another shared long prompt

A FILE is a trace and is replayed as an open loop: its rows come at their times
whatever the answers do. Mooncake, Qwen-Bailian, Azure 2023 and 2024, BurstGPT,
SageServe and ServeGen (rates) are told by their first line; gzip is unpacked.

The target is the running service unless --target says otherwise. At the end
requests in flight drain for 5 s, then count as cancelled. The exit code is 0
when the load ran and anything succeeded, 130 when it was interrupted.`,
		Example: `  skyserve load
  skyserve load --workload arena --clients us=40,eu=20 --duration 30s
  skyserve load --workload tot15 --target us=http://127.0.0.1:8001 --clients 10 -o json
  skyserve load --workload conversation.jsonl.gz --rate-scale 2 --max-input 8000 --weights us=2,eu=1`,
		Args: argsBetween(0, 1, "at most one NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.name = args[0]
			}
			return runLoad(cmd.Context(), &o, cmd.Flags(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *loadOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.workload, "workload", string(workload.ToT15), "a workload (see above) or a trace `FILE`")
	f.StringSliceVar(&o.targets, "target", nil, "where each region's clients send, as `REGION=URL,...` (default: the running service)")
	f.StringSliceVar(&o.clients, "clients", nil, "closed-loop clients as `REGION=N,...`, or N for each region (default: as in SkyLB's experiments)")
	f.DurationVar(&o.duration, "duration", 0, "how long to issue requests (default: 1m0s, a FILE to its end)")
	f.DurationVar(&o.timeout, "timeout", 0, "time for one request, which fails when it takes longer (default: none)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of everything that is drawn")
	f.StringVar(&o.model, "model", "", "model `NAME` (default: the first one that the target lists)")
	f.StringVar(&o.tier, "tier", "", "tier of requests that state none: IW-F, IW-N or NIW")
	f.StringVar(&o.apiKey, "api-key", "", "where the API key is, as env:`NAME`")
	f.BoolVar(&o.ignoreEOS, "ignore-eos", true, "ask the engine for answers of exactly the workload's length")
	f.Float64Var(&o.trace.RateScale, "rate-scale", 1, "FILE: compress time, 2 = twice the rate")
	f.IntVar(&o.trace.MaxInput, "max-input", 0, "FILE: leave out, and count, rows with a prompt of more tokens (default: none)")
	f.StringSliceVar(&o.weights, "weights", nil, "FILE: shares of the rows as `REGION=W,...` (default: equal)")
	f.DurationVar(&o.trace.From, "from", 0, "FILE: begin at this time of the trace")
	f.DurationVar(&o.trace.To, "to", 0, "FILE: end at this time of the trace (default: its end)")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.BoolVar(&o.quiet, "quiet", false, "show no progress")
	f.IntVar(&o.maxFailed, "max-failed", -1, "exit 1 when more requests than this failed (default: any number may)")
}

// runLoad runs the load and prints its report.
func runLoad(ctx context.Context, o *loadOptions, given *pflag.FlagSet, out, talk io.Writer) error {
	if err := o.check(given); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	start, err := o.prepare(config.Targets)
	if err != nil {
		return err
	}
	defer start.close()
	if config.Model == "" {
		if config.Model, err = firstModel(ctx, config); err != nil {
			return err
		}
	}
	if !o.quiet && isTerminal(talk) {
		config.Progress = func(p load.Progress) { redrawLine(talk, p.Line()) }
	}
	report, err := start.run(ctx, config)
	if config.Progress != nil {
		redrawLine(talk, "")
	}
	if err != nil {
		return usage(err, "")
	}
	if err := o.print(report, out); err != nil {
		return err
	}
	return o.verdict(report)
}

// check refuses flags that mean nothing, or nothing for this workload.
func (o *loadOptions) check(given *pflag.FlagSet) error {
	if o.output != "table" && o.output != "json" {
		return usage(fmt.Errorf("-o %s: want table or json", o.output), "")
	}
	for _, name := range []string{"duration", "timeout"} {
		if d, _ := given.GetDuration(name); given.Changed(name) && d <= 0 {
			return usage(fmt.Errorf("--%s: must be more than zero, got %s", name, d), "")
		}
	}
	if !(o.trace.RateScale > 0) {
		return usage(fmt.Errorf("--rate-scale: must be more than zero, got %v", o.trace.RateScale), "")
	}
	only, other := []string{"clients"}, "is for generated workloads; "+o.workload+" is a file"
	if workload.Known(o.workload) {
		only, other = []string{"rate-scale", "max-input", "weights", "from", "to"}, "is for a trace file; "+o.workload+" is generated"
	}
	for _, name := range only {
		if given.Changed(name) {
			return usage(fmt.Errorf("--%s %s", name, other), "")
		}
	}
	return nil
}

// config is what the flags say about targets and requests.
func (o *loadOptions) config() (load.Config, error) {
	c := load.Config{Model: o.model, Timeout: o.timeout, KeepEOS: !o.ignoreEOS}
	var err error
	if o.tier != "" {
		if c.Tier, err = service.ParseTier(o.tier); err != nil {
			return c, usage(fmt.Errorf("--tier: %w", err), "")
		}
	}
	if c.APIKey, err = keyFrom(o.apiKey); err != nil {
		return c, usage(err, "")
	}
	if len(o.targets) == 0 {
		c.Targets, err = runningTargets(o.name)
		return c, err
	}
	if o.name != "" {
		return c, usage(fmt.Errorf("%s and --target: want one of them", o.name), "")
	}
	if c.Targets, err = load.ParseTargets(o.targets); err != nil {
		return c, usage(err, "for example --target us=http://127.0.0.1:8001")
	}
	return c, nil
}

// runningTargets are the endpoints of the running service, by region.
func runningTargets(name string) ([]load.Target, error) {
	endpoints, err := runningEndpoints(name)
	if err != nil {
		return nil, err
	}
	var targets []load.Target
	for _, region := range slices.Sorted(maps.Keys(endpoints)) {
		targets = append(targets, load.Target{Region: region, URL: endpoints[region]})
	}
	return targets, nil
}

// keyFrom reads an API key from where ref says it is; no ref is no key.
func keyFrom(ref string) (string, error) {
	if ref == "" {
		return "", nil
	}
	name, found := strings.CutPrefix(ref, "env:")
	if !found || name == "" {
		return "", errors.New("--api-key: want env:NAME, never the key itself")
	}
	key := os.Getenv(name)
	if key == "" {
		return "", fmt.Errorf("--api-key: the environment variable %s is not set", name)
	}
	return key, nil
}

// firstModel asks the targets, one after the other, for their models.
func firstModel(ctx context.Context, c load.Config) (string, error) {
	var first error
	for _, target := range c.Targets {
		model, err := load.FirstModel(ctx, c, target)
		if err == nil {
			return model, nil
		}
		if first == nil {
			first = err
		}
	}
	if ctx.Err() != nil {
		return "", &exitError{code: exitInterrupted, err: errors.New("interrupted")}
	}
	return "", failed(first, "see whether the service runs: skyserve status; or name the model: --model NAME")
}

// loadStart is a load that is ready to run.
type loadStart struct {
	run   func(context.Context, load.Config) (*load.Report, error)
	close func()
}

// prepare makes the clients of a generated workload or opens a trace.
func (o *loadOptions) prepare(targets []load.Target) (loadStart, error) {
	if workload.Known(o.workload) {
		return o.prepareClients(targets)
	}
	return o.prepareTrace(targets)
}

func (o *loadOptions) prepareClients(targets []load.Target) (loadStart, error) {
	var counts map[string]int
	if len(o.clients) > 0 {
		var err error
		if counts, err = load.ParseClients(o.clients, targets); err != nil {
			return loadStart{}, usage(err, "for example --clients us=40,eu=20")
		}
	}
	clients, err := load.Clients(workload.Kind(o.workload), targets, counts, o.seed)
	if err != nil {
		return loadStart{}, usage(err, "")
	}
	duration := o.duration
	if duration == 0 {
		duration = defaultLoad
	}
	return loadStart{
		run: func(ctx context.Context, c load.Config) (*load.Report, error) {
			return load.RunClosed(ctx, c, clients, duration)
		},
		close: func() {},
	}, nil
}

func (o *loadOptions) prepareTrace(targets []load.Target) (loadStart, error) {
	weights, err := load.ParseWeights(o.weights, targets)
	if err != nil {
		return loadStart{}, usage(err, "for example --weights us=2,eu=1")
	}
	file, err := os.Open(o.workload)
	if err != nil {
		hint := "the generated workloads are tot15, tot30, mixed, arena, wildchat, groups, shared, bursts and programs"
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return loadStart{}, usage(fmt.Errorf("opening the workload %s: %w", o.workload, err), hint)
	}
	options := o.trace
	options.Seed, options.Weights = o.seed, weights
	trace, err := workload.OpenTrace(o.workload, file, options)
	if err != nil {
		_ = file.Close() // it was only read
		return loadStart{}, usage(err, "")
	}
	return loadStart{
		run: func(ctx context.Context, c load.Config) (*load.Report, error) {
			return load.Replay(ctx, c, trace, o.seed, o.duration)
		},
		close: func() { _ = file.Close() }, // it was only read
	}, nil
}

func (o *loadOptions) print(report *load.Report, out io.Writer) error {
	if o.output == "json" {
		return json.NewEncoder(out).Encode(report)
	}
	return report.WriteTable(out)
}

// verdict is the exit code that a report stands for.
func (o *loadOptions) verdict(r *load.Report) error {
	switch {
	case r.Interrupted:
		return &exitError{code: exitInterrupted, err: errors.New("interrupted")}
	case r.Requests == 0:
		return failed(errors.New("no request was made: the trace has no row to replay"), "see --from, --to and --max-input")
	case r.OK == 0:
		return failed(fmt.Errorf("none of %d requests succeeded: %s", r.Requests, r.FirstError), "")
	case o.maxFailed >= 0 && r.Failed > o.maxFailed:
		return failed(fmt.Errorf("%d requests failed, more than %d: %s", r.Failed, o.maxFailed, r.FirstError), "")
	}
	return nil
}
