package service

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// genSpec draws a valid Spec without unset keys.
func genSpec(t *rapid.T) *Spec {
	s := &Spec{
		Name:     rapid.StringMatching(`[a-z]([a-z0-9-]{0,12}[a-z0-9])?`).Draw(t, "name"),
		Regions:  genRegions(t),
		Balancer: genBalancer(t),
		Autoscale: Autoscale{
			Strategy: rapid.SampledFrom(ImplementedStrategies()).Draw(t, "strategy"),
			Forecast: rapid.SampledFrom(ImplementedForecasters()).Draw(t, "forecast"),
			Every:    genDuration(t, time.Minute, 24*time.Hour),
			Donate:   rapid.Bool().Draw(t, "donate"),

			DonateFor:         genDuration(t, time.Second, 30*24*time.Hour),
			ScaleToZeroAfter:  genDuration(t, time.Second, 30*24*time.Hour),
			DonatePrice:       float64(rapid.IntRange(0, 400).Draw(t, "donate price")) / 100,
			OverloadTolerance: float64(rapid.IntRange(0, 500).Draw(t, "tolerance")) / 10000,
			TTFTMissTarget:    float64(rapid.IntRange(1, 500).Draw(t, "late")) / 1000,
		},
		LocalHosts: LocalHosts{Port: rapid.IntRange(1, 65535-LocalPorts).Draw(t, "port")},
	}
	if rapid.Bool().Draw(t, "has dns") {
		s.DNS = genDNS(t, s.Regions)
	}
	if rapid.Bool().Draw(t, "has accounts") && s.DNS == nil {
		s.Regions = append(s.Regions, RegionSpec{
			Name: "gcp/us-central1", Balancers: 1, Replicas: genBounds(t, 1), Capacity: []CapacityType{CapacityOnDemand}, Network: "prod", Subnets: []string{"west"},
		})
		s.GCP = GCPSpec{BalancerAccount: "lb@my-project.iam.gserviceaccount.com", ReplicaAccount: "replica@my-project.iam.gserviceaccount.com", SpareAccount: "spare@my-project.iam.gserviceaccount.com"}
	}
	s.Balancer.Insecure = s.Balancer.TLS == nil && slices.ContainsFunc(s.Regions, func(r RegionSpec) bool { return r.Name.Rented() })
	if s.DNS != nil && s.Balancer.TLS != nil && rapid.Bool().Draw(t, "has acme") && genACME(t, s) {
		s.Balancer.TLS.Cert, s.Balancer.TLS.Key = "", ""
	}
	if rapid.Bool().Draw(t, "has store") {
		s.Store.URL = "nats://10.0.0.5:4222"
	}
	if rapid.Bool().Draw(t, "has rtt") {
		s.LocalHosts.RTT = map[string]time.Duration{"us-eu-1": genDuration(t, 0, 10*time.Second)}
	}
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,10}`), 2, 6, rapid.ID[string]).Draw(t, "names")
	s.Models = []Model{genModel(t, names[0], names[2:], s.Regions), genModel(t, names[1], nil, s.Regions)}
	for i := range s.Models {
		s.Models[i].ReadyTimeout = genDuration(t, time.Minute, 24*time.Hour)
	}
	if rapid.Bool().Draw(t, "has launch bounds") {
		s.Autoscale.MaxLaunchesPerHour = rapid.IntRange(1, maxReplicas).Draw(t, "launches")
		s.Autoscale.Budget = &Budget{PerHour: float64(rapid.IntRange(1, 400).Draw(t, "budget")) / 4}
	}
	return s
}

// genACME draws an ACME configuration, where the regions and the name allow it.
func genACME(t *rapid.T, s *Spec) bool {
	a := &ACME{Email: "ops@example.com", CA: rapid.SampledFrom([]string{CALetsEncrypt, CALetsEncryptStaging}).Draw(t, "ca")}
	if s.DNS.Private || rapid.Bool().Draw(t, "own ca") {
		a.CA, a.Root = "https://ca.example.com:9000/acme/acme/directory", "root: #.pem"
	}
	if rapid.Bool().Draw(t, "eab") {
		a.EAB = &EAB{KeyID: "kid-1", HMAC: "env:EAB"}
	}
	amazon := slices.ContainsFunc(s.Regions, func(r RegionSpec) bool { return r.Name.Cloud() == CloudAWS })
	switch {
	case s.DNS.Provider != DNSRoute53:
		return false // local regions here have no public address
	case amazon:
		a.Challenge = rapid.SampledFrom([]string{ChallengeDNS, ChallengeHTTP, ChallengeTLSALPN}).Draw(t, "challenge")
	default:
		a.Challenge = ChallengeDNS
	}
	if a.Challenge == ChallengeDNS && (s.DNS.Private || rapid.Bool().Draw(t, "resolvers")) {
		a.Resolvers = []string{"10.0.0.2:53", "[fd00::2]:53"}
	}
	s.Balancer.TLS.ACME = a
	return true
}

func genDNS(t *rapid.T, regions []RegionSpec) *DNS {
	d := &DNS{Provider: DNSRoute53, Name: "a.b.example.com", Zone: "example.com", Routing: "geo", TTL: time.Second}
	if slices.ContainsFunc(regions, func(r RegionSpec) bool { return r.Name.Rented() }) || rapid.Bool().Draw(t, "route53") {
		d.Private = rapid.Bool().Draw(t, "private")
		return d
	}
	d.Provider, d.Listen = DNSEmbedded, "[::1]:5353"
	if rapid.Bool().Draw(t, "clients") {
		d.Clients = []DNSClient{
			{Network: "10.1.0.0/16", Region: regions[0].Name},
			{Network: "fd00::/8", Region: regions[1].Name, RTT: map[Region]time.Duration{regions[0].Name: genDuration(t, 0, 10*time.Second)}},
		}
	}
	return d
}

func genDuration(t *rapid.T, minimum, maximum time.Duration) time.Duration {
	return time.Duration(rapid.Int64Range(int64(minimum), int64(maximum)).Draw(t, "duration"))
}

func genBounds(t *rapid.T, minMax int) Bounds {
	b := Bounds{Min: rapid.IntRange(0, 10).Draw(t, "min")}
	b.Max = rapid.IntRange(max(b.Min, minMax), 12).Draw(t, "max")
	return b
}

func genRegions(t *rapid.T) []RegionSpec {
	regions := []RegionSpec{
		{Name: "local/us", Balancers: 1, Replicas: genBounds(t, 1)},
		{Name: "local/eu-1", Balancers: 16, Replicas: genBounds(t, 1)},
		{
			Name: "static/paris", Balancers: 2, Replicas: Bounds{0, 2}, Endpoints: []Endpoint{{URL: "http://10.0.0.7:8000"}, {URL: "https://[::1]/api", APIKey: "file:/run/key"}},
			PublicURLs: []string{"http://203.0.113.7:8001", "https://[2001:db8::7]"},
		},
	}
	rented := RegionSpec{Name: "aws/us-east-1", Balancers: 2, Replicas: genBounds(t, 1)}
	rented.Capacity = rapid.SampledFrom([][]CapacityType{
		{CapacityOnDemand}, {CapacityReserved, CapacityOnDemand}, {CapacitySpot, CapacityOnDemand, CapacityReserved},
	}).Draw(t, "capacity")
	if rapid.Bool().Draw(t, "network") {
		rented.Network, rented.Subnets = "vpc-0a1b2c3d4e5f60718", []string{"subnet-0a1b2c3d", "subnet-0a1b2c3d4e5f60718"}
		rented.Access = AccessSSM
	}
	rented.OnDemandBase = rapid.IntRange(0, rented.Replicas.Max).Draw(t, "base")
	if rented.Capacity[0] == CapacitySpot && rented.Replicas.Max > rented.Replicas.Min+1 {
		rented.Spot = &SpotSpec{Overprovision: 1, DynamicFallback: rapid.Bool().Draw(t, "fallback")}
	}
	if len(rented.Capacity) > 1 && rented.Capacity[0] == CapacityReserved {
		rented.Reserved = []Reservation{{Type: "g6.xlarge", Count: 3, Price: rapid.Float64Range(0, 10_000).Draw(t, "price")}}
	}
	return append(regions, rented)[:rapid.IntRange(2, 4).Draw(t, "regions")]
}

func genBalancer(t *rapid.T) BalancerSpec {
	forward := rapid.Bool().Draw(t, "forward")
	b := BalancerSpec{
		Policy:                rapid.SampledFrom(ImplementedPolicies()).Draw(t, "policy"),
		Push:                  rapid.SampledFrom([]string{"pending", "blind", "outstanding:1", "outstanding:99999"}).Draw(t, "push"),
		Order:                 rapid.SampledFrom(ImplementedOrders()).Draw(t, "order"),
		Forward:               &forward,
		PeerQueueLimit:        rapid.IntRange(1, 100_000).Draw(t, "tau"),
		SevereAfter:           time.Duration(rapid.IntRange(1, 86_400_000).Draw(t, "tau_n")) * time.Millisecond,
		UrgentBefore:          time.Duration(rapid.IntRange(1, 86_400_000).Draw(t, "tau_p")) * time.Millisecond,
		QueueLimit:            rapid.IntRange(1, 1_000_000).Draw(t, "queue limit"),
		MaxWait:               genDuration(t, time.Millisecond, 24*time.Hour),
		MaxColdWait:           genDuration(t, time.Second, 24*time.Hour),
		DeferredMemoryPercent: rapid.IntRange(11, 100).Draw(t, "memory"), DeferredWaitPercent: rapid.IntRange(1, 100).Draw(t, "wait"),
		MaxTries: rapid.IntRange(1, 20).Draw(t, "tries"), RetryPercent: rapid.IntRange(1, 1000).Draw(t, "retries"),
		EjectAfter: rapid.IntRange(1, 1_000_000).Draw(t, "eject after"), EjectTime: genDuration(t, 100*time.Millisecond, time.Hour),
		Continue: &forward, HoldDeferred: &forward,
	}
	b.Memory.Total = Size(rapid.Int64Range(256, 1<<20).Draw(t, "total")) * MiB
	b.Memory.Requests = Size(rapid.Int64Range(64<<10, int64(b.Memory.Total/4*3/KiB)).Draw(t, "requests")) * KiB
	b.Memory.Tenant = Size(rapid.Int64Range(32<<10, int64(b.Memory.Requests/KiB)).Draw(t, "tenant")) * KiB
	if rapid.Bool().Draw(t, "allows") {
		b.AllowParameters = []string{GuardedParameters()[rapid.IntRange(0, 15).Draw(t, "allowed")].Name}
	}
	if rapid.Bool().Draw(t, "cors") {
		b.CORS = &CORS{Origins: []string{"https://a.example.com", AnyOrigin, "tauri://localhost"}, MaxAge: genDuration(t, time.Second, 24*time.Hour)}
	}
	if rapid.Bool().Draw(t, "secured") {
		b.Auth, b.TLS = &Auth{KeysFrom: "file:/etc/keys, and: more"}, &TLS{Cert: "a b.pem", Key: "#k.pem"}
		genTokens(t, b.Auth)
	}
	return b
}

// genText draws printable text, including text with a meaning in YAML.
func genText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[ -~]{0,12}`),
		rapid.SampledFrom([]string{
			"", "null", "~", "true", "no", "1", "010", "0x1f", "1e3", "-", "- a", "a: b", "#", "a #b", "2001-01-01",
			"'", `"`, `\`, "{", "[", "*a", "&a", "!t", "%", "@", "`", "|", ">", "a\nb", "\n", "a\n", " a ", "\t", "a\n\n", "\n a", "é", "日本", "?", "? a", "=", "<<", "---", "...",
		}),
	)
}

