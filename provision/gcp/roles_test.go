package gcp_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/fakecloud"
	"skyserve/provision/gcp"
)

// roleOfDocs are the permissions of the role that docs/clouds.md makes for balancers.
func roleOfDocs(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/clouds.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`roles create skyserveBalancer [^\n]*--permissions ([\w.,]+)`).FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/clouds.md makes no role skyserveBalancer")
	}
	return strings.Split(string(m[1]), ",")
}

// control does what a controller does in its cloud.
func control(p *gcp.Provider) error {
	ctx := context.Background()
	if _, err := p.Offerings(ctx, here); err != nil {
		return err
	}
	if _, err := p.Quotas(ctx, here); err != nil {
		return err
	}
	w := replica("us-central1-0", service.CapacitySpot)
	w.Offers[0].Zone = ""
	o, err := p.Launch(ctx, w)
	if err != nil {
		return err
	}
	if _, err := p.Fingerprint(ctx, o); err != nil {
		return err
	}
	if _, err := p.List(ctx, "chat"); err != nil {
		return err
	}
	return p.Terminate(ctx, o)
}

// operate does what up and down do.
func operate(p *gcp.Provider) error {
	rule := provision.Rule{Port: 8300, From: provision.FromBalancers}
	for _, w := range append(chat(), firewall(provision.KindReplica, rule, provision.Rule{Port: 22, From: provision.FromWorld}), firewall(provision.KindReplica, rule)) {
		if _, err := p.Launch(context.Background(), w); err != nil {
			return err
		}
	}
	have, err := p.List(context.Background(), "chat")
	for _, o := range have {
		if err == nil {
			err = p.Terminate(context.Background(), o)
		}
	}
	if err == nil {
		err = control(p)
	}
	return err
}

// The roles of the docs are enough, and nothing in them is for nothing.
func TestTheLeastRoles(t *testing.T) {
	account := roleOfDocs(t)
	person := slices.Concat(account, []string{
		"compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get", "compute.firewalls.list", "compute.firewalls.update",
		"compute.globalOperations.get", "compute.instances.setServiceAccount", "compute.networks.updatePolicy", "iam.serviceAccounts.actAs",
	})
	for _, tt := range []struct {
		name     string
		role     []string
		machines bool
		do       func(*gcp.Provider) error
	}{{"balancer", account, true, control}, {"operator", person, false, operate}} {
		with := func(role []string) error {
			g := fakecloud.NewGCE("p", nil)
			g.Allow(role...)
			cfg := config(g)
			cfg.MachinesOnly = tt.machines
			return tt.do(gcp.New(cfg))
		}
		if err := with(tt.role); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		for i, permission := range tt.role {
			if err := with(slices.Delete(slices.Clone(tt.role), i, i+1)); err == nil {
				t.Errorf("%s: %s is not needed", tt.name, permission)
			}
		}
	}
}
