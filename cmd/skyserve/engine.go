package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/engine/server"
)

// engineFlags are the flags of `skyserve engine`.
type engineFlags struct {
	listen     string
	profile    string
	kvTokens   int
	maxNumSeqs int
	flavor     string
	faults     []string
	apiKey     string
	events     string
	server     server.Options
}

func newEngineCmd() *cobra.Command {
	var f engineFlags
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run a simulated engine",
		Long: `Run a simulated inference engine with OpenAI's HTTP API, the metrics of vLLM or SGLang,
a prefix cache, continuous batching and the token timing of a real GPU. It generates
random responses; the same prompt and seed yield the same response. With max_tokens of
64 or less, a response has exactly that many tokens.

Faults (--fault, or POST /fault with {"slow": 3} at run time):
  die-after=20s | N     exit after 20 s, or when the N-th request arrives
  hang-after=20s | N    from then on, accept requests without responding
  slow=3                take three times as long
  error-rate=0.1        respond to 10% of the requests with 500
  reset-after-tokens=5  reset the connection after five tokens`,
		Example: `  skyserve engine --listen 127.0.0.1:8201 --speed 10
  skyserve engine --profile l4-llama3.1-8b-38k --flavor sglang --seed 7
  skyserve engine --data-parallel 4
  skyserve engine --cache-events 127.0.0.1:5557
  skyserve engine --fault slow=2,error-rate=0.05 --fault die-after=1m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runEngine(cmd, f) },
	}
	f.registerFlags(cmd)
	return cmd
}

func (f *engineFlags) registerFlags(cmd *cobra.Command) {
	names := profileNames()
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8201", "address to listen on (port 0 = any free port)")
	flags.StringVar(&f.server.Model, "model", server.DefaultModel, "name of the served model")
	flags.StringArrayVar(&f.server.Aliases, "alias", nil, "another `NAME` of the model (repeatable)")
	flags.StringArrayVar(&f.server.LoRA, "lora", nil, "`NAME` of a LoRA adapter (repeatable)")
	flags.StringVar(&f.profile, "profile", names[0], "simulated GPU and model: "+strings.Join(names, ", ")+" (38k = a KV cache of 38,000 tokens)")
	flags.IntVar(&f.kvTokens, "kv-tokens", 0, "size of the KV cache in tokens (default: the profile's)")
	flags.IntVar(&f.maxNumSeqs, "max-num-seqs", 0, "maximum number of running requests (default: the profile's)")
	flags.IntVar(&f.server.DataParallel, "data-parallel", 1, "number of data-parallel ranks, which synchronise at every step")
	flags.Float64Var(&f.server.Speed, "speed", server.DefaultSpeed, "speed relative to real time (10 = 10x real time)")
	flags.StringVar(&f.flavor, "flavor", string(server.FlavorVLLM), "metrics to expose: vllm, sglang, none")
	flags.BoolVar(&f.server.LegacyMetrics, "legacy-metrics", false, "also expose KV utilisation under vLLM's former name of the metric")
	flags.IntVar(&f.server.StreamInterval, "stream-interval", 1, "tokens per stream event, after the first")
	flags.BoolVar(&f.server.NoContinuousUsage, "no-continuous-usage", false, "ignore stream_options.continuous_usage_stats")
	flags.Uint64Var(&f.server.Seed, "seed", 1, "seed of responses and faults")
	flags.Int64Var(&f.server.MaxBodyBytes, "max-body-bytes", server.DefaultMaxBodyBytes, "maximum size of a request body in bytes")
	flags.DurationVar(&f.server.Grace, "grace-period", server.DefaultGrace, "time for in-flight requests to complete after SIGTERM")
	flags.StringVar(&f.apiKey, "api-key", "", "source of the API key that clients must send: env:NAME or file:PATH")
	flags.StringVar(&f.events, "cache-events", "", "publish changes of the prefix cache at `ADDRESS`, in the format of --flavor; data-parallel rank n uses port+n, and port+n+100 for subscribers that ask for missed events")
	flags.StringArrayVar(&f.faults, "fault", nil, "inject a fault, as `NAME=VALUE` (repeatable)")
}

// options returns the server's options from the flags, or an error for an invalid value.
func (f *engineFlags) options(cmd *cobra.Command) (o server.Options, err error) {
	o = f.server
	if o.Profile, err = engine.FindProfile(f.profile); err != nil {
		return o, fmt.Errorf("--profile: %w", err)
	}
	if o.Flavor, err = server.ParseFlavor(f.flavor); err != nil {
		return o, fmt.Errorf("--flavor: %w", err)
	}
	if o.Faults, err = server.ParseFaults(f.faults); err != nil {
		return o, fmt.Errorf("--fault: %w", err)
	}
	if o.APIKey, err = f.readKey(); err != nil {
		return o, fmt.Errorf("--api-key: %w", err)
	}
	if cmd.Flags().Changed("kv-tokens") {
		if f.kvTokens < engine.MinKVTokens {
			return o, fmt.Errorf("--kv-tokens: must be at least %d, got %d", engine.MinKVTokens, f.kvTokens)
		}
		o.Profile.KVTokens = f.kvTokens
	}
	if cmd.Flags().Changed("max-num-seqs") {
		if f.maxNumSeqs < 1 {
			return o, fmt.Errorf("--max-num-seqs: must be at least 1, got %d", f.maxNumSeqs)
		}
		o.Profile.MaxRunning = f.maxNumSeqs
	}
	for _, names := range []struct {
		flag  string
		given []string
	}{{"--model", []string{o.Model}}, {"--alias", o.Aliases}, {"--lora", o.LoRA}} {
		if slices.Contains(names.given, "") {
			return o, fmt.Errorf("%s: must not be empty", names.flag)
		}
	}
	for _, name := range []string{"speed", "max-body-bytes", "grace-period", "data-parallel", "stream-interval"} {
		// The server reads zero as the default; on the command line it is an error.
		if v := cmd.Flags().Lookup(name).Value.String(); v == "0" || v == "0s" || strings.HasPrefix(v, "-") {
			return o, fmt.Errorf("--%s: must be greater than 0, got %q", name, v)
		}
	}
	return o, nil
}

// profileNames returns the names of the engine profiles.
func profileNames() []string {
	var names []string
	for _, p := range engine.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

// readKey returns the API key of the engine; empty = none.
func (f *engineFlags) readKey() (string, error) {
	if f.apiKey == "" {
		return "", nil
	}
	return readBearerKey(f.apiKey)
}

// readBearerKey reads the key from its source, env:NAME or file:PATH.
func readBearerKey(ref string) (string, error) {
	if !service.IsSecretRef(ref) {
		return "", errors.New("must be env:NAME or file:PATH, never the key itself")
	}
	text, err := deploy.LocalSecrets(ref)
	if err != nil {
		return "", err
	}
	key, err := service.ParseBearerKey(text)
	if err != nil {
		err = fmt.Errorf("reading %s: %w", ref, err)
	}
	return string(key), err
}

func runEngine(cmd *cobra.Command, f engineFlags) error {
	const hint = "run 'skyserve engine --help' for valid values"
	o, err := f.options(cmd)
	if err != nil {
		return usage(err, hint)
	}
	if _, _, err := net.SplitHostPort(f.listen); err != nil {
		return usage(fmt.Errorf("--listen: must be HOST:PORT, got %q", f.listen), hint)
	}
	if f.events != "" {
		if o.CacheEvents, err = server.ListenCacheEvents(f.events, o.DataParallel); err != nil {
			return failed(fmt.Errorf("--cache-events: listening on %s: %w", f.events, listenCause(err)), "choose another address with --cache-events (port 0 = any free port)")
		}
	}
	s, err := server.New(o)
	if err != nil {
		return usage(err, hint)
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		s.Close()
		return failed(fmt.Errorf("listening on %s: %w", f.listen, listenCause(err)), "choose another address with --listen (port 0 = any free port)")
	}
	ranks := ""
	if o.DataParallel > 1 {
		ranks = fmt.Sprintf(", %d ranks", o.DataParallel)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "simulated engine %s serves %s on http://%s (metrics of %s, speed %g%s)\n", o.Profile.Name, o.Model, listener.Addr(), o.Flavor, o.Speed, ranks)
	for rank, l := range o.CacheEvents {
		fmt.Fprintf(cmd.ErrOrStderr(), "cache events of rank %d: %s, replays: %s\n", rank, l.Events.Addr(), l.Replays.Addr())
	}
	if err := s.Run(cmd.Context(), listener); err != nil {
		return failed(err, "")
	}
	return nil
}

// listenCause returns the cause of a listen error without the address, which the message has
// already.
func listenCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
