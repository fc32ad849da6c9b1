package main

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/engine/server"
)

// engineFlags is what the command line of skyserve engine says.
type engineFlags struct {
	listen     string
	profile    string
	kvTokens   int
	maxNumSeqs int
	flavor     string
	faults     []string
	server     server.Options
}

func newEngineCmd() *cobra.Command {
	var f engineFlags
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run a simulated engine",
		Long: `Runs a simulated inference engine: OpenAI's HTTP interface, the metrics of vLLM
or SGLang, a prefix cache, continuous batching and the token timing of a real
GPU. It makes up its answers; the same prompt and seed give the same answer.
With max_tokens of 64 or less an answer has exactly that many tokens.

Faults (--fault, or POST /fault with {"slow": 3} while it runs):
  die-after=20s | N     dies after 20 s, or when the N-th request arrives
  hang-after=20s | N    accepts and answers nothing from then on
  slow=3                takes three times as long
  error-rate=0.1        answers a tenth of the requests with 500
  reset-after-tokens=5  breaks the connection after five tokens`,
		Example: `  skyserve engine --listen 127.0.0.1:8201 --speed 10
  skyserve engine --profile l4-llama3.1-8b-38k --flavor sglang --seed 7
  skyserve engine --data-parallel 4
  skyserve engine --fault slow=2,error-rate=0.05 --fault die-after=1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runEngine(cmd, f) },
	}
	f.register(cmd)
	return cmd
}

func (f *engineFlags) register(cmd *cobra.Command) {
	var names []string
	for _, p := range engine.Profiles() {
		names = append(names, p.Name)
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8201", "address to listen on (port 0 chooses a free one)")
	flags.StringVar(&f.server.Model, "model", server.DefaultModel, "name of the model it serves")
	flags.StringArrayVar(&f.server.Aliases, "alias", nil, "another name of the model (may be repeated)")
	flags.StringArrayVar(&f.server.LoRA, "lora", nil, "name of a LoRA adapter (may be repeated)")
	flags.StringVar(&f.profile, "profile", names[0], "what it simulates: "+strings.Join(names, ", "))
	flags.IntVar(&f.kvTokens, "kv-tokens", 0, "tokens that its KV memory holds (default: the profile's)")
	flags.IntVar(&f.maxNumSeqs, "max-num-seqs", 0, "most requests running at once (default: the profile's)")
	flags.IntVar(&f.server.DataParallel, "data-parallel", 1, "data-parallel ranks, which wait for each other at every step")
	flags.Float64Var(&f.server.Speed, "speed", server.DefaultSpeed, "how many times faster than real time it runs")
	flags.StringVar(&f.flavor, "flavor", string(server.FlavorVLLM), "whose metrics it has: vllm, sglang, none")
	flags.BoolVar(&f.server.OldMetrics, "old-metrics", false, "also vLLM's former name of the KV utilisation")
	flags.IntVar(&f.server.StreamInterval, "stream-interval", 1, "tokens in an event of a stream, after the first")
	flags.BoolVar(&f.server.NoContinuousUsage, "no-continuous-usage", false, "ignore stream_options.continuous_usage_stats")
	flags.Uint64Var(&f.server.Seed, "seed", 1, "chooses among the possible answers and faults")
	flags.Int64Var(&f.server.MaxBodyBytes, "max-body-bytes", server.DefaultMaxBodyBytes, "largest request body that is read")
	flags.DurationVar(&f.server.Grace, "grace", server.DefaultGrace, "how long requests may finish after SIGTERM")
	flags.StringArrayVar(&f.faults, "fault", nil, "what shall go wrong, name=value (may be repeated)")
}

// options turns flags into what the server wants. Values that make no sense
// are errors.
func (f *engineFlags) options(cmd *cobra.Command) (o server.Options, err error) {
	o = f.server
	if o.Profile, err = engine.ProfileNamed(f.profile); err != nil {
		return o, fmt.Errorf("--profile: %w", err)
	}
	if o.Flavor, err = server.ParseFlavor(f.flavor); err != nil {
		return o, fmt.Errorf("--flavor: %w", err)
	}
	if o.Faults, err = server.ParseFaults(f.faults); err != nil {
		return o, fmt.Errorf("--fault: %w", err)
	}
	if cmd.Flags().Changed("kv-tokens") {
		o.Profile.KVTokens = f.kvTokens
	}
	if cmd.Flags().Changed("max-num-seqs") {
		o.Profile.MaxRunning = f.maxNumSeqs
	}
	for _, name := range []string{"model", "speed", "max-body-bytes", "grace", "data-parallel", "stream-interval"} {
		// Zero means the default to the server; said out loud it is a mistake.
		if v := cmd.Flags().Lookup(name).Value.String(); v == "" || v == "0" || v == "0s" {
			return o, fmt.Errorf("--%s: want a value above zero, got %q", name, v)
		}
	}
	return o, nil
}

func runEngine(cmd *cobra.Command, f engineFlags) error {
	const hint = "run 'skyserve engine --help' for what its flags take"
	o, err := f.options(cmd)
	if err != nil {
		return usage(err, hint)
	}
	s, err := server.New(o)
	if err != nil {
		return usage(err, hint)
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		s.Close()
		return failed(fmt.Errorf("listening on %s: %w", f.listen, listenCause(err)), "choose another address with --listen; port 0 is any free one")
	}
	ranks := ""
	if o.DataParallel > 1 {
		ranks = fmt.Sprintf(", %d ranks", o.DataParallel)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "engine %s serves %s on http://%s (%s, speed %g%s)\n", o.Profile.Name, o.Model, listener.Addr(), o.Flavor, o.Speed, ranks)
	if err := s.Run(cmd.Context(), listener); err != nil {
		return failed(err, "")
	}
	return nil
}

// listenCause is what is left of a listening error without the address that
// the message names already.
func listenCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
