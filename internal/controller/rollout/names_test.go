package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller/rollout"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/fakecloud"
)

// named is a service of two local regions that answers its own name.
func (w *world) named() (text, listen string) {
	listen = fmt.Sprintf("127.0.0.1:%d", w.port+53)
	return strings.Replace(w.yaml(1, "m"), "balancer:", `dns:
  {provider: embedded, name: chat.skyserve.test, listen: "`+listen+`", ttl: 1s, clients: [{network: 127.0.0.0/8, region: local/eu}]}
balancer:`, 1), listen
}

// led is the ids of the balancers that the name leads this machine to, by their
// ports.
func (w *world) led(listen string) string {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, listen)
	}}
	_, found, err := r.LookupSRV(w.Context(), "http", "tcp", "chat.skyserve.test.")
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, s := range found {
		ids = append(ids, strings.TrimSuffix(s.Target, ".chat.skyserve.test."))
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// A name leads to the nearest balancer that takes requests: to another one when it
// dies, and back when it lives again. It needs no controller for that.
func TestANameLeadsToLiveBalancers(t *testing.T) {
	w := newWorld(t)
	text, listen := w.named()
	w.up(text)
	w.until(func() bool { return w.led(listen) == "lb-eu-0" })
	w.checkStatus(rollout.StateReady)

	w.kill("controller")
	w.kill("lb-eu-0")
	w.until(func() bool { return w.led(listen) == "lb-us-0" })
	w.checkNamed("lb-us-0")

	if got, want := w.up(text), []string{"launch controller", "launch lb-eu-0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	w.until(func() bool { return w.led(listen) == "lb-eu-0" })
	w.checkNamed("lb-eu-0", "lb-us-0")

	w.kill("nameserver")
	w.checkStatus(rollout.StateDegraded)
	if got, want := w.up(text), []string{"launch nameserver"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := w.led(listen); got != "lb-eu-0" {
		t.Errorf("leads to %s", got)
	}
	if got, want := w.up(w.yaml(1, "m")), []string{"terminate nameserver"}; !reflect.DeepEqual(got, want) {
		t.Errorf("without a name: got %q, want %q", got, want)
	}
}

// checkNamed makes sure that status shows which balancers the name leads to.
func (w *world) checkNamed(want ...string) {
	w.Helper()
	status, err := rollout.GetStatus(context.Background(), w.svc)
	if err != nil || status.DNS == nil || status.DNS.Server.State != rollout.StateReady {
		w.Fatalf("got %+v, %v", status, err)
	}
	var healthy []string
	for _, r := range status.DNS.Records {
		if r.Healthy {
			healthy = append(healthy, r.ID)
		} else if r.Reason == "" {
			w.Errorf("%s is not healthy for no reason", r.ID)
		}
	}
	slices.Sort(healthy)
	if !reflect.DeepEqual(healthy, want) {
		w.Errorf("leads to %q, want %q", healthy, want)
	}
}

// hosted is an account of AWS with a zone, which the environment leads to.
func hosted(t *testing.T) (fake *fakecloud.Route53, zone string) {
	fake = fakecloud.NewRoute53(&fakecloud.Faults{})
	zone = fake.AddZone("example.com", false)
	server := httptest.NewServer(fake.Handler())
	t.Cleanup(server.Close)
	for key, value := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true", "AWS_CA_BUNDLE": "",
	} {
		t.Setenv(key, value)
	}
	return fake, zone
}

// published is a service of one region whose balancer others reach at an address.
func (w *world) published(dns string) string {
	return fmt.Sprintf(`name: chat
models: [{name: m, engine: {kind: sim}}]
regions: [{name: local/eu, replicas: {min: 1, max: 5}, public: ["http://203.0.113.7:8001"]}]
local: {port: %d}
%s
`, w.port, dns)
}

func (w *world) publish(text string) error {
	w.Helper()
	plan := w.plan(text)
	err := plan.CheckName(w.Context())
	if err == nil {
		_, err = plan.Apply(w.Context(), nil)
	}
	if err == nil {
		_, err = plan.Publish(w.Context())
	}
	return err
}

func (w *world) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return rollout.Down(ctx, w.svc, time.Second, false, nil)
}

// A service's name in a hosted zone is there with it, follows its service.yaml, and
// goes with it.
func TestANameInAHostedZone(t *testing.T) {
	fake, zone := hosted(t)
	w := newWorld(t)
	names := func() (all []string) {
		for _, s := range fake.RecordSets(zone) {
			all = append(all, s.Name+" "+s.Type)
		}
		return all
	}
	want := func(name string) []string {
		return []string{name + ". A", "_skyserve." + name + ". TXT", "eu-central-1._skyserve." + name + ". A"}
	}
	for _, step := range []struct {
		dns  string
		want []string
	}{
		{"dns: {provider: route53, name: chat.example.com, zone: example.com}", want("chat.example.com")},
		{"dns: {provider: route53, name: talk.example.com, zone: example.com}", want("talk.example.com")},
		{"", nil},
		{"dns: {provider: route53, name: chat.example.com, zone: example.com, routing: geo}", want("chat.example.com")},
	} {
		if err := w.publish(w.published(step.dns)); err != nil {
			t.Fatal(err)
		}
		if got := names(); !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.dns, got, step.want)
		}
	}
	if checks, _ := fake.Checks(); len(checks) != 1 || checks[0].HealthCheckConfig.ResourcePath != "/readyz" || checks[0].HealthCheckConfig.IPAddress != "203.0.113.7" {
		t.Errorf("health checks: %+v", checks)
	}
	// A service.yaml that was damaged does not keep the name.
	if err := os.WriteFile(w.svc.SpecFile(), []byte("name: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.down(); err != nil {
		t.Error(err)
	}
	if checks, _ := fake.Checks(); len(checks)+len(names()) > 0 {
		t.Errorf("left over: %q, %+v", names(), checks)
	}
}

