package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/sim/load"
	"skyserve/internal/sim/workload"
)

// defaultLoad is the duration of a generated workload: long enough for caches to fill and for tail
// latencies to appear. A trace runs to its end.
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
	output    outputFlags
	format    outputFormat // parsed from output
	quiet     bool
	maxFailed int
}

func newLoadCmd() *cobra.Command {
	var o loadOptions
	cmd := &cobra.Command{
		Use:   "load [NAME]",
		Short: "Generate load and report client-side results",
		Long: `Generate load and report throughput, latencies, prefix hits and errors as measured by
the clients.

A generated workload is a closed loop: each region has a number of clients, and a client
sends its next request after the response to the previous one.
  tot15       Tree of Thoughts, 15 requests per question; siblings in the tree are sent concurrently
  tot30       the same with two requests per node, 30 per question
  mixed       Tree of Thoughts, 85 requests per question in the first US region (us or us-..., else the first region), 15 in the others
  arena       conversations with the lengths of Chatbot Arena
  wildchat    conversations with the longer lengths of WildChat
  groups      single requests that share one of 64 long prompts, all equally frequent
  shared      single requests that share long prompts; a few prompts are much more frequent
  bursts      per user, up to four concurrent requests with the user's own long prompt
  programs    per user, up to four concurrent requests, each with a different shared long prompt
  completion  single requests with long prompts that share nothing, and short responses, as in code completion
  contexts    single requests with one of five questions about one of 150 long contexts, all equally frequent

A FILE is a trace and is replayed as an open loop: requests are sent at the recorded
times, independent of responses. The formats Mooncake, Qwen-Bailian, Azure 2023 and 2024,
BurstGPT, SageServe and ServeGen are detected from the first line; gzip is decompressed.
A file of ServeGen contains request rates, from which requests are drawn.

--target may also name an engine, for a comparison without the balancer; REGION is then any
name. At the end, in-flight requests drain for 5 s and then count as cancelled.

Exit codes: 0 at least one request succeeded, 1 failed, 2 usage, 130 interrupted.`,
		Example: `  skyserve load
  skyserve load --workload arena --clients us=40,eu=20 --duration 30s
  skyserve load --workload tot15 --target us=http://127.0.0.1:8001 --clients 10 -o json
  skyserve load --target direct=http://10.0.0.7:8000 --clients 20
  skyserve load --workload conversation.jsonl.gz --rate-scale 2 --max-input 8000 --weights us=2,eu=1`,
		Args: argsBetween(0, 1, "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.name, args, "NAME"); err != nil {
				return err
			}
			return runLoad(cmd.Context(), &o, cmd.Flags(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	registerService(cmd, &o.name)
	o.flags(cmd.Flags())
	o.output.registerDocument(cmd)
	return cmd
}

func (o *loadOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.workload, "workload", string(workload.ToT15), "a workload (see above) or a trace `FILE`")
	f.StringSliceVar(&o.targets, "target", nil, "public URL of a balancer, or URL of an engine, for each region's clients, as `REGION=URL,...` (default: those of the running service; required with cloud regions)")
	f.StringSliceVar(&o.clients, "clients", nil, "number of closed-loop clients, as `REGION=N,...`, or N for each region (default: 2 to 80 per region by workload, as in SkyLB's experiments)")
	f.DurationVar(&o.duration, "duration", 0, "how long to send requests (default: 1m; for a FILE, to its end)")
	f.DurationVar(&o.timeout, "timeout", 0, "timeout of a request (default: none)")
	f.Uint64Var(&o.seed, "seed", 1, "random seed")
	f.StringVar(&o.model, "model", "", "model `NAME` (default: the first that the target lists)")
	f.StringVar(&o.tier, "tier", "", "tier of requests without one: fast, normal or deferred (fast and normal are interactive)")
	f.StringVar(&o.apiKey, "api-key", "", "`SOURCE` of the API key or identity token to send, env:NAME or file:PATH")
	f.BoolVar(&o.ignoreEOS, "ignore-eos", true, "request responses of exactly the workload's length")
	f.Float64Var(&o.trace.RateScale, "rate-scale", 1, "with FILE: scale the request rate, 2 = twice the rate")
	f.IntVar(&o.trace.MaxInput, "max-input", 0, "with FILE: skip rows whose prompts have more tokens, and report how many (default: unlimited)")
	f.StringSliceVar(&o.weights, "weights", nil, "with FILE: regions' shares of the rows, as `REGION=W,...` (default: equal)")
	f.DurationVar(&o.trace.From, "from", 0, "with FILE: start at this time of the trace")
	f.DurationVar(&o.trace.To, "to", 0, "with FILE: end at this time of the trace (default: its end)")
	f.BoolVar(&o.quiet, "quiet", false, "hide progress")
	f.IntVar(&o.maxFailed, "max-failed", -1, "exit 1 if more requests than this fail (429 and 503 count as rejected, not as failed); -1 = unlimited")
}

// runLoad runs the load and prints its report.
func runLoad(ctx context.Context, o *loadOptions, given *pflag.FlagSet, out, errOut io.Writer) error {
	if err := o.checkOptions(given); err != nil {
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
	if !o.quiet && isTerminal(errOut) {
		config.Progress = func(p load.ProgressReport) { redrawLine(errOut, p.Line()) }
	}
	report, err := start.run(ctx, config)
	if config.Progress != nil {
		redrawLine(errOut, "")
	}
	if err != nil {
		return usage(err, "")
	}
	if err := o.printReport(report, out); err != nil {
		return err
	}
	return o.resultError(report)
}

// checkOptions rejects invalid flags and flags that do not apply to the workload.
func (o *loadOptions) checkOptions(given *pflag.FlagSet) error {
	var err error
	if o.format, err = o.output.parse(); err != nil {
		return err
	}
	for _, name := range []string{"duration", "timeout"} {
		if d, _ := given.GetDuration(name); given.Changed(name) && d <= 0 {
			return usage(fmt.Errorf("--%s: must be greater than 0, got %s", name, d), "")
		}
	}
	if err := checkTraceFlags(o.trace); err != nil {
		return usage(err, "")
	}
	if !workload.IsKnown(o.workload) { // before flags are rejected: a misspelled name is no file
		if _, err := os.Stat(o.workload); err != nil {
			return o.workloadError(err)
		}
	}
	only, other := []string{"clients"}, "applies to generated workloads only; "+o.workload+" is a file"
	if workload.IsKnown(o.workload) {
		only, other = []string{"rate-scale", "max-input", "weights", "from", "to"}, "applies to trace files only; "+o.workload+" is generated"
	}
	for _, name := range only {
		if given.Changed(name) {
			return usage(fmt.Errorf("--%s: %s", name, other), "")
		}
	}
	return nil
}

// checkTraceFlags checks the values of --rate-scale, --from and --to.
func checkTraceFlags(o workload.TraceOptions) error {
	switch {
	case !(o.RateScale > 0):
		return fmt.Errorf("--rate-scale: must be greater than 0, got %v", o.RateScale)
	case o.To != 0 && o.To <= o.From:
		return fmt.Errorf("--to: must be after --from (%s), got %s", o.From, o.To)
	}
	return nil
}

// config returns the load's configuration from the flags.
func (o *loadOptions) config() (load.Config, error) {
	c := load.Config{Model: o.model, Timeout: o.timeout, HonorEOS: !o.ignoreEOS}
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
		return c, usage(fmt.Errorf("--target: cannot be combined with the service %s", o.name), "")
	}
	if c.Targets, err = load.ParseTargets(o.targets); err != nil {
		return c, usage(err, "for example: --target us=http://127.0.0.1:8001")
	}
	return c, nil
}

// runningTargets returns the endpoints of the running service, by region.
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

// keyFrom reads the API key that ref references; an empty ref is no key.
func keyFrom(ref string) (string, error) {
	if ref == "" {
		return "", nil
	}
	key, err := readBearerKey(ref)
	if err != nil {
		return "", fmt.Errorf("--api-key: %w", err)
	}
	return key, nil
}

// firstModel returns the first model of the first target that responds.
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
	if status := (*load.StatusError)(nil); errors.As(first, &status) && status.Status == http.StatusUnauthorized {
		return "", failed(first, "pass the API key or identity token with --api-key env:NAME or file:PATH")
	}
	return "", failed(first, "check the URL of --target, or run 'skyserve status' to see whether the service is running; --model NAME skips this request")
}

// preparedLoad is a load that is ready to run.
type preparedLoad struct {
	run   func(context.Context, load.Config) (*load.Report, error)
	close func()
}

// prepare creates the clients of a generated workload, or opens a trace.
func (o *loadOptions) prepare(targets []load.Target) (preparedLoad, error) {
	if workload.IsKnown(o.workload) {
		return o.prepareClients(targets)
	}
	return o.prepareTrace(targets)
}

func (o *loadOptions) prepareClients(targets []load.Target) (preparedLoad, error) {
	var counts map[string]int
	if len(o.clients) > 0 {
		var err error
		if counts, err = load.ParseClients(o.clients, targets); err != nil {
			return preparedLoad{}, usage(err, "for example --clients 40 for each region, or --clients us=40,eu=20 with the regions of the targets; a --target URL without REGION= has the region \"default\"")
		}
	}
	clients, err := load.Clients(workload.Kind(o.workload), targets, counts, o.seed)
	if err != nil {
		return preparedLoad{}, usage(err, "")
	}
	duration := o.duration
	if duration == 0 {
		duration = defaultLoad
	}
	return preparedLoad{
		run: func(ctx context.Context, c load.Config) (*load.Report, error) {
			return load.RunClosed(ctx, c, clients, duration)
		},
		close: func() {},
	}, nil
}

func (o *loadOptions) prepareTrace(targets []load.Target) (preparedLoad, error) {
	weights, err := load.ParseWeights(o.weights, targets)
	if err != nil {
		return preparedLoad{}, usage(err, "for example: --weights us=2,eu=1")
	}
	file, err := os.Open(o.workload)
	if err != nil {
		return preparedLoad{}, o.workloadError(err)
	}
	options := o.trace
	options.Seed, options.Weights = o.seed, weights
	trace, err := workload.OpenTrace(o.workload, file, options)
	if err != nil {
		_ = file.Close() // it was only read
		return preparedLoad{}, usage(err, "")
	}
	return preparedLoad{
		run: func(ctx context.Context, c load.Config) (*load.Report, error) {
			return load.Replay(ctx, c, trace, o.seed, o.duration)
		},
		close: func() { _ = file.Close() }, // it was only read
	}, nil
}

// workloadError returns the error of a workload that is not generated and cannot be opened.
func (o *loadOptions) workloadError(err error) error {
	hint := "a generated workload must be " + workload.KindList()
	if errors.Is(err, fs.ErrNotExist) {
		return usage(fmt.Errorf("unknown workload %q: neither a file nor a generated workload", o.workload), hint)
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return usage(fmt.Errorf("opening the workload %s: %w", o.workload, err), hint)
}

func (o *loadOptions) printReport(report *load.Report, out io.Writer) error {
	if o.format.isDocument() {
		return o.format.writeDocument(out, report)
	}
	return report.WriteTable(out)
}

// resultError returns the error and exit code for a report.
func (o *loadOptions) resultError(r *load.Report) error {
	switch {
	case r.Interrupted:
		return &exitError{code: exitInterrupted, err: errors.New("interrupted")}
	case r.Requests == 0:
		return failed(errors.New("no request was sent: no row of the trace matches"), "check --from, --to and --max-input")
	case r.OK == 0 && r.FirstError == "":
		return failed(fmt.Errorf("none of %s succeeded: %d cancelled when the load ended, before a response", printable.Count(r.Requests, "request"), r.Cancelled),
			"a request waits in the queue while no replica is ready or all are full: 'skyserve status' shows their states; --duration sets the length of the load")
	case r.OK == 0:
		return failed(fmt.Errorf("none of %s succeeded: %s", printable.Count(r.Requests, "request"), r.FirstError), "")
	case o.maxFailed >= 0 && r.Failed > o.maxFailed:
		return failed(fmt.Errorf("%s failed, --max-failed is %d: %s", printable.Count(r.Failed, "request"), o.maxFailed, r.FirstError), "")
	}
	return nil
}