// genTokens draws issuers of identity tokens, and limits without a budget.
func genTokens(t *rapid.T, a *Auth) {
	if !rapid.Bool().Draw(t, "has issuers") {
		return
	}
	limits := KeyLimits{RequestsPerMinute: rapid.IntRange(0, 10).Draw(t, "requests"), TokensPerDay: 7}
	a.Limits, a.Tenants = limits, map[string]KeyLimits{"acme": limits, "7@b/c": {Concurrent: 3}}
	a.OIDC = []OIDC{
		{Issuer: "https://login.example.com/realms/a", Audience: "a: b", TenantClaim: "https://a.b/org", Tier: TierNormal, MaxTier: TierNormal},
		{
			Issuer: "http://127.0.0.1:9000", Audience: "chat", Tenant: "no", Limits: limits, RoleClaim: "a.b", RequireRole: true,
			Roles: []OIDCRole{{Name: "1", MaxTier: TierDeferred, Limits: limits}, {Name: "b c"}},
		},
	}
}

func genModel(t *rapid.T, name string, aliases []string, regions []RegionSpec) Model {
	m := Model{Name: name, Engine: genEngine(t)}
	for i := range m.Engine.LoRA { // an adapter belongs to one model
		m.Engine.LoRA[i].Name = name + "-" + m.Engine.LoRA[i].Name
	}
	if len(aliases) > 0 {
		m.Aliases = aliases
	}
	if rapid.Bool().Draw(t, "full") {
		m.Secrets = map[string]string{"A": "env:B", "C_1": "file:/x y/#z"}
		m.GPUs = []GPU{{Type: "L4", Count: 2, TPS: rapid.Float64Range(0.1, 1e7).Draw(t, "tps")}, {Type: "L4", Count: 4}, {Type: "H100", Count: 8}}
		m.SLO = map[Tier]SLO{TierFast: {TTFT: genDuration(t, time.Millisecond, time.Second), E2E: time.Hour}, TierDeferred: {Deadline: time.Hour}, TierNormal: {}}
		cached := rapid.SampledFrom([]float64{0, 0.05}).Draw(t, "cached")
		m.Price = rapid.SampledFrom([]*Price{{Input: 0.2, CachedInput: &cached, Output: 0}, {Input: 0.0375, Output: 1000}}).Draw(t, "model price")
		m.Regions = map[Region]Bounds{regions[0].Name: genBounds(t, 0), regions[1].Name: {0, 0}}
	}
	return m
}