// A name that somebody else has stays theirs; one that cannot be removed is left
// over, and can be removed later.
func TestANameThatCannotBeHadOrRemoved(t *testing.T) {
	fake, zone := hosted(t)
	w := newWorld(t)
	ttl := int64(60)
	theirs := fakecloud.RecordSet{Name: "talk.example.com", Type: "A", TTL: &ttl, ResourceRecords: &fakecloud.Values{ResourceRecord: []fakecloud.Value{{Value: "192.0.2.1"}}}}
	if err := fake.AddRecords(zone, theirs); err != nil {
		t.Fatal(err)
	}
	var owned *provision.OwnedError
	if err := w.publish(w.published("dns: {provider: route53, name: talk.example.com, zone: example.com}")); !errors.As(err, &owned) || len(w.pids()) > 0 {
		t.Errorf("got %v, and %v", err, w.pids())
	}
	if err := w.publish(w.published("dns: {provider: route53, name: chat.example.com, zone: example.com}")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	var left *provision.LeftoverError
	if err := w.down(); !errors.As(err, &left) || !strings.Contains(err.Error(), "the name chat.example.com: reaching aws: no valid credentials") {
		t.Errorf("got %v", err)
	}
	if len(w.pids()) > 0 {
		t.Errorf("processes go on: %v", w.pids())
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	if err := w.down(); err != nil || len(fake.RecordSets(zone)) != 1 {
		t.Errorf("got %v, and there is %+v", err, fake.RecordSets(zone))
	}
}

// What no name can lead to is refused before anything is made.
func TestNamesThatLeadNowhere(t *testing.T) {
	for _, tt := range []struct{ region, says string }{
		{"{name: local/us}", "dns.provider: the balancers of regions[0] (local/us) listen on this machine's loopback address"},
		{`{name: local/us, public: ["http://127.0.0.1:8001"]}`, "regions[0].public[0]: is a loopback address"},
		{`{name: local/us, public: ["http://[::1]:8001"]}`, "regions[0].public[0]: is a loopback address"},
		{`{name: local/basement, public: ["http://203.0.113.7"]}`, "regions[0].name: finding the region of AWS nearest to local/basement"},
	} {
		_, err := rollout.Read("service.yaml", []byte(`name: chat
models: [{name: m, engine: {kind: sim}}]
regions: [`+tt.region+`]
dns: {provider: route53, name: chat.example.com, zone: example.com}
`))
		var spec *provision.SpecError
		if !errors.As(err, &spec) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want %s", tt.region, err, tt.says)
		}
	}
	_, err := rollout.Read("service.yaml", []byte(`name: chat
models: [{name: m, engine: {kind: sim}}]
regions: [{name: local/basement, public: ["http://127.0.0.1:8001"]}]
dns: {provider: `+service.DNSEmbedded+`, name: chat.example.com}
`))
	if err != nil {
		t.Errorf("a name server of this machine may lead to it: %v", err)
	}
}
