package main

import (
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// While replicas load for many minutes, the name already resolves to the balancers, also after
// a timeout.
func TestUpPublishesNameBeforeReplicasAreReady(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	const never = "engine: {kind: sim, speed: 100, ready: /never}"
	text := strings.NewReplacer("engine: {kind: sim, speed: 100}", never, "balancer:\n", "dns: {provider: route53, name: chat.example.com, zone: example.com}\nbalancer:\n").Replace(oneRegion)
	out := e.skyserve(exitPartial, append(e.upOf(text), "--yes", "--timeout", "12s")...)
	if !strings.Contains(out, "published chat.example.com") {
		t.Errorf("up does not report the published name:\n%s", out)
	}
	if got := e.names.ResolveName(e.zone, "chat.example.com", "us-east-1"); len(got) != 1 {
		t.Errorf("the name resolves to %v, want the balancer", got)
	}
	e.downAndCheckEmpty()
}

// The default timeout of up depends on the service: local processes start in seconds, VMs with
// images and weights in many minutes, and a failed certificate request is retried after one minute,
// then after two.
func TestUpDefaultTimeout(t *testing.T) {
	for regions, want := range map[string]time.Duration{
		"local/us": time.Minute,
		"static/x, endpoints: ['http://10.0.0.7:1']": time.Minute,
		"local/us, public: ['https://203.0.113.7']}]\ndns: {provider: embedded, name: a.b.c, zone: b.c}\nbalancer: {tls: {acme: {email: a@b.c}}} #": 10 * time.Minute,
		"aws/us-east-1}]\nbalancer: {insecure: true} #":   30 * time.Minute,
		"gcp/us-central1}]\nbalancer: {insecure: true} #": 30 * time.Minute,
	} {
		spec, err := service.Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: "+regions+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := defaultTimeout(spec); got != want {
			t.Errorf("%s: waits %s, want %s", regions, got, want)
		}
	}
}
