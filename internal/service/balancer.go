package service

import (
	"strings"
	"time"
)

// BalancerConfig is the configuration of one balancer process: the file of `skyserve lb --config
// FILE` (JSON or YAML), or its flags.
type BalancerConfig struct {
	Service string `yaml:"service" json:"service"`
	// ID is unique among the service's balancers, e.g. lb-us-0.
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// Listen and Admin are the addresses, host:port, of the public and the admin listener.
	Listen string `yaml:"listen" json:"listen"`
	Admin  string `yaml:"admin" json:"admin"`

	Models   []BalancerModel `yaml:"models,omitempty" json:"models,omitempty"`
	Replicas []ReplicaConfig `yaml:"replicas,omitempty" json:"replicas,omitempty"`
	// EngineKeys are the keys of engines that the controller may attach, in addition to those of
	// Replicas. The admin API accepts no other source: it must not make a balancer send a key, or any of
	// its files, to another engine.
	EngineKeys []EngineKey  `yaml:"engine_keys,omitempty" json:"engine_keys,omitempty"`
	Peers      []PeerConfig `yaml:"peers,omitempty" json:"peers,omitempty"`
	// Splits are further model names, whose requests are divided among Models.
	Splits []Split `yaml:"splits,omitempty" json:"splits,omitempty"`
	// Providers are the external APIs that fallbacks of Models may name.
	Providers []Provider `yaml:"providers,omitempty" json:"providers,omitempty"`
	// ReplicasFile is a file that lists further replicas and is read again when it changes; empty = none.
	ReplicasFile string       `yaml:"replicas_file,omitempty" json:"replicas_file,omitempty"`
	Balancer     BalancerSpec `yaml:"balancer,omitempty" json:"balancer"`

	// StoreURL is the NATS URL of the service's store; empty = no store, history is only kept in
	// memory. StoreToken authenticates to it.
	StoreURL   string `yaml:"store_url,omitempty" json:"store_url,omitempty"`
	StoreToken string `yaml:"store_token,omitempty" json:"store_token,omitempty"`
	// StoreMTLS means that the store runs in the service's controller: the connection uses TLS, and
	// the server must present a controller's certificate.
	StoreMTLS bool `yaml:"store_mtls,omitempty" json:"store_mtls,omitempty"`
	// StoreFiles is the folder of a bucket for the files of batches, as store.files of service.yaml; empty = in the store.
	StoreFiles string `yaml:"store_files,omitempty" json:"store_files,omitempty"`
	// PeerToken authenticates balancers of one service to each other, also those with an identity. Without it a balancer
	// accepts only peers on its own machine, and none if clients must present keys.
	PeerToken string `yaml:"peer_token,omitempty" json:"peer_token,omitempty"`
	// AdminToken is the token that requests to the admin listener must contain, except over mTLS. It may be empty only
	// if the listener is on loopback or the balancer has an identity.
	AdminToken string `yaml:"admin_token,omitempty" json:"admin_token,omitempty"`
	// Identity is the balancer's certificate in its service; nil = none. With an identity the admin
	// listener requires mTLS: it serves the admin API to operators and the controller, and peer
	// messages and forwarded requests to other balancers.
	Identity *Identity `yaml:"identity,omitempty" json:"identity,omitempty"`
	// AdminPlain lets a loopback admin listener of a balancer with an identity also accept plain
	// HTTP, with AdminToken where set: for curl and browsers on this machine.
	AdminPlain bool `yaml:"admin_plain,omitempty" json:"admin_plain,omitempty"`
	// Certificate contains additional settings if Balancer.TLS.ACME is set; otherwise nil.
	Certificate *CertificateConfig `yaml:"certificate,omitempty" json:"certificate,omitempty"`
	// SpecFile is the service.yaml of this balancer's service, which the admin listener serves to
	// operators; empty = none.
	SpecFile string `yaml:"spec_file,omitempty" json:"spec_file,omitempty"`
	// Record is the file to which events and decisions are written; empty = none.
	Record string `yaml:"record,omitempty" json:"record,omitempty"`
	// Revision is the revision of the configuration, set by its author. The balancer reports it
	// once the configuration is in effect; empty = not reported.
	Revision string `yaml:"revision,omitempty" json:"revision,omitempty"`
}

