package main

import (
	"strings"
	"testing"

	"skyserve/internal/service"
)

// The commands that up proposes present the credential that the service accepts: an API key, an identity token if it
// accepts only tokens, or none.
func TestProposedCommandsPresentCredential(t *testing.T) {
	issuer := []service.OIDC{{Issuer: "https://login.example.com", Audience: "chat"}}
	for name, c := range map[string]struct {
		auth     *service.Auth
		variable string
	}{
		"no authentication": {nil, ""},
		"only limits":       {&service.Auth{}, ""},
		"keys":              {&service.Auth{KeysFrom: "env:KEYS"}, "SKYSERVE_KEY"},
		"tokens":            {&service.Auth{OIDC: issuer}, "SKYSERVE_TOKEN"},
		"keys and tokens":   {&service.Auth{KeysFrom: "env:KEYS", OIDC: issuer}, "SKYSERVE_KEY"},
	} {
		spec := &service.Spec{Models: []service.Model{{Name: "llama"}}, Balancer: service.BalancerSpec{Auth: c.auth}}
		load, bearer := "skyserve load", ""
		if c.variable != "" {
			load, bearer = "skyserve load --api-key env:"+c.variable, `Authorization: Bearer $`+c.variable+`"`
		}
		if got := loadCommand(spec, ""); got != load {
			t.Errorf("%s: %s, want %s", name, got, load)
		}
		if got := curlCommand(spec, "http://127.0.0.1:8001"); !strings.Contains(got, bearer) || bearer == "" && strings.Contains(got, "Bearer") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
