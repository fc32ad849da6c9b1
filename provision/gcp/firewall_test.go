package gcp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision"
)

var hashes = regexp.MustCompile(`-[0-9a-f]{12}\b`)

// formatRules formats the firewall rules of a fake, without the hashes at the end of names.
func formatRules(g *testcloud.GCE) string {
	var all []string
	for _, f := range g.Firewalls() {
		state := "on"
		if f.Disabled {
			state = "off"
		}
		all = append(all, hashes.ReplaceAllString(fmt.Sprintf("%s %d %s: allow %v deny %v from %v %v to %v", f.Name, *f.Priority, state, f.Allowed, f.Denied, f.SourceRanges, f.SourceTags, f.TargetTags), "-#"))
	}
	return strings.Join(all, "\n")
}

func TestFirewallRules(t *testing.T) {
	g := newGCE(nil)
	p := provider(g)
	launched(t, p, firewall(provision.KindBalancer,
		provision.FirewallRule{Port: 8100, From: provision.FromWorld}, provision.FirewallRule{Port: 8000, From: provision.FromWorld}, provision.FirewallRule{Port: 8000, From: provision.FromWorld}))
	launched(t, p, firewall(provision.KindReplica,
		provision.FirewallRule{Port: 8300, From: provision.FromBalancers}, provision.FirewallRule{Port: 22, From: provision.FromWorld}))
	launched(t, p, identity())
	const want = `skyserve-chat-firewall-us-central1-balan-#-rest 65000 on: allow [] deny [{all []}] from [0.0.0.0/0] [] to [skyserve-chat-balancer-us-central1-#]
skyserve-chat-firewall-us-central1-balan-#-world 1000 on: allow [{tcp [8000 8100]}] deny [] from [0.0.0.0/0] [] to [skyserve-chat-balancer-us-central1-#]
skyserve-chat-firewall-us-central1-repli-#-balancers 1000 on: allow [{tcp [8300]}] deny [] from [] [skyserve-chat-balancer-all-#] to [skyserve-chat-replica-us-central1-#]
skyserve-chat-firewall-us-central1-repli-#-rest 65000 on: allow [] deny [{all []}] from [0.0.0.0/0] [] to [skyserve-chat-replica-us-central1-#]
skyserve-chat-firewall-us-central1-repli-#-world 1000 on: allow [{tcp [22]}] deny [] from [0.0.0.0/0] [] to [skyserve-chat-replica-us-central1-#]
skyserve-chat-identity-gcp-balancer-#-identity 65000 off: allow [] deny [{all []}] from [0.0.0.0/0] [] to [skyserve-chat-balancer-global-#]`
	if got := formatRules(g); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// the tags of the rules are those of the machines
	launched(t, p, balancer("lb-us-central1-0"))
	tags := strings.Join(g.Instances()[0].Tags.Items, " ")
	for _, f := range g.Firewalls() {
		if strings.HasSuffix(f.Name, "-world") && strings.Contains(f.Name, "-balan-") && !strings.Contains(tags, f.TargetTags[0]) ||
			strings.HasSuffix(f.Name, "-balancers") && !strings.Contains(tags, f.SourceTags[0]) {
			t.Errorf("rule %s speaks of %v and %v, and a balancer has %s", f.Name, f.TargetTags, f.SourceTags, tags)
		}
	}
}

// The members of the store admit each other: at private addresses of the network, and at the public addresses of
// other networks. A changed address repairs the rule.
func TestFirewallAdmitsPeers(t *testing.T) {
	g := newGCE(nil)
	p := provider(g)
	w := firewall(provision.KindBalancer, provision.FirewallRule{Port: 8420, From: provision.FromSameRole})
	w.SameRole = []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")}
	launched(t, p, w)
	const rule = `skyserve-chat-firewall-us-central1-balan-#-peers 1000 on: allow [{tcp [8420]}] deny [] from [%s] [skyserve-chat-balancer-all-#] to [skyserve-chat-balancer-us-central1-#]`
	if got, want := formatRules(g), fmt.Sprintf(rule, "198.18.0.1/32 198.18.0.2/32"); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	w.SameRole, w.SpecHash = w.SameRole[1:], "f2"
	launched(t, p, w)
	if got, want := formatRules(g), fmt.Sprintf(rule, "198.18.0.2/32"); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	if changes := provision.Diff([]provision.Desired{w}, have); len(changes) != 0 {
		t.Errorf("got %+v, want no change", changes)
	}
}

