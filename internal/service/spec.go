package service

import (
	"fmt"
	"strings"
	"time"
)

// Spec is a service.yaml, read, checked and with its defaults filled in.
type Spec struct {
	// Name names the service; it becomes part of tags, certificates and paths:
	// lower-case letters, digits and dashes, at most 40.
	Name       string       `yaml:"name" json:"name"`
	Models     []Model      `yaml:"models" json:"models"`
	Regions    []RegionSpec `yaml:"regions" json:"regions"`
	Balancer   BalancerSpec `yaml:"balancer,omitempty" json:"balancer"`
	DNS        *DNS         `yaml:"dns,omitempty" json:"dns,omitempty"`
	Autoscale  Autoscale    `yaml:"autoscale,omitempty" json:"autoscale"`
	Store      StoreSpec    `yaml:"store,omitempty" json:"store"`
	GCP        GCPSpec      `yaml:"gcp,omitempty" json:"gcp,omitzero"`
	LocalHosts LocalHosts   `yaml:"local,omitempty" json:"local"`
}

// Model is one model that the service serves.
type Model struct {
	Name    string   `yaml:"name" json:"name"`
	Aliases []string `yaml:"aliases,omitempty" json:"aliases,omitempty"`
	Engine  Engine   `yaml:"engine,omitempty" json:"engine"`
	// Secrets maps an environment variable of the engine to where its value
	// comes from (env:NAME or file:PATH); values are never kept in a Spec.
	Secrets map[string]string `yaml:"secrets,omitempty" json:"secrets,omitempty"`
	GPUs    []GPU             `yaml:"gpus,omitempty" json:"gpus,omitempty"`
	SLO     map[Tier]SLO      `yaml:"slo,omitempty" json:"slo,omitempty"`
	// Regions overrides a region's replica bounds for this model.
	Regions map[Region]Bounds `yaml:"regions,omitempty" json:"regions,omitempty"`
}

// EngineKind is the software that runs a model.
type EngineKind string

// The kinds of engine.
const (
	EngineVLLM   EngineKind = "vllm"
	EngineSGLang EngineKind = "sglang"
	EngineOpenAI EngineKind = "openai" // any OpenAI-compatible server
	EngineSim    EngineKind = "sim"    // the simulated engine
)

// Engine says how a replica of a model is run.
type Engine struct {
	Kind  EngineKind `yaml:"kind,omitempty" json:"kind"`
	Image string     `yaml:"image,omitempty" json:"image,omitempty"`
	// Weights is where machines fetch the model from, s3://bucket/prefix at AWS or
	// gs://bucket/prefix at Google; empty = the engine gets it from the hub.
	Weights      string            `yaml:"weights,omitempty" json:"weights,omitempty"`
	Args         []string          `yaml:"args,omitempty" json:"args,omitempty"`
	Env          map[string]string `yaml:"env,omitempty" json:"env,omitempty"`
	Port         int               `yaml:"port,omitempty" json:"port,omitempty"`
	Ready        string            `yaml:"ready,omitempty" json:"ready,omitempty"` // path that answers 200 when the model does
	MaxNumSeqs   int               `yaml:"max_num_seqs,omitempty" json:"max_num_seqs,omitempty"`
	DataParallel int               `yaml:"data_parallel,omitempty" json:"data_parallel,omitempty"`
	LoRA         []string          `yaml:"lora,omitempty" json:"lora,omitempty"`

	// Simulated engines only.
	Profile  string  `yaml:"profile,omitempty" json:"profile,omitempty"`     // default l4-llama3.1-8b
	Speed    float64 `yaml:"speed,omitempty" json:"speed,omitempty"`         // 10 = ten times faster than life
	KVTokens int     `yaml:"kv_tokens,omitempty" json:"kv_tokens,omitempty"` // overrides the profile's KV capacity
	Flavor   string  `yaml:"flavor,omitempty" json:"flavor,omitempty"`       // vllm or sglang: whose metrics it exports
}

// Adapters is the names in LoRA, without the paths.
func (e *Engine) Adapters() []string {
	var names []string
	for _, l := range e.LoRA {
		name, _, _ := strings.Cut(l, "=")
		names = append(names, name)
	}
	return names
}

// GPU is something a replica can run on.
type GPU struct {
	Type  string `yaml:"type" json:"type"` // L4, H100, A100
	Count int    `yaml:"count,omitempty" json:"count"`
	// TPS is uncached prompt tokens a second that one replica sustains within
	// the latency target; 0 = not measured.
	TPS float64 `yaml:"tps,omitempty" json:"tps,omitempty"`
	// Price is what one replica costs on demand, in USD an hour; 0 = what its
	// cloud asks, else the list price.
	Price float64 `yaml:"price,omitempty" json:"price,omitempty"`
}

