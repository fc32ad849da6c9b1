package sim

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// Built-in scenarios round-trip through File, and yield the same results.
func TestFileRoundTrip(t *testing.T) {
	for _, s := range Scenarios() {
		read, err := ParseFile(s.Name+".yaml", []byte(s.YAML()))
		if err != nil {
			t.Fatalf("%s: %v\n%s", s.Name, err, s.YAML())
		}
		s.Reference, s.Claims, s.Note, s.Links = nil, nil, "", s.usedLinks()
		if !reflect.DeepEqual(read, &s) {
			t.Errorf("%s: wrote %+v and read %+v", s.Name, s, *read)
		}
	}
	custom := short(t, "mixed-gpu-chat", 20*time.Second)
	if err := custom.Set("kv", "30000"); err != nil {
		t.Fatal(err)
	}
	read, err := ParseFile("x.yaml", []byte(custom.YAML()))
	if err != nil {
		t.Fatal(err)
	}
	setup := Setup{Policy: "skylb", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 1}
	a, _ := json.Marshal(run(t, custom, setup))
	b, _ := json.Marshal(run(t, read, setup))
	if string(a) != string(b) {
		t.Errorf("a scenario yields\n%s\nand read from its file\n%s", a, b)
	}
}

// A file contains only what differs from the defaults.
func TestParseSmallFile(t *testing.T) {
	s, err := ParseFile("dir/mine.yaml", []byte(`
workload: tot15
engines:
  - {name: toy, kv_tokens: 30000, decode_base: 10ms}
regions:
  - name: us
    replicas: 2
    clients: 3
    profiles: [toy, h100-llama3.1-8b]
  - {name: eu, clients: 1}
faults: [{kind: probe-loss, share: 0.5, to: 10s}]
`))
	if err != nil {
		t.Fatal(err)
	}
	toy := s.profile(&s.Regions[0], 0)
	if s.Name != "mine" || toy.KVTokens != 30_000 || toy.PrefillBase != common.Profile.PrefillBase || s.minKV() != 30_000 || len(s.Links) != 1 || s.Duration != 400*time.Second {
		t.Errorf("read %+v", s)
	}
}

// Without a region us, the first region is home.
func TestFirstRegionIsHome(t *testing.T) {
	s, err := ParseFile("x.yml", []byte("workload: arena\nregions: [{name: paris, replicas: 1, clients: 1}]\n"))
	if err != nil || s.Home != "paris" || s.Name != "x" {
		t.Errorf("read %+v, %v", s, err)
	}
}