func TestFirewallIsRepaired(t *testing.T) {
	rules := []provision.FirewallRule{{Port: 8000, From: provision.FromWorld}, {Port: 8200, From: provision.FromBalancers}}
	for _, tt := range []struct {
		name string
		edit func(*testcloud.GCEFirewall)
	}{
		{"opened", func(f *testcloud.GCEFirewall) {
			f.Allowed, f.Denied = []testcloud.GCEProtocol{{Protocol: "all"}}, nil
		}},
		{"manually opened port", func(f *testcloud.GCEFirewall) { f.SourceRanges = append(f.SourceRanges, "10.0.0.0/8") }},
		{"other tags", func(f *testcloud.GCEFirewall) { f.TargetTags = []string{"web"} }},
		{"disabled", func(f *testcloud.GCEFirewall) { f.Disabled = true }},
		{"moved", func(f *testcloud.GCEFirewall) { f.Priority = new(7) }},
	} {
		for _, end := range []string{"-world", "-balancers", "-rest"} {
			t.Run(tt.name+end, func(t *testing.T) {
				g := newGCE(nil)
				p, w := provider(g), firewall(provision.KindBalancer, rules...)
				launched(t, p, w)
				right := formatRules(g)
				for _, f := range g.Firewalls() {
					if strings.HasSuffix(f.Name, end) {
						g.EditFirewall(f.Name, tt.edit)
					}
				}
				have, err := p.List(t.Context(), "chat")
				if err != nil {
					t.Fatal(err)
				}
				changes := provision.Diff([]provision.Desired{w}, have)
				if len(changes) != 1 || changes[0].Action != provision.ActionRepair {
					t.Fatalf("got %+v, want it to be mended", changes)
				}
				if _, err := provision.Apply(t.Context(), changes, p, provision.ApplyOptions{}); err != nil || formatRules(g) != right {
					t.Errorf("%v, got\n%s\nwant\n%s", err, formatRules(g), right)
				}
			})
		}
	}
}

// When the desired rules change, missing rules are added and excess rules are removed.
func TestFirewallRulesAreUpdated(t *testing.T) {
	g := newGCE(nil)
	p := provider(g)
	launched(t, p, firewall(provision.KindBalancer, provision.FirewallRule{Port: 8000, From: provision.FromWorld}))
	w := firewall(provision.KindBalancer, provision.FirewallRule{Port: 443, From: provision.FromBalancers})
	launched(t, p, w)
	if got := formatRules(g); strings.Contains(got, "-world") || !strings.Contains(got, "{tcp [443]}") {
		t.Errorf("got\n%s", got)
	}
	have, err := p.List(t.Context(), "chat")
	if err != nil || len(have) != 1 || len(provision.Diff([]provision.Desired{w}, have)) != 0 {
		t.Errorf("got %+v, %v", have, err)
	}
	if err := p.Terminate(t.Context(), have[0]); err != nil || len(g.Firewalls()) != 0 {
		t.Errorf("%v, remaining:\n%s", err, formatRules(g))
	}
}

// A manual copy of a rule under a name of skyserve is drift; under another name it is ignored.
func TestCopiedRules(t *testing.T) {
	for _, tt := range []struct {
		end     string
		changes int
	}{{"-world", 1}, {"-copy", 0}} {
		g := newGCE(nil)
		p, w := provider(g), firewall(provision.KindReplica)
		launched(t, p, w)
		f := g.Firewalls()[0]
		f.ID, f.Kind, f.SelfLink, f.Name = "", "", "", strings.TrimSuffix(f.Name, "-rest")+tt.end
		f.Network = "global/networks/default"
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		byHand(t, g, "global/firewalls", string(text))
		have, err := p.List(t.Context(), "chat")
		if err != nil || len(have) != 1 || len(provision.Diff([]provision.Desired{w}, have)) != tt.changes {
			t.Errorf("%s: got %+v, %v", tt.end, have, err)
		}
		launched(t, p, w)
		if got := len(g.Firewalls()); got != 2-tt.changes {
			t.Errorf("%s: got %d rules\n%s", tt.end, got, formatRules(g))
		}
	}
}

// Without the balancers' service account, no object that requires it is created, and the error contains the
// commands that create it. The project's default service account, with more permissions, is not used.
func TestBalancerRequiresServiceAccount(t *testing.T) {
	g := testcloud.NewGCE("p", nil)
	_, err := provider(g).Launch(t.Context(), identity())
	var denied *provision.CredentialsError
	if !errors.As(err, &denied) || !strings.Contains(err.Error(), accountOfBalancers) {
		t.Fatalf("got %v, want that the service account was not found", err)
	}
	if err := g.RunGcloud(denied.Hint); err != nil {
		t.Fatal(err)
	}
	launched(t, provider(g), identity())
	launched(t, provider(g), balancer("lb-us-central1-0"))
	if got := g.Instances()[0].ServiceAccounts; len(got) != 1 || got[0].Email != accountOfBalancers {
		t.Errorf("a balancer runs as %+v", got)
	}
}

// Names of service accounts are valid, and different for each service.
func TestServiceAccountNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"c", "chat", "chat-eu", strings.Repeat("a", 18), strings.Repeat("a", 19), strings.Repeat("a", 39) + "b", strings.Repeat("a", 40)} {
		w := identity()
		w.Service = name
		_, err := provider(testcloud.NewGCE("p", nil)).Launch(t.Context(), w)
		var denied *provision.CredentialsError
		if !errors.As(err, &denied) {
			t.Fatalf("%s: %v", name, err)
		}
		_, account, _ := strings.Cut(denied.Action, "service account ")
		id, _, _ := strings.Cut(account, "@")
		if !regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`).MatchString(id) || seen[id] != "" {
			t.Errorf("%s has service account %s, the same as %q", name, id, seen[id])
		}
		seen[id] = name
	}
}