// SLO holds a tier's latency targets; zero means none.
type SLO struct {
	TTFT     time.Duration `yaml:"ttft,omitempty" json:"ttft,omitempty"`
	E2E      time.Duration `yaml:"e2e,omitempty" json:"e2e,omitempty"`
	Deadline time.Duration `yaml:"deadline,omitempty" json:"deadline,omitempty"`
}

// Bounds limits a replica count, both ends included.
type Bounds struct {
	Min int `yaml:"min" json:"min"`
	Max int `yaml:"max" json:"max"`
}

// RegionSpec is one region of a service.
type RegionSpec struct {
	Name      Region `yaml:"name" json:"name"`
	Balancers int    `yaml:"balancers,omitempty" json:"balancers"` // default 1
	Replicas  Bounds `yaml:"replicas,omitempty" json:"replicas"`
	// Capacity is the order in which capacity types are tried.
	Capacity     []CapacityType `yaml:"capacity,omitempty" json:"capacity,omitempty"`
	OnDemandBase int            `yaml:"on_demand_base,omitempty" json:"on_demand_base,omitempty"`
	Reserved     []Reservation  `yaml:"reserved,omitempty" json:"reserved,omitempty"`
	// Network is the VPC that the machines of a rented region stand in, as its cloud names
	// it: vpc-... at AWS, a name at Google; empty = the cloud's default one.
	Network string `yaml:"network,omitempty" json:"network,omitempty"`
	// Subnets are those of Network that they stand in: at AWS, which needs them, one a zone,
	// at Google one; empty = the region's.
	Subnets []string `yaml:"subnets,omitempty" json:"subnets,omitempty"`
	// Access is how a person gets a shell on the machines of a region at AWS: AccessSSM, or
	// empty = not at all.
	Access string `yaml:"access,omitempty" json:"access,omitempty"`
	// EgressPerGB is what a GB that leaves the region costs, in USD.
	EgressPerGB float64 `yaml:"egress_per_gb,omitempty" json:"egress_per_gb,omitempty"`
	// Endpoints are the machines of a static region, as base URLs.
	Endpoints []string `yaml:"endpoints,omitempty" json:"endpoints,omitempty"`
	// Public are the base URLs at which others reach the balancers of a local or
	// static region, in their order; empty = nobody but this machine does.
	Public []string `yaml:"public,omitempty" json:"public,omitempty"`
}

// AccessSSM is a shell by Session Manager of AWS Systems Manager.
const AccessSSM = "ssm"

// CapacityType is how a VM is paid for.
type CapacityType string

// The capacity types.
const (
	CapacityReserved CapacityType = "reserved"
	CapacitySpot     CapacityType = "spot"
	CapacityOnDemand CapacityType = "on_demand"
)

// Reservation is a commitment that the operator already pays for.
type Reservation struct {
	Type  string  `yaml:"type" json:"type"` // instance type, g6.xlarge
	Count int     `yaml:"count" json:"count"`
	Price float64 `yaml:"price,omitempty" json:"price"` // USD an hour each
}

