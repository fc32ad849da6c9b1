package service_test

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
)

func TestReload(t *testing.T) {
	forward := false
	running := service.BalancerConfig{
		Service: "chat", ID: "lb-us-0", Region: "local/us", Listen: "127.0.0.1:8000", Admin: "127.0.0.1:8100",
		StoreURL: "nats://127.0.0.1:1", StoreToken: "s", PeerToken: "p", Record: "r", Balancer: service.BalancerSpec{Policy: "skylb"},
	}
	for name, c := range map[string]struct {
		from, to func(*service.BalancerConfig)
		restart  bool
	}{
		"policy": {to: func(c *service.BalancerConfig) { c.Balancer.Policy = "cost" }},
		"bounds": {to: func(c *service.BalancerConfig) {
			c.Balancer.QueueLimit, c.Balancer.MaxWait, c.Balancer.MaxColdWait = 3, time.Second, time.Minute
		}},
		"failures": {to: func(c *service.BalancerConfig) {
			c.Balancer.MaxTries, c.Balancer.RetryPercent, c.Balancer.EjectAfter, c.Balancer.EjectTime, c.Balancer.Continue, c.Balancer.HoldDeferred = 2, 3, 4, time.Second, &forward, &forward
			c.Balancer.DeferredMemoryPercent, c.Balancer.DeferredWaitPercent = 70, 50
		}},
		"parameters": {to: func(c *service.BalancerConfig) { c.Balancer.AllowParameters = []string{"chat_template"} }},
		"origins":    {to: func(c *service.BalancerConfig) { c.Balancer.CORS = &service.CORS{Origins: []string{"*"}} }},
		"forward":    {to: func(c *service.BalancerConfig) { c.Balancer.Forward = &forward }},
		"models":     {to: func(c *service.BalancerConfig) { c.Models = []service.BalancerModel{{Name: "m"}} }},
		"replicas":   {to: func(c *service.BalancerConfig) { c.Replicas = []service.ReplicaConfig{{ID: "a"}} }},
		"peers":      {to: func(c *service.BalancerConfig) { c.Peers = []service.PeerConfig{{ID: "a"}} }},
		"keys":       {to: func(c *service.BalancerConfig) { c.Balancer.Auth = &service.Auth{KeysFrom: "file:k"} }},
		"keys of it": {to: func(c *service.BalancerConfig) { c.Balancer.Auth = &service.Auth{KeysFrom: "env:K"} }, restart: true},
		"tokens": {to: func(c *service.BalancerConfig) {
			c.Balancer.Auth = &service.Auth{OIDC: []service.OIDC{{Issuer: "https://a.b", Audience: "c"}}}
		}},
		"limits beside keys of it": {
			from: func(c *service.BalancerConfig) { c.Balancer.Auth = &service.Auth{KeysFrom: "env:K"} },
			to: func(c *service.BalancerConfig) {
				c.Balancer.Auth = &service.Auth{KeysFrom: "env:K", Limits: service.KeyLimits{Concurrent: 1}}
			},
		},
		"listen":     {to: func(c *service.BalancerConfig) { c.Listen = "127.0.0.1:1" }, restart: true},
		"admin":      {to: func(c *service.BalancerConfig) { c.Admin = "127.0.0.1:1" }, restart: true},
		"store":      {to: func(c *service.BalancerConfig) { c.StoreToken = "t" }, restart: true},
		"peer token": {to: func(c *service.BalancerConfig) { c.PeerToken = "t" }, restart: true},
		"identity":   {to: func(c *service.BalancerConfig) { c.Identity = &service.Identity{Cert: "c", Key: "k", CA: "a"} }, restart: true},
		"its token":  {to: func(c *service.BalancerConfig) { c.AdminToken = "t" }, restart: true},
		"memory":     {to: func(c *service.BalancerConfig) { c.Balancer.Memory.Tenant = 64 * service.MiB }, restart: true},
		"TLS on":     {to: func(c *service.BalancerConfig) { c.Balancer.TLS = &service.TLS{Cert: "c", Key: "k"} }, restart: true},
		"TLS moves": {
			from: func(c *service.BalancerConfig) { c.Balancer.TLS = &service.TLS{Cert: "c", Key: "k"} },
			to:   func(c *service.BalancerConfig) { c.Balancer.TLS = &service.TLS{Cert: "c2", Key: "k2"} },
		},
		"TLS by files, then obtained": {
			from: func(c *service.BalancerConfig) { c.Balancer.TLS = &service.TLS{Cert: "c", Key: "k"} },
			to: func(c *service.BalancerConfig) {
				c.Balancer.TLS = &service.TLS{ACME: &service.ACME{Email: "a@b.c"}}
			},
			restart: true,
		},
		"another authority": {
			from: func(c *service.BalancerConfig) {
				c.Balancer.TLS = &service.TLS{ACME: &service.ACME{Email: "a@b.c"}}
			},
			to: func(c *service.BalancerConfig) {
				c.Balancer.TLS = &service.TLS{ACME: &service.ACME{Email: "a@b.c", CA: "https://ca.b.c"}}
			},
			restart: true,
		},
		"where it is obtained": {to: func(c *service.BalancerConfig) { c.Certificate = &service.CertificateConfig{Name: "a.b.c"} }, restart: true},
		"plain HTTP accepted":  {to: func(c *service.BalancerConfig) { c.Balancer.Insecure = true }},
	} {
		from := running
		if c.from != nil {
			c.from(&from)
		}
		to := from
		c.to(&to)
		if restart := !reflect.DeepEqual(from.Immutable(), to.Immutable()); restart != c.restart {
			t.Errorf("%s: requires a restart: %v, want %v", name, restart, c.restart)
		}
		want := to
		if c.restart {
			want = from
		}
		if got := from.Reload(to); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}
