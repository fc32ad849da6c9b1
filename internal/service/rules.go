package service

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

// rule is the constraint of one key of service.yaml. The keys come from the struct tags of Spec; a
// rule adds the constraints that a Go type cannot express. The validator, the JSON schema and the
// guide use this table. A rule of a list or mapping applies to its elements.
type rule struct {
	text      string // one sentence for editors and the guide
	required  bool
	nonEmpty  bool // a list with at least one element
	unique    bool // a list without duplicates
	multiline bool // text that may contain tabs and newlines
	secret    bool // a value that is never displayed
	limit     *limits
	limitNote string // why the limit is what it is, where the name of the key does not explain it
	form      *form  // of the text
	keys      *form  // of the keys of a mapping
}

// limits is the range of a number: of a duration in nanoseconds, of a size in bytes. Both ends are
// inclusive, unless above excludes min.
type limits struct {
	min, max float64
	above    bool
}

// form is a format of text, as a regular expression and as a description.
type form struct {
	expr        string
	description string
	compiled    func() *regexp.Regexp
}

// exprBucket matches a bucket or a folder of one.
const exprBucket = `(s3://[a-z0-9][a-z0-9.-]{1,61}|gs://[a-z0-9][a-z0-9._-]{1,220})[a-z0-9](/[A-Za-z0-9_.=@+-]+)*`

// IsBucket reports whether a folder is in a bucket of a cloud, not on this computer.
func IsBucket(folder string) bool {
	return strings.HasPrefix(folder, "s3://") || strings.HasPrefix(folder, "gs://")
}

func newForm(expr, description string) *form {
	return &form{expr, description, LazyPattern(expr)}
}

// LazyPattern returns a function that compiles a regular expression at its first use: to compile all takes milliseconds
// of every command.
func LazyPattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

func (f *form) matches(text string) bool { return f.compiled().MatchString(text) }

func numberRange(minimum, maximum float64) *limits { return &limits{min: minimum, max: maximum} }

func numberAbove(minimum, maximum float64) *limits {
	return &limits{min: minimum, max: maximum, above: true}
}

func sizeRange(minimum, maximum Size) *limits { return numberRange(float64(minimum), float64(maximum)) }

func durationRange(minimum, maximum time.Duration) *limits {
	return numberRange(float64(minimum), float64(maximum))
}