// BalancerSpec configures every balancer of a service.
type BalancerSpec struct {
	Policy  string `yaml:"policy,omitempty" json:"policy"`
	Push    string `yaml:"push,omitempty" json:"push"` // pending, outstanding:N or blind
	Order   string `yaml:"order,omitempty" json:"order"`
	Forward *bool  `yaml:"forward,omitempty" json:"forward"` // default true
	Auth    *Auth  `yaml:"auth,omitempty" json:"auth,omitempty"`
	TLS     *TLS   `yaml:"tls,omitempty" json:"tls,omitempty"`
	// Insecure accepts that balancers in a cloud serve plain HTTP to the world: prompts,
	// answers and API keys can be read on the way. It excludes TLS.
	Insecure bool `yaml:"insecure,omitempty" json:"insecure,omitempty"`
	// Tau is how many queued requests a peer may hold and still be offered more (SkyLB 3.3).
	Tau int `yaml:"tau,omitempty" json:"tau,omitempty"`
	// QueueLimit bounds the requests a balancer holds; more are rejected with 429.
	QueueLimit int `yaml:"queue_limit,omitempty" json:"queue_limit,omitempty"`
	// MaxWait bounds how long a request is held; then it is rejected with 503.
	MaxWait time.Duration `yaml:"max_wait,omitempty" json:"max_wait,omitempty"`
	// TauN and TauP are the thresholds of the order dpa (SageServe 6.5): how long a
	// request has missed its target when it goes before all others, and how close
	// to it a request is urgent.
	TauN time.Duration `yaml:"tau_n,omitempty" json:"tau_n,omitempty"`
	TauP time.Duration `yaml:"tau_p,omitempty" json:"tau_p,omitempty"`
	// HoldDeferred lets NIW requests wait apart until KV memory has room (SageServe
	// 6.2); default true.
	HoldDeferred *bool `yaml:"hold_deferred,omitempty" json:"hold_deferred"`
	// DeferredMemoryPercent is the used share of KV memory below which one NIW request
	// goes at a report, two below ten less; DeferredWaitPercent, of the time until it is
	// due, when it goes in any case.
	DeferredMemoryPercent int `yaml:"deferred_memory_percent,omitempty" json:"deferred_memory_percent,omitempty"`
	DeferredWaitPercent   int `yaml:"deferred_wait_percent,omitempty" json:"deferred_wait_percent,omitempty"`
	// MaxTries bounds how often one request is sent in all. RetryPercent bounds how
	// many are sent again when much fails: of a hundred that arrive.
	MaxTries     int `yaml:"max_tries,omitempty" json:"max_tries,omitempty"`
	RetryPercent int `yaml:"retry_percent,omitempty" json:"retry_percent,omitempty"`
	// EjectAfter failures in a row leave a replica out for EjectTime, each time in a
	// row twice as long.
	EjectAfter int           `yaml:"eject_after,omitempty" json:"eject_after,omitempty"`
	EjectTime  time.Duration `yaml:"eject_time,omitempty" json:"eject_time,omitempty"`
	// Continue lets another replica go on with a streamed answer whose replica died;
	// default true.
	Continue *bool `yaml:"continue,omitempty" json:"continue"`
	// Memory bounds what a balancer's process holds.
	Memory Memory `yaml:"memory,omitempty" json:"memory,omitzero"`
	// SharePrefixes lets what one tenant asked be found for another; default false.
	SharePrefixes bool `yaml:"share_prefixes,omitempty" json:"share_prefixes,omitempty"`
	// ExposeCache tells clients with API keys how much of their prompts was cached;
	// default false.
	ExposeCache bool `yaml:"expose_cache,omitempty" json:"expose_cache,omitempty"`
	// AllowParameters names the guarded parameters that requests may have: see
	// GuardedParameters.
	AllowParameters []string `yaml:"allow_parameters,omitempty" json:"allow_parameters,omitempty"`
	// AccessLog writes one line of the log for each request.
	AccessLog bool `yaml:"access_log,omitempty" json:"access_log,omitempty"`
	// Traces is the base URL of an OpenTelemetry collector that takes OTLP over
	// HTTP; empty = what OTEL_EXPORTER_OTLP_ENDPOINT says, if anything.
	Traces string `yaml:"traces,omitempty" json:"traces,omitempty"`
}

// Memory bounds the memory of a balancer's process. Requests and Tenant are parts of it.
type Memory struct {
	// Total is what the process may take: systemd ends it beyond that (MemoryMax), and the
	// garbage collector works harder from four fifths of it on (GOMEMLIMIT).
	Total Size `yaml:"total,omitempty" json:"total,omitempty"`
	// Requests is for the bodies of requests, from their first byte until nothing can be
	// tried again, and for answers that are held back; more is answered 503. Left out it is
	// half of Total.
	Requests Size `yaml:"requests,omitempty" json:"requests,omitempty"`
	// Tenant is how much of Requests one tenant may have; more is answered 429. Left out it
	// is a quarter of Requests, and at least MinTenantMemory.
	Tenant Size `yaml:"tenant,omitempty" json:"tenant,omitempty"`
}

// The least that the parts of Memory may be: the largest body fits into a tenant's, two
// tenants into all.
const (
	MinMemory        = 256 * MiB
	MinRequestMemory = 64 * MiB
	MinTenantMemory  = 32 * MiB
)

// Misfit is a key of Memory and what is wrong with its value.
type Misfit struct{ Key, Problem string }

