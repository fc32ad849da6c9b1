package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/acme"
	"skyserve/internal/service"
	"skyserve/lbd"
	"skyserve/lbd/trace"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// Environment variables that carry what a command line must not show.
const (
	envStoreToken = "SKYSERVE_STORE_TOKEN"
	envPeerToken  = "SKYSERVE_PEER_TOKEN"
	envAdminToken = local.EnvAdminToken
)

// lbFlags is what the command line of skyserve lb says.
type lbFlags struct {
	config   string
	cfg      service.BalancerConfig
	region   string
	keysFrom string
	replicas []string
	peers    []string
	models   []string
	memory   string
	loras    []string
	allow    []string
	noForward,
	insecure bool
	logLevel,
	logFormat string
}

// lbInConfig are the flags of what a configuration file states too; they do not
// go together with one.
var lbInConfig = []string{
	"region", "id", "service", "listen", "admin", "replica", "peer", "model", "lora", "policy", "push", "order", "max-wait",
	"no-forward", "keys-from", "record", "store", "access-log", "traces", "memory",
}

func newLbCmd() *cobra.Command {
	var f lbFlags
	cmd := &cobra.Command{
		Use:   "lb",
		Short: "Run a balancer",
		Long: `Run one balancer: it takes the requests of clients near it, places each on the
best of its replicas or forwards it to a peer in another region, and streams the
answer back. It starts without replicas too and is ready when one answers.

Listening beyond this machine needs API keys (--keys-from) on the public address
and ` + envAdminToken + ` on the admin address. Balancers on several
machines know each other by ` + envPeerToken + `. None of these is ever logged.

SIGHUP, and POST /reload on the admin address, read the configuration file, the
keys and the certificate again and apply what differs; no stream breaks off. What
only a start changes (addresses, store, tokens, record) is named and left; a file
with errors changes nothing. Without --config, keys and certificate are read again.`,
		Example: `  skyserve engine --listen 127.0.0.1:8201 &
  skyserve lb --region us --listen 127.0.0.1:8000 --admin 127.0.0.1:8100 \
      --replica http://127.0.0.1:8201
  skyserve lb --region eu --listen 127.0.0.1:8002 --admin 127.0.0.1:8102 \
      --replica eu-0=http://127.0.0.1:8202 --peer us=http://127.0.0.1:8000,rtt=100ms
  skyserve lb --config lb.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runLb(cmd, f) },
	}
	f.register(cmd)
	return cmd
}

func (f *lbFlags) register(cmd *cobra.Command) {
	flags, b := cmd.Flags(), &f.cfg.Balancer
	flags.StringVar(&f.config, "config", "", "configuration `FILE`, YAML or JSON, instead of the flags below")
	flags.StringVar(&f.region, "region", "", "region it serves: us, aws/us-east-1")
	flags.StringVar(&f.cfg.ID, "id", "", "its name among the service's balancers (default lb-REGION)")
	flags.StringVar(&f.cfg.Service, "service", "skyserve", "name of the service")
	flags.StringVar(&f.cfg.Listen, "listen", "127.0.0.1:8000", "public address (port 0 chooses a free one)")
	flags.StringVar(&f.cfg.Admin, "admin", "127.0.0.1:8100", "admin address")
	flags.StringArrayVar(&f.replicas, "replica", nil, "`URL` of a replica, or ID=URL (may be repeated)")
	flags.StringArrayVar(&f.peers, "peer", nil, "`REGION=URL` of another balancer; ,rtt=100ms emulates a distance (may be repeated)")
	flags.StringArrayVar(&f.models, "model", nil, "`NAME=ALIAS` of a model (may be repeated)")
	flags.StringArrayVar(&f.loras, "lora", nil, "`NAME=ADAPTER`, a LoRA adapter that the engines of a model load (may be repeated)")
	flags.StringVar(&b.Policy, "policy", "", "how a replica is chosen: "+strings.Join(service.BuiltPolicies(), ", "))
	flags.StringVar(&b.Push, "push", "", "when a replica may be sent another request: pending, outstanding:N, blind")
	flags.StringVar(&b.Order, "order", "", "in which order waiting requests go: "+strings.Join(service.BuiltOrders(), ", "))
	flags.DurationVar(&b.MaxWait, "max-wait", 0, "how long a request is held at most (default 60s)")
	flags.StringVar(&f.memory, "memory", "", "`SIZE` of memory that it may take, half of it for requests (default 2GiB)")
	flags.BoolVar(&f.noForward, "no-forward", false, "never forward to peers")
	flags.StringVar(&f.keysFrom, "keys-from", "", "API keys that clients must present: env:NAME or file:PATH, one a line")
	flags.StringVar(&f.cfg.Record, "record", "", "`FILE` that every event and decision is written to, anew at each start")
	flags.StringVar(&f.cfg.StoreURL, "store", "", "NATS `URL` of the store that keeps the history (token: "+envStoreToken+")")
	flags.StringSliceVar(&b.AllowParameters, "allow-parameter", nil, "allow requests with the guarded parameter `NAME`: see allow_parameters in service.yaml (repeatable)")
	flags.BoolVar(&b.AccessLog, "access-log", false, "write one line of the log for each request")
	flags.StringVar(&b.Traces, "traces", "", "base `URL` of the OpenTelemetry collector that gets traces (default: "+trace.EnvEndpoint+", or none)")
	flags.StringArrayVar(&f.allow, "allow-replicas", nil, "`CIDR` of public addresses that /add_worker may attach (may be repeated)")
	flags.BoolVar(&f.insecure, "insecure-no-auth", false, "let everybody who reaches the public address use the GPUs")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json")
}

func runLb(cmd *cobra.Command, f lbFlags) error {
	cfg, err := f.configuration(cmd)
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return usage(fmt.Errorf("--log-level: want debug, info, warn or error, got %q", f.logLevel), "")
	}
	log, err := newLog(cmd.ErrOrStderr(), level, f.logFormat)
	if err != nil {
		return err
	}
	opts := lbd.Options{
		Logger:         log,
		Version:        version,
		AdminToken:     cfg.AdminToken,
		InsecureNoAuth: f.insecure,
		Records:        recordsIn,
		Listening: func(public, admin string) {
			if f.logFormat == "json" { // every line is an object then
				log.Info("listening", "balancer", cfg.ID, "public", public, "admin", admin)
				return
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "balancer %s listens on %s, admin on %s\n", cfg.ID, public, admin)
		},
	}
	for _, text := range f.allow {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return usage(fmt.Errorf("--allow-replicas: want a network such as 203.0.113.0/24, got %q", text), "")
		}
		opts.AllowCIDRs = append(opts.AllowCIDRs, prefix)
	}
	limitMemory(cfg.Balancer.WithDefaults().Memory.Total)
	go tuneCollector(cmd.Context())
	var stop func()
	opts.Hangups, stop = reloadsOf(cmd.Context())
	defer stop()
	f.reloads(&opts)
	return f.explain(lbd.Run(cmd.Context(), cfg, opts))
}

// recordsIn writes challenges of an authority into a hosted zone of Route 53.
func recordsIn(ctx context.Context, c service.CertificateConfig) (acme.Records, error) {
	z, err := dns.NewRoute53(ctx, dns.Config{Endpoint: c.Endpoint})
	if err != nil {
		return nil, err
	}
	return z.Challenges(c.Zone, c.ZoneID, c.Private), nil
}

// reloads lets the balancer read its file again.
func (f *lbFlags) reloads(opts *lbd.Options) {
	if f.config != "" {
		opts.Read = func() (service.BalancerConfig, error) { return f.fromFile() }
	}
}

// fromFile is the file's configuration, with the tokens of the environment.
func (f *lbFlags) fromFile() (service.BalancerConfig, error) {
	cfg, err := lbd.ReadConfig(f.config)
	return withTokens(cfg), err
}

// withTokens fills tokens that a configuration does not state in from the environment.
func withTokens(cfg service.BalancerConfig) service.BalancerConfig {
	cfg.StoreToken = cmp.Or(cfg.StoreToken, os.Getenv(envStoreToken))
	cfg.PeerToken = cmp.Or(cfg.PeerToken, os.Getenv(envPeerToken))
	cfg.AdminToken = cmp.Or(cfg.AdminToken, os.Getenv(envAdminToken))
	return cfg
}

// newLog writes lines of key=value (text), or JSON objects.
func newLog(w io.Writer, level slog.Level, format string) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usage(fmt.Errorf("--log-format: want text or json, got %q", format), "")
}

// configuration is the file's, or what the flags say.
func (f *lbFlags) configuration(cmd *cobra.Command) (cfg service.BalancerConfig, err error) {
	if f.config != "" {
		for _, name := range lbInConfig {
			if cmd.Flags().Changed(name) {
				return cfg, usage(fmt.Errorf("--%s: cannot be given together with --config", name), "set it in "+f.config)
			}
		}
		if cfg, err = f.fromFile(); err != nil {
			return cfg, usage(err, "")
		}
		return cfg, nil
	}
	if cfg, err = f.fromFlags(); err != nil {
		return cfg, usage(err, "run 'skyserve lb --help' for an example")
	}
	return withTokens(cfg), nil
}

// fromFlags builds the configuration that the flags describe.
func (f *lbFlags) fromFlags() (service.BalancerConfig, error) {
	cfg := f.cfg
	if f.region == "" {
		return cfg, errors.New("--region: missing")
	}
	cfg.Region = service.Region(f.region)
	cfg.ID = cmp.Or(cfg.ID, "lb-"+cfg.Region.Place())
	if f.keysFrom != "" {
		cfg.Balancer.Auth = &service.Auth{KeysFrom: f.keysFrom}
	}
	if f.memory != "" {
		if err := cfg.Balancer.Memory.Total.UnmarshalText([]byte(f.memory)); err != nil {
			return cfg, fmt.Errorf("--memory: %w", err)
		}
	}
	if f.noForward {
		forward := false
		cfg.Balancer.Forward = &forward
	}
	for _, text := range f.replicas {
		id, url := splitNamed(text)
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: id, URL: url})
	}
	for _, text := range f.peers {
		p, err := parsePeer(text)
		if err != nil {
			return cfg, err
		}
		same := 1
		for _, other := range cfg.Peers {
			if other.Region == p.Region {
				same++
			}
		}
		if same > 1 {
			p.ID = fmt.Sprintf("%s-%d", p.ID, same)
		}
		cfg.Peers = append(cfg.Peers, p)
	}
	var err error
	cfg.Models, err = parseModels(f.models, f.loras)
	return cfg, err
}

// splitNamed splits NAME=URL; a URL alone has no name.
func splitNamed(text string) (name, url string) {
	name, url, found := strings.Cut(text, "=")
	if !found || strings.Contains(name, "://") {
		return "", text
	}
	return name, url
}

// parsePeer reads REGION=URL[,rtt=100ms]; the peer is called as its region.
func parsePeer(text string) (service.PeerConfig, error) {
	target, option, hasOption := strings.Cut(text, ",")
	region, url := splitNamed(target)
	if region == "" {
		return service.PeerConfig{}, fmt.Errorf("--peer: want REGION=URL, got %q", text)
	}
	p := service.PeerConfig{ID: region, Region: service.Region(region), URL: url}
	if hasOption {
		value, isRTT := strings.CutPrefix(option, "rtt=")
		rtt, err := time.ParseDuration(value)
		if !isRTT || err != nil || rtt < 0 {
			return p, fmt.Errorf("--peer: want REGION=URL,rtt=100ms, got %q", text)
		}
		p.EmulateRTT = rtt
	}
	return p, nil
}

// parseModels reads NAME=ALIAS and NAME=ADAPTER of each, gathering those of one name.
func parseModels(aliases, adapters []string) ([]service.BalancerModel, error) {
	var models []service.BalancerModel
	called := func(name string) *service.BalancerModel {
		i := slices.IndexFunc(models, func(m service.BalancerModel) bool { return m.Name == name })
		if i < 0 {
			i = len(models)
			models = append(models, service.BalancerModel{Name: name})
		}
		return &models[i]
	}
	for _, text := range aliases {
		name, alias, found := strings.Cut(text, "=")
		if name == "" || (found && alias == "") {
			return nil, fmt.Errorf("--model: want NAME=ALIAS, got %q", text)
		}
		if m := called(name); found {
			m.Aliases = append(m.Aliases, alias)
		}
	}
	for _, text := range adapters {
		name, adapter, _ := strings.Cut(text, "=")
		if name == "" || adapter == "" {
			return nil, fmt.Errorf("--lora: want NAME=ADAPTER, got %q", text)
		}
		m := called(name)
		m.LoRA = append(m.LoRA, adapter)
	}
	return models, nil
}

// lbFlagOf is the flag that sets a key of the configuration.
var lbFlagOf = map[string]string{
	"id": "--id", "region": "--region", "listen": "--listen", "admin": "--admin",
	"replicas": "--replica", "peers": "--peer", "models": "--model", "record": "--record", "store_url": "--store",
	"balancer.policy": "--policy", "balancer.push": "--push", "balancer.order": "--order", "balancer.auth.keys_from": "--keys-from", "balancer.traces": "--traces", "balancer": "--max-wait",
}

// explain gives an error of the balancer the name that its user knows the place
// by, and its exit code.
func (f *lbFlags) explain(err error) error {
	var ce *lbd.ConfigError
	var le *lbd.ListenError
	switch {
	case errors.As(err, &ce) && f.config != "":
		return usage(fmt.Errorf("%s: %w", f.config, err), ce.Hint)
	case errors.As(err, &ce):
		list, _, _ := strings.Cut(ce.Key, "[")
		return usage(fmt.Errorf("%s: %s", cmp.Or(lbFlagOf[list], ce.Key), ce.Problem), ce.Hint)
	case errors.As(err, &le):
		return failed(err, fmt.Sprintf("another process may listen there; choose another address with --%s (port 0 is any free one)", le.Flag))
	}
	return err
}
