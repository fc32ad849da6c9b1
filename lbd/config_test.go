package lbd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
)

func fullConfig() service.BalancerConfig {
	no := false
	return service.BalancerConfig{
		Service: "chat", ID: "lb-us-0", Region: "local/us", Listen: "127.0.0.1:8001", Admin: "127.0.0.1:8101",
		Models:   []service.BalancerModel{{Name: "llama", Aliases: []string{"chat-small"}}},
		Replicas: []service.ReplicaConfig{{ID: "us-0", URL: "http://127.0.0.1:8201", Model: "llama", Epoch: 3}},
		Peers:    []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: "http://127.0.0.1:8002", EmulateRTT: 110 * time.Millisecond}},
		Balancer: service.BalancerSpec{Policy: "skylb", Forward: &no, MaxWait: 5 * time.Second},
		StoreURL: "nats://127.0.0.1:8301", StoreToken: "s", PeerToken: "p", AdminToken: "a", SpecFile: "service.yaml",
	}
}

// The configuration that packages install is valid and listens on loopback only: it has no keys. The test is here so
// that the tests of packaging do not link a balancer.
func TestPackagedConfiguration(t *testing.T) {
	cfg, err := ReadConfig(filepath.Join("..", "internal", "packaging", "lb.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{cfg.Listen, cfg.Admin} {
		if !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("listens on %s without keys", address)
		}
	}
}

func TestReadConfig(t *testing.T) {
	want := fullConfig()
	for name, encode := range map[string]func(any) ([]byte, error){"yaml": yaml.Marshal, "json": json.Marshal} {
		text, err := encode(want)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "lb."+name)
		write(t, file, string(text))
		got, err := ReadConfig(file)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, want)
		}
	}
}

// A maximum wait of 0 is an error, as in service.yaml and in --max-wait: it would mean the default. A file without it is
// valid, as one that skyserve writes for the default.
func TestReadConfigRejectsWaitOfZero(t *testing.T) {
	for text, want := range map[string]string{
		"id: lb\nbalancer:\n  max_wait: 0s\n":       "lb.yaml:3:13: balancer.max_wait: must be at least 1ms, got 0s",
		`{"id": "lb", "balancer": {"max_wait": 0}}`: "lb.yaml:1:39: balancer.max_wait: must be at least 1ms, got 0s",
		"balancer: {max_wait: 0s}\n":                "lb.yaml:1:22: balancer.max_wait: must be at least 1ms, got 0s",
		"id: lb\nbalancer: {max_wait: 1ms}\n":       "",
		"id: lb\nbalancer: {max_wait: }\n":          "",
		"id: lb\nbalancer: {max_cold_wait: 1m}\n":   "",
		"id: lb\n":                 "",
		"id: lb\nbalancer: null\n": "",
	} {
		file := filepath.Join(t.TempDir(), "lb.yaml")
		write(t, file, text)
		if _, err := ReadConfig(file); (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Keys of the section balancer have their names in service.yaml, or their former ones.
func TestReadConfigAcceptsBothNamesOfKeys(t *testing.T) {
	for _, text := range []string{
		"balancer: {tau: 7, tau_n: 9s, tau_p: 2s}\n", "balancer: {peer_queue_limit: 7, dpa_severe_after: 9s, dpa_urgent_before: 2s}\n",
		`{"balancer": {"peer_queue_limit": 7, "dpa_severe_after": "9s", "dpa_urgent_before": 2000000000}}`,
	} {
		file := filepath.Join(t.TempDir(), "lb.yaml")
		write(t, file, text)
		cfg, err := ReadConfig(file)
		if b := cfg.Balancer; err != nil || b.PeerQueueLimit != 7 || b.SevereAfter != 9*time.Second || b.UrgentBefore != 2*time.Second {
			t.Errorf("%s: got %d, %s, %s, %v", text, b.PeerQueueLimit, b.SevereAfter, b.UrgentBefore, err)
		}
	}
}

func TestReadConfigErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "id: lb-us-0\nreplcas: []\npeer_token: hunter2\n", `:2:1: unknown key "replcas"`},
		{"unknown key deep", "id: lb-us-0\npeers:\n  - id: eu\n    uri: http://h\n", `:4:5: unknown key "uri"`},
		{"wrong type", "id: lb-us-0\nreplicas: hunter2\n", ":2:11: "},
		{"wrong duration", "peers:\n  - emulate_rtt: soon\n", `:2:18: must be a duration such as 110ms or 5s, got "soon"`},
		{"empty", "", ": the file is empty"},
		{"invalid YAML", "id: [\npeer_token: hunter2", ":"},
	} {
		file := filepath.Join(t.TempDir(), "lb.yaml")
		write(t, file, c.text)
		_, err := ReadConfig(file)
		if err == nil || !strings.HasPrefix(err.Error(), "reading "+file+c.want) {
			t.Errorf("%s: got %v, want reading FILE%s", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the file: %v", c.name, err)
		}
	}
	if _, err := ReadConfig("/nonexistent/lb.yaml"); !os.IsNotExist(err) && !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing file: %v", err)
	}
	big := filepath.Join(t.TempDir(), "big.yaml")
	write(t, big, strings.Repeat("# big\n", maxConfig/6+1))
	if _, err := ReadConfig(big); err == nil || !strings.Contains(err.Error(), "must have at most") {
		t.Errorf("big file: %v", err)
	}
}

func FuzzParseConfig(f *testing.F) {
	text, err := yaml.Marshal(fullConfig())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"id":"lb","replicas":[{"url":"http://h"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 512 {
			return // deep nesting is slow in the parser, and does not test this package
		}
		if cfg, err := parseConfig("f", data); err == nil {
			_ = CheckConfig(cfg, Options{}) // must not panic for any accepted configuration
		}
	})
}