// Misfits says what is wrong with how the parts fit each other, once defaults are
// filled in.
func (m Memory) Misfits() (all []Misfit) {
	for _, part := range []struct {
		key         string
		size, least Size
		most        Size
		whole       string
	}{
		{"total", m.Total, MinMemory, TiB, "1TiB"},
		{"requests", m.Requests, MinRequestMemory, m.Total / 4 * 3, "three quarters of total"},
		{"tenant", m.Tenant, MinTenantMemory, m.Requests, "requests"},
	} {
		switch {
		case part.size < part.least:
			all = append(all, Misfit{part.key, fmt.Sprintf("must be at least %s", part.least)})
		case part.size > part.most:
			all = append(all, Misfit{part.key, fmt.Sprintf("must be at most %s, which is %s", part.whole, part.most)})
		}
	}
	return all
}

// withDefaults fills in what depends on Total.
func (m Memory) withDefaults() Memory {
	if m.Requests == 0 {
		m.Requests = m.Total / 2
	}
	if m.Tenant == 0 {
		m.Tenant = max(m.Requests/4, MinTenantMemory)
	}
	return m
}

// Auth says where the API keys come from (env:NAME or file:PATH) and what each
// may use that says nothing else of itself; ParseKeys reads them.
type Auth struct {
	KeysFrom string    `yaml:"keys_from" json:"keys_from"`
	Limits   KeyLimits `yaml:"limits,omitempty" json:"limits,omitzero"`
}

// TLS says where the public listener's certificate comes from: either the files
// Cert and Key, or an ACME authority.
type TLS struct {
	Cert string `yaml:"cert,omitempty" json:"cert,omitempty"`
	Key  string `yaml:"key,omitempty" json:"key,omitempty"`
	// ACME has balancers obtain and renew a certificate for DNS.Name; nil = Cert and Key
	// are used.
	ACME *ACME `yaml:"acme,omitempty" json:"acme,omitempty"`
}

// ACME is how a certificate is obtained from an authority that speaks ACME (RFC 8555).
type ACME struct {
	// Email is the contact of the account at the authority, which is made when it is
	// first needed.
	Email string `yaml:"email" json:"email"`
	// CA is CALetsEncrypt, CALetsEncryptStaging or the https URL of a directory.
	CA string `yaml:"ca,omitempty" json:"ca,omitempty"`
	// Root is a file of certificates in PEM that the authority's own certificate leads to;
	// empty = those that the system trusts.
	Root string `yaml:"root,omitempty" json:"root,omitempty"`
	// EAB binds the account to one that exists at the authority by other means.
	EAB *EAB `yaml:"eab,omitempty" json:"eab,omitempty"`
	// Challenge is how the authority makes sure of the name: ChallengeDNS, ChallengeHTTP
	// or ChallengeTLSALPN.
	Challenge string `yaml:"challenge,omitempty" json:"challenge,omitempty"`
	// Resolvers are the DNS servers, host:port, that are asked whether the record of a
	// ChallengeDNS is there; empty = the name servers of the zone.
	Resolvers []string `yaml:"resolvers,omitempty" json:"resolvers,omitempty"`
}

// EAB is an external account binding (RFC 8555, section 7.3.4).
type EAB struct {
	KeyID string `yaml:"key_id" json:"key_id"`
	// HMAC is where the key comes from, base64url: env:NAME or file:PATH.
	HMAC string `yaml:"hmac" json:"hmac"`
}

// The authorities that have a name of their own in ACME.CA.
const (
	CALetsEncrypt        = "letsencrypt"
	CALetsEncryptStaging = "letsencrypt-staging"
)

// Directory is the URL of the authority's ACME directory.
func (a ACME) Directory() string {
	switch a.CA {
	case CALetsEncrypt, "":
		return "https://acme-v02.api.letsencrypt.org/directory"
	case CALetsEncryptStaging:
		return "https://acme-staging-v02.api.letsencrypt.org/directory"
	}
	return a.CA
}

// The challenges by which an ACME authority makes sure of a name.
const (
	ChallengeDNS     = "dns-01"      // a TXT record of the name's zone
	ChallengeHTTP    = "http-01"     // an answer on port 80
	ChallengeTLSALPN = "tls-alpn-01" // a handshake on port 443
)

// Obtains says whether balancers obtain the certificate of the service's name by a challenge.
func (s *Spec) Obtains(challenge string) bool {
	t := s.Balancer.TLS
	return t != nil && t.ACME != nil && t.ACME.Challenge == challenge
}

// Who serves a public name.
const (
	DNSRoute53  = "route53"  // a hosted zone of Amazon Route 53
	DNSEmbedded = "embedded" // a name server on this machine
)

