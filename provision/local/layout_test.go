package local

import (
	"errors"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
	"skyserve/provision"
)

const twoRegions = `name: chat
models:
  - {name: org/Big-Model, aliases: [big], engine: {kind: sim, speed: 10, max_num_seqs: 8, kv_tokens: 100, lora: [sql=/adapters/sql]}, gpus: [{type: L4}]}
  - {name: org/Small.Model, engine: {kind: sim, flavor: sglang}, regions: {local/eu: {min: 0, max: 1}}}
regions:
  - {name: local/us, balancers: 2, replicas: {min: 3, max: 5}}
  - {name: local/eu, replicas: {min: 1, max: 5}}
local: {port: 9001, rtt: {us-eu: 80ms}}
`

// layout lays a service.yaml out.
func layout(t *testing.T, svc Service, text string, attached map[service.Region][]service.ReplicaConfig) (*Layout, error) {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return svc.Layout(spec, attached)
}

func mustLayout(t *testing.T, text string) *Layout {
	t.Helper()
	l, err := layout(t, newService(t, "chat"), text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLayoutOfTwoRegions(t *testing.T) {
	l := mustLayout(t, twoRegions)
	var got []string
	for _, w := range l.Wants {
		got = append(got, w.ID+" "+w.Address+" "+w.Admin)
	}
	want := []string{
		"us-0 http://127.0.0.1:9201 ", "us-1 http://127.0.0.1:9202 ", "us-2 http://127.0.0.1:9203 ",
		"us-small-model-0 http://127.0.0.1:9204 ", "us-small-model-1 http://127.0.0.1:9205 ", "us-small-model-2 http://127.0.0.1:9206 ",
		"eu-0 http://127.0.0.1:9207 ",
		"lb-us-0 http://127.0.0.1:9001 http://127.0.0.1:9101", "lb-us-1 http://127.0.0.1:9002 http://127.0.0.1:9102",
		"lb-eu-0 http://127.0.0.1:9003 http://127.0.0.1:9103",
		"controller  http://127.0.0.1:9311",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestReplicasArePartitioned(t *testing.T) {
	l := mustLayout(t, twoRegions)
	got := map[string][]string{}
	for _, b := range l.Balancers {
		for _, r := range b.Replicas {
			got[b.ID] = append(got[b.ID], r.ID)
		}
	}
	want := map[string][]string{
		"lb-us-0": {"us-0", "us-2", "us-small-model-0", "us-small-model-2"},
		"lb-us-1": {"us-1", "us-small-model-1"},
		"lb-eu-0": {"eu-0"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, r := range l.Controller.Replicas {
		if !slices.Contains(want[r.Home], r.ID) {
			t.Errorf("the controller has %s at home with %s", r.ID, r.Home)
		}
	}
}

func TestPeersAndRoundTrips(t *testing.T) {
	l := mustLayout(t, twoRegions)
	want := []service.PeerConfig{
		{ID: "lb-us-1", Region: "local/us", URL: "http://127.0.0.1:9002", Admin: "http://127.0.0.1:9102"},
		{ID: "lb-eu-0", Region: "local/eu", URL: "http://127.0.0.1:9003", Admin: "http://127.0.0.1:9103", EmulateRTT: 80 * time.Millisecond},
	}
	if got := l.Balancers[0].Peers; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestEngineArguments(t *testing.T) {
	l := mustLayout(t, twoRegions)
	want := "engine --listen 127.0.0.1:9202 --model org/Big-Model --seed 2 --alias big --lora sql --profile l4-llama3.1-8b --kv-tokens 100 --speed 10 --flavor vllm --max-num-seqs 8"
	if got := strings.Join(l.recipes["us-1"].Args, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSecretsAreInFilesOnly(t *testing.T) {
	l := mustLayout(t, twoRegions)
	for id, r := range l.recipes {
		for _, secret := range []string{l.tokens.Store, l.tokens.Peer} {
			if strings.Contains(strings.Join(r.Args, " "), secret) {
				t.Errorf("%s: a secret on the command line", id)
			}
		}
	}
	var c service.BalancerConfig
	if err := yaml.UnmarshalWithOptions([]byte(l.recipes["lb-us-0"].Text), &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, l.Balancers[0]) || c.StoreToken != l.tokens.Store || c.PeerToken != l.tokens.Peer || c.StoreURL != "nats://127.0.0.1:9301" {
		t.Errorf("the file says %+v", c)
	}
	var cc service.ControllerConfig
	if err := yaml.UnmarshalWithOptions([]byte(l.recipes["controller"].Text), &cc, yaml.Strict()); err != nil || !reflect.DeepEqual(cc, l.Controller) {
		t.Errorf("the controller's file says %+v, %v", cc, err)
	}
}

func TestWhatChangesTheIdentityOfABalancer(t *testing.T) {
	svc := newService(t, "chat")
	base, err := layout(t, svc, twoRegions, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := base.Save([]byte(twoRegions)); err != nil {
		t.Fatal(err)
	}
	spec := func(text, id string) string {
		l, err := layout(t, svc, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(l.Wants, func(w provision.Want) bool { return w.ID == id })
		return l.Wants[i].Spec
	}
	tests := []struct {
		old, new, id string
		same         bool
	}{
		{"min: 3", "min: 4", "lb-us-0", true}, // replicas come and go while it runs
		{"min: 3", "min: 4", "controller", false},
		{"min: 3", "min: 4", "us-0", true},
		{"80ms", "90ms", "lb-us-0", false},
		{"speed: 10", "speed: 20", "us-0", false},
		{"speed: 10", "speed: 20", "lb-us-0", true},
		{"local:", "balancer: {policy: least-load}\nlocal:", "lb-us-0", false},
	}
	for _, tt := range tests {
		changed := strings.Replace(twoRegions, tt.old, tt.new, 1)
		if same := spec(twoRegions, tt.id) == spec(changed, tt.id); same != tt.same {
			t.Errorf("%s instead of %s: %s stays the same: %t, want %t", tt.new, tt.old, tt.id, same, tt.same)
		}
	}
}

func TestAttachedReplicasAndAnOutsideStore(t *testing.T) {
	text := `name: chat
models: [{name: m}]
regions: [{name: static/paris, balancers: 2, endpoints: ["http://10.0.0.7:8000", "http://10.0.0.8:8000"]}]
store: {url: "nats://10.0.0.5:4222"}
balancer: {tls: {cert: c.pem, key: k.pem}}
local: {port: 9001}
`
	attached := map[service.Region][]service.ReplicaConfig{"static/paris": {
		{ID: "paris-a", URL: "http://10.0.0.7:8000", Region: "static/paris"}, {ID: "paris-b", URL: "http://10.0.0.8:8000", Region: "static/paris"},
	}}
	l, err := layout(t, newService(t, "chat"), text, attached)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Wants) != 3 || l.Wants[0].Address != "https://127.0.0.1:9001" {
		t.Errorf("got %+v", l.Wants)
	}
	if b := l.Balancers[1]; len(b.Replicas) != 1 || b.Replicas[0].ID != "paris-b" || b.StoreURL != "nats://10.0.0.5:4222" || b.StoreToken != "" {
		t.Errorf("got %+v", b)
	}
	if c := l.Controller; c.StoreListen != "" || c.StoreDir != "" || c.StoreURL == "" {
		t.Errorf("got %+v", c)
	}
}

func TestWhatThisMachineCannotProvide(t *testing.T) {
	tests := []struct{ old, new, want string }{
		{"kind: sim, flavor: sglang", "kind: vllm", `models[1].engine.kind: region local/us is local and runs simulated engines only, got "vllm"`},
		{"local: {", "  - {name: static/us, endpoints: [\"http://a\"]}\nlocal: {", "regions[2].name"},
	}
	for _, tt := range tests {
		_, err := layout(t, newService(t, "chat"), strings.Replace(twoRegions, tt.old, tt.new, 1), nil)
		var bad *provision.SpecError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}

func TestATakenPortIsReportedWithItsHolder(t *testing.T) {
	base := 12_000
	for slices.ContainsFunc([]int{0, 1, 2, 100, 101, 102, 200, 201, 202, 203, 204, 205, 206, 300, 310}, func(offset int) bool { return PortTaken(addrOf(base + offset)) }) {
		base += 400
	}
	busy, err := net.Listen("tcp", addrOf(base+controlOffset))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	chat := newService(t, "chat")
	release := holdObject(t, beside(t, chat, "talk"), provision.Object{ID: "us-0", Address: "http://" + busy.Addr().String()}, nil)
	defer release()
	l, err := layout(t, chat, strings.Replace(twoRegions, "9001", strconv.Itoa(base), 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = l.CheckPorts(provision.Diff(l.Wants, nil))
	var port *provision.PortTakenError
	if !errors.As(err, &port) || port.Addr != busy.Addr().String() || port.ID != "controller" || port.Holder != "us-0 of the service talk" {
		t.Errorf("got %v", err)
	}
	var have []provision.Object
	for _, w := range l.Wants {
		have = append(have, provision.Object{ID: w.ID, Kind: w.Kind, Region: w.Region, Spec: w.Spec, Address: w.Address, Admin: w.Admin})
	}
	if err := l.CheckPorts(provision.Diff(l.Wants, have)); err != nil {
		t.Errorf("nothing is launched: got %v", err)
	}
}
