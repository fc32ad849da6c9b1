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
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"skyserve/internal/acme"
	"skyserve/internal/service"
	"skyserve/lbd"
	"skyserve/lbd/trace"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// Environment variables with secrets, which do not belong on a command line.
const (
	envStoreToken = "SKYSERVE_STORE_TOKEN"
	envPeerToken  = "SKYSERVE_PEER_TOKEN"
	envAdminToken = local.EnvAdminToken
)

// lbFlags are the flags of `skyserve lb`.
type lbFlags struct {
	config   string
	cfg      service.BalancerConfig
	region   string
	keysFrom string
	replicas []string
	keys     []string
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

// lbConfigFlags are the flags whose settings a configuration file has too; they cannot be combined
// with --config.
var lbConfigFlags = []string{
	"region", "id", "service", "listen", "admin", "replica", "replica-key", "replicas-file", "peer", "model", "lora", "policy", "push", "order", "max-wait",
	"no-forward", "keys-from", "record", "store", "allow-parameter", "access-log", "traces", "memory",
}

func newLbCmd() *cobra.Command {
	var f lbFlags
	cmd := &cobra.Command{
		Use:   "lb",
		Short: "Run a balancer",
		Long: `Run one balancer. It accepts requests from nearby clients, sends each to the best of
its replicas or forwards it to a peer in another region, and streams the response back.
It can start without replicas and is ready when a replica or a peer can serve.

Listening on a non-loopback address requires API keys (--keys-from) for the public
address and ` + envAdminToken + ` for the admin address. Balancers on different
machines authenticate each other with ` + envPeerToken + `. None of these is logged.

SIGHUP, or POST /reload on the admin address, reloads the configuration file, the keys
and the certificate without interrupting streams. Settings that need a restart
(such as addresses, tokens, memory) are reported and not applied. An invalid file changes
nothing. Without --config, only the keys are reloaded.`,
		Example: `  skyserve engine --listen 127.0.0.1:8201 &
  skyserve lb --region us --listen 127.0.0.1:8000 --admin 127.0.0.1:8100 \
      --replica http://127.0.0.1:8201
  skyserve lb --region eu --listen 127.0.0.1:8002 --admin 127.0.0.1:8102 \
      --replica eu-0=http://127.0.0.1:8202 --peer us=http://127.0.0.1:8000,rtt=100ms
  skyserve lb --region us --replica https://gpu7.example.com --replica-key env:ENGINE_KEY
  skyserve lb --config lb.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runLb(cmd, f) },
	}
	f.registerFlags(cmd)
	return cmd
}

func (f *lbFlags) registerFlags(cmd *cobra.Command) {
	flags, b := cmd.Flags(), &f.cfg.Balancer
	flags.StringVar(&f.config, "config", "", "configuration `FILE` of one balancer (not a service.yaml), YAML or JSON; replaces most other flags")
	flags.StringVar(&f.region, "region", "", "region of this balancer, such as us or aws/us-east-1")
	flags.StringVar(&f.cfg.ID, "id", "", "id of this balancer (default lb-REGION)")
	flags.StringVar(&f.cfg.Service, "service", "skyserve", "name of the service")
	flags.StringVar(&f.cfg.Listen, "listen", "127.0.0.1:8000", "public address (port 0 = any free port)")
	flags.StringVar(&f.cfg.Admin, "admin", "127.0.0.1:8100", "admin address")
	flags.StringArrayVar(&f.replicas, "replica", nil, "`URL` of a replica, or ID=URL; dns+http://HOST:PORT or srv+http://NAME for all replicas that a DNS name resolves to (repeatable)")
	flags.StringVar(&f.cfg.ReplicasFile, "replicas-file", "", "`FILE` with one replica URL per line, or a list in YAML or JSON; watched for changes")
	flags.StringArrayVar(&f.keys, "replica-key", nil, "`SOURCE` of the API key that the engines require, env:NAME or file:PATH; ID=SOURCE for one --replica ID=URL (repeatable)")
	flags.StringArrayVar(&f.peers, "peer", nil, "`REGION=URL` of another balancer; append ,rtt=100ms to emulate network latency (repeatable)")
	flags.StringArrayVar(&f.models, "model", nil, "declare a model, as NAME or `NAME=ALIAS`: without a replica its requests get 503, not 404 (repeatable)")
	flags.StringArrayVar(&f.loras, "lora", nil, "LoRA adapter of the model NAME, as `NAME=ADAPTER`; if no engine serves it, an alert is raised (repeatable)")
	flags.StringVar(&b.Policy, "policy", "", "balancing policy: "+strings.Join(service.ImplementedPolicies(), ", ")+" (cost = lowest cost in seconds); docs/service-yaml.md explains them (default cost)")
	flags.StringVar(&b.Push, "push", "", "when a replica may receive another request: pending (no request waits in its engine), outstanding:N (fewer than N requests sent to it are unfinished), blind (always) (default pending)")
	flags.StringVar(&b.Order, "order", "", "queue order: fcfs (first come, first served), edf (earliest deadline first), pf (priority first: fast before normal before deferred) or dpa (deadline and priority aware: as pf, but requests near their deadline go first) (default fcfs)")
	flags.DurationVar(&b.MaxWait, "max-wait", 0, "maximum time that a request is queued (default 60s)")
	flags.StringVar(&f.memory, "memory", "", "memory limit as `SIZE` (default 2GiB); request bodies and buffered responses may use half")
	flags.BoolVar(&f.noForward, "no-forward", false, "never forward to peers")
	flags.StringVar(&f.keysFrom, "keys-from", "", "source of the API keys, one per line (KEY or, to name it, KEY name=NAME): env:NAME or file:PATH")
	flags.StringVar(&f.cfg.Record, "record", "", "write every event and decision to `FILE`, truncated at start")
	flags.StringVar(&f.cfg.StoreURL, "store", "", "NATS `URL` of the history store (token: "+envStoreToken+")")
	flags.StringSliceVar(&b.AllowParameters, "allow-parameter", nil, "allow the request parameter `NAME`, which is rejected by default for security: docs/security.md lists them (repeatable)")
	flags.BoolVar(&b.AccessLog, "access-log", false, "log one line per request")
	flags.StringVar(&b.Traces, "traces", "", "base `URL` of the OpenTelemetry collector that receives traces (default: "+trace.EnvEndpoint+", or none)")
	flags.StringArrayVar(&f.allow, "allow-replicas", nil, "network in `CIDR` notation of replicas that POST /add_worker may attach, beside those of this machine and of private networks (repeatable)")
	flags.BoolVar(&f.insecure, "insecure-no-auth", false, "disable authentication on the public address")
	flags.StringVar(&f.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "text", "log format: text or json")
}

func runLb(cmd *cobra.Command, f lbFlags) error {
	reloads, stop := reloadsOf(cmd.Context()) // before the file is read: no change of it is missed
	defer stop()
	cfg, err := f.configuration(cmd)
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return usage(fmt.Errorf("--log-level: must be one of debug, info, warn, error, got %q", f.logLevel), "")
	}
	log, err := newLog(cmd.ErrOrStderr(), level, f.logFormat)
	if err != nil {
		return err
	}
	opts := lbd.Options{
		Logger:         log,
		Version:        ownVersion().Version,
		AdminToken:     cfg.AdminToken,
		InsecureNoAuth: f.insecure,
		ReloadSignals:  reloads,
		NewDNSRecords:  acmeRecords,
		OnListening: func(public, admin string) {
			if f.logFormat == "json" { // every line must be a JSON object
				log.Info("listening", "balancer", cfg.ID, "public", public, "admin", admin)
				return
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "balancer %s listens on %s, admin on %s\n", cfg.ID, public, admin)
		},
	}
	for _, text := range f.allow {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return usage(fmt.Errorf("--allow-replicas: must be a CIDR such as 203.0.113.0/24, got %q", text), "")
		}
		opts.AllowCIDRs = append(opts.AllowCIDRs, prefix)
	}
	if opts.Files, err = openFiles(cmd.Context(), cfg); err != nil {
		return err
	}
	limitMemory(cfg.Balancer.WithDefaults().Memory.Total)
	go tuneCollector(cmd.Context())
	f.setReload(&opts)
	return f.explainError(lbd.Run(cmd.Context(), cfg, opts))
}

// acmeRecords returns the ACME challenge records of a hosted zone of Route 53.
func acmeRecords(ctx context.Context, c service.CertificateConfig) (acme.Records, error) {
	z, err := dns.NewRoute53(ctx, dns.Config{Endpoint: c.Endpoint})
	if err != nil {
		return nil, err
	}
	return z.Challenges(c.Zone, c.ZoneID, c.Private), nil
}

// setReload sets the function with which the balancer reloads its file.
func (f *lbFlags) setReload(opts *lbd.Options) {
	if f.config != "" {
		opts.ReadConfig = func() (service.BalancerConfig, error) { return f.fromFile() }
	}
}

// fromFile returns the configuration of --config, with tokens from the environment.
func (f *lbFlags) fromFile() (service.BalancerConfig, error) {
	cfg, err := lbd.ReadConfig(f.config)
	return withTokens(cfg), err
}

// withTokens fills missing tokens of a configuration from the environment.
func withTokens(cfg service.BalancerConfig) service.BalancerConfig {
	cfg.StoreToken = cmp.Or(cfg.StoreToken, os.Getenv(envStoreToken))
	cfg.PeerToken = cmp.Or(cfg.PeerToken, os.Getenv(envPeerToken))
	cfg.AdminToken = cmp.Or(cfg.AdminToken, os.Getenv(envAdminToken))
	return cfg
}

// newLog returns a logger that writes lines of key=value (text) or JSON objects.
func newLog(w io.Writer, level slog.Level, format string) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usage(fmt.Errorf("--log-format: must be one of text, json, got %q", format), "")
}

// hintBalancerFile follows an error of the file of --config.
const hintBalancerFile = "the file of --config configures one balancer (example: systemd/lb.yaml in a release's archive, internal/packaging/lb.yaml in the repository); a service.yaml is for 'skyserve up'"

// configuration returns the configuration of --config, or the one that the flags describe.
func (f *lbFlags) configuration(cmd *cobra.Command) (cfg service.BalancerConfig, err error) {
	if f.config != "" {
		for _, name := range lbConfigFlags {
			if cmd.Flags().Changed(name) {
				return cfg, usage(fmt.Errorf("--%s: cannot be combined with --config", name), "remove --"+name+", which --config replaces; "+hintBalancerFile)
			}
		}
		if cfg, err = f.fromFile(); err != nil {
			return cfg, usage(err, hintBalancerFile)
		}
		return cfg, nil
	}
	if wait := f.cfg.Balancer.MaxWait; cmd.Flags().Changed("max-wait") && wait < time.Millisecond { // 0 is not the default
		return cfg, usage(fmt.Errorf("--max-wait: must be at least 1ms, got %s", wait), "")
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
		return cfg, errors.New("--region is required")
	}
	if err := checkRegionName("--region", f.region); err != nil {
		return cfg, err
	}
	cfg.Region = service.Region(f.region)
	cfg.ID = cmp.Or(cfg.ID, "lb-"+cfg.Region.ShortName())
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
	if err := setReplicaKeys(cfg.Replicas, f.keys); err != nil {
		return cfg, err
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

// setReplicaKeys sets the sources of the keys of replicas from the values of --replica-key. The source of
// one replica has precedence over that of all.
func setReplicaKeys(replicas []service.ReplicaConfig, values []string) error {
	common := ""
	for _, value := range values {
		id, source := "", value
		if name, rest, named := strings.Cut(value, "="); named && !service.IsSecretRef(value) {
			id, source = name, rest
		}
		if !service.IsSecretRef(source) { // not quoted: it may be a key
			return errors.New("--replica-key: must be env:NAME or file:PATH, or ID=env:NAME for one replica of --replica ID=URL; never the key itself")
		}
		i := slices.IndexFunc(replicas, func(r service.ReplicaConfig) bool { return id != "" && r.ID == id })
		switch {
		case id == "" && common != "":
			return errors.New("--replica-key: must be set at most once without an ID")
		case id == "":
			common = source
		case i < 0:
			return fmt.Errorf("--replica-key: no --replica has the ID %q", id)
		case replicas[i].APIKey != "":
			return fmt.Errorf("--replica-key: must be set at most once for the ID %q", id)
		default:
			replicas[i].APIKey = source
		}
	}
	for i := range replicas {
		replicas[i].APIKey = cmp.Or(replicas[i].APIKey, common)
	}
	return nil
}

// splitNamed splits NAME=URL. A URL alone has an empty name.
func splitNamed(text string) (name, url string) {
	name, url, found := strings.Cut(text, "=")
	if !found || strings.Contains(name, "://") {
		return "", text
	}
	return name, url
}

// checkRegionName returns an error if the region of a flag is no name of a region.
func checkRegionName(flag, region string) error {
	if service.IsRegionName(region) {
		return nil
	}
	return fmt.Errorf("%s: the region must have at most 40 lower-case letters a-z, digits and dashes, no dash first or last, or be CLOUD/REGION such as aws/us-east-1, got %q", flag, region)
}

// parsePeer parses REGION=URL[,rtt=100ms]. The peer's id is its region.
func parsePeer(text string) (service.PeerConfig, error) {
	target, option, hasOption := strings.Cut(text, ",")
	region, url := splitNamed(target)
	if region == "" {
		return service.PeerConfig{}, fmt.Errorf("--peer: must be REGION=URL, got %q", text)
	}
	if err := checkRegionName("--peer", region); err != nil {
		return service.PeerConfig{}, err
	}
	p := service.PeerConfig{ID: region, Region: service.Region(region), URL: url}
	if hasOption {
		value, isRTT := strings.CutPrefix(option, "rtt=")
		rtt, err := time.ParseDuration(value)
		if !isRTT || err != nil || rtt < 0 {
			return p, fmt.Errorf("--peer: must be REGION=URL,rtt=100ms, got %q", text)
		}
		p.EmulateRTT = rtt
	}
	return p, nil
}

// parseModels parses the values of --model and --lora and merges those with the same name.
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
		if name == "" || found && alias == "" || strings.ContainsAny(alias, "=") || strings.ContainsFunc(text, unicode.IsSpace) {
			return nil, fmt.Errorf("--model: must be NAME or NAME=ALIAS, got %q", text)
		}
		if m := called(name); found {
			m.Aliases = append(m.Aliases, alias)
		}
	}
	for _, text := range adapters {
		name, adapter, _ := strings.Cut(text, "=")
		if name == "" || adapter == "" {
			return nil, fmt.Errorf("--lora: must be NAME=ADAPTER, got %q", text)
		}
		m := called(name)
		m.LoRA = append(m.LoRA, adapter)
	}
	return models, nil
}

// flagOfConfigKey maps a configuration key to the flag that sets it.
var flagOfConfigKey = map[string]string{
	"id": "--id", "region": "--region", "listen": "--listen", "admin": "--admin",
	"replicas": "--replica", "replicas_file": "--replicas-file", "replica_key": "--replica-key", "peers": "--peer", "models": "--model", "record": "--record", "store_url": "--store",
	"balancer.policy": "--policy", "balancer.push": "--push", "balancer.order": "--order", "balancer.auth.keys_from": "--keys-from", "balancer.traces": "--traces",
	"balancer.max_wait": "--max-wait", "balancer.memory.total": "--memory", "balancer.allow_parameters": "--allow-parameter",
}

// flagOf returns the flag that sets a configuration key, or the key if there is none.
func flagOf(key string) string {
	if strings.HasPrefix(key, "models[") && strings.Contains(key, "].lora") {
		return "--lora"
	}
	list, _, _ := strings.Cut(key, "[")
	if strings.HasSuffix(key, ".api_key") {
		list = "replica_key"
	}
	return cmp.Or(flagOfConfigKey[list], key)
}

// elementKey matches the key of a replica or peer.
var elementKey = service.LazyPattern(`^(replicas|peers)\[([0-9]+)\]`)

// valueOf is flagOf, with the position of the value if the flag of a replica or peer is repeated.
func (f *lbFlags) valueOf(key string) string {
	m, flag := elementKey().FindStringSubmatch(key), flagOf(key)
	if m == nil || flag != flagOf(m[1]) || len(map[string][]string{"replicas": f.replicas, "peers": f.peers}[m[1]]) < 2 {
		return flag
	}
	i, _ := strconv.Atoi(m[2]) // digits
	return fmt.Sprintf("%s number %d", flag, i+1)
}

// nameElements replaces the key of another replica or peer at the end of a problem by the flag that the user set.
func (f *lbFlags) nameElements(problem string) string {
	i := strings.LastIndex(problem, " ") + 1
	if elementKey().MatchString(problem[i:]) {
		return problem[:i] + f.valueOf(problem[i:])
	}
	return problem
}

// explainError replaces the configuration key in an error of the balancer by the file or flag that the
// user set, and adds the exit code.
func (f *lbFlags) explainError(err error) error {
	var ce *lbd.ConfigError
	var le *lbd.ListenError
	switch {
	case errors.As(err, &ce) && f.config != "":
		return usage(fmt.Errorf("%s: %w", f.config, err), ce.Hint)
	case errors.As(err, &ce):
		return usage(fmt.Errorf("%s: %s", f.valueOf(ce.Key), f.nameElements(ce.Problem)), ce.Hint)
	case errors.As(err, &le) && !errors.Is(err, syscall.EADDRINUSE):
		return failed(err, fmt.Sprintf("--%s: use an address of this machine, and a port from 0 to 65535 (0 = any free port)", le.Flag))
	case errors.As(err, &le):
		return failed(err, fmt.Sprintf("another process or another flag of this command may use the address; choose another with --%s (port 0 = any free port)", le.Flag))
	}
	return err
}
