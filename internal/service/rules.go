package service

import (
	"regexp"
	"time"
)

// rule is what one key of service.yaml allows. Keys themselves come from the
// struct tags of Spec; a rule adds what a Go type cannot say. The validator,
// the JSON schema and the guide are all made from this table. A rule of a list
// or of a mapping speaks of its elements.
type rule struct {
	text     string // one sentence for editors and the guide
	required bool
	some     bool // a list that must hold at least one element
	unique   bool // a list of words without repetition
	lines    bool // text that may hold tabs and line ends
	secret   bool // a value that is never shown
	limit    *limits
	form     *form // of the text
	keys     *form // of the keys of a mapping
}

// limits bounds a number; of a duration, in nanoseconds, of a size, in bytes. Both ends are
// included, unless above says that least is not.
type limits struct {
	least, most float64
	above       bool
}

// form is a shape of text, as an expression and in words.
type form struct {
	expr  *regexp.Regexp
	words string
}

func shape(expr, words string) *form { return &form{regexp.MustCompile(expr), words} }

func from(least, most float64) *limits { return &limits{least: least, most: most} }

func above(least, most float64) *limits { return &limits{least: least, most: most, above: true} }

func sizes(least, most Size) *limits { return from(float64(least), float64(most)) }

func between(least, most time.Duration) *limits { return from(float64(least), float64(most)) }

