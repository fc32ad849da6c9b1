package service

import (
	"strings"
	"time"
)

// BalancerConfig is everything one balancer process needs to know: what
// `skyserve lb --config FILE` reads (JSON or YAML) and what its flags build.
type BalancerConfig struct {
	Service string `yaml:"service" json:"service"`
	// ID is unique among the service's balancers, e.g. lb-us-0.
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// Listen and Admin are host:port of the public and the admin listener.
	Listen string `yaml:"listen" json:"listen"`
	Admin  string `yaml:"admin" json:"admin"`

	Models   []BalancerModel `yaml:"models,omitempty" json:"models,omitempty"`
	Replicas []ReplicaConfig `yaml:"replicas,omitempty" json:"replicas,omitempty"`
	Peers    []PeerConfig    `yaml:"peers,omitempty" json:"peers,omitempty"`
	Balancer BalancerSpec    `yaml:"balancer,omitempty" json:"balancer"`

	// StoreURL is the NATS URL of the service's store; empty = no store, history
	// is then kept in memory only. StoreToken authenticates to it.
	StoreURL   string `yaml:"store_url,omitempty" json:"store_url,omitempty"`
	StoreToken string `yaml:"store_token,omitempty" json:"store_token,omitempty"`
	// StoreMTLS says that the store is in the process of the service's own controller:
	// it is reached by TLS, must present a controller's certificate, and takes balancers.
	StoreMTLS bool `yaml:"store_mtls,omitempty" json:"store_mtls,omitempty"`
	// PeerToken authenticates balancers of one service to each other.
	PeerToken string `yaml:"peer_token,omitempty" json:"peer_token,omitempty"`
	// AdminToken is what every request to the admin listener must bring; empty
	// leaves it to this machine.
	AdminToken string `yaml:"admin_token,omitempty" json:"admin_token,omitempty"`
	// Identity is the balancer's certificate in its service; nil = it has none. With
	// one, the admin listener speaks mTLS only: to operators and the controller it is
	// the admin API, to other balancers what peers and forwarded requests need.
	Identity *Identity `yaml:"identity,omitempty" json:"identity,omitempty"`
	// AdminPlain has an admin listener of a balancer with an identity, on loopback, take plain
	// HTTP too, with AdminToken where there is one: curl and browsers of this machine.
	AdminPlain bool `yaml:"admin_plain,omitempty" json:"admin_plain,omitempty"`
	// Certificate is what a balancer with Balancer.TLS.ACME needs to know beside it; nil
	// without.
	Certificate *CertificateConfig `yaml:"certificate,omitempty" json:"certificate,omitempty"`
	// SpecFile is the service.yaml that this balancer belongs to, served to
	// operators on the admin listener; empty when there is none.
	SpecFile string `yaml:"spec_file,omitempty" json:"spec_file,omitempty"`
	// Record is the file that events and decisions are written to; empty = none.
	Record string `yaml:"record,omitempty" json:"record,omitempty"`
	// Revision is what whoever wrote the configuration calls it. The balancer tells
	// it again once it has it in force; empty = nobody asks.
	Revision string `yaml:"revision,omitempty" json:"revision,omitempty"`
}

// Reconfigured is what a balancer that runs with c runs with once it was told
// next: what cannot change while it runs stays as it is in c. That is everything
// but models, replicas, peers, the file of the service and how the balancer
// decides; keys that come from files; and the files of its certificate, where it
// speaks TLS at all.
func (c BalancerConfig) Reconfigured(next BalancerConfig) BalancerConfig {
	c.Models, c.Replicas, c.Peers = next.Models, next.Replicas, next.Peers
	c.SpecFile, c.Revision = next.SpecFile, next.Revision
	b, n := &c.Balancer, &next.Balancer
	b.Policy, b.Push, b.Order, b.Forward = n.Policy, n.Push, n.Order, n.Forward
	b.Tau, b.QueueLimit, b.MaxWait, b.TauN, b.TauP, b.HoldDeferred = n.Tau, n.QueueLimit, n.MaxWait, n.TauN, n.TauP, n.HoldDeferred
	b.DeferredMemoryPercent, b.DeferredWaitPercent = n.DeferredMemoryPercent, n.DeferredWaitPercent
	b.Insecure = n.Insecure // which is asked before it is brought up, and changes nothing here
	b.MaxTries, b.RetryPercent, b.EjectAfter, b.EjectTime, b.Continue = n.MaxTries, n.RetryPercent, n.EjectAfter, n.EjectTime, n.Continue
	b.SharePrefixes, b.ExposeCache = n.SharePrefixes, n.ExposeCache
	b.AllowParameters = n.AllowParameters
	if !b.Auth.fromEnvironment() && !n.Auth.fromEnvironment() {
		b.Auth = n.Auth
	}
	if b.TLS.ofFiles() && n.TLS.ofFiles() {
		b.TLS = n.TLS
	}
	return c
}

// Fixed is what of a configuration holds for the life of a balancer: two that
// have it in common become each other by Reconfigured.
func (c BalancerConfig) Fixed() BalancerConfig {
	c = c.Reconfigured(BalancerConfig{})
	if c.Balancer.TLS.ofFiles() {
		c.Balancer.TLS = &TLS{}
	}
	return c
}

// ofFiles says whether a certificate comes from files.
func (t *TLS) ofFiles() bool { return t != nil && t.ACME == nil }