// Reload returns the configuration of a balancer that runs with c and reloads next. Only these
// settings change at run time: models, splits, replicas, peers, providers, keys of engines, the
// service's file, routing, queueing and retries; prefix sharing, cache figures, guarded parameters and CORS; API keys
// from files, identity tokens and limits; the certificate files of a balancer that already serves TLS; and the
// addresses of the controllers' store. All other settings are those of c.
func (c BalancerConfig) Reload(next BalancerConfig) BalancerConfig {
	c.Models, c.Replicas, c.Peers = next.Models, next.Replicas, next.Peers
	c.ReplicasFile = next.ReplicasFile
	c.SpecFile, c.Revision = next.SpecFile, next.Revision
	c.EngineKeys, c.Providers, c.Splits = next.EngineKeys, next.Providers, next.Splits
	b, n := &c.Balancer, &next.Balancer
	b.Policy, b.Push, b.Order, b.Forward = n.Policy, n.Push, n.Order, n.Forward
	b.PeerQueueLimit, b.QueueLimit, b.MaxWait, b.SevereAfter, b.UrgentBefore, b.HoldDeferred = n.PeerQueueLimit, n.QueueLimit, n.MaxWait, n.SevereAfter, n.UrgentBefore, n.HoldDeferred
	b.MaxColdWait = n.MaxColdWait
	b.DeferredMemoryPercent, b.DeferredWaitPercent = n.DeferredMemoryPercent, n.DeferredWaitPercent
	b.Insecure = n.Insecure // only checked before the service is created; no effect on a running balancer
	b.MaxTries, b.RetryPercent, b.EjectAfter, b.EjectTime, b.Continue = n.MaxTries, n.RetryPercent, n.EjectAfter, n.EjectTime, n.Continue
	b.SharePrefixes, b.ExposeCache = n.SharePrefixes, n.ExposeCache
	b.AllowParameters, b.CORS = n.AllowParameters, n.CORS
	if b.Auth.environment() == n.Auth.environment() {
		b.Auth = n.Auth
	}
	if c.StoreMTLS && next.StoreMTLS {
		c.StoreURL = next.StoreURL
	}
	if b.TLS.fromFiles() && n.TLS.fromFiles() {
		b.TLS = n.TLS
	}
	return c
}

// Immutable returns the part of a configuration that cannot change while a balancer runs. A reload
// applies all changes between two configurations with equal immutable parts.
func (c BalancerConfig) Immutable() BalancerConfig {
	c = c.Reload(BalancerConfig{})
	if c.Balancer.TLS.fromFiles() {
		c.Balancer.TLS = &TLS{}
	}
	if c.StoreMTLS {
		c.StoreURL = ""
	}
	if source := c.Balancer.Auth.environment(); source != "" {
		c.Balancer.Auth = &Auth{KeysFrom: source}
	}
	return c
}

// fromFiles reports whether the certificate comes from files.
func (t *TLS) fromFiles() bool { return t != nil && t.ACME == nil }

// environment returns the source of the keys if it is in the process's environment, which cannot change
// while it runs; otherwise empty.
func (a *Auth) environment() string {
	if a == nil || !strings.HasPrefix(a.KeysFrom, "env:") {
		return ""
	}
	return a.KeysFrom
}

// CertificateConfig contains the settings with which one balancer obtains the certificate of the
// service's name, or loads the one that another balancer obtained.
type CertificateConfig struct {
	// Name is the DNS name of the certificate: DNS.Name.
	Name string `yaml:"name" json:"name"`
	// Dir is the directory of the newest certificate and its key.
	Dir string `yaml:"dir" json:"dir"`
	// Listen is the address, host:port, of the listener for challenges of ChallengeHTTP, to which
	// port 80 of the DNS name is forwarded; empty with other challenges.
	Listen string `yaml:"listen,omitempty" json:"listen,omitempty"`
	// Zone is the Route 53 hosted zone that contains the name, for ChallengeDNS; ZoneID is its ID,
	// empty = found by Zone and Private.
	Zone    string `yaml:"zone,omitempty" json:"zone,omitempty"`
	ZoneID  string `yaml:"zone_id,omitempty" json:"zone_id,omitempty"`
	Private bool   `yaml:"private,omitempty" json:"private,omitempty"`
	// Endpoint is Route 53's base URL; empty = AWS's.
	Endpoint string `yaml:"endpoint,omitempty" json:"endpoint,omitempty"`
	// FollowOnly is true for a balancer without permission to write to the hosted zone. It loads
	// certificates that other balancers obtain.
	FollowOnly bool `yaml:"follow_only,omitempty" json:"follow_only,omitempty"`
}

// Identity contains the paths of the files of a process's identity in its service: its certificate
// with the chain, its key, and the certificate of the service's CA, all in PEM.
type Identity struct {
	Cert string `yaml:"cert" json:"cert"`
	Key  string `yaml:"key" json:"key"`
	CA   string `yaml:"ca" json:"ca"`
	// Revoked is the file of the CA's revocation list, which is reloaded when it changes; empty =
	// none. The file may be missing.
	Revoked string `yaml:"revoked,omitempty" json:"revoked,omitempty"`
}

// BalancerModel is a model name with its aliases, adapters and latency targets.
type BalancerModel struct {
	Name    string   `yaml:"name" json:"name"`
	Aliases []string `yaml:"aliases,omitempty" json:"aliases,omitempty"`
	// LoRA are the names of the adapters that the engines load: further model names, which are
	// passed to engines unchanged.
	LoRA []string `yaml:"lora,omitempty" json:"lora,omitempty"`
	// Price is the price of the model's tokens for clients; nil = unknown.
	Price *Price `yaml:"price,omitempty" json:"price,omitempty"`
	// ScaleToZero means that the controller launches a replica when a request for the model arrives
	// and there is none: see Spec.ScalesToZero. Such a request waits for up to MaxColdWait.
	ScaleToZero bool `yaml:"scale_to_zero,omitempty" json:"scale_to_zero,omitempty"`
	// SLO contains the targets for the queue orders edf and dpa, deferral and alerts; a tier without targets
	// uses the balancer's default.
	SLO map[Tier]SLO `yaml:"slo,omitempty" json:"slo,omitempty"`
	// Fallback and FallbackAfter are those of Model.
	Fallback      []string      `yaml:"fallback,omitempty" json:"fallback,omitempty"`
	FallbackAfter time.Duration `yaml:"fallback_after,omitempty" json:"fallback_after,omitempty"`
}

