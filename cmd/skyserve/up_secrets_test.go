package main

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
)

// Processes on this computer read the keys of clients, engines, providers and an ACME account, and files of endpoints;
// those in clouds receive the keys. A reload reads the keys that requests need.
func TestSecretsOfLocalBalancers(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "local/us"}, {Name: "static/here", EndpointsFile: "no-such-list"}}}
	spec.Balancer.Auth = &service.Auth{KeysFrom: "env:NO_CLIENT_KEYS"}
	spec.Balancer.TLS = &service.TLS{ACME: &service.ACME{EAB: &service.EAB{KeyID: "k", HMAC: "file:no-such-file"}}}
	spec.Models = []service.Model{{Name: "m", Engine: service.Engine{APIKey: "env:NO_ENGINE_KEY"}}}
	spec.Providers = []service.Provider{{Name: "other"}, {Name: "p", APIKey: "env:NO_PROVIDER_KEY"}}
	var got []string
	for _, s := range localSecrets(spec, "/") {
		if s.check() == nil {
			t.Errorf("%s: %s does not exist", s.key, s.ref)
		}
		got = append(got, strings.TrimSpace(s.key+" "+s.ref+" "+s.reloaded))
	}
	want := []string{
		"balancer.auth.keys_from env:NO_CLIENT_KEYS API keys", "balancer.tls.acme.eab.hmac file:no-such-file",
		"models[0].engine.api_key env:NO_ENGINE_KEY engine keys", "providers[1].api_key env:NO_PROVIDER_KEY provider keys",
		"regions[1].endpoints_file file:/no-such-list",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	spec.Regions[0].Name = "aws/us-east-1"
	if got := localSecrets(spec, t.TempDir()); got != nil {
		t.Errorf("in a cloud: got %v", got)
	}
}