func genEngine(t *rapid.T) Engine {
	e := Engine{Kind: rapid.SampledFrom([]EngineKind{EngineVLLM, EngineSGLang, EngineOpenAI, EngineSim}).Draw(t, "kind")}
	if args := rapid.SliceOfN(genText(), 0, 3).Draw(t, "args"); len(args) > 0 {
		e.Args = args
	}
	if rapid.Bool().Draw(t, "env") {
		e.Env = map[string]string{"A": genText().Draw(t, "value"), "_b": "x"}
		e.Image, e.Port, e.Ready, e.MaxNumSeqs, e.DataParallel = "vllm/vllm-openai:v1", 8000, "/health?x=y#z", 256, 2
		e.LoRA = []Adapter{{Name: "sql=/adapters/sql"}, {Name: "a b"}}
		if e.Kind == EngineVLLM || e.Kind == EngineSGLang {
			e.LoRA = append(e.LoRA, Adapter{Name: "law", Source: "org/law-lora"})
			on := rapid.Bool().Draw(t, "cache events")
			e.CacheEvents = &on
		}
	}
	if e.Kind == EngineSim {
		e.Profile, e.Flavor = "l4-llama3.1-8b", rapid.SampledFrom([]string{"vllm", "sglang"}).Draw(t, "flavor")
		e.Speed = rapid.Float64Range(1e-6, 1000).Draw(t, "speed")
		e.KVTokens = rapid.IntRange(0, 1e9).Draw(t, "kv")
	}
	return e
}

// A valid Spec survives Marshal and Parse unchanged.
func TestMarshalIsParsedBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genSpec(t)
		text, err := Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse("service.yaml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v\nfrom\n%s", got, want, text)
		}
	})
}

// A valid file with any word replaced is either valid or rejected with errors on one of its lines.
func TestErrorsHavePositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := Marshal(genSpec(t))
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		end := rapid.IntRange(at, min(len(text), at+12)).Draw(t, "end")
		bad := string(text[:at]) + genText().Draw(t, "text") + string(text[end:])
		_, err = Parse("service.yaml", []byte(bad))
		checkErrors(t, bad, err)
	})
}