// EngineKey is the source of an engine's API key, with the engine that may receive it.
type EngineKey struct {
	// APIKey is env:NAME or file:PATH.
	APIKey string `yaml:"api_key" json:"api_key"`
	// URL is the base URL of the engine; empty = all replicas with mTLS, whose certificate shows that
	// they belong to the service.
	URL string `yaml:"url,omitempty" json:"url,omitempty"`
}

// ReplicaConfig is a replica as configured at a balancer.
type ReplicaConfig struct {
	// ID is unique in the service, e.g. us-0; empty = derived from the URL.
	ID string `yaml:"id,omitempty" json:"id,omitempty"`
	// URL is the base URL of the engine. The URLs dns+http://HOST:PORT and srv+http://NAME are DNS names:
	// each address that they resolve to is a replica.
	URL string `yaml:"url" json:"url"`
	// APIKey is the source (env:NAME or file:PATH) of the key that the engine requires; empty = it
	// requires none, or Key was passed directly. Only this replica receives the key.
	APIKey string `yaml:"api_key,omitempty" json:"api_key,omitempty"`
	// Key is the key itself, once it has been read.
	Key Secret `yaml:"-" json:"-"`
	// Model is the model of the replica; empty = discovered from its /v1/models.
	Model string `yaml:"model,omitempty" json:"model,omitempty"`
	GPU   string `yaml:"gpu,omitempty" json:"gpu,omitempty"`
	// Capacity is the capacity type of its machine; empty = unknown, or not rented.
	Capacity CapacityType `yaml:"capacity,omitempty" json:"capacity,omitempty"`
	Kind     EngineKind   `yaml:"kind,omitempty" json:"kind,omitempty"`
	// DataParallel is the number of data-parallel ranks of the engine, 0 or 1 where it has none.
	// The balancer addresses each with X-data-parallel-rank, as ID/0, ID/1, ...
	DataParallel int `yaml:"data_parallel,omitempty" json:"data_parallel,omitempty"`
	// MaxNumSeqs is the maximum number of concurrent requests of a rank; 0 = unknown. A balancer
	// does not send more to a rank of an engine with several ranks.
	MaxNumSeqs int `yaml:"max_num_seqs,omitempty" json:"max_num_seqs,omitempty"`
	// CacheEvents is the address, HOST:PORT, at which the engine publishes changes of its prefix cache
	// (--kv-events-config); rank n uses the port n above. CacheReplays is the address at which it sends
	// earlier messages again. Empty = it does not. With MTLS, they are addresses on the replica's machine,
	// reached through the proxy of its agent.
	CacheEvents  string `yaml:"cache_events,omitempty" json:"cache_events,omitempty"`
	CacheReplays string `yaml:"cache_replays,omitempty" json:"cache_replays,omitempty"`
	// Region is the region of the replica: the balancer's own, unless the replica was adopted from
	// a failed balancer in another region.
	Region Region `yaml:"region,omitempty" json:"region,omitempty"`
	// Epoch is the revision of the assignment that attached the replica; a balancer ignores an
	// assignment older than its current one.
	Epoch uint64 `yaml:"epoch,omitempty" json:"epoch,omitempty"`
	// MTLS means that the replica runs on a machine of this service: the connection uses https, the
	// server must present a replica's certificate, and it only accepts requests from balancers.
	MTLS bool `yaml:"mtls,omitempty" json:"mtls,omitempty"`
	// USDPerHour is the price of its machine; 0 = unknown.
	USDPerHour float64 `yaml:"usd_per_hour,omitempty" json:"usd_per_hour,omitempty"`
}

// Authorization returns the value of the header with which the engine's key is sent; empty = none.
func (c *ReplicaConfig) Authorization() string {
	if c.Key == "" {
		return ""
	}
	return "Bearer " + string(c.Key)
}

// KeySource describes where the engine's key comes from, for messages.
func (c *ReplicaConfig) KeySource() string {
	switch {
	case c.APIKey != "":
		return c.APIKey
	case c.Key != "":
		return "the admin API"
	}
	return ""
}

// PeerConfig is another balancer of the service.
type PeerConfig struct {
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// URL is the public base URL, Admin the admin base URL (may be empty). Where balancers have an
	// identity, URL is the https URL of the admin listener.
	URL   string `yaml:"url" json:"url"`
	Admin string `yaml:"admin,omitempty" json:"admin,omitempty"`
	// EmulateRTT delays all traffic to this peer by this round trip; local services use it to
	// emulate the distance between regions.
	EmulateRTT time.Duration `yaml:"emulate_rtt,omitempty" json:"emulate_rtt,omitempty"`
}
