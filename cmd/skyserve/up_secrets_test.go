package main

import (
	"slices"
	"testing"

	"skyserve/internal/service"
)

// Balancers on this computer read the keys of clients and of an ACME account; those in clouds receive them.
func TestSecretsOfLocalBalancers(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "local/us"}}}
	spec.Balancer.Auth = &service.Auth{KeysFrom: "env:NO_CLIENT_KEYS"}
	spec.Balancer.TLS = &service.TLS{ACME: &service.ACME{EAB: &service.EAB{KeyID: "k", HMAC: "file:no-such-file"}}}
	var got []string
	for _, s := range localSecrets(spec) {
		if s.check() == nil {
			t.Errorf("%s: %s does not exist", s.key, s.ref)
		}
		got = append(got, s.key+" "+s.ref)
	}
	if want := []string{"balancer.auth.keys_from env:NO_CLIENT_KEYS", "balancer.tls.acme.eab.hmac file:no-such-file"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	spec.Regions[0].Name = "aws/us-east-1"
	if got := localSecrets(spec); got != nil {
		t.Errorf("in a cloud: got %v", got)
	}
}
