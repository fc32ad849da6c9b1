package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// checkErrors checks the properties of every error.
func checkErrors(t interface{ Fatalf(string, ...any) }, text string, err error) {
	if err == nil {
		return
	}
	var all Errors
	if !errors.As(err, &all) || len(all) == 0 || len(all) > maxErrors+1 {
		t.Fatalf("not a list of errors: %v", err)
	}
	lines := strings.Count(strings.ReplaceAll(text, "\r", "\n"), "\n") + 1
	last := 0
	for i, e := range all {
		if i == maxErrors {
			break // contains only the number of further problems
		}
		if e.File != "service.yaml" || e.Problem == "" {
			t.Fatalf("incomplete: %+v", e)
		}
		if e.Line < min(1, last) || e.Line > lines || e.Line < last || e.Line > 0 && e.Column < 1 {
			t.Fatalf("place %d:%d of %d lines, after line %d: %v", e.Line, e.Column, lines, last, e)
		}
		last = e.Line
	}
}

const small = `
name: chat
models: [{name: m}]
regions: [{name: local/us}]
`

// With strategy auto, deferred requests use the thresholds with which the strategy was evaluated,
// unless the file sets others.
func TestDeferredDefaultsDependOnStrategy(t *testing.T) {
	for autoscale, want := range map[string][2]int{
		"{strategy: lt-ua}": {60, 42},
		"{strategy: auto}":  {65, 83},
		"{strategy: auto}\nbalancer: {deferred_memory_percent: 30, deferred_wait_percent: 9}": {30, 9},
	} {
		spec, err := Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\nautoscale: "+autoscale+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{spec.Balancer.DeferredMemoryPercent, spec.Balancer.DeferredWaitPercent}; got != want {
			t.Errorf("%s: got %v, want %v", autoscale, got, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	got, err := Parse("service.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	forward := true
	want := &Spec{
		Name:    "chat",
		Models:  []Model{{Name: "m", Engine: Engine{Kind: EngineVLLM}, ReadyTimeout: 45 * time.Minute}},
		Regions: []RegionSpec{{Name: "local/us", Balancers: 1, Replicas: Bounds{1, 1}}},
		Balancer: BalancerSpec{
			Policy: "cost", Push: "pending", Order: "fcfs", Forward: &forward,
			PeerQueueLimit: 10, QueueLimit: 4096, MaxWait: 60 * time.Second, MaxColdWait: 15 * time.Minute, SevereAfter: 5 * time.Second, UrgentBefore: time.Second,
			MaxTries: 5, RetryPercent: 20, EjectAfter: 5, EjectTime: 5 * time.Second, Continue: &forward, HoldDeferred: &forward, DeferredMemoryPercent: 60, DeferredWaitPercent: 42,
			Memory: Memory{Total: 2 * GiB, Requests: 1 * GiB, Tenant: 256 * MiB},
		},
		Autoscale:  Autoscale{Strategy: "manual", Forecast: "auto", Every: time.Hour, DonateFor: time.Hour, ScaleToZeroAfter: 10 * time.Minute, TTFTMissTarget: 0.05},
		LocalHosts: LocalHosts{Port: 8001},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if b := (BalancerSpec{}).WithDefaults(); !reflect.DeepEqual(b, want.Balancer) {
		t.Errorf("WithDefaults: got %+v, want %+v", b, want.Balancer)
	}
}

func TestExplicitValueOverridesDefault(t *testing.T) {
	no := false
	b := BalancerSpec{Forward: &no, PeerQueueLimit: 3}.WithDefaults()
	if *b.Forward || b.PeerQueueLimit != 3 {
		t.Errorf("got %+v", b)
	}
	s, err := Parse("service.yaml", []byte(small+"balancer: {forward: false}\n"))
	if err != nil || *s.Balancer.Forward {
		t.Errorf("forward: false is parsed as true (%v)", err)
	}
}

func TestSimDefaults(t *testing.T) {
	s, err := Parse("service.yaml", []byte(strings.Replace(small, "name: m", "name: m, engine: {kind: sim}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	want := Engine{Kind: EngineSim, Profile: "l4-llama3.1-8b", Speed: 1, Flavor: "vllm"}
	if got := s.Models[0].Engine; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestBoundsDefaults(t *testing.T) {
	for _, c := range []struct {
		region string
		want   Bounds
	}{
		{`{name: local/us}`, Bounds{1, 1}},
		{`{name: local/us, replicas: {}}`, Bounds{1, 1}},
		{`{name: local/us, replicas: {min: 3}}`, Bounds{3, 3}},
		{`{name: local/us, replicas: {min: 0}}`, Bounds{0, 1}},
		{`{name: local/us, replicas: {max: 5}}`, Bounds{1, 5}},
		{`{name: local/us, replicas: {min: 0, max: 5}}`, Bounds{0, 5}},
		{`{name: static/a, endpoints: ["http://a", "http://b"]}`, Bounds{2, 2}},
		{`{name: static/a, endpoints: ["http://a", "http://b"], replicas: {max: 1}}`, Bounds{1, 1}},
		{`{name: static/a, endpoints: ["http://a", "http://b"], replicas: {min: 0}}`, Bounds{0, 2}},
		{`{name: static/a, endpoints: ["dns+http://e:8000"]}`, Bounds{0, 0}},
		{`{name: static/a, endpoints_file: engines.txt}`, Bounds{0, 0}},
		{`{name: static/a, endpoints_file: engines.txt, replicas: {min: 0, max: 0}}`, Bounds{0, 0}},
		{`{name: static/a, endpoints_file: engines.txt, endpoints: ["http://a"]}`, Bounds{1, 1}},
	} {
		s, err := Parse("service.yaml", []byte("name: chat\nmodels: [{name: m}]\nregions: ["+c.region+"]\n"))
		if err != nil {
			t.Errorf("%s: %v", c.region, err)
		} else if got := s.Regions[0].Replicas; got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.region, got, c.want)
		}
	}
}

func TestModelBoundsDefaults(t *testing.T) {
	for own, want := range map[string]Bounds{
		`{}`:               {2, 4},
		`{min: 1}`:         {1, 4},
		`{min: 6}`:         {6, 6},
		`{max: 3}`:         {2, 3},
		`{max: 0}`:         {0, 0},
		`{min: 0, max: 9}`: {0, 9},
	} {
		text := "name: chat\nmodels: [{name: m, regions: {local/us: " + own + "}}]\nregions: [{name: local/us, replicas: {min: 2, max: 4}}]\n"
		s, err := Parse("service.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", own, err)
		} else if got := s.BoundsFor("m", "local/us"); got != want {
			t.Errorf("%s: got %+v, want %+v", own, got, want)
		}
	}
}

func TestCapacityDefaults(t *testing.T) {
	text := `
name: chat
models: [{name: m}]
regions:
  - name: aws/us-east-1
  - {name: gcp/us-east1, reserved: [{type: g2-standard-4, count: 1}]}
  - {name: aws/us-west-1, capacity: [spot]}
  - name: local/us
balancer: {insecure: true}
`
	s, err := Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]CapacityType{{CapacityOnDemand}, {CapacityReserved, CapacityOnDemand}, {CapacitySpot}, nil}
	for i, r := range s.Regions {
		if !reflect.DeepEqual(r.Capacity, want[i]) {
			t.Errorf("%s: got %v, want %v", r.Name, r.Capacity, want[i])
		}
	}
}

// Equivalent notations parse to the same Spec.
func TestEquivalentNotationsParseEqually(t *testing.T) {
	want, err := Parse("service.yaml", []byte(small+"balancer: {max_wait: 90s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"order":    "balancer: {max_wait: 1m30s}\nregions:\n- name: local/us\nmodels:\n- name: m\nname: chat\n",
		"quotes":   "\"name\": 'chat'\nmodels: [{\"name\": \"m\"}]\nregions: [{name: 'local/us'}]\nbalancer: {max_wait: \"90s\"}\n",
		"crlf":     strings.ReplaceAll(small+"balancer: {max_wait: 90s}\n", "\n", "\r\n"),
		"bom":      "\ufeff" + small + "balancer: {max_wait: 90s}\n",
		"document": "%YAML 1.2\n---" + small + "balancer: {max_wait: 90s}\n...\n",
		"json":     `{"name":"chat","models":[{"name":"m"}],"regions":[{"name":"local/us"}],"balancer":{"max_wait":"90s"}}`,
		"anchor":   "name: chat\nmodels: [{name: &m m}]\nregions: [{name: local/us, replicas: &r {}}]\nbalancer: {max_wait: 90s}\n",
		"empties":  small + "balancer: {max_wait: 90s}\nstore: {}\nlocal: {rtt: {}}\nautoscale: {}\n",
	} {
		got, err := Parse("service.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

func TestAliasesAndMerges(t *testing.T) {
	text := `
name: chat
models: [{name: m}]
regions:
  - name: local/us
    replicas: &r {min: 2, max: 6}
  - name: local/eu
    replicas: *r
  - name: local/asia
    replicas: {<<: *r, max: 8}
  - name: local/moon
    replicas:
      <<: [*r]
`
	s, err := Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []Bounds{{2, 6}, {2, 6}, {2, 8}, {2, 6}}
	for i, r := range s.Regions {
		if r.Replicas != want[i] {
			t.Errorf("%s: got %+v, want %+v", r.Name, r.Replicas, want[i])
		}
	}
}

func TestParseRejectsHostileTexts(t *testing.T) {
	testkit.Slow(t)
	bomb := "x: &a [" + strings.Repeat("y,", 1000) + "]\n"
	for name, c := range map[string]struct{ text, want string }{
		"huge":       {small + strings.Repeat("#", MaxBytes), "service.yaml: must be at most 1048576 bytes"},
		"not UTF-8":  {"name: chat\nmodels: \xff\n", "service.yaml:2:9: must be UTF-8 text, got byte 0xff"},
		"zero byte":  {"name: ch\x00at\n", "service.yaml:1:9: must be text without zero bytes"},
		"brackets":   {"name: " + strings.Repeat("[", 500_000), "service.yaml:1:71: must be nested at most 64 levels deep"},
		"braces":     {strings.Repeat("{a: ", 100_000), "nested at most"},
		"dashes":     {strings.Repeat("- ", 500_000), "nested at most"},
		"questions":  {strings.Repeat("? ", 500_000), "nested at most"},
		"anchors":    {strings.Repeat("&a ", 300_000), "nested at most"},
		"tags":       {strings.Repeat("!!a ", 200_000), "nested at most"},
		"alias bomb": {bomb + "regions: [" + strings.Repeat("{endpoints: *a}, ", 1000) + "]\n", "the file must expand to at most 20000 values"},
		"wide bomb": {"name: chat\nmodels:\n- &m {name: m, engine: {args: [" + strings.Repeat("a,", 1000) + "]}}\n" +
			strings.Repeat("- *m\n", 1000), "the file must expand to at most 20000 values"},
		"circle":      {"name: &a [*a]\nmodels: &b {<<: *b}\nregions: [{name: local/us}]\n", "models: must be a list"},
		"self":        {small + "store: &s {<<: *s, <<: *s}\nautoscale: &x *x\n", "autoscale"},
		"many keys":   {strings.Repeat("a: 1\n", 100_000), "service.yaml:20001:2: must have at most 20000 keys"},
		"many errors": {strings.Repeat("a: 1\n", 5000), "has 4903 more problems, not shown"},
		"escapes":     {"name: \"\\e[31mred\"\nmodels: []\n", `got "\x1b[31mred"`},
	} {
		_, err := Parse("service.yaml", []byte(c.text))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		checkErrors(t, c.text, err)
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.300s, want %q in it", name, err, c.want)
		}
		if len(err.Error()) > 100_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// An error contains no control characters of a terminal.
func TestErrorsContainNoControlCharacters(t *testing.T) {
	_, err := Parse("service.yaml", []byte("name: \"a\x1b[31m\u202e\"\nmodels: []\x07\n"))
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\x07\u202e") {
		t.Errorf("got %q", err)
	}
}

func TestQuickstartParses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "quickstart", "service.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse("service.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "quickstart" || len(s.Regions) != 3 || s.ModelByName("chat-small") == nil {
		t.Errorf("got %+v", s)
	}
	e := s.ModelByName("chat-small").Engine
	if e.Kind != EngineSim || e.Speed != 10 || e.KVTokens != 80000 {
		t.Errorf("engine: got %+v", e)
	}
	for _, r := range s.Regions {
		if (r.Replicas != Bounds{2, 8}) || r.Balancers != 1 {
			t.Errorf("%s: got %+v", r.Name, r)
		}
	}
	for pair, want := range map[[2]string]time.Duration{
		{"us", "eu"}: 100 * time.Millisecond, {"asia", "us"}: 160 * time.Millisecond, {"eu", "asia"}: 220 * time.Millisecond, {"us", "us"}: 0,
	} {
		if got := s.LocalHosts.RTTBetween(pair[0], pair[1]); got != want {
			t.Errorf("%v: got %v, want %v", pair, got, want)
		}
	}
}

func TestCheckValue(t *testing.T) {
	for _, c := range []struct{ key, word, want string }{
		{"BalancerSpec.policy", "skylb", ""},
		{"BalancerSpec.policy", "cost", ""},
		{"BalancerSpec.policy", "bf-io", ""},
		{"Autoscale.strategy", "chiron", `is not implemented in this version, got "chiron"; use one of manual, reactive, lt-i, lt-u, lt-ua, predictive, auto`},
		{"BalancerSpec.policy", "skylib", `did you mean "skylb"?`},
		{"BalancerSpec.peer_queue_limit", "anything", ""},
	} {
		err := CheckValue(c.key, c.word)
		if err != nil {
			if got := err.Error(); c.want == "" || !strings.Contains(got, c.want) {
				t.Errorf("%s %s: got %q, want %q", c.key, c.word, got, c.want)
			}
		} else if c.want != "" {
			t.Errorf("%s %s: accepted", c.key, c.word)
		}
	}
	if len(AllPolicies()) != 16 || len(AllOrders()) != 4 {
		t.Errorf("policies %v, orders %v", AllPolicies(), AllOrders())
	}
}

func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("name: chat\nmodels:\n")
	for i := range 12 {
		name := string(rune('a' + i))
		text.WriteString("- name: " + name + "\n  aliases: [x" + name + ", y" + name + "]\n  engine:\n    kind: sim\n    speed: 10\n" +
			"  secrets:\n    T: env:T\n  gpus:\n  - {type: L4, tps: 1500}\n  slo: {IW-F: {ttft: 1s}}\n")
	}
	text.WriteString("regions:\n")
	for i := range 22 {
		text.WriteString("- name: aws/" + KnownRegions(CloudAWS)[i] + "\n  replicas:\n    min: 2\n    max: 8\n")
	}
	text.WriteString("balancer: {insecure: true}\n")
	data := []byte(text.String())
	for b.Loop() {
		if _, err := Parse("service.yaml", data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(strings.Count(text.String(), "\n")), "lines")
}

// The file of a service from before balancer.insecure existed can still be parsed, so that the
// service can be displayed and deleted.
func TestParseDeployed(t *testing.T) {
	old := []byte("name: chat\nmodels: [{name: m}]\nregions: [{name: aws/us-east-1}]\n")
	if _, err := Parse("service.yaml", old); err == nil {
		t.Error("Parse accepts plain HTTP on the public internet")
	}
	spec, err := ParseDeployed("service.yaml", old)
	if err != nil || spec.Name != "chat" || spec.Regions[0].Balancers != 1 {
		t.Errorf("got %+v, %v", spec, err)
	}
	if _, err := ParseDeployed("service.yaml", []byte("name: chat\n")); err == nil {
		t.Error("ParseDeployed accepts a file without models")
	}
}

// The former names of keys, and the words for tiers, are read like the keys and SageServe's abbreviations. Marshal writes
// the keys.
func TestFormerKeysAndTierWordsAreEquivalent(t *testing.T) {
	file := func(tps, public, balancer, late, fast, deferred string) string {
		return fmt.Sprintf(`name: chat
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4, %s: 900}], slo: {%s: {ttft: 2s}, %s: {deadline: 2h}}}]
regions: [{name: local/us, %s: ["http://203.0.113.7:8001"]}]
balancer: {%s, auth: {oidc: [{issuer: "https://login.example.com", audience: chat, tier: %s, max_tier: %s}]}}
autoscale: {%s: 0.1}
`, tps, fast, deferred, public, balancer, deferred, fast, late)
	}
	now, err := Parse("service.yaml", []byte(file("prompt_tokens_per_second", "public_urls", "peer_queue_limit: 3, dpa_severe_after: 9s, dpa_urgent_before: 2s", "ttft_miss_target", "fast", "deferred")))
	if err != nil {
		t.Fatal(err)
	}
	former, err := Parse("service.yaml", []byte(file("tps", "public", "tau: 3, tau_n: 9s, tau_p: 2s", "late", "IW-F", "NIW")))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(now, former) {
		t.Errorf("got  %+v\nwant %+v", former, now)
	}
	if now.Balancer.PeerQueueLimit != 3 || now.Models[0].GPUs[0].TPS != 900 || now.Models[0].SLO[TierFast].TTFT != 2*time.Second || now.Balancer.Auth.OIDC[0].Tier != TierDeferred {
		t.Errorf("got %+v", now)
	}
	text, err := Marshal(former)
	for _, key := range []string{"prompt_tokens_per_second: 900", "public_urls:", "peer_queue_limit: 3", "dpa_severe_after: 9s", "dpa_urgent_before: 2s", "ttft_miss_target: 0.1"} {
		if err != nil || !strings.Contains(string(text), key) {
			t.Errorf("Marshal writes no %q: %v\n%s", key, err, text)
		}
	}
}

// Errors below a tier have the name under which the file has it.
func TestErrorsNameTiersAsWritten(t *testing.T) {
	for slo, want := range map[string]string{
		"{fast: {ttft: 1}}":                      "models[0].slo.fast.ttft: must be a duration",
		"{IW-F: {ttft: 1}}":                      "models[0].slo.IW-F.ttft: must be a duration",
		"{normal: {tftt: 3s}}":                   "models[0].slo.normal.tftt: unknown key",
		"{fast: {ttft: 3s, e2e: 2s}}":            "models[0].slo.fast.ttft: must be at most e2e",
		"{deferred: {ttft: 3s}}":                 "models[0].slo.deferred.ttft: has no effect on the deferred tier; set deadline",
		"{fast: {ttft: 1s}, IW-F: {ttft: 2s}}":   "models[0].slo.fast: is set twice, as IW-F and as fast",
		"{fast: {ttft: 1s}, quick: {ttft: 2s}}":  `models[0].slo.quick: the key must be one of fast (IW-F), normal (IW-N), deferred (NIW), got "quick"`,
		"{normal: {ttft: 1s}, iw-f: {ttft: 2s}}": `the key must be one of fast (IW-F), normal (IW-N), deferred (NIW), got "iw-f"; did you mean "IW-F"?`,
	} {
		_, err := Parse("service.yaml", []byte(strings.Replace(small, "name: m", "name: m, slo: "+slo, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", slo, err, want)
		}
	}
}

// A key under two names is an error with the name to remove.
func TestKeyUnderTwoNamesIsRejected(t *testing.T) {
	for text, want := range map[string]string{
		"balancer: {peer_queue_limit: 3, tau: 4}":       "balancer.peer_queue_limit: is set twice: tau is its former name; remove tau",
		"balancer: {tau: 4, peer_queue_limit: 3}":       "balancer.peer_queue_limit: is set twice: tau is its former name; remove tau",
		"autoscale: {late: 0.1, ttft_miss_target: 0.2}": "autoscale.ttft_miss_target: is set twice: late is its former name; remove late",
	} {
		if _, err := Parse("service.yaml", []byte(small+text+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	twice := strings.Replace(small, "name: m", "name: m, slo: {fast: {ttft: 1s}, IW-F: {ttft: 2s}}", 1)
	if _, err := Parse("service.yaml", []byte(twice)); err == nil || !strings.Contains(err.Error(), "is set twice, as IW-F and as fast; keep one of them") {
		t.Errorf("a tier under two names: got %v", err)
	}
}

// A target that nothing uses yet is valid, with a warning.
func TestTargetWithoutEffectWarns(t *testing.T) {
	spec, err := Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, slo: {fast: {ttft: 1s}, normal: {e2e: 5m}}}]\nregions: [{name: local/us}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(spec.Warnings(), "\n"); !strings.HasPrefix(got, "models[0].slo.IW-N.e2e: has no effect") || strings.Contains(got, "\n") {
		t.Errorf("got %q", got)
	}
}