// fromEnvironment says whether the keys come from the process's environment,
// which nobody can change while it runs.
func (a *Auth) fromEnvironment() bool { return a != nil && strings.HasPrefix(a.KeysFrom, "env:") }

// CertificateConfig is what one balancer needs to obtain the certificate of the service's
// name, or to take up the one that another balancer obtained.
type CertificateConfig struct {
	// Name is what the certificate is for: DNS.Name.
	Name string `yaml:"name" json:"name"`
	// Dir is the directory in which the newest certificate is kept with its key.
	Dir string `yaml:"dir" json:"dir"`
	// Listen is where challenges of ChallengeHTTP are answered, host:port; the name's port 80
	// leads there. Empty with the other challenges.
	Listen string `yaml:"listen,omitempty" json:"listen,omitempty"`
	// Zone is the hosted zone of Route 53 that holds the name, for ChallengeDNS; ZoneID what
	// Route 53 calls it, empty = it is looked for by Zone and Private.
	Zone    string `yaml:"zone,omitempty" json:"zone,omitempty"`
	ZoneID  string `yaml:"zone_id,omitempty" json:"zone_id,omitempty"`
	Private bool   `yaml:"private,omitempty" json:"private,omitempty"`
	// Endpoint is Route 53's base URL; empty = AWS's.
	Endpoint string `yaml:"endpoint,omitempty" json:"endpoint,omitempty"`
	// FollowOnly says that the balancer has no identity that may write to the zone, and
	// takes up what the others obtain.
	FollowOnly bool `yaml:"follow_only,omitempty" json:"follow_only,omitempty"`
}

// Identity names the files that say who a process is in its service: its certificate
// with the chain behind it, the key, and the certificate of the service's authority,
// all in PEM.
type Identity struct {
	Cert string `yaml:"cert" json:"cert"`
	Key  string `yaml:"key" json:"key"`
	CA   string `yaml:"ca" json:"ca"`
	// Revoked is the list of certificates that the authority took back, which is read
	// again when it changes; empty = there is none, and so is a file that is not there.
	Revoked string `yaml:"revoked,omitempty" json:"revoked,omitempty"`
}

// BalancerModel is a model name with its aliases, adapters and latency targets.
type BalancerModel struct {
	Name    string   `yaml:"name" json:"name"`
	Aliases []string `yaml:"aliases,omitempty" json:"aliases,omitempty"`
	// LoRA are the names of the adapters that its engines load: further names, which
	// engines are asked for as they are.
	LoRA []string `yaml:"lora,omitempty" json:"lora,omitempty"`
	// SLO is what the queue orders edf and dpa go by; a tier without one has the
	// balancer's default.
	SLO map[Tier]SLO `yaml:"slo,omitempty" json:"slo,omitempty"`
}

// ReplicaConfig is a replica as a balancer addresses it.
type ReplicaConfig struct {
	// ID is unique in the service, e.g. us-0; empty = derived from the URL.
	ID  string `yaml:"id,omitempty" json:"id,omitempty"`
	URL string `yaml:"url" json:"url"`
	// Model is what the replica serves; empty = asked from its /v1/models.
	Model string `yaml:"model,omitempty" json:"model,omitempty"`
	GPU   string `yaml:"gpu,omitempty" json:"gpu,omitempty"`
	// Capacity is how its machine is paid for; empty = not known, or not rented.
	Capacity CapacityType `yaml:"capacity,omitempty" json:"capacity,omitempty"`
	Kind     EngineKind   `yaml:"kind,omitempty" json:"kind,omitempty"`
	// DataParallel is how many data-parallel ranks the engine has, 0 or 1 where it
	// has none. The balancer addresses each by X-data-parallel-rank, as ID/0, ID/1, ...
	DataParallel int `yaml:"data_parallel,omitempty" json:"data_parallel,omitempty"`
	// MaxNumSeqs is how many requests a rank runs at once; 0 = not known. Of an
	// engine with ranks a balancer sends each no more.
	MaxNumSeqs int `yaml:"max_num_seqs,omitempty" json:"max_num_seqs,omitempty"`
	// Region is where the replica runs: the balancer's own region unless the
	// replica was adopted from a dead balancer of another one.
	Region Region `yaml:"region,omitempty" json:"region,omitempty"`
	// Epoch is the revision of the assignment that attached the replica; a
	// balancer ignores an assignment older than the one it holds.
	Epoch uint64 `yaml:"epoch,omitempty" json:"epoch,omitempty"`
	// MTLS says that the replica is a machine of the service's own: it is reached by
	// https, must present a replica's certificate, and takes requests from balancers
	// only.
	MTLS bool `yaml:"mtls,omitempty" json:"mtls,omitempty"`
	// USDPerHour is what its machine costs; 0 = not known.
	USDPerHour float64 `yaml:"usd_per_hour,omitempty" json:"usd_per_hour,omitempty"`
}

// PeerConfig is another balancer of the service.
type PeerConfig struct {
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// URL is its public base URL, Admin its admin base URL (may be empty). Where
	// balancers have an identity, URL is that of the admin listener: https.
	URL   string `yaml:"url" json:"url"`
	Admin string `yaml:"admin,omitempty" json:"admin,omitempty"`
	// EmulateRTT delays all traffic to this peer by this round trip; local
	// services use it to stand for the distance between regions.
	EmulateRTT time.Duration `yaml:"emulate_rtt,omitempty" json:"emulate_rtt,omitempty"`
}