// The shapes of text.
var (
	formName     = shape(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`, "lower-case letters, digits and dashes, a letter first, at most 40 characters")
	formModel    = shape(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$`, "letters, digits and . _ : / @ + -, at most 200 characters")
	formImage    = shape(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$`, "a container image such as vllm/vllm-openai:v0.33.0")
	formWeights  = shape(`^(s3://[a-z0-9][a-z0-9.-]{1,61}|gs://[a-z0-9][a-z0-9._-]{1,220})[a-z0-9](/[A-Za-z0-9_.=@+-]+)+$`, "a folder of a bucket such as s3://models/llama-3.1-8b or gs://models/llama-3.1-8b")
	formReady    = shape(`^/[!-~]*$`, "a path such as /health")
	formProfile  = shape(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`, "the name of a profile such as l4-llama3.1-8b")
	formVariable = shape(`^[A-Za-z_][A-Za-z0-9_]*$`, "the name of an environment variable")
	formRef      = shape(`^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$`, "env:NAME or file:PATH, never the value itself")
	formRegion   = shape(`^(aws|gcp|static|local)/[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`, "cloud/place such as aws/us-east-1, with the cloud aws, gcp, static or local")
	formEndpoint = shape(`^https?://[A-Za-z0-9.:_\[\]-]+(/[^?#\s]*)?$`, "an http or https URL such as http://10.0.0.7:8000, without user, query or fragment")
	formStore    = shape(`^(nats|tls|ws|wss)://[A-Za-z0-9.:_\[\]-]+$`, "a NATS URL such as nats://10.0.0.5:4222, without user or password")
	formInstance = shape(`^[a-z0-9][a-z0-9.-]{0,63}$`, "an instance type such as g6.xlarge")
	formVPC      = shape(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`, "the id or name of a network such as vpc-0a1b2c3d4e5f60718")
	formSubnet   = shape(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`, "the id or name of a subnet such as subnet-0a1b2c3d4e5f60718")
	formAccount  = shape(`^[a-z0-9][a-z0-9.-]*@[a-z0-9.-]+\.iam\.gserviceaccount\.com$`, "the e-mail address of a service account of your own, no default one, such as balancer@my-project.iam.gserviceaccount.com")
	formHost     = shape(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`, "a host name such as chat.example.com")
	formListen   = shape(`^(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$`, "an address and port such as 127.0.0.1:5300")
	formNetwork  = shape(`^[0-9A-Fa-f:.]+/[0-9]{1,3}$`, "a network such as 10.1.0.0/16")
	formPublic   = shape(`^https?://(\[[0-9A-Fa-f:.]+\]|[0-9.]+)(:[0-9]{1,5})?$`, "an http or https URL with an address, such as http://203.0.113.7:8001")
	formMail     = shape(`^[^@\s]+@[^@\s]+\.[^@\s]+$`, "an e-mail address")
	formCA       = shape(`^(letsencrypt|letsencrypt-staging|https://[A-Za-z0-9.:_\[\]-]+(/[^?#\s]*)?)$`, "letsencrypt, letsencrypt-staging or an https URL such as https://ca.example.com/acme/acme/directory")
	formPush     = shape(`^(pending|blind|outstanding:[1-9][0-9]{0,4})$`, "pending, blind or outstanding:N with N from 1 to 99999")
	formPair     = shape(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?-[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, "two local places such as us-eu")
	formSomeText = shape(`\S`, "some text")
	formKeyName  = shape(`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$`, "letters, digits and . _ @ / -, at most 64 characters")
	formDuration = shape(`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, "a duration such as 500ms, 60s or 1h30m")
)

// Limits that several keys share, or whose reason is worth a name.
const (
	// maxReplicas bounds a replica count: far beyond any fleet that one
	// controller manages, so more is a slip of the finger.
	maxReplicas = 10_000
	// maxMinute bounds a limit a minute: more than all GPUs of a service compute.
	maxMinute = 1e9
	// maxQuota bounds a quota: a thousand such minutes a day for a year are less.
	maxQuota = 1e15
	// localPorts is how far above its base the local layout reaches: the
	// controller's port is 310 above.
	localPorts = 310
	// challengePorts is how far above it reaches where balancers answer an authority on ports
	// of their own (http-01).
	challengePorts = 499
	// localSlots is how many balancers, and how many engines, fit between the
	// bases of two kinds of local port.
	localSlots = 100
)

// rules is keyed by type and key: Engine.speed.
var rules = map[string]rule{
	"Spec.name":      {text: "Names the service; part of its tags, certificates and files.", required: true, form: formName},
	"Spec.models":    {text: "The models that the service serves.", required: true, some: true},
	"Spec.regions":   {text: "The regions that replicas run in, each with its own balancers.", required: true, some: true},
	"Spec.balancer":  {text: "How every balancer of the service places requests."},
	"Spec.dns":       {text: "The public name of the service."},
	"Spec.autoscale": {text: "How the number of replicas follows the load."},
	"Spec.store":     {text: "Where state and history live; empty = embedded in the balancers."},
	"Spec.local":     {text: "What local regions emulate."},

	"Model.name":    {text: "The model as clients and engines call it.", required: true, form: formModel},
	"Model.aliases": {text: "Other names that clients may use for the model.", unique: true, form: formModel},
	"Model.engine":  {text: "The software that runs the model."},
	"Model.secrets": {
		text:   "Environment variables of the engine whose values are secret: where each value comes from (env:NAME or file:PATH).",
		secret: true, form: formRef, keys: formVariable,
	},
	"Model.gpus":    {text: "What a replica can run on; plan chooses among them."},
	"Model.slo":     {text: "Latency targets by tier: IW-F interactive fast, IW-N interactive normal, NIW batch."},
	"Model.regions": {text: "Replica bounds of this model in a region, where they differ from the region's.", keys: formRegion},

	"Engine.kind":          {text: "Which engine runs the model; openai is any OpenAI-compatible server, sim the simulated engine."},
	"Engine.image":         {text: "The container image of the engine.", form: formImage},
	"Engine.weights":       {text: "vllm and sglang: the folder of a bucket, s3:// at AWS or gs:// at Google, that the model is fetched from, with the machine's own identity; left out = from the hub.", form: formWeights},
	"Engine.args":          {text: "Arguments of the engine, added to its own.", lines: true},
	"Engine.env":           {text: "Environment variables of the engine that are not secret.", secret: true, lines: true, keys: formVariable},
	"Engine.port":          {text: "The port that the engine listens on.", limit: from(1, 65535)},
	"Engine.ready":         {text: "The path that answers 200 when the model does.", form: formReady},
	"Engine.max_num_seqs":  {text: "How many requests run at once in one engine.", limit: from(1, 65536)},
	"Engine.data_parallel": {text: "How many data-parallel ranks one engine has.", limit: from(1, MaxDataParallel)},
	"Engine.lora":          {text: "LoRA adapters that the engine loads, as name or name=path.", unique: true, form: formSomeText},
	"Engine.profile":       {text: "sim only: the GPU and model whose speed is simulated.", form: formProfile},
	"Engine.speed":         {text: "sim only: how many times faster than life it runs.", limit: above(0, 1000)},
	"Engine.kv_tokens":     {text: "sim only: how many tokens of KV cache fit, instead of the profile's.", limit: from(1, 1e9)},
	"Engine.flavor":        {text: "sim only: whose metrics it exports."},

	"GPU.type":  {text: "The type of GPU.", required: true},
	"GPU.count": {text: "How many GPUs one replica uses.", limit: from(1, MaxDataParallel)},
	"GPU.tps":   {text: "Uncached prompt tokens a second that one replica sustains within the latency target; left out = measured.", limit: above(0, 1e7)},
	"GPU.price": {text: "What one replica costs on demand, in USD an hour; left out = what its cloud asks, else the list price.", limit: above(0, 10_000)},

	"SLO.ttft":     {text: "Time to the first token.", limit: between(time.Millisecond, 24*time.Hour)},
	"SLO.e2e":      {text: "Time to the last token.", limit: between(time.Millisecond, 24*time.Hour)},
	"SLO.deadline": {text: "Time until a batch request is answered.", limit: between(time.Second, 30*24*time.Hour)},

	"Bounds.min": {text: "The fewest replicas.", limit: from(0, maxReplicas)},
	"Bounds.max": {text: "The most replicas.", limit: from(0, maxReplicas)},

	"RegionSpec.name":           {text: "The region, as cloud/place.", required: true, form: formRegion},
	"RegionSpec.balancers":      {text: "How many balancers the region has.", limit: from(1, 16)},
	"RegionSpec.replicas":       {text: "How many replicas of each model the region has."},
	"RegionSpec.capacity":       {text: "Capacity types, in the order in which they are tried.", unique: true},
	"RegionSpec.on_demand_base": {text: "How many replicas are on demand whatever the order says.", limit: from(0, maxReplicas)},
	"RegionSpec.reserved":       {text: "Commitments that are already paid for."},
	"RegionSpec.public":         {text: "local and static only: where others reach the region's balancers, one URL a balancer; for dns.", unique: true, form: formPublic},
	"RegionSpec.network":        {text: "aws and gcp only: the VPC that machines stand in: vpc-... at AWS, a name at Google; left out = the default one.", form: formVPC},
	"RegionSpec.subnets":        {text: "The subnets of network that machines stand in: at AWS, where they must be named, subnet-..., one a zone, at Google one name.", unique: true, form: formSubnet},
	"RegionSpec.access":         {text: "aws only: how a person gets a shell on the machines: ssm = by Session Manager; left out = not at all."},
	"RegionSpec.egress_per_gb":  {text: "What a GB that leaves the region costs, in USD; a plan weighs it against replicas where the load is.", limit: from(0, 100)},
	"RegionSpec.endpoints":      {text: "static only: the base URLs of the machines that are already there.", unique: true, form: formEndpoint},

	"Reservation.type":  {text: "The instance type that is committed.", required: true, form: formInstance},
	"Reservation.count": {text: "The number of them.", required: true, limit: from(1, maxReplicas)},
	"Reservation.price": {text: "What each costs, in USD an hour.", limit: from(0, 10_000)},

	"BalancerSpec.policy":      {text: "How a replica is chosen."},
	"BalancerSpec.push":        {text: "When a replica is given another request: pending (none waits there), outstanding:N (fewer than N in flight) or blind (at once).", form: formPush},
	"BalancerSpec.order":       {text: "In which order queued requests go: fcfs (as they came), edf (earliest deadline first), pf (interactive fast first) or dpa (by deadline and tier); between tenants always by turns."},
	"BalancerSpec.forward":     {text: "Whether requests may go to other regions."},
	"BalancerSpec.auth":        {text: "Who may send requests."},
	"BalancerSpec.tls":         {text: "The certificate of the public listener: cert and key, or acme."},
	"BalancerSpec.insecure":    {text: "aws and gcp only: whether the public port serves plain HTTP, so that API keys and prompts can be read on the way; without tls it must be true."},
	"BalancerSpec.tau":         {text: "How many queued requests a peer may hold and still be offered more (SkyLB 3.3).", limit: from(1, 100_000)},
	"BalancerSpec.queue_limit": {text: "How many requests a balancer holds; more are rejected with 429.", limit: from(1, 1_000_000)},
	"BalancerSpec.max_wait":    {text: "How long a request is held; then it is rejected with 503.", limit: between(time.Millisecond, 24*time.Hour)},
	"BalancerSpec.tau_n":       {text: "dpa only: how long after its target a request goes before all others (SageServe 6.5).", limit: between(time.Millisecond, 24*time.Hour)},
	"BalancerSpec.tau_p":       {text: "dpa only: how long before its target a request is urgent (SageServe 6.5).", limit: between(time.Millisecond, 24*time.Hour)},

	"BalancerSpec.hold_deferred":           {text: "Whether NIW requests wait apart until less of the KV memory of their model's replicas is used, for a part of the time until they are due."},
	"BalancerSpec.deferred_memory_percent": {text: "Of the KV memory of a model's replicas: while less is used, each of their reports lets one NIW request go that waits apart, below ten less two. With strategy auto the default is 65.", limit: from(11, 100)},
	"BalancerSpec.deferred_wait_percent":   {text: "Of the time until a NIW request is due (slo.NIW.deadline): after that it no longer waits apart. With strategy auto the default is 83.", limit: from(1, 100)},
	"BalancerSpec.max_tries":               {text: "How often one request is sent in all, to one replica after another.", limit: from(1, 20)},
	"BalancerSpec.retry_percent":           {text: "How many requests are sent again when much fails, of a hundred that arrive; 512 more are in stock.", limit: from(1, 1000)},
	"BalancerSpec.eject_after":             {text: "After how many failures in a row a replica is left out for a while; at most half of a model's are.", limit: from(1, 1_000_000)},
	"BalancerSpec.eject_time":              {text: "For how long it is left out, each time in a row twice as long, up to a minute.", limit: between(100*time.Millisecond, time.Hour)},
	"BalancerSpec.continue":                {text: "Whether another replica goes on with a streamed answer whose replica died."},
	"BalancerSpec.memory":                  {text: "How much memory each balancer may take."},
	"BalancerSpec.share_prefixes":          {text: "Whether tenants share what is known of cached prefixes: better hit rates for what all of them send, and each can find out what others sent."},
	"BalancerSpec.expose_cache":            {text: "Whether clients with API keys are told how much of their prompts was cached: X-Skyserve-Prefix-Match, and cached_tokens, which reads 0 otherwise."},
	"BalancerSpec.allow_parameters":        {text: "Parameters that requests may have and that are refused otherwise, because engines have been attacked with them; file_urls and private_urls are URLs of media.", unique: true},
	"BalancerSpec.access_log":              {text: "Whether each request has a line in the log."},
	"BalancerSpec.traces":                  {text: "The base URL of the OpenTelemetry collector that gets traces, over OTLP and HTTP; OTEL_EXPORTER_OTLP_ENDPOINT where it is left out.", form: formEndpoint},

	"Auth.keys_from": {text: "Where the API keys come from (env:NAME or file:PATH).", required: true, secret: true, form: formRef},

	"Auth.limits": {text: "What each key may use whose own line does not say otherwise; left out = without limit."},

	"Memory.total":    {text: "Memory of the process: systemd ends it beyond (MemoryMax), and garbage is collected harder from four fifths on (GOMEMLIMIT).", limit: sizes(MinMemory, TiB)},
	"Memory.requests": {text: "Memory for bodies of requests and answers that are held back; more is answered 503. Left out: half of total.", limit: sizes(MinRequestMemory, TiB)},
	"Memory.tenant":   {text: "How much of requests one tenant may have; more is answered 429. Left out: a quarter of requests, at least 32MiB.", limit: sizes(MinTenantMemory, TiB)},

	"KeyLimits.requests_per_minute": {text: "Requests a minute at one balancer; more are answered 429.", limit: from(1, maxMinute)},
	"KeyLimits.tokens_per_minute":   {text: "Tokens a minute, prompt and answer, at one balancer; more are answered 429.", limit: from(1, maxMinute)},
	"KeyLimits.concurrent":          {text: "Requests in flight at one balancer; more are answered 429.", limit: from(1, maxMinute)},
	"KeyLimits.requests_per_day":    {text: "Requests a day (UTC), over all regions.", limit: from(1, maxQuota)},
	"KeyLimits.tokens_per_day":      {text: "Tokens a day (UTC), over all regions.", limit: from(1, maxQuota)},
	"KeyLimits.requests_per_month":  {text: "Requests a month (UTC), over all regions.", limit: from(1, maxQuota)},
	"KeyLimits.tokens_per_month":    {text: "Tokens a month (UTC), over all regions.", limit: from(1, maxQuota)},

	"TLS.cert": {text: "The certificate file.", form: formSomeText},
	"TLS.key":  {text: "The key file.", form: formSomeText},
	"TLS.acme": {text: "Obtain and renew a certificate for dns.name from an ACME authority."},

	"ACME.email":     {text: "Whom the authority writes to: the contact of the ACME account.", required: true, form: formMail},
	"ACME.ca":        {text: "The authority: letsencrypt, letsencrypt-staging (for trying things out: nobody trusts its certificates), or the URL of another one's ACME directory.", form: formCA},
	"ACME.root":      {text: "A file of certificates (PEM) that the certificate of the authority's own server leads to; left out = those that the system trusts.", form: formSomeText},
	"ACME.eab":       {text: "External account binding: the account that you have at the authority by other means."},
	"ACME.challenge": {text: "How the authority makes sure of the name: dns-01 (a TXT record), http-01 (port 80) or tls-alpn-01 (port 443)."},
	"ACME.resolvers": {text: "dns-01 only: the DNS servers that are asked whether the record is there; left out = the name servers of the zone.", unique: true, form: formListen},

	"EAB.key_id": {text: "The key's id, as the authority gave it.", required: true, form: formSomeText},
	"EAB.hmac":   {text: "Where the key comes from (env:NAME or file:PATH), base64url, as the authority gave it.", required: true, secret: true, form: formRef},

	"DNS.provider": {text: "Who serves the zone.", required: true},
	"DNS.name":     {text: "The name that clients use.", required: true, form: formHost},
	"DNS.zone":     {text: "The zone that holds the name.", form: formHost},
	"DNS.routing":  {text: "How the region of a client is chosen."},
	"DNS.ttl":      {text: "How long an answer may be kept.", limit: between(time.Second, 24*time.Hour)},
	"DNS.private":  {text: "route53 only: whether the zone is one that only networks of AWS know."},
	"DNS.listen":   {text: "embedded only: where the name server listens, UDP and TCP.", form: formListen},
	"DNS.clients":  {text: "embedded only: where the networks are that clients ask from."},

	"DNSClient.network": {text: "The network; of those that hold a client the narrowest counts.", required: true, form: formNetwork},
	"DNSClient.region":  {text: "The region of the service that the network is in or next to.", form: formRegion},
	"DNSClient.rtt":     {text: "The round trip from the network to regions of the service, as local/us: 20ms.", keys: formRegion, limit: between(0, 10*time.Second)},

	"Autoscale.strategy":     {text: "What changes the number of replicas between plans: manual = nobody but you; reactive (by memory alone), lt-i (to the plan at once), lt-u (to the plan as memory asks for it), lt-ua (and beyond it where the load left its forecast) or auto (by the load, ahead of it by the forecast)."},
	"Autoscale.forecast":     {text: "How the load to come is forecast; auto lets plan choose."},
	"Autoscale.every":        {text: "How often a plan is made.", limit: between(time.Minute, 24*time.Hour)},
	"Autoscale.donate":       {text: "Whether a replica that is not needed is lent to the spot pool before it is removed."},
	"Autoscale.donate_for":   {text: "How long a donated replica is kept before it is removed, unless it is taken back; in a static region it stays.", limit: between(time.Second, 30*24*time.Hour)},
	"Autoscale.donate_price": {text: "What an hour of a donated replica earns, in USD; left out = nothing.", limit: from(0, 10_000)},
	"Autoscale.late":         {text: "auto only: the share of IW-F requests whose first token may come after the tier's target; more replicas are asked for where there are more of those, fewer where there are fewer.", limit: from(0.001, 0.5)},
	"Autoscale.max_rtt":      {text: "The longest round trip over which a plan lets one region serve another's load; left out = any.", limit: between(time.Millisecond, 10*time.Second)},

	"Spec.gcp": {text: "What all regions of Google Cloud have in common."},

	"GCPSpec.balancer_account": {text: "The service account that machines of balancers run as; left out = skyserve-NAME-lb of the project, which 'skyserve doctor' says how to make.", form: formAccount},
	"GCPSpec.replica_account":  {text: "The service account that machines of replicas run as; left out = nobody.", form: formAccount},

	"StoreSpec.url": {text: "An existing NATS server; left out = embedded.", form: formStore},

	"LocalHosts.port": {
		text:  "The first balancer's port; the others take the next ones, admin ports are 100 above, engines 200, the store 300.",
		limit: from(1, 65535-localPorts),
	},
	"LocalHosts.rtt": {text: "Emulated round trips between local regions, as us-eu: 100ms.", keys: formPair, limit: between(0, 10*time.Second)},
}
