package service

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(SchemaID, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validateSchema validates a YAML text with the schema.
func validateSchema(s *jsonschema.Schema, text []byte) error {
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// fullExample is the example of the documentation.
const fullExample = `
name: chat
models:
  - name: meta-llama/Llama-3.1-8B-Instruct
    aliases: [chat-small]
    engine: {kind: vllm, args: [--max-model-len, "8192"], max_num_seqs: 256}
    secrets: {HF_TOKEN: env:HF_TOKEN}
    gpus:
      - {type: L4, count: 1, tps: 1500}
      - {type: H100, count: 1, tps: 12000}
    slo: {IW-F: {ttft: 1s}, IW-N: {ttft: 60s, e2e: 5m}, NIW: {deadline: 24h}}
    regions: {"aws/us-east-1": {min: 2, max: 8}}
regions:
  - name: aws/us-east-1
    replicas: {min: 2, max: 8}
    capacity: [reserved, spot, on_demand]
    on_demand_base: 1
  - name: gcp/europe-west4
    replicas: {min: 2, max: 8}
  - name: aws/ap-northeast-1
    balancers: 2
    replicas: {min: 1, max: 4}
    reserved: [{type: g6.xlarge, count: 2, price: 0.42}]
  - name: static/paris
    endpoints: ["http://10.0.0.7:8000"]
balancer:
  policy: skylb
  push: pending
  order: fcfs
  forward: true
  auth: {keys_from: env:SKYSERVE_KEYS}
  tls: {cert: cert.pem, key: key.pem}
dns: {provider: route53, name: chat.example.com, zone: example.com, routing: latency}
autoscale: {strategy: lt-ua, forecast: auto, every: 1h, donate: true, donate_for: 30m, donate_price: 0.3, late: 0.02}
store: {}
`

func TestSchemaAcceptsTemplatesAndExamples(t *testing.T) {
	s := compiledSchema(t)
	texts := map[string][]byte{"the full example": []byte(fullExample)}
	for _, pattern := range []string{"../../templates/*.yaml", "../../examples/*/service.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files in %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = data
		}
	}
	for name, text := range texts {
		if _, err := Parse(name, text); err != nil {
			t.Errorf("the validator rejects %s: %v", name, err)
		}
		if err := validateSchema(s, text); err != nil {
			t.Errorf("the schema rejects %s: %v", name, err)
		}
	}
}

// Schema and validator agree on the values of single keys.
func TestSchemaAgreesWithValidator(t *testing.T) {
	s := compiledSchema(t)
	for _, c := range []struct {
		change string // added to a valid file, or old => new in it, or old => new + added
		good   bool
	}{
		{"", true},
		{"chat => c", true},
		{"chat => Chat", false},
		{"chat => -chat", false},
		{"chat => 12", false},
		{"name: chat => nome: chat", false},
		{"[{name: m}] => []", false},
		{"[{name: m}] => [{}]", false},
		{"[{name: m}] => {name: m}", false},
		{"{name: m} => {name: m, engine: {kind: sim, speed: 10}}", true},
		{"{name: m} => {name: m, engine: {kind: sim, speed: 0}}", false},
		{"{name: m} => {name: m, engine: {kind: sim, speed: 1000.5}}", false},
		{"{name: m} => {name: m, engine: {speed: 10}}", false},
		{"{name: m} => {name: m, engine: {kind: vllm, flavor: vllm}}", false},
		{"{name: m} => {name: m, engine: {kind: tgi}}", false},
		{"{name: m} => {name: m, engine: {args: [a, 1]}}", false},
		{"{name: m} => {name: m, engine: {env: {A: b}}}", true},
		{"{name: m} => {name: m, engine: {env: {1A: b}}}", false},
		{"{name: m} => {name: m, engine: {port: 65536}}", false},
		{"{name: m} => {name: m, engine: {port: 1.5}}", false},
		{"{name: m} => {name: m, engine: {ready: health}}", false},
		{"{name: m} => {name: m, engine: {weights: 's3://models/llama-3.1-8b/v2'}}", true},
		{"{name: m} => {name: m, engine: {weights: 's3://models'}}", false},
		{"{name: m} => {name: m, engine: {weights: 's3://models/a/'}}", false},
		{"{name: m} => {name: m, engine: {weights: 'gs://models_1.example.com/a/v2'}}", true},
		{"{name: m} => {name: m, engine: {weights: 'gs://models'}}", false},
		{"{name: m} => {name: m, engine: {weights: 's3://models_1/a'}}", false},
		{"{name: m} => {name: m, engine: {weights: 'az://models/a'}}", false},
		{"{name: m} => {name: m, secrets: {A: env:B}}", true},
		{"{name: m} => {name: m, secrets: {A: hf_x}}", false},
		{"{name: m} => {name: m, aliases: [a, b]}", true},
		{"{name: m} => {name: m, aliases: [a, a]}", false},
		{"{name: m} => {name: m, aliases: a}", false},
		{"{name: m} => {name: m, gpus: [{type: A100}]}", true},
		{"{name: m} => {name: m, gpus: [{type: T4}]}", false},
		{"{name: m} => {name: m, gpus: [{count: 1}]}", false},
		{"{name: m} => {name: m, gpus: [{type: L4, tps: 0}]}", false},
		{"{name: m} => {name: m, slo: {IW-N: {e2e: 1m30s}}}", true},
		{"{name: m} => {name: m, slo: {iw-n: {e2e: 1m}}}", false},
		{"{name: m} => {name: m, slo: {IW-N: {e2e: 60}}}", false},
		{"{name: m} => {name: m, slo: {IW-N: {e2e: -1s}}}", false},
		{"{name: m} => {name: m, regions: {local/us: {max: 0}}}", true},
		{"{name: m} => {name: m, regions: {us: {max: 0}}}", false},
		{"local/us => azure/us", false},
		{"local/us => us", false},
		{"local/us => aws/us-east-1 + balancer: {insecure: true}", true},
		{"local/us => aws/us-east-1 + balancer: {tls: {cert: a, key: b}}", true},
		{"local/us => aws/us-east-1 + balancer: {insecure: false}", false},
		{"local/us => aws/us-east-1 + balancer: {insecure: true, tls: {cert: a, key: b}}", false},
		{"local/us => aws/us-east-1 + balancer: {policy: cost}", false},
		{"local/us => aws/us-east-1", false},
		{"local/us => gcp/us-central1", false},
		{"{name: local/us} => {name: local/us, replicas: {min: -1}}", false},
		{"{name: local/us} => {name: local/us, replicas: {min: 0, max: 3}}", true},
		{"{name: local/us} => {name: local/us, balancers: 17}", false},
		{"{name: local/us} => {name: aws/us-east-1, capacity: [spot, spot]}", false},
		{"{name: local/us} => {name: aws/us-east-1, capacity: [spot, cheap]}", false},
		{"{name: local/us} => {name: aws/us-east-1, reserved: [{type: g6.xlarge}]}", false},
		{"{name: local/us} => {name: static/a}", false},
		{"{name: local/us} => {name: static/a, endpoints: ['http://a:80/api']}", true},
		{"{name: local/us} => {name: static/a, endpoints: ['ftp://a']}", false},
		{"{name: local/us} => {name: static/a, endpoints: ['http://u:p@a']}", false},
		{"{name: local/us} => {name: static/a, endpoints: ['http://a'], capacity: [spot]}", false},
		{"{name: local/us} => {name: local/us, endpoints: ['http://a']}", false},
		{"{name: local/us} => {name: local/us, capacity: [spot, on_demand]}", false},
		{"{name: local/us} => {name: local/us, spot: {overprovision: 1}}", false},
		{"{name: local/us} => {name: local/us, on_demand_base: 1}", false},
		{"{name: local/us} => {name: local/us, reserved: [{type: g6.xlarge, count: 1}]}", false},
		{"{name: local/us} => {name: aws/us-east-1, network: vpc-0a1b2c3d}", false},
		{"{name: local/us} => {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: []}", false},
		{"{name: local/us} => {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: [subnet-0a1b2c3d, subnet-1a1b2c3d]} + balancer: {insecure: true}", true},
		{"{name: local/us} => {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: [subnet-0a1b2c3d, subnet-0a1b2c3d]}", false},
		{"{name: local/us} => {name: aws/us-east-1, network: default, subnets: [subnet-0a1b2c3d]}", false},
		{"{name: local/us} => {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: [west]}", false},
		{"{name: local/us} => {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: subnet-0a1b2c3d}", false},
		{"{name: local/us} => {name: aws/us-east-1, subnets: [subnet-0a1b2c3d]}", false},
		{"{name: local/us} => {name: aws/us-east-1, access: ssm} + balancer: {insecure: true}", true},
		{"{name: local/us} => {name: aws/us-east-1, access: ssh}", false},
		{"{name: local/us} => {name: gcp/us-central1, access: ssm}", false},
		{"{name: local/us} => {name: local/us, access: ssm}", false},
		{"{name: local/us} => {name: gcp/us-central1, network: prod} + balancer: {insecure: true}", true},
		{"{name: local/us} => {name: gcp/us-central1, network: prod, subnets: [west]} + balancer: {insecure: true}", true},
		{"{name: local/us} => {name: gcp/us-central1, network: prod, subnets: [west, east]}", false},
		{"{name: local/us} => {name: gcp/us-central1, network: Prod}", false},
		{"{name: local/us} => {name: gcp/us-central1, subnets: [west]}", false},
		{"{name: local/us} => {name: local/us, network: prod}", false},
		{"{name: local/us} => {name: static/a, endpoints: ['http://a'], subnets: [west]}", false},
		{"balancer: {}", true},
		{"balancer:", false},
		{"balancer: {policy: skylb, push: 'outstanding:16'}", true},
		{"balancer: {policy: cost}", true},
		{"balancer: {policy: bf-io}", true},
		{"balancer: {push: 'outstanding:0'}", false},
		{"balancer: {order: edf}", true},
		{"balancer: {order: lifo}", false},
		{"balancer: {forward: 'yes'}", false},
		{"balancer: {peer_queue_limit: 0}", false},
		{"balancer: {queue_limit: 1000001}", false},
		{"balancer: {order: dpa, dpa_severe_after: 10s, dpa_urgent_before: 500ms}", true},
		{"balancer: {dpa_severe_after: 1}", false},
		{"balancer: {auth: {}}", false},
		{"balancer: {auth: {keys_from: 'file:/k'}}", true},
		{"balancer: {auth: {keys_from: k}}", false},
		{"balancer: {auth: {oidc: [{issuer: 'https://a.b/c', audience: d}]}}", true},
		{"balancer: {auth: {oidc: [{issuer: 'https://a.b', audience: d, tenant_claim: org, role_claim: r, roles: [{name: x, max_tier: NIW, limits: {concurrent: 1}}]}]}}", true},
		{"balancer: {auth: {oidc: [{issuer: 'http://a.b', audience: d}]}}", false},
		{"balancer: {auth: {oidc: [{issuer: 'https://a.b'}]}}", false},
		{"balancer: {auth: {oidc: [{issuer: 'https://a.b', audience: d, tenant: t, tenant_claim: org}]}}", false},
		{"balancer: {auth: {oidc: [{issuer: 'https://a.b', audience: d, tier: gold}]}}", false},
		{"balancer: {auth: {keys_from: 'file:/k', tenants: {acme: {concurrent: 1}}}}", true},
		{"balancer: {auth: {keys_from: 'file:/k', tenants: {a b: {concurrent: 1}}}}", false},
		{"{name: m} => {name: m, price: {input: 0.2, output: 0.6}} + balancer: {auth: {keys_from: 'file:/k', limits: {usd_per_day: 2.5}}}", true},
		{"{name: m} => {name: m, price: {input: 0.2, cached_input: 0, output: 0.6}}", true},
		{"{name: m} => {name: m, price: {input: 0.2}}", false},
		{"{name: m} => {name: m, price: {input: -1, output: 0.6}}", false},
		{"balancer: {auth: {keys_from: 'file:/k', limits: {usd_per_day: 0}}}", false},
		{"balancer: {tls: {}}", false},
		{"balancer: {tls: {cert: a}}", false},
		{"balancer: {tls: {cert: a, key: b}}", true},
		{"balancer: {tls: {cert: a, key: b, acme: {email: a@b.c}}}", false},
		{"balancer: {tls: {acme: a@b.c}}", false},
		{"balancer: {tls: {acme: {}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", false},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", true},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, ca: letsencrypt-staging, challenge: http-01}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", true},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, ca: 'https://ca.b.c/acme', root: r.pem, eab: {key_id: k, hmac: env:H}, resolvers: ['10.0.0.2:53']}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", true},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, ca: 'http://ca.b.c'}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", false},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, eab: {key_id: k}}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", false},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, eab: {key_id: k, hmac: abc}}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", false},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, challenge: dns}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", false},
		{"local/us => aws/us-east-1 + balancer: {tls: {acme: {email: a@b.c, resolvers: [ns1]}}}\ndns: {provider: route53, name: a.b.c, zone: b.c}", false},
		{"dns: {provider: route53, name: a.b.c, zone: b.c}", true},
		{"dns: {provider: bind, name: a.b.c, zone: b.c}", false},
		{"dns: {provider: route53, name: a.b.c}", false},
		{"dns: {provider: route53, name: a.b.c, zone: b.c, private: true, ttl: 5s}", true},
		{"dns: {provider: route53, name: a.b.c, zone: b.c, listen: '127.0.0.1:53'}", false},
		{"dns: {provider: embedded, name: a.b.c}", true},
		{"dns: {provider: embedded, name: a.b.c, listen: '[::1]:53', clients: [{network: 10.0.0.0/8, region: local/us}]}", true},
		{"dns: {provider: embedded, name: a.b.c, private: true}", false},
		{"dns: {provider: embedded, name: a.b.c, clients: [{region: local/us}]}", false},
		{"autoscale: {strategy: manual, every: 30m}", true},
		{"autoscale: {strategy: lt-ua}", true},
		{"autoscale: {strategy: chiron}", false},
		{"autoscale: {donate: 1}", false},
		{"gcp: {}", true},
		{"gcp: {balancer_account: lb}", false},
		{"gcp: {account: lb@my-project.iam.gserviceaccount.com}", false},
		{"store: {url: 'nats://h:4222'}", true},
		{"store: {url: 'http://h'}", false},
		{"local: {port: 9001}", true},
		{"local: {port: 0}", false},
		{"local: {port: 65226}", false},
		{"local: {rtt: {us: 1s}}", false},
		{"anything: 1", false},
	} {
		text := strings.TrimPrefix(small, "\n")
		if before, after, ok := strings.Cut(c.change, " => "); ok {
			after, added, _ := strings.Cut(after, " + ")
			text += added + "\n"
			if !strings.Contains(text, before) {
				t.Fatalf("%q does not match the base file", c.change)
			}
			text = strings.Replace(text, before, after, 1)
		} else {
			text += c.change + "\n"
		}
		_, verr := Parse("service.yaml", []byte(text))
		serr := validateSchema(s, []byte(text))
		if (verr == nil) != c.good {
			t.Errorf("%q: validator: %v, want valid %v", c.change, verr, c.good)
		}
		if (serr == nil) != c.good {
			t.Errorf("%q: schema: %v, want valid %v", c.change, serr, c.good)
		}
	}
}