// The formats of text.
var (
	formName     = newForm(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`, "lower-case letters a-z, digits and dashes, at most 40 characters, starting with a letter, not ending with a dash")
	formModel    = newForm(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$`, "ASCII letters, digits and . _ : / @ + -, at most 200 characters, starting with a letter or digit")
	formFallback = newForm(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,240}$`, "the name of a model, or PROVIDER/MODEL")
	formImage    = newForm(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$`, "a container image such as vllm/vllm-openai:v0.33.0")
	formAdapter  = newForm(`^([A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.=@+-]+)+|gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9_.=@+-]+)+)$`, "a repository of the Hugging Face hub such as org/name, or a folder of a bucket such as s3://models/sql or gs://models/sql")
	formWeights  = newForm(`^(s3://[a-z0-9][a-z0-9.-]{1,61}|gs://[a-z0-9][a-z0-9._-]{1,220})[a-z0-9](/[A-Za-z0-9_.=@+-]+)+$`, "a folder of a bucket such as s3://models/llama-3.1-8b or gs://models/llama-3.1-8b")
	formFiles    = newForm(`^`+exprBucket+`$`, "a bucket or a folder of one such as s3://batches/chat or gs://batches/chat")
	formReady    = newForm(`^/[!-~]*$`, "a path such as /health")
	formProfile  = newForm(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`, "the name of a profile such as l4-llama3.1-8b")
	formVariable = newForm(`^[A-Za-z_][A-Za-z0-9_]*$`, "the name of an environment variable")
	formRef      = newForm(`^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$`, "env:NAME or file:PATH, never the value itself")
	formRegion   = newForm(`^(aws|gcp|static|local)/[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`, "CLOUD/REGION such as aws/us-east-1; CLOUD is aws, gcp, static or local")
	formEndpoint = newForm(`^https?://[A-Za-z0-9.:_\[\]-]+(/[^?#\s]*)?$`, "an http or https URL such as http://10.0.0.7:8000, without user, query or fragment")
	formOrigin   = newForm(`^(\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?)$`, "* or an origin such as https://app.example.com, in lower case and without a path")
	formReplica  = newForm(`^(https?://[A-Za-z0-9.:_\[\]-]+|dns\+http://[0-9._-]*[A-Za-z][A-Za-z0-9._-]*:[0-9]{1,5}|srv\+https?://[0-9._-]*[A-Za-z][A-Za-z0-9._-]*)(/[^?#\s]*)?$`,
		"an http or https URL such as http://10.0.0.7:8000, or a DNS name as dns+http://HOST:PORT or srv+http://NAME, without user, query or fragment")
	formStore       = newForm(`^(nats|tls|ws|wss)://[A-Za-z0-9.:_\[\]-]+$`, "a NATS URL such as nats://10.0.0.5:4222, without user or password")
	formReservation = newForm(`^([a-z]([-a-z0-9]{0,61}[a-z0-9])?|projects/[a-z0-9.:-]{1,63}/reservations/[a-z]([-a-z0-9]{0,61}[a-z0-9])?)$`, "a reservation such as cr-0123456789abcdef0, my-reservation or projects/P/reservations/R")
	formInstance    = newForm(`^[a-z0-9][a-z0-9.-]{0,63}$`, "an instance type such as g6.xlarge")
	formVPC         = newForm(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`, "the id or name of a network such as vpc-0a1b2c3d4e5f60718")
	formSubnet      = newForm(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`, "the id or name of a subnet such as subnet-0a1b2c3d4e5f60718")
	formAccount     = newForm(`^[a-z0-9][a-z0-9.-]*@[a-z0-9.-]+\.iam\.gserviceaccount\.com$`, "the e-mail address of a user-created service account such as balancer@my-project.iam.gserviceaccount.com, not of a default service account")
	formHost        = newForm(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`, "a host name such as chat.example.com")
	formListen      = newForm(`^(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$`, "an IP address and port such as 127.0.0.1:5300")
	formNetwork     = newForm(`^[0-9A-Fa-f:.]+/[0-9]{1,3}$`, "a network such as 10.1.0.0/16")
	formPublic      = newForm(`^https?://(\[[0-9A-Fa-f:.]+\]|[0-9.]+)(:[0-9]{1,5})?$`, "an http or https URL with an address, such as http://203.0.113.7:8001")
	formIssuer      = newForm(`^(https://[A-Za-z0-9.:_\[\]-]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?)(/[^?#\s]*)?$`, "an https URL such as https://login.example.com, or http on this machine, without user, query or fragment")
	formClaim       = newForm(`^[!-~]{1,200}$`, "the name of a claim such as org, or a path such as realm_access.roles")
	formMail        = newForm(`^[^@\s]+@[^@\s]+\.[^@\s]+$`, "an e-mail address")
	formCA          = newForm(`^(letsencrypt|letsencrypt-staging|https://[A-Za-z0-9.:_\[\]-]+(/[^?#\s]*)?)$`, "letsencrypt, letsencrypt-staging or an https URL such as https://ca.example.com/acme/acme/directory")
	formPush        = newForm(`^(pending|blind|outstanding:[1-9][0-9]{0,4})$`, "pending, blind or outstanding:N with N from 1 to 99999")
	formPair        = newForm(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?-[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, "the names of two local regions joined by a dash, such as us-eu")
	formSomeText    = newForm(`\S`, "a non-empty string")
	formKeyName     = newForm(`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$`, "ASCII letters, digits and . _ @ / -, at most 64 characters, starting with a letter or digit")
	formBackups     = newForm(`^([^:]+|`+exprBucket+`)$`, "a folder on this computer, or one of a bucket such as s3://backups/chat or gs://backups/chat")
	formDuration    = newForm(`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, "a duration such as 500ms, 60s or 1h30m")
	formImageKey    = newForm(`^(gpu|cpu|[A-Z][A-Z0-9-]{0,31})$`, "gpu, cpu or a GPU type such as H100")
)

// Limits that several keys share or that need a reason.
const (
	// maxReplicas is the maximum number of replicas. It is far above what one controller can manage,
	// so a larger number is a typo.
	maxReplicas = 10_000
	// maxMinute is the maximum of a per-minute limit: more than all GPUs of a service can process.
	maxMinute = 1e9
	// maxQuota is the maximum quota: more than a thousand such minutes per day for a year.
	maxQuota = 1e15
	// maxTokenPrice is the maximum price in USD per million tokens: several times that of the costliest
	// models.
	maxTokenPrice = 1000
	// maxBudget is the maximum budget in USD; its billionths fit an int64.
	maxBudget = 1e9
	// LocalPorts is the number of ports, from local.port on, that a service uses. provision/local divides them among
	// its processes.
	LocalPorts = 1000
	// localSlots is the maximum number of balancers, and of engines: the distance between the base
	// ports of two kinds.
	localSlots = 100
)

// rules is keyed by type and key: Engine.speed.
var rules = map[string]rule{
	"Spec.name":      {text: "The name of the service; part of its tags, certificates and files.", required: true, form: formName},
	"Spec.models":    {text: "The models that the service serves.", required: true, nonEmpty: true},
	"Spec.regions":   {text: "The regions in which replicas run, each with its own balancers.", required: true, nonEmpty: true},
	"Spec.splits":    {text: "Further model names: the requests for each are split among models by weight."},
	"Spec.providers": {text: "External OpenAI-compatible APIs that may serve requests as a fallback: prompts then leave the service."},
	"Spec.balancer":  {text: "The configuration of every balancer of the service."},
	"Spec.dns":       {text: "The public name of the service."},
	"Spec.autoscale": {text: "How the number of replicas follows the load."},
	"Spec.store":     {text: "The store of state and history; empty = embedded."},
	"Spec.local":     {text: "The emulation of local regions."},

	"Model.name":    {text: "The model name that clients and engines use.", required: true, form: formModel},
	"Model.aliases": {text: "Other names that clients may use for the model.", unique: true, form: formModel},
	"Model.engine":  {text: "The software that runs the model."},
	"Model.secrets": {
		text:   "Secret environment variables of the engine, each with the source of its value (env:NAME or file:PATH).",
		secret: true, form: formRef, keys: formVariable,
	},
	"Model.fallback":       {text: "The models that serve a request when this one cannot, in order: other models of the service, or PROVIDER/MODEL of providers.", unique: true, form: formFallback},
	"Model.fallback_after": {text: "The time in the queue after which a request goes to the next fallback. Default: 10s; at most balancer.max_wait.", limit: durationRange(time.Millisecond, 24*time.Hour)},

	"Model.ready_timeout": {text: "The time after its launch by which a replica must be ready; then it is terminated and launched again after a backoff.", limit: durationRange(time.Minute, 24*time.Hour)},

	"Model.gpus":    {text: "GPU configurations for replicas; plan chooses among them."},
	"Model.slo":     {text: "Latency targets by tier: fast (IW-F, interactive), normal (IW-N, interactive), deferred (NIW, batch)."},
	"Model.price":   {text: "The price of the model's tokens for clients, for costs in usage and for budgets. Default: unknown."},
	"Model.regions": {text: "Replica bounds of this model by region, where they differ from the region's.", keys: formRegion},

	"Engine.kind":          {text: "The engine that runs the model: openai is any OpenAI-compatible server, sim the simulated engine."},
	"Engine.image":         {text: "The container image of the engine.", form: formImage},
	"Engine.weights":       {text: "vllm and sglang only: the bucket folder to download the model from, s3:// on AWS or gs:// on Google Cloud, with the machine's own identity. Default: the Hugging Face hub.", form: formWeights},
	"Engine.args":          {text: "Additional command-line arguments of the engine.", multiline: true},
	"Engine.api_key":       {text: "The source (env:NAME or file:PATH) of the API key that the engine requires. Balancers send it with probes and requests. Engines that skyserve launches receive it, except those of kind openai.", secret: true, form: formRef},
	"Engine.env":           {text: "Non-secret environment variables of the engine.", secret: true, multiline: true, keys: formVariable},
	"Engine.port":          {text: "The port on which the engine listens.", limit: numberRange(1, 65535)},
	"Engine.ready":         {text: "The path of the readiness probe, which returns 200 once the model is loaded.", form: formReady},
	"Engine.max_num_seqs":  {text: "The maximum number of concurrent requests in one engine.", limit: numberRange(1, 65536)},
	"Engine.data_parallel": {text: "The number of data-parallel ranks of one engine.", limit: numberRange(1, MaxDataParallel)},
	"Engine.lora":          {text: "LoRA adapters that the engine loads, each as name, as name=path, or as name and source.", unique: true},
	"Engine.cache_events":  {text: "vllm, sglang and sim only: whether launched engines publish the changes of their KV cache, from which balancers learn which prompts each of them has cached. Default: vllm with the default image."},
	"Engine.profile":       {text: "sim only: the GPU and model whose speed is simulated.", form: formProfile},
	"Engine.speed":         {text: "sim only: the speed as a multiple of real time.", limit: numberAbove(0, 1000)},
	"Engine.kv_tokens":     {text: "sim only: the KV cache size in tokens; overrides the profile's.", limit: numberRange(1, 1e9)},
	"Engine.flavor":        {text: "sim only: the engine whose metrics the simulated engine exports."},

	"GPU.type":       {text: "The type of GPU.", required: true},
	"Adapter.name":   {text: "The adapter's name; or name=path, with its path in the container.", required: true, form: formSomeText},
	"Adapter.source": {text: "vllm and sglang only: where machines download the adapter from before the engine starts: a repository of the Hugging Face hub, org/name, or a bucket folder, s3:// on AWS or gs:// on Google Cloud.", form: formAdapter},

	"GPU.count":                    {text: "The number of GPUs of one replica.", limit: numberRange(1, MaxDataParallel)},
	"GPU.prompt_tokens_per_second": {text: "Uncached prompt tokens (not output tokens) per second that one replica sustains within the latency target. Default: measured.", limit: numberAbove(0, 1e7)},
	"GPU.price":                    {text: "On-demand price of one replica in USD per hour. Default: the cloud's current price, or the list price.", limit: numberAbove(0, 10_000)},
	"GPU.local_ssds":               {text: "The number of local SSDs, of 375 GB each, to attach to machines of Google Cloud, for images and weights. Default: none besides those of the machine type.", limit: numberRange(1, 32)},

	"Price.input":        {text: "The price of a million prompt tokens in USD.", required: true, limit: numberRange(0, maxTokenPrice)},
	"Price.cached_input": {text: "The price of a million prompt tokens that the engine had in its cache, in USD. Default: input.", limit: numberRange(0, maxTokenPrice)},
	"Price.output":       {text: "The price of a million output tokens in USD.", required: true, limit: numberRange(0, maxTokenPrice)},

	"SLO.ttft":     {text: "fast and normal only: target for the time to the first token, at the 95th percentile.", limit: durationRange(time.Millisecond, 24*time.Hour)},
	"SLO.e2e":      {text: "Target for the time to the last token. It is not used yet.", limit: durationRange(time.Millisecond, 24*time.Hour)},
	"SLO.deadline": {text: "deferred only: time until a batch request is completed.", limit: durationRange(time.Second, 30*24*time.Hour)},

	"Bounds.min": {text: "The minimum number of replicas.", limit: numberRange(0, maxReplicas)},
	"Bounds.max": {text: "The maximum number of replicas.", limit: numberRange(0, maxReplicas)},

	"Split.name":    {text: "The model name that clients use.", required: true, form: formModel},
	"Split.weights": {text: "The share of each model or adapter, as weights; 0 drains it. A session stays with one model.", required: true, keys: formModel, limit: numberRange(0, maxMinute)},

	"Provider.name":                {text: "The name of the provider in fallbacks, headers and metrics.", required: true, form: formName},
	"Provider.url":                 {text: "The base URL of the API, above /v1.", required: true, form: formEndpoint},
	"Provider.api_key":             {text: "The source (env:NAME or file:PATH) of the key of the API.", secret: true, form: formRef},
	"Provider.models":              {text: "The models of the provider that may be a fallback.", required: true, nonEmpty: true},
	"Provider.concurrent":          {text: "The maximum number of requests of a balancer in flight at the provider.", limit: numberRange(1, maxMinute)},
	"Provider.requests_per_minute": {text: "The maximum number of requests of a balancer per minute.", limit: numberRange(1, maxMinute)},
	"Provider.tokens_per_minute":   {text: "The maximum number of tokens of a balancer per minute.", limit: numberRange(1, maxMinute)},
	"Provider.usd_per_day":         {text: "The maximum cost of a balancer per day (UTC) in USD, by the prices of the models.", limit: numberAbove(0, 1e6)},

	"ProviderModel.name":  {text: "The name of the model at the provider.", required: true, form: formModel},
	"ProviderModel.price": {text: "The price of its tokens; required with usd_per_day."},

	"RegionSpec.name":           {text: "The region, as CLOUD/REGION.", required: true, form: formRegion},
	"RegionSpec.balancers":      {text: "The number of balancers in the region.", limit: numberRange(1, 16)},
	"RegionSpec.replicas":       {text: "The number of replicas of each model in the region."},
	"RegionSpec.capacity":       {text: "Capacity types in order of preference.", unique: true},
	"RegionSpec.on_demand_base": {text: "The number of replicas of each model that never run on spot or flex-start machines.", limit: numberRange(0, maxReplicas)},
	"RegionSpec.spot":           {text: "How interrupted spot replicas are replaced."},
	"RegionSpec.reserved":       {text: "Reserved capacity that is already paid for."},
	"RegionSpec.public_urls":    {text: "local and static only: the URLs at which clients reach the region's balancers, one per balancer; used for dns.", unique: true, form: formPublic},
	"RegionSpec.network":        {text: "aws and gcp only: the VPC of the machines: vpc-... on AWS, a name on Google Cloud. Default: the default VPC.", form: formVPC},
	"RegionSpec.subnets":        {text: "The subnets of the machines in network: on AWS, where they are required, subnet-..., one per availability zone; on Google Cloud one name.", unique: true, form: formSubnet},
	"RegionSpec.images":         {text: "aws and gcp only: the boot images of machines, by gpu, cpu or a GPU type. Default: the current public images.", form: formMachineImage, keys: formImageKey},
	"RegionSpec.access":         {text: "aws only: shell access to the machines: ssm = AWS Systems Manager Session Manager. Default: none."},
	"RegionSpec.egress_per_gb":  {text: "Price of egress from the region in USD per GB; a plan compares it with the cost of local replicas.", limit: numberRange(0, 100)},
	"RegionSpec.endpoints":      {text: "static only: the existing engines, each as its base URL (above /v1) or a DNS name of several engines, or as url and api_key.", unique: true},
	"RegionSpec.endpoints_file": {text: "static only: a file that lists machines and is watched for changes: one URL per line, or a list in YAML or JSON."},

	"SpotSpec.overprovision":    {text: "The number of spot replicas of each model beyond the desired number, within replicas.max.", limit: numberRange(0, maxOverprovision)},
	"SpotSpec.dynamic_fallback": {text: "Whether an interrupted spot replica is replaced at once by an on-demand replica, which is removed when a spot replica has been ready for 5 minutes."},

	"Endpoint.url":     {text: "The base URL of the engine, above /v1, or a DNS name of several engines.", required: true, form: formReplica},
	"Endpoint.api_key": {text: "The source (env:NAME or file:PATH) of the API key that the engine requires. Default: the model's engine.api_key, if the service has one model.", secret: true, form: formRef},

	"Reservation.id":    {text: "aws and gcp only: the capacity reservation that the machines use: cr-... on AWS, on Google Cloud its name, or projects/P/reservations/R of another project. Default: any open reservation.", form: formReservation},
	"Reservation.type":  {text: "The reserved instance type.", required: true, form: formInstance},
	"Reservation.count": {text: "The number of reserved machines.", required: true, limit: numberRange(1, maxReplicas)},
	"Reservation.price": {text: "Price of each in USD per hour.", limit: numberRange(0, 10_000)},

	"BalancerSpec.policy":            {text: "The load balancing policy: cost sends a request where its cost in seconds is lowest; docs/service-yaml.md explains them."},
	"BalancerSpec.push":              {text: "When a replica receives another request: pending (the engine has no pending request), outstanding:N (fewer than N are outstanding) or blind (always).", form: formPush},
	"BalancerSpec.order":             {text: "The queue order: fcfs (first come, first served), edf (earliest deadline first), pf (priority first: fast before normal before deferred) or dpa (deadline and priority aware: as pf, but requests near their deadline go first). Tenants always share the queue in turns."},
	"BalancerSpec.forward":           {text: "Whether to forward requests to other regions."},
	"BalancerSpec.auth":              {text: "API keys of clients."},
	"BalancerSpec.tls":               {text: "The certificate of the public listener: cert and key, or acme."},
	"BalancerSpec.insecure":          {text: "aws and gcp only: whether the public port serves plain HTTP, which exposes API keys and prompts in transit; must be true without tls."},
	"BalancerSpec.peer_queue_limit":  {text: "A peer with more queued requests than this receives no forwarded requests (tau in SkyLB 3.3).", limit: numberRange(1, 100_000)},
	"BalancerSpec.queue_limit":       {text: "Maximum number of requests in a balancer's queue; more are rejected with 429.", limit: numberRange(1, 1_000_000)},
	"BalancerSpec.max_wait":          {text: "Maximum time in the queue; then a request is rejected with 503.", limit: durationRange(time.Millisecond, 24*time.Hour)},
	"BalancerSpec.dpa_severe_after":  {text: "dpa only: how long after missing its target a request goes before all others (tau_n in SageServe 6.5).", limit: durationRange(time.Millisecond, 24*time.Hour)},
	"BalancerSpec.dpa_urgent_before": {text: "dpa only: how long before its target a request becomes urgent (tau_p in SageServe 6.5).", limit: durationRange(time.Millisecond, 24*time.Hour)},

	"BalancerSpec.max_cold_wait":           {text: "Maximum time in the queue while a model that scales to zero has no ready replica; then a request is rejected with 503.", limit: durationRange(time.Second, 24*time.Hour)},
	"BalancerSpec.hold_deferred":           {text: "Whether requests of tier NIW are deferred until the KV utilisation of their model's replicas is low, for at most a part of the time until their deadline."},
	"BalancerSpec.deferred_memory_percent": {text: "Deferred requests are released while the KV utilisation of a model's replicas is below this: one per load report, two per report when it is 10 percentage points lower. With strategy auto the default is 65.", limit: numberRange(11, 100)},
	"BalancerSpec.deferred_wait_percent":   {text: "A request of tier NIW is deferred for at most this share of the time until its deadline (slo.NIW.deadline), then queued like others. With strategy auto the default is 83.", limit: numberRange(1, 100)},
	"BalancerSpec.max_tries":               {text: "Maximum number of attempts for one request, the first included.", limit: numberRange(1, 20)},
	"BalancerSpec.retry_percent":           {text: "Retry budget: retries per hundred arriving requests, plus a burst of 512.", limit: numberRange(1, 1000)},
	"BalancerSpec.eject_after":             {text: "Number of consecutive failures after which a replica is ejected; at most half of a model's replicas are.", limit: numberRange(1, 1_000_000)},
	"BalancerSpec.eject_time":              {text: "Duration of an ejection; doubles with each consecutive ejection, up to a minute.", limit: durationRange(100*time.Millisecond, time.Hour)},
	"BalancerSpec.continue":                {text: "Whether another replica resumes a streamed response whose replica failed."},
	"BalancerSpec.memory":                  {text: "The memory limits of each balancer."},
	"BalancerSpec.share_prefixes":          {text: "Whether tenants share cached prefixes: improves the hit rate of common prompts, but a tenant can find out what others sent."},
	"BalancerSpec.expose_cache":            {text: "Whether responses to clients with API keys report how much of the prompt was cached: X-Skyserve-Prefix-Match, and cached_tokens, which is 0 otherwise."},
	"BalancerSpec.allow_parameters":        {text: "Request parameters to allow that are rejected by default, because engines have been attacked with them; file_urls and private_urls are URLs of media.", unique: true},
	"BalancerSpec.cors":                    {text: "Web pages that may use the public API from browsers."},
	"BalancerSpec.access_log":              {text: "Whether to log each request."},
	"BalancerSpec.traces":                  {text: "The base URL of the OpenTelemetry collector for traces, OTLP over HTTP. Default: OTEL_EXPORTER_OTLP_ENDPOINT.", form: formEndpoint},

	"CORS.origins": {text: "The origins of the pages, such as https://app.example.com, or * for every page.", required: true, nonEmpty: true, unique: true, form: formOrigin},
	"CORS.max_age": {text: "How long browsers may cache the permission.", limit: durationRange(time.Second, 24*time.Hour)},

	"Auth.keys_from": {text: "The source of the API keys (env:NAME or file:PATH).", secret: true, form: formRef},
	"Auth.oidc":      {text: "Issuers of identity tokens (OpenID Connect) that clients may present instead of API keys."},
	"Auth.limits":    {text: "Limits of each key and of each user with tokens that does not set its own. Default: unlimited."},
	"Auth.tenants":   {text: "Limits of all keys and tokens of a tenant together, by tenant.", keys: formKeyName},

	"OIDC.issuer":       {text: "The issuer's URL, exactly as in its tokens (iss); its keys are discovered there.", required: true, form: formIssuer},
	"OIDC.audience":     {text: "The audience that a token must have (aud): the service's name at the issuer.", required: true, form: formSomeText},
	"OIDC.tenant":       {text: "The tenant of all its tokens. Default: each user is a tenant.", form: formKeyName},
	"OIDC.tenant_claim": {text: "The claim with a token's tenant, such as org or a path such as user.org.", form: formClaim},
	"OIDC.tier":         {text: "The tier of requests that do not set one. Default: IW-F, or max_tier if that is less urgent."},
	"OIDC.max_tier":     {text: "The most urgent tier that a request may set. Default: any."},
	"OIDC.limits":       {text: "Limits of each user. Default: those of auth.limits."},
	"OIDC.role_claim":   {text: "The claim with a token's roles, a string or a list, such as roles or a path such as realm_access.roles.", form: formClaim},
	"OIDC.roles":        {text: "What tokens with a role may do; the first role of the list that a token has applies."},
	"OIDC.require_role": {text: "Whether tokens without any of the roles are rejected."},

	"OIDCRole.name":     {text: "The value of the role claim.", required: true, form: formSomeText},
	"OIDCRole.tier":     {text: "The tier of requests that do not set one. Default: that of the issuer."},
	"OIDCRole.max_tier": {text: "The most urgent tier that a request may set. Default: that of the issuer."},
	"OIDCRole.limits":   {text: "Limits of each user with the role. Default: those of the issuer."},

	"Memory.total":    {text: "Memory limit of the process: systemd kills it above (MemoryMax), and the garbage collector runs more often from four fifths of it (GOMEMLIMIT).", limit: sizeRange(MinMemory, TiB)},
	"Memory.requests": {text: "Memory for request bodies and buffered responses; more is rejected with 503. Default: half of total.", limit: sizeRange(MinRequestMemory, TiB)},
	"Memory.tenant":   {text: "The part of memory.requests that one tenant may use; more is rejected with 429. Default: a quarter of requests, at least 32MiB.", limit: sizeRange(MinTenantMemory, TiB)},

	"KeyLimits.requests_per_minute": {text: "Requests per minute at one balancer; more are rejected with 429.", limit: numberRange(1, maxMinute)},
	"KeyLimits.tokens_per_minute":   {text: "Prompt and output tokens per minute at one balancer; more are rejected with 429.", limit: numberRange(1, maxMinute)},
	"KeyLimits.concurrent":          {text: "Requests in flight at one balancer; more are rejected with 429.", limit: numberRange(1, maxMinute)},
	"KeyLimits.requests_per_day":    {text: "Requests per day (UTC) in all regions.", limit: numberRange(1, maxQuota)},
	"KeyLimits.tokens_per_day":      {text: "Tokens per day (UTC) in all regions.", limit: numberRange(1, maxQuota)},
	"KeyLimits.requests_per_month":  {text: "Requests per month (UTC) in all regions.", limit: numberRange(1, maxQuota)},
	"KeyLimits.tokens_per_month":    {text: "Tokens per month (UTC) in all regions.", limit: numberRange(1, maxQuota)},
	"KeyLimits.usd_per_day":         {text: "Cost per day (UTC) in all regions in USD, by the prices of the models.", limit: numberAbove(0, maxBudget)},
	"KeyLimits.usd_per_month":       {text: "Cost per month (UTC) in all regions in USD, by the prices of the models.", limit: numberAbove(0, maxBudget)},

	"TLS.cert": {text: "The certificate file.", form: formSomeText},
	"TLS.key":  {text: "The key file.", form: formSomeText},
	"TLS.acme": {text: "Obtain and renew a certificate for dns.name from a certificate authority with ACME."},

	"ACME.email":     {text: "The contact e-mail address of the ACME account.", required: true, form: formMail},
	"ACME.ca":        {text: "The certificate authority: letsencrypt, letsencrypt-staging (for tests: clients do not trust its certificates), or the URL of an ACME directory.", form: formCA},
	"ACME.root":      {text: "A PEM file of root certificates for the server of the certificate authority. Default: the system's trusted roots.", form: formSomeText},
	"ACME.eab":       {text: "External account binding: an existing account at the certificate authority."},
	"ACME.challenge": {text: "How the certificate authority validates the name: dns-01 (a TXT record), http-01 (port 80) or tls-alpn-01 (port 443)."},
	"ACME.resolvers": {text: "dns-01 only: the DNS servers that are queried for the DNS record. Default: the name servers of the hosted zone.", unique: true, form: formListen},

	"EAB.key_id": {text: "The key ID from the certificate authority.", required: true, form: formSomeText},
	"EAB.hmac":   {text: "The source of the base64url key from the certificate authority (env:NAME or file:PATH).", required: true, secret: true, form: formRef},

	"DNS.provider": {text: "The DNS provider of the zone: route53 (a hosted zone) or embedded (a name server on this machine).", required: true},
	"DNS.name":     {text: "The DNS name that clients use.", required: true, form: formHost},
	"DNS.zone":     {text: "The DNS zone that contains the name; for route53 a hosted zone.", form: formHost},
	"DNS.routing":  {text: "How the region for a client is chosen: latency (lowest round trip) or geo (nearest)."},
	"DNS.ttl":      {text: "How long resolvers may cache a response.", limit: durationRange(time.Second, 24*time.Hour)},
	"DNS.private":  {text: "route53 only: whether the hosted zone is private; it only resolves inside AWS networks."},
	"DNS.listen":   {text: "embedded only: the listen address of the name server, UDP and TCP.", form: formListen},
	"DNS.clients":  {text: "embedded only: the locations of client networks."},

	"DNSClient.network": {text: "The network; the longest matching prefix applies.", required: true, form: formNetwork},
	"DNSClient.region":  {text: "The service's region that contains the network or is nearest to it.", form: formRegion},
	"DNSClient.rtt":     {text: "Round trips from the network to the service's regions, as local/us: 20ms.", keys: formRegion, limit: durationRange(0, 10*time.Second)},

	"Autoscale.strategy":           {text: "How the number of replicas changes between plans: manual (only by an operator), reactive (by KV utilisation), lt-i (to the plan immediately), lt-u (towards the plan by KV utilisation), lt-ua (lt-u, and beyond the plan where the load deviates from the forecast), predictive (follows the load of each region and its mean forecast, with at most the replica-hours of a threshold rule) or auto (by the load and its forecast)."},
	"Autoscale.forecast":           {text: "The forecaster of the load; auto lets plan choose."},
	"Autoscale.every":              {text: "How often a plan is computed.", limit: durationRange(time.Minute, 24*time.Hour)},
	"Autoscale.donate":             {text: "Whether an excess replica of a local region is donated to other work before it is removed. In static regions it always is, in clouds never."},
	"Autoscale.donate_for":         {text: "How long a donated replica is kept before it is removed, unless it is reclaimed; in a static region it is kept forever.", limit: durationRange(time.Second, 30*24*time.Hour)},
	"Autoscale.donate_price":       {text: "Revenue of a donated replica in USD per hour. Default: 0.", limit: numberRange(0, 10_000)},
	"Autoscale.ttft_miss_target":   {text: "auto only: the tolerated share of IW-F requests that miss the tier's TTFT target; auto aims at 0.6 of it.", limit: numberRange(0.001, 0.5)},
	"Autoscale.overload_tolerance": {text: "predictive and plan backtest only: how much more of the load may exceed the capacity than with the rule threshold, as a share of the load. Default: 0.", limit: numberRange(0, 0.05)},
	"Autoscale.max_rtt":            {text: "The longest round trip over which a plan routes load to another region. Default: any.", limit: durationRange(time.Millisecond, 10*time.Second)},

	"Autoscale.max_launches_per_hour": {text: "The maximum number of machines that the controller launches within an hour. Default: twice the sum of replicas.max, at least 20.", limit: numberRange(1, maxReplicas)},
	"Autoscale.budget":                {text: "The maximum cost of the service's machines. Default: unlimited."},

	"Budget.per_hour": {text: "The maximum cost of all running machines of the service in USD per hour.", required: true, limit: numberAbove(0, 1e6)},

	"Autoscale.scale_to_zero_after": {text: "How long a model with replicas.min 0 in every region gets no requests before its last replicas are removed; not with strategy manual.", limit: durationRange(time.Second, 30*24*time.Hour)},

	"Spec.gcp": {text: "Settings that all Google Cloud regions share."},

	"GCPSpec.balancer_account": {text: "The service account of balancer machines. Default: skyserve-NAME-lb of the project; 'skyserve doctor' prints how to create it.", form: formAccount},
	"GCPSpec.federation":       {text: "Whether machines of one cloud replace the only balancer of the other one, and those at Google change records in Route 53, by workload identity federation; only in services with three balancers or more. Default: true."},
	"GCPSpec.spare_account":    {text: "The service account of balancer machines that may not launch other balancers, in services with more than three balancers. Default: none; then a lost balancer at Google is replaced by 'skyserve up' only.", form: formAccount},
	"GCPSpec.replica_account":  {text: "The service account of replica machines. Default: skyserve-NAME-replica of the project; none with --program URL.", form: formAccount},

	"StoreSpec.files":  {text: "The folder of a bucket for the files of batches, with the identity of the machines in clouds, else the credentials of the balancers' environment. Default: in the store.", form: formFiles},
	"StoreSpec.url":    {text: "The URL of an existing NATS server. Default: embedded.", form: formStore},
	"StoreSpec.backup": {text: "Scheduled backups of the store. Default: none."},

	"StoreBackup.to":    {text: "The folder for backups, which must exist, or a folder of a bucket, with the credentials of the controllers' environment.", required: true, form: formBackups},
	"StoreBackup.every": {text: "How often the store is backed up.", limit: durationRange(time.Minute, 7*24*time.Hour)},
	"StoreBackup.keep":  {text: "The number of backups that are kept.", limit: numberRange(1, 1000)},

	"LocalHosts.port": {
		text:  "The first balancer's port; further balancers use the following ports. Admin ports are 100 above, engines 200, the store 300, others up to 999.",
		limit: numberRange(1, 65535-LocalPorts), limitNote: fmt.Sprintf("a service uses ports up to %d above local.port", LocalPorts-1),
	},
	"LocalHosts.rtt": {text: "Emulated round trips between two local regions, each as us-eu: 100ms.", keys: formPair, limit: durationRange(0, 10*time.Second)},
}