// The factor applies to the links of the file, in any order of the keys.
func TestFileScalesItsOwnLinks(t *testing.T) {
	s, err := ParseFile("x.yaml", []byte(`
workload: arena
rtt_scale: 2
links: [{a: us, b: eu, rtt: 100ms}]
regions: [{name: us, replicas: 1, clients: 1}, {name: eu, replicas: 1}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.rtt("us", "eu"); got != 200*time.Millisecond {
		t.Errorf("round-trip time %s, want 200ms", got)
	}
}

func TestFileErrorsHavePositions(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"several at once", `
duration: soon
warmup: 2
regions:
  - name: us
    replicas: many
    clints: 3
  - name: eu
links:
  - {a: us, b: eu, rtt: 100}
speed: 3
policies: [best]
`, `bad.yaml:2:11: duration: must be a duration such as 100ms or 90s, got "soon"
bad.yaml:3:9: warmup: must be at least 0 and below 1, got 2
bad.yaml:6:15: regions[0].replicas: must be an integer, got "many"
bad.yaml:7:5: regions[0].clints: unknown key: must be one of balancers, clients, name, profile, profiles, replicas
bad.yaml:10:25: links[0].rtt: must be a duration such as 100ms or 90s, got "100"
bad.yaml:11:1: speed: unknown key: must be one of cache_events, client_timeout, duration, engine, engines, faults,`},
		{
			"a setting of regions", "workload: arena\nclients: 10\nregions: [{name: us, replicas: 1, clients: 1}]\n",
			"bad.yaml:2:1: clients: unknown key; set regions[].clients instead",
		},
		{"missing regions", "workload: arena\n", `bad.yaml:1:1: regions: must have at least one client, got none
bad.yaml:1:1: regions: must have at least one replica, got none`},
		{"inside a list", `
regions:
  - {name: us, replicas: 1, clients: 1}
  - {name: mars, replicas: -1, clients: 1}
faults:
  - kind: replica-slow
    replica: us-07
`, `bad.yaml:4:28: regions[1].replicas: must be at least 0 and at most 100000, got -1
bad.yaml:2:1: links: the round-trip time`},
		{
			"a link", "workload: arena\nregions: [{name: us, replicas: 1, clients: 1}]\nlinks: [{a: us, b: mars, rtt: 5ms}]\n",
			"bad.yaml:3:20: links[0].b: unknown region \"mars\": must be one of us",
		},
		{
			"a policy", "regions: [{name: us, replicas: 1, clients: 1}]\npolicies: [best]\npushes: [hard]\nlayout: round\n",
			"bad.yaml:2:11: policies: unknown policy \"best\"",
		},
		{
			"a service file", "name: chat\nregions: [{name: local/us}]\nmodels: [{name: m}]\nbalancer: {policy: cost}\n",
			"bad.yaml:3:1: models: this is a service file, not a scenario; 'skyserve up bad.yaml' deploys it",
		},
		{"twice", "home: us\nhome: eu\n", "bad.yaml:2:1: home: duplicate key"},
		{"no list", "regions: us\n", "bad.yaml:1:10: regions: must be a list"},
		{"no mapping", "- us\n", "bad.yaml:1:1: must be a mapping of keys"},
		{"no text", "home: {a: b}\n", "bad.yaml:1:7: home: must be a single value or a list of texts"},
		{"no profile", "profile: abacus\n", `bad.yaml:1:10: profile: unknown engine profile "abacus": must be `},
		{"no YAML", "a: [\n", "bad.yaml:1:4: is not valid YAML: the closing ] of a list is missing"},
		{"tab", "\thome: us\n", "bad.yaml:1:5: is not valid YAML: a tab before the text; indent with spaces"},
		{"nothing", "# nothing\n", "bad.yaml:1:1: the file is empty; 'skyserve sim list -o yaml fig8a' prints an example"},
		{"two", "home: us\n---\nhome: eu\n", "bad.yaml:3:1: must be a single YAML document; a second starts here"},
		{"too large", strings.Repeat("#", maxFileBytes+1), "bad.yaml: is too large: must be at most 1048576 bytes, got 1048577"},
	} {
		s, err := ParseFile("bad.yaml", []byte(c.text))
		var es service.Errors
		if s != nil || !errors.As(err, &es) {
			t.Errorf("%s: read %+v, %v", c.name, s, err)
			continue
		}
		for _, line := range strings.Split(c.want, "\n") {
			if !strings.Contains(es.Error(), line) {
				t.Errorf("%s: got\n%v\nwithout\n%s", c.name, es, line)
			}
		}
	}
}

// Any file is parsed or rejected, and a parsed scenario is runnable.
func FuzzParseFile(f *testing.F) {
	for _, s := range Scenarios() {
		f.Add([]byte(s.YAML()))
	}
	f.Add([]byte("a: &x [*x]\n"))
	f.Add([]byte("<<: {home: us}\nregions: [{}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseFile("f.yaml", data)
		if err != nil {
			if s != nil || err.Error() == "" {
				t.Fatalf("rejected with %v and read %+v", err, s)
			}
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		again, err := ParseFile("f.yaml", []byte(s.YAML()))
		if err != nil {
			t.Fatalf("reading the written file: %v\n%s", err, s.YAML())
		}
		if first, second := s.YAML(), again.YAML(); first != second {
			t.Fatalf("wrote\n%s\nand then\n%s", first, second)
		}
	})
}