// The schema accepts everything that the validator accepts.
func TestSchemaAcceptsValidSpecs(t *testing.T) {
	s := compiledSchema(t)
	rapid.Check(t, func(t *rapid.T) {
		text, err := Marshal(genSpec(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := validateSchema(s, text); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	})
}

// Every key has a description and the right default.
func TestSchemaHasDescriptionsAndDefaults(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		AdditionalProperties *bool `json:"additionalProperties"`
		Properties           map[string]struct {
			Description string
			Default     any
		}
	}
	var doc struct {
		schema
		Defs map[string]schema `json:"$defs"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	doc.Defs["Spec"] = doc.schema
	for _, typ := range specTypes() {
		def := doc.Defs[typ.Name()]
		if def.AdditionalProperties == nil || *def.AdditionalProperties {
			t.Errorf("%s allows other keys", typ.Name())
		}
		for _, f := range fieldsOf(typ) {
			p := def.Properties[f.key]
			if p.Description != rules[f.rule].text {
				t.Errorf("%s is described as %q", f.rule, p.Description)
			}
			if d, ok := DefaultOf(f.rule); ok != (p.Default != nil) || ok && strings.Trim(toJSON(p.Default), `"`) != d.Value {
				t.Errorf("%s: the default is %v, want %+v", f.rule, p.Default, d)
			}
		}
	}
}

func toJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
