package deploy_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// agentWithoutRelay is a balancer's agent that cannot reach any replica.
func agentWithoutRelay(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		http.Error(w, "nobody there", http.StatusBadGateway)
		return
	}
	fmt.Fprint(w, "{}")
}

// Only machines whose network is ruled out as the cause count as dead.
func TestFindDeadRequiresProof(t *testing.T) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	address := func(n int) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf("127.%d.%d.%d", 200+os.Getpid()%50, os.Getpid()/50%250, 100+n))
	}
	machine := func(kind provision.ObjectKind, id, region string, n int, age time.Duration) provision.Object {
		o := provision.Object{ID: id, Handle: "i-" + id, Kind: kind, PublicIP: address(n), PrivateIP: address(n), Started: time.Now().Add(-age)}
		o.Region = service.Region("aws/" + region)
		return o
	}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := authority.Certify(key.Public(), identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	listenAt(t, net.JoinHostPort(address(1).String(), "8200"), identity.NewParty(chain, key), http.HandlerFunc(agentWithoutRelay))
	old := time.Hour
	unresponsive := machine(provision.KindBalancer, "lb-us-0", "us", 0, old) // nothing listens on its port
	young := machine(provision.KindBalancer, "lb-us-0", "us", 0, time.Minute)
	process := young
	process.Region = "local/us"
	starting := process
	starting.Started = time.Now().Add(time.Hour) // however slow the test is
	removed := unresponsive
	removed.TerminatedReason = "stopped"
	well := machine(provision.KindBalancer, "lb-us-1", "us", 1, old)
	near := machine(provision.KindReplica, "us-0", "us", 2, old)
	far := machine(provision.KindReplica, "eu-0", "eu", 3, old)
	blind := machine(provision.KindBalancer, "lb-eu-0", "eu", 4, old)
	for name, tt := range map[string]struct {
		have         []provision.Object
		dead, unsure []string
	}{
		"all respond":                                  {have: []provision.Object{well}},
		"a balancer, while another responds":           {have: []provision.Object{unresponsive, well}, dead: []string{"i-lb-us-0"}},
		"the only one: the network may be the cause":   {have: []provision.Object{unresponsive}, unsure: []string{"lb-us-0"}},
		"all of them, likewise":                        {have: []provision.Object{unresponsive, blind}, unsure: []string{"lb-us-0", "lb-eu-0"}},
		"one that may still boot":                      {have: []provision.Object{young, well}},
		"a process of that age, which starts at once":  {have: []provision.Object{process, well}, dead: []string{"i-lb-us-0"}},
		"a process that may still start":               {have: []provision.Object{starting, well}},
		"one that its cloud has stopped":               {have: []provision.Object{removed, well}},
		"a replica behind a balancer that responds":    {have: []provision.Object{near, well}, dead: []string{"i-us-0"}},
		"a replica behind one that does not":           {have: []provision.Object{far, blind, well}, dead: []string{"i-lb-eu-0"}},
		"a replica that no balancer of its region has": {have: []provision.Object{far, well}},
	} {
		dl := &deploy.Delivery{Service: "chat", Party: party(t, authority, identity.Operator), Machines: tt.have}
		dead, unsure := dl.FindDead(t.Context(), time.Nanosecond)
		if got := slices.Sorted(maps.Keys(dead)); !slices.Equal(got, tt.dead) || !slices.Equal(unsure, tt.unsure) {
			t.Errorf("%s: dead are %q, unsure %q, want %q and %q", name, got, unsure, tt.dead, tt.unsure)
		}
	}
}

// A dead machine is deleted before it is replaced, also where replicas.max does not allow two, and
// everything else is unchanged.
func TestDeadMachineIsReplaced(t *testing.T) {
	spec := parse(t, strings.ReplaceAll(twoClouds, "max: 3", "max: 2"))
	m := newCloud(spec)
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	handles := func() map[string]string {
		of := map[string]string{}
		for _, o := range m.Objects() {
			of[o.ID] = o.Handle
		}
		return of
	}
	before := handles()
	replace := func(machines map[string]string) []string {
		t.Helper()
		dp := newDeployer(spec, m)
		p, err := dp.Plan(context.Background())
		if err == nil {
			p, err = dp.PlanReplacing(p, machines)
		}
		if err == nil {
			_, err = dp.Up(context.Background(), p, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		var reported []string
		for _, c := range p.Changes {
			reported = append(reported, fmt.Sprintf("%s %s: %s", c.Action, c.ID(), c.Reason))
		}
		return reported
	}
	if got, want := replace(map[string]string{before["us-east-1-1"]: "no response", before["lb-us-east-1-0"]: deploy.ReplacedOnRequest}),
		[]string{"replace us-east-1-1: no response", "replace lb-us-east-1-0: " + deploy.ReplacedOnRequest}; !slices.Equal(got, want) {
		t.Errorf("did %q, want %q", got, want)
	}
	after := handles()
	for id, handle := range before {
		if replaced := id == "us-east-1-1" || id == "lb-us-east-1-0"; (after[id] != handle) != replaced {
			t.Errorf("%s was %s and is %s", id, handle, after[id])
		}
	}
	if len(after) != len(before) || len(m.Objects()) != len(before) {
		t.Errorf("%d objects, want %d", len(m.Objects()), len(before))
	}
	m.ChangeObject("firewall-us-east-1-replica", func(o *provision.Object) { o.SpecHash = "port 8200 is shut" })
	want := []string{"repair firewall-us-east-1-replica: does not match its configuration", "replace us-east-1-0: " + deploy.ReplacedOnRequest}
	if got := replace(map[string]string{after["us-east-1-1"]: "no response", after["us-east-1-0"]: deploy.ReplacedOnRequest}); !slices.Equal(got, want) {
		t.Errorf("behind a changed firewall it did %q, want %q", got, want)
	}
}