// DNS is the public name of a service.
type DNS struct {
	Provider string `yaml:"provider" json:"provider"`
	Name     string `yaml:"name" json:"name"`
	// Zone is the zone that holds the name; of an embedded one the name itself
	// where it is left out.
	Zone    string `yaml:"zone,omitempty" json:"zone"`
	Routing string `yaml:"routing,omitempty" json:"routing"` // latency or geo
	// TTL is how long an answer may be kept, in whole seconds.
	TTL time.Duration `yaml:"ttl,omitempty" json:"ttl"`
	// Private says that the zone of Route 53 is only known inside networks of AWS.
	Private bool `yaml:"private,omitempty" json:"private,omitempty"`
	// Listen is host:port of the embedded name server, UDP and TCP.
	Listen string `yaml:"listen,omitempty" json:"listen,omitempty"`
	// Clients say where the networks are that ask the embedded name server.
	Clients []DNSClient `yaml:"clients,omitempty" json:"clients,omitempty"`
}

// DNSClient is a network of clients, and how near it is to regions.
type DNSClient struct {
	Network string `yaml:"network" json:"network"` // 10.1.0.0/16
	// Region is the region of the service that they are in or next to.
	Region Region `yaml:"region,omitempty" json:"region,omitempty"`
	// RTT is the round trip from them to regions, where it is known.
	RTT map[Region]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// Autoscale configures the controller's scaling.
type Autoscale struct {
	Strategy string        `yaml:"strategy,omitempty" json:"strategy"`
	Forecast string        `yaml:"forecast,omitempty" json:"forecast"`
	Every    time.Duration `yaml:"every,omitempty" json:"every"`
	Donate   bool          `yaml:"donate,omitempty" json:"donate"`
	// DonateFor is how long a donated replica is kept before it is removed, unless it
	// is taken back.
	DonateFor time.Duration `yaml:"donate_for,omitempty" json:"donate_for"`
	// DonatePrice is what an hour of a donated replica earns, in USD.
	DonatePrice float64 `yaml:"donate_price,omitempty" json:"donate_price,omitempty"`
	// Late is the share, 0..1, of IW-F requests whose first token the strategy auto lets
	// come after the tier's target.
	Late float64 `yaml:"late,omitempty" json:"late,omitempty"`
	// MaxRTT is how far a plan may send load; 0 = anywhere.
	MaxRTT time.Duration `yaml:"max_rtt,omitempty" json:"max_rtt,omitempty"`
}

// StoreSpec says where state lives; an empty URL means embedded.
type StoreSpec struct {
	URL string `yaml:"url,omitempty" json:"url,omitempty"`
}

// GCPSpec configures what all regions of Google Cloud have in common.
type GCPSpec struct {
	// BalancerAccount is the service account that machines of balancers run as, by its
	// e-mail address; empty = the account skyserve-NAME-lb of the project.
	BalancerAccount string `yaml:"balancer_account,omitempty" json:"balancer_account,omitempty"`
	// ReplicaAccount is that of machines of replicas; empty = they run as nobody.
	ReplicaAccount string `yaml:"replica_account,omitempty" json:"replica_account,omitempty"`
}

// LocalHosts configures what the local provider emulates.
type LocalHosts struct {
	// Port is the first balancer's port; the following balancers take the next
	// ones. Admin ports are 100 above, engines 200 above, the store 300 above.
	// Default 8001.
	Port int `yaml:"port,omitempty" json:"port,omitempty"`
	// RTT is the emulated round trip between two local regions, keyed "us-eu".
	RTT map[string]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// ModelByName finds a model by its name or an alias; nil when there is none.
func (s *Spec) ModelByName(name string) *Model {
	for i := range s.Models {
		m := &s.Models[i]
		if m.Name == name {
			return m
		}
		for _, a := range m.Aliases {
			if a == name {
				return m
			}
		}
	}
	return nil
}

// BoundsFor is the replica bounds of a model in a region: the model's own
// where it states them, else the region's.
func (s *Spec) BoundsFor(model string, region Region) Bounds {
	if m := s.ModelByName(model); m != nil {
		if b, ok := m.Regions[region]; ok {
			return b
		}
	}
	for _, r := range s.Regions {
		if r.Name == region {
			return r.Replicas
		}
	}
	return Bounds{}
}

// RTTBetween is the emulated round trip between two local places, 0 where none is stated.
func (l LocalHosts) RTTBetween(a, b string) time.Duration {
	if d, ok := l.RTT[a+"-"+b]; ok {
		return d
	}
	return l.RTT[b+"-"+a]
}
