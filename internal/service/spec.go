package service

import (
	"fmt"
	"time"
)

// Spec is a parsed and validated service.yaml with its defaults filled in.
type Spec struct {
	// Name is the name of the service. Tags, certificates and paths contain it: lower-case letters,
	// digits and dashes, at most 40 characters.
	Name       string       `yaml:"name" json:"name"`
	Models     []Model      `yaml:"models" json:"models"`
	Regions    []RegionSpec `yaml:"regions" json:"regions"`
	Providers  []Provider   `yaml:"providers,omitempty" json:"providers,omitempty"`
	Splits     []Split      `yaml:"splits,omitempty" json:"splits,omitempty"`
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
	// Secrets maps an environment variable of the engine to the source of its value (env:NAME or
	// file:PATH). A Spec never contains the values.
	Secrets map[string]string `yaml:"secrets,omitempty" json:"secrets,omitempty"`
	GPUs    []GPU             `yaml:"gpus,omitempty" json:"gpus,omitempty"`
	SLO     map[Tier]SLO      `yaml:"slo,omitempty" json:"slo,omitempty"`
	// Price is the price of the model's tokens for clients; nil = unknown.
	Price *Price `yaml:"price,omitempty" json:"price,omitempty"`
	// Regions overrides a region's replica bounds for this model.
	Regions map[Region]Bounds `yaml:"regions,omitempty" json:"regions,omitempty"`
	// Fallback are the models that serve a request when this one cannot, in this order: other models
	// of the service, or PROVIDER/MODEL.
	Fallback []string `yaml:"fallback,omitempty" json:"fallback,omitempty"`
	// FallbackAfter is the time in the queue after which a request goes to the next fallback; at most
	// BalancerSpec.MaxWait. 0 = DefaultFallbackAfter.
	FallbackAfter time.Duration `yaml:"fallback_after,omitempty" json:"fallback_after,omitempty"`
	// ReadyTimeout is the time after its launch by which a replica must be ready; after it, the controller
	// gives it up; 0 = see Spec.ReadyTimeoutOf.
	ReadyTimeout time.Duration `yaml:"ready_timeout,omitempty" json:"ready_timeout,omitempty"`
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

// Engine configures how a replica of a model runs.
type Engine struct {
	Kind  EngineKind `yaml:"kind,omitempty" json:"kind"`
	Image string     `yaml:"image,omitempty" json:"image,omitempty"`
	// Weights is the bucket folder from which VMs download the model, s3://bucket/prefix on AWS or
	// gs://bucket/prefix on Google Cloud; empty = the engine downloads it from the Hugging Face
	// hub.
	Weights string   `yaml:"weights,omitempty" json:"weights,omitempty"`
	Args    []string `yaml:"args,omitempty" json:"args,omitempty"`
	// APIKey is the source (env:NAME or file:PATH) of the key that the engine requires from its
	// clients; empty = none. Launched engines of the kinds vllm, sglang and sim receive it.
	APIKey       string            `yaml:"api_key,omitempty" json:"api_key,omitempty"`
	Env          map[string]string `yaml:"env,omitempty" json:"env,omitempty"`
	Port         int               `yaml:"port,omitempty" json:"port,omitempty"`
	Ready        string            `yaml:"ready,omitempty" json:"ready,omitempty"` // path that returns 200 once the model is loaded
	MaxNumSeqs   int               `yaml:"max_num_seqs,omitempty" json:"max_num_seqs,omitempty"`
	DataParallel int               `yaml:"data_parallel,omitempty" json:"data_parallel,omitempty"`
	LoRA         []Adapter         `yaml:"lora,omitempty" json:"lora,omitempty"`
	// CacheEvents makes a launched engine publish the changes of its KV cache; nil = the default, see
	// PublishesCacheEvents.
	CacheEvents *bool `yaml:"cache_events,omitempty" json:"cache_events,omitempty"`

	// Simulated engines only.
	Profile  string  `yaml:"profile,omitempty" json:"profile,omitempty"`     // default l4-llama3.1-8b
	Speed    float64 `yaml:"speed,omitempty" json:"speed,omitempty"`         // 10 = ten times real time
	KVTokens int     `yaml:"kv_tokens,omitempty" json:"kv_tokens,omitempty"` // overrides the profile's KV capacity
	Flavor   string  `yaml:"flavor,omitempty" json:"flavor,omitempty"`       // vllm or sglang: whose metrics it exports
}

// GPU is a GPU configuration that a replica can run on.
type GPU struct {
	Type  string `yaml:"type" json:"type"` // L4, H100, A100
	Count int    `yaml:"count,omitempty" json:"count"`
	// TPS is the number of uncached prompt tokens per second that one replica sustains within the
	// latency target; 0 = not measured.
	TPS float64 `yaml:"tps,omitempty" json:"tps,omitempty" key:"prompt_tokens_per_second"`
	// Price is the on-demand price of one replica in USD per hour; 0 = the cloud's current price,
	// or the list price where that is unknown.
	Price float64 `yaml:"price,omitempty" json:"price,omitempty"`
	// LocalSSDs is the number of local SSDs that are attached to machines of Google Cloud; 0 = none besides
	// those that the machine type has in any case.
	LocalSSDs int `yaml:"local_ssds,omitempty" json:"local_ssds,omitempty"`
}

// SLO holds a tier's latency targets; zero means none. E2E is not used yet.
type SLO struct {
	TTFT     time.Duration `yaml:"ttft,omitempty" json:"ttft,omitempty"`
	E2E      time.Duration `yaml:"e2e,omitempty" json:"e2e,omitempty"`
	Deadline time.Duration `yaml:"deadline,omitempty" json:"deadline,omitempty"`
}

// Bounds limits a replica count; both ends are inclusive.
type Bounds struct {
	Min int `yaml:"min" json:"min"`
	Max int `yaml:"max" json:"max"`
}

// SpotSpec configures how the spot replicas of a region are backed up against interruptions.
type SpotSpec struct {
	// Overprovision is the number of spot replicas of each model beyond the desired number.
	Overprovision int `yaml:"overprovision,omitempty" json:"overprovision,omitempty"`
	// DynamicFallback replaces an interrupted spot replica on demand at once, until spot is back.
	DynamicFallback bool `yaml:"dynamic_fallback,omitempty" json:"dynamic_fallback,omitempty"`
}

// RegionSpec is one region of a service.
type RegionSpec struct {
	Name      Region `yaml:"name" json:"name"`
	Balancers int    `yaml:"balancers,omitempty" json:"balancers"` // default 1
	Replicas  Bounds `yaml:"replicas,omitempty" json:"replicas"`
	// Capacity is the order in which capacity types are tried.
	Capacity     []CapacityType `yaml:"capacity,omitempty" json:"capacity,omitempty"`
	OnDemandBase int            `yaml:"on_demand_base,omitempty" json:"on_demand_base,omitempty"`
	// Spot is how spot replicas are backed up; nil = by the order of Capacity only.
	Spot     *SpotSpec     `yaml:"spot,omitempty" json:"spot,omitempty"`
	Reserved []Reservation `yaml:"reserved,omitempty" json:"reserved,omitempty"`
	// Network is the VPC of the machines of a cloud region, in the cloud's notation: vpc-... on
	// AWS, a name on Google Cloud; empty = the default VPC.
	Network string `yaml:"network,omitempty" json:"network,omitempty"`
	// Subnets are the subnets of Network for the machines: on AWS, where they are required, one per
	// availability zone; on Google Cloud one. Empty = the region's default.
	Subnets []string `yaml:"subnets,omitempty" json:"subnets,omitempty"`
	// Images are the boot images of the machines of a cloud region in the cloud's notation, by GPU type,
	// ImageGPU or ImageCPU; those without one boot the cloud's current public image.
	Images map[string]string `yaml:"images,omitempty" json:"images,omitempty"`
	// Access is the kind of shell access to the machines of an AWS region: AccessSSM, or empty =
	// none.
	Access string `yaml:"access,omitempty" json:"access,omitempty"`
	// EgressPerGB is the price of egress from the region in USD per GB.
	EgressPerGB float64 `yaml:"egress_per_gb,omitempty" json:"egress_per_gb,omitempty"`
	// Endpoints are the machines of a static region. Balancers resolve those that are DNS names: see
	// IsDiscovered.
	Endpoints []Endpoint `yaml:"endpoints,omitempty" json:"endpoints,omitempty"`
	// EndpointsFile is a file that lists further machines of a static region; balancers watch it.
	EndpointsFile string `yaml:"endpoints_file,omitempty" json:"endpoints_file,omitempty"`
	// PublicURLs are the base URLs at which clients on other machines reach the balancers of a local or
	// static region, in order; empty = only this machine reaches them.
	PublicURLs []string `yaml:"public,omitempty" json:"public,omitempty" key:"public_urls"`
}

// Endpoint is an existing engine of a static region. In service.yaml, its URL alone is enough.
type Endpoint struct {
	// URL is the base URL.
	URL string `yaml:"url" json:"url"`
	// APIKey is the source (env:NAME or file:PATH) of the key that the engine requires; empty = that of
	// the model's engine.
	APIKey string `yaml:"api_key,omitempty" json:"api_key,omitempty"`
}

// AccessSSM is shell access through AWS Systems Manager Session Manager.
const AccessSSM = "ssm"

// CapacityType is how a VM is paid for.
type CapacityType string

// The capacity types.
const (
	CapacityReserved CapacityType = "reserved"
	CapacitySpot     CapacityType = "spot"
	CapacityOnDemand CapacityType = "on_demand"
	// CapacityFlexStart is Google Cloud's flex-start: machines that are not interrupted, and that the cloud
	// ends after a limited time.
	CapacityFlexStart CapacityType = "flex_start"
)

// Reservation is capacity that the operator has already committed to pay for.
type Reservation struct {
	// ID is the cloud's id of a capacity reservation that the machines use; empty = any open one, or a
	// commitment that is only a discount.
	ID    string  `yaml:"id,omitempty" json:"id,omitempty"`
	Type  string  `yaml:"type" json:"type"` // instance type, g6.xlarge
	Count int     `yaml:"count" json:"count"`
	Price float64 `yaml:"price,omitempty" json:"price"` // USD per hour each
}

// BalancerSpec configures every balancer of a service.
type BalancerSpec struct {
	Policy  string `yaml:"policy,omitempty" json:"policy"`
	Push    string `yaml:"push,omitempty" json:"push"` // pending, outstanding:N or blind
	Order   string `yaml:"order,omitempty" json:"order"`
	Forward *bool  `yaml:"forward,omitempty" json:"forward"` // default true
	Auth    *Auth  `yaml:"auth,omitempty" json:"auth,omitempty"`
	TLS     *TLS   `yaml:"tls,omitempty" json:"tls,omitempty"`
	// Insecure allows balancers in a cloud to serve plain HTTP on the public internet: prompts,
	// responses and API keys can be read in transit. It excludes TLS.
	Insecure bool `yaml:"insecure,omitempty" json:"insecure,omitempty"`
	// PeerQueueLimit is the maximum number of queued requests at a peer that still receives forwarded requests
	// (SkyLB 3.3).
	PeerQueueLimit int `yaml:"tau,omitempty" json:"tau,omitempty" key:"peer_queue_limit"`
	// QueueLimit is the maximum number of requests in a balancer's queue; further requests are
	// rejected with 429.
	QueueLimit int `yaml:"queue_limit,omitempty" json:"queue_limit,omitempty"`
	// MaxWait is the maximum time in the queue; after it a request is rejected with 503.
	MaxWait time.Duration `yaml:"max_wait,omitempty" json:"max_wait,omitempty"`
	// MaxColdWait is the maximum time in the queue while a model that scales to zero has no ready
	// replica in any region.
	MaxColdWait time.Duration `yaml:"max_cold_wait,omitempty" json:"max_cold_wait,omitempty"`
	// SevereAfter and UrgentBefore are the thresholds of the queue order dpa (SageServe 6.5): a request that has
	// missed its deadline by SevereAfter goes before all others, and a request whose deadline is at most
	// UrgentBefore away is urgent.
	SevereAfter  time.Duration `yaml:"tau_n,omitempty" json:"tau_n,omitempty" key:"dpa_severe_after"`
	UrgentBefore time.Duration `yaml:"tau_p,omitempty" json:"tau_p,omitempty" key:"dpa_urgent_before"`
	// HoldDeferred queues NIW requests separately until KV memory is available (SageServe 6.2);
	// default true.
	HoldDeferred *bool `yaml:"hold_deferred,omitempty" json:"hold_deferred"`
	// DeferredMemoryPercent is a mean KV utilisation of a model's replicas. While it is below this value, each report
	// of a replica releases one NIW request, or two if it is more than ten percentage points below. DeferredWaitPercent
	// is the share of the time until its deadline after which a NIW request is released in any case.
	DeferredMemoryPercent int `yaml:"deferred_memory_percent,omitempty" json:"deferred_memory_percent,omitempty"`
	DeferredWaitPercent   int `yaml:"deferred_wait_percent,omitempty" json:"deferred_wait_percent,omitempty"`
	// MaxTries is the maximum number of attempts for one request. RetryPercent is the retry budget:
	// the number of retries per hundred arriving requests.
	MaxTries     int `yaml:"max_tries,omitempty" json:"max_tries,omitempty"`
	RetryPercent int `yaml:"retry_percent,omitempty" json:"retry_percent,omitempty"`
	// EjectAfter is the number of consecutive failures after which a replica is ejected for
	// EjectTime; the time doubles with each consecutive ejection.
	EjectAfter int           `yaml:"eject_after,omitempty" json:"eject_after,omitempty"`
	EjectTime  time.Duration `yaml:"eject_time,omitempty" json:"eject_time,omitempty"`
	// Continue lets another replica resume a streamed response whose replica failed; default true.
	Continue *bool `yaml:"continue,omitempty" json:"continue"`
	// Memory limits the memory of a balancer's process.
	Memory Memory `yaml:"memory,omitempty" json:"memory,omitzero"`
	// SharePrefixes lets tenants share cached prefixes; default false.
	SharePrefixes bool `yaml:"share_prefixes,omitempty" json:"share_prefixes,omitempty"`
	// ExposeCache reports to clients with API keys how much of their prompts was cached; default
	// false.
	ExposeCache bool `yaml:"expose_cache,omitempty" json:"expose_cache,omitempty"`
	// AllowParameters lists the guarded parameters that requests may contain: see
	// GuardedParameters.
	AllowParameters []string `yaml:"allow_parameters,omitempty" json:"allow_parameters,omitempty"`
	// CORS lets web pages use the public API; nil = browsers reject its responses.
	CORS *CORS `yaml:"cors,omitempty" json:"cors,omitempty"`
	// AccessLog writes one log line per request.
	AccessLog bool `yaml:"access_log,omitempty" json:"access_log,omitempty"`
	// Traces is the base URL of an OpenTelemetry collector that accepts OTLP over HTTP; empty = the
	// value of OTEL_EXPORTER_OTLP_ENDPOINT, if set.
	Traces string `yaml:"traces,omitempty" json:"traces,omitempty"`
}

// Memory limits the memory of a balancer's process. Requests and Tenant are parts of Total.
type Memory struct {
	// Total is the memory limit of the process: systemd kills it above the limit (MemoryMax), and
	// the garbage collector runs more often from four fifths of it (GOMEMLIMIT).
	Total Size `yaml:"total,omitempty" json:"total,omitempty"`
	// Requests limits the memory for request bodies, from their first byte until no retry is
	// possible, and for buffered responses; requests above it are rejected with 503. Default: half
	// of Total.
	Requests Size `yaml:"requests,omitempty" json:"requests,omitempty"`
	// Tenant is the part of Requests that one tenant may use; requests above it are rejected with
	// 429. Default: a quarter of Requests, and at least MinTenantMemory.
	Tenant Size `yaml:"tenant,omitempty" json:"tenant,omitempty"`
}

// The minimum sizes of the parts of Memory: a tenant's part fits the largest body, and Requests
// fits two tenants.
const (
	MinMemory        = 256 * MiB
	MinRequestMemory = 64 * MiB
	MinTenantMemory  = 32 * MiB
)

// MemoryConflict is a key of Memory with the problem of its value.
type MemoryConflict struct{ Key, Problem string }

// Conflicts returns the conflicts between the parts, once defaults are filled in.
func (m Memory) Conflicts() (all []MemoryConflict) {
	for _, part := range []struct {
		key       string
		size, min Size
		max       Size
		whole     string
	}{
		{"total", m.Total, MinMemory, TiB, "1TiB"},
		{"requests", m.Requests, MinRequestMemory, m.Total / 4 * 3, "three quarters of total"},
		{"tenant", m.Tenant, MinTenantMemory, m.Requests, "requests"},
	} {
		switch {
		case part.size < part.min:
			all = append(all, MemoryConflict{part.key, fmt.Sprintf("must be at least %s", part.min)})
		case part.size > part.max:
			all = append(all, MemoryConflict{part.key, fmt.Sprintf("must be at most %s, which is %s", part.whole, part.max)})
		}
	}
	return all
}

// withDefaults fills in the values that depend on Total.
func (m Memory) withDefaults() Memory {
	if m.Requests == 0 {
		m.Requests = m.Total / 2
	}
	if m.Tenant == 0 {
		m.Tenant = max(m.Requests/4, MinTenantMemory)
	}
	return m
}

// Auth configures how clients authenticate: with API keys, with identity tokens, or with either.
type Auth struct {
	// KeysFrom is the source of the API keys (env:NAME or file:PATH), which ReadKeys parses; empty =
	// none.
	KeysFrom string `yaml:"keys_from,omitempty" json:"keys_from,omitempty"`
	// OIDC are the issuers of identity tokens that clients may present.
	OIDC []OIDC `yaml:"oidc,omitempty" json:"oidc,omitempty"`
	// Limits are the limits of keys and tokens that do not have their own.
	Limits KeyLimits `yaml:"limits,omitempty" json:"limits,omitzero"`
	// Tenants are limits of all keys and tokens of a tenant together, by tenant.
	Tenants map[string]KeyLimits `yaml:"tenants,omitempty" json:"tenants,omitempty"`
}

// TLS is the source of the public listener's certificate: either the files Cert and Key, or an ACME
// certificate authority.
type TLS struct {
	Cert string `yaml:"cert,omitempty" json:"cert,omitempty"`
	Key  string `yaml:"key,omitempty" json:"key,omitempty"`
	// ACME configures balancers to obtain and renew a certificate for DNS.Name; nil = Cert and Key
	// are used.
	ACME *ACME `yaml:"acme,omitempty" json:"acme,omitempty"`
}

// ACME configures how a certificate is obtained from a certificate authority over ACME (RFC 8555).
type ACME struct {
	// Email is the contact of the ACME account, which is created on first use.
	Email string `yaml:"email" json:"email"`
	// CA is CALetsEncrypt, CALetsEncryptStaging or the https URL of an ACME directory.
	CA string `yaml:"ca,omitempty" json:"ca,omitempty"`
	// Root is a PEM file of root certificates for the authority's server; empty = the system's
	// trusted roots.
	Root string `yaml:"root,omitempty" json:"root,omitempty"`
	// EAB binds the ACME account to an existing account at the certificate authority.
	EAB *EAB `yaml:"eab,omitempty" json:"eab,omitempty"`
	// Challenge is how the authority validates the name: ChallengeDNS, ChallengeHTTP or
	// ChallengeTLSALPN.
	Challenge string `yaml:"challenge,omitempty" json:"challenge,omitempty"`
	// Resolvers are the DNS servers, host:port, that are queried for the DNS record of a ChallengeDNS;
	// empty = the name servers of the hosted zone.
	Resolvers []string `yaml:"resolvers,omitempty" json:"resolvers,omitempty"`
}

// EAB is an external account binding (RFC 8555, section 7.3.4).
type EAB struct {
	KeyID string `yaml:"key_id" json:"key_id"`
	// HMAC is the source of the base64url key: env:NAME or file:PATH.
	HMAC string `yaml:"hmac" json:"hmac"`
}

// The certificate authorities that ACME.CA accepts by name.
const (
	CALetsEncrypt        = "letsencrypt"
	CALetsEncryptStaging = "letsencrypt-staging"
)

// DirectoryURL returns the URL of the authority's ACME directory.
func (a ACME) DirectoryURL() string {
	switch a.CA {
	case CALetsEncrypt, "":
		return "https://acme-v02.api.letsencrypt.org/directory"
	case CALetsEncryptStaging:
		return "https://acme-staging-v02.api.letsencrypt.org/directory"
	}
	return a.CA
}

// The challenges with which an ACME authority validates a name.
const (
	ChallengeDNS     = "dns-01"      // a TXT record in the hosted zone of the name
	ChallengeHTTP    = "http-01"     // a response on port 80
	ChallengeTLSALPN = "tls-alpn-01" // a handshake on port 443
)

// ObtainsCertificate reports whether balancers obtain the certificate of the service's name with a challenge.
func (s *Spec) ObtainsCertificate(challenge string) bool {
	t := s.Balancer.TLS
	return t != nil && t.ACME != nil && t.ACME.Challenge == challenge
}

// The DNS providers of a public name.
const (
	DNSRoute53  = "route53"  // a hosted zone of Amazon Route 53
	DNSEmbedded = "embedded" // a name server on this machine
)

// DNS is the public name of a service.
type DNS struct {
	Provider string `yaml:"provider" json:"provider"`
	Name     string `yaml:"name" json:"name"`
	// Zone is the DNS zone that contains the name, for Route 53 a hosted zone. For an embedded name
	// server the default is the name itself.
	Zone    string `yaml:"zone,omitempty" json:"zone"`
	Routing string `yaml:"routing,omitempty" json:"routing"` // latency or geo
	// TTL is how long resolvers may cache a response, in whole seconds.
	TTL time.Duration `yaml:"ttl,omitempty" json:"ttl"`
	// Private is true for a private hosted zone of Route 53, which only resolves inside AWS networks.
	Private bool `yaml:"private,omitempty" json:"private,omitempty"`
	// Listen is host:port of the embedded name server, UDP and TCP.
	Listen string `yaml:"listen,omitempty" json:"listen,omitempty"`
	// Clients are the networks that query the embedded name server, with their locations.
	Clients []DNSClient `yaml:"clients,omitempty" json:"clients,omitempty"`
}

// DNSClient is a network of clients with its nearest region or its round trips to regions.
type DNSClient struct {
	Network string `yaml:"network" json:"network"` // 10.1.0.0/16
	// Region is the service's region that contains the network or is nearest to it.
	Region Region `yaml:"region,omitempty" json:"region,omitempty"`
	// RTT is the known round trip from the network to each region.
	RTT map[Region]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// Autoscale configures the controller's scaling.
type Autoscale struct {
	Strategy string        `yaml:"strategy,omitempty" json:"strategy"`
	Forecast string        `yaml:"forecast,omitempty" json:"forecast"`
	Every    time.Duration `yaml:"every,omitempty" json:"every"`
	Donate   bool          `yaml:"donate,omitempty" json:"donate"`
	// DonateFor is how long a donated replica is kept before it is removed, unless it is reclaimed.
	DonateFor time.Duration `yaml:"donate_for,omitempty" json:"donate_for"`
	// ScaleToZeroAfter is the time without requests after which the last replicas of a model with
	// replicas.min 0 in every region are removed.
	ScaleToZeroAfter time.Duration `yaml:"scale_to_zero_after,omitempty" json:"scale_to_zero_after"`
	// DonatePrice is the revenue of a donated replica in USD per hour.
	DonatePrice float64 `yaml:"donate_price,omitempty" json:"donate_price,omitempty"`
	// TTFTMissTarget is the share of IW-F requests, 0..1, whose first token may miss the tier's target under
	// the strategy auto.
	TTFTMissTarget float64 `yaml:"late,omitempty" json:"late,omitempty" key:"ttft_miss_target"`
	// OverloadTolerance is how much more of the load may exceed the capacity with the strategy predictive than with the
	// rule threshold, as a share of the load, 0..1.
	OverloadTolerance float64 `yaml:"overload_tolerance,omitempty" json:"overload_tolerance,omitempty"`
	// MaxRTT is the longest round trip over which a plan may route load; 0 = any.
	MaxRTT time.Duration `yaml:"max_rtt,omitempty" json:"max_rtt,omitempty"`
	// MaxLaunchesPerHour is the maximum number of machines that the controller launches within an hour;
	// 0 = see Spec.LaunchesPerHour.
	MaxLaunchesPerHour int `yaml:"max_launches_per_hour,omitempty" json:"max_launches_per_hour,omitempty"`
	// Budget limits the cost of the service's machines; nil = no limit.
	Budget *Budget `yaml:"budget,omitempty" json:"budget,omitempty"`
}

// StoreSpec is the location of the state store; an empty URL means embedded.
type StoreSpec struct {
	URL string `yaml:"url,omitempty" json:"url,omitempty"`
	// Files is the folder of a bucket for the files of batches, s3://bucket/folder or gs://bucket/folder; empty = in the store.
	Files string `yaml:"files,omitempty" json:"files,omitempty"`
	// Backup are the scheduled backups; nil = none.
	Backup *StoreBackup `yaml:"backup,omitempty" json:"backup,omitempty"`
}

// StoreBackup is where and how often the leading controller backs up the store.
type StoreBackup struct {
	// To is a folder, or a folder of a bucket: s3://bucket/folder or gs://bucket/folder.
	To string `yaml:"to" json:"to"`
	// Every is the interval, Keep the number of backups that remain in the folder.
	Every time.Duration `yaml:"every,omitempty" json:"every,omitempty"`
	Keep  int           `yaml:"keep,omitempty" json:"keep,omitempty"`
}

// GCPSpec configures settings that all Google Cloud regions share.
type GCPSpec struct {
	// BalancerAccount is the e-mail address of the service account of balancer machines; empty =
	// the service account skyserve-NAME-lb of the project.
	BalancerAccount string `yaml:"balancer_account,omitempty" json:"balancer_account,omitempty"`
	// SpareAccount is the service account of the balancers that may not launch others, in services with more than three
	// balancers; empty = that of BalancerAccount, and controllers replace no balancer at Google.
	SpareAccount string `yaml:"spare_account,omitempty" json:"spare_account,omitempty"`
	// ReplicaAccount is the service account of replica machines; empty = the service account
	// skyserve-NAME-replica of the project, or none with --program URL.
	ReplicaAccount string `yaml:"replica_account,omitempty" json:"replica_account,omitempty"`
	// Federation lets the controllers in one cloud replace the only balancer of the other one, and those at Google change
	// records in Route 53, by workload identity federation; nil = true.
	Federation *bool `yaml:"federation,omitempty" json:"federation,omitempty"`
}

// LocalHosts configures the emulation of the local provider.
type LocalHosts struct {
	// Port is the first balancer's port; further balancers use the following ports. Admin ports are
	// 100 above, engines 200 above, the store 300 above. Default 8001.
	Port int `yaml:"port,omitempty" json:"port,omitempty"`
	// RTT is the emulated round trip between two local regions, keyed "us-eu".
	RTT map[string]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// ModelByName returns the model with a name or alias, or nil.
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

// BoundsFor returns the replica bounds of a model in a region: the model's own where set, otherwise
// the region's.
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

// RTTBetween returns the emulated round trip between two local regions, or 0 where none is set.
func (l LocalHosts) RTTBetween(a, b string) time.Duration {
	if d, ok := l.RTT[a+"-"+b]; ok {
		return d
	}
	return l.RTT[b+"-"+a]
}
