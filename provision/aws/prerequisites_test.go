package aws_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// Manual changes are detected and repaired in place.
func TestPrerequisitesAreRepaired(t *testing.T) {
	for name, tamper := range map[string]func(*testcloud.AWS){
		"another port is open": func(c *testcloud.AWS) { c.AddSecurityGroupRule("us-east-1", "skyserve-chat-replica", 22, "0.0.0.0/0") },
		"a port is open to one more": func(c *testcloud.AWS) {
			c.AddSecurityGroupRule("us-east-1", "skyserve-chat-replica", 8300, "10.0.0.0/8")
		},
		"the policy allows everything": func(c *testcloud.AWS) { c.SetRolePolicy("skyserve-chat-balancer", "skyserve", `{"Statement":[]}`) },
		"a role may suddenly do a thing": func(c *testcloud.AWS) {
			c.SetRolePolicy("skyserve-chat-replica", "skyserve", `{"Statement":[]}`)
		},
		"a profile has no role": func(c *testcloud.AWS) { c.DetachRole("skyserve-chat-balancer") },
		"a profile was deleted": func(c *testcloud.AWS) { c.DeleteProfile("skyserve-chat-replica") },
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud(nil)
			p := open(t, cloud)
			launch(t, p, chat()...)
			before := cloud.RemainingResources()
			policy := cloud.RolePolicy("skyserve-chat-balancer", "skyserve")
			tamper(cloud)
			changes := provision.Diff(chat(), list(t, p))
			if len(changes) != 1 || changes[0].Action != provision.ActionRepair {
				t.Fatalf("there is to do: %+v, want one repair", changes)
			}
			if _, err := provision.Apply(t.Context(), changes, p, provision.ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			if changes := provision.Diff(chat(), list(t, p)); len(changes) != 0 {
				t.Errorf("after mending there is to do: %+v", changes)
			}
			if after := cloud.RemainingResources(); !slices.Equal(before, after) || cloud.RolePolicy("skyserve-chat-balancer", "skyserve") != policy {
				t.Errorf("there was %q, there is %q", before, after)
			}
		})
	}
}

// A replica's ports are open to the balancers' security group if all balancers are in it, else to any
// address. The rules change when a second region is added.
func TestReplicaFirewallSources(t *testing.T) {
	cloud := newCloud(nil)
	c := config(cloud, "us-east-1")
	c.OneRegion = true
	alone, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	grown := open(t, cloud)
	balancer := firewall(east, provision.RoleBalancer, provision.FirewallRule{Port: 443, From: provision.FromWorld})
	replica := firewall(east, provision.RoleReplica, provision.FirewallRule{Port: 8300, From: provision.FromBalancers})
	launch(t, alone, roleFor(provision.RoleReplica), balancer, replica, machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot))
	launch(t, alone, replica)
	group := func() string { return only(list(t, alone), balancer.ID)[0].Handle }
	world := []string{"tcp 8300-8300 0.0.0.0/0", "tcp 8300-8300 ::/0"}
	if got := cloud.SecurityGroupRules("us-east-1", "skyserve-chat-replica"); !slices.Equal(got, []string{"tcp 8300-8300 " + group()}) {
		t.Errorf("alone, it lets in %q, want the group of the balancers", got)
	}
	list(t, alone) // it is running
	if o := only(list(t, alone), "us-east-1-0")[0]; !strings.HasPrefix(o.Address, "http://172.31.") {
		t.Errorf("alone, a replica is reached at %q, want its address in the network", o.Address)
	}
	changes := provision.Diff([]provision.Desired{replica}, only(list(t, grown), replica.ID))
	if len(changes) != 1 || changes[0].Action != provision.ActionRepair {
		t.Fatalf("grown, there is to do: %+v, want a repair", changes)
	}
	launch(t, grown, replica)
	if got := cloud.SecurityGroupRules("us-east-1", "skyserve-chat-replica"); !slices.Equal(got, world) {
		t.Errorf("grown, it lets in %q, want %q", got, world)
	}
	if o := only(list(t, grown), "us-east-1-0")[0]; !strings.HasPrefix(o.Address, "http://203.0.") {
		t.Errorf("grown, a replica is reached at %q, want its public address", o.Address)
	}
}

// Changed rules are updated in the machines' existing group.
func TestFirewallRulesAreUpdatedInPlace(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	w := firewall(east, provision.RoleBalancer, provision.FirewallRule{Port: 8000, From: provision.FromWorld}, provision.FirewallRule{Port: 8100, From: provision.FromWorld})
	first, err := p.Launch(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	w.SpecHash, w.Rules = "f2", []provision.FirewallRule{{Port: 443, From: provision.FromWorld}, {Port: 8100, From: provision.FromWorld}}
	second, err := p.Launch(t.Context(), w)
	if err != nil || second.Handle != first.Handle {
		t.Fatalf("got %+v, %v, want the group %s as it was", second, err, first.Handle)
	}
	if changes := provision.Diff([]provision.Desired{w}, only(list(t, open(t, cloud)), w.ID)); len(changes) != 0 {
		t.Errorf("there is to do: %+v", changes)
	}
	want := []string{"tcp 443-443 0.0.0.0/0", "tcp 443-443 ::/0", "tcp 8100-8100 0.0.0.0/0", "tcp 8100-8100 ::/0"}
	if got := cloud.SecurityGroupRules("us-east-1", "skyserve-chat-balancer"); !slices.Equal(got, want) {
		t.Errorf("it lets in %q, want %q", got, want)
	}
}

// The members of the store admit each other: those of the VPC by their group, those of other networks by address.
func TestFirewallAdmitsPeers(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	w := firewall(east, provision.RoleBalancer, provision.FirewallRule{Port: 8420, From: provision.FromSameRole})
	for i, sources := range [][]string{{"198.18.0.1/32", "198.18.0.2/32"}, {"198.18.0.2/32"}, nil} {
		w.SameRole, w.SpecHash = nil, fmt.Sprint("f", i)
		for _, s := range sources {
			w.SameRole = append(w.SameRole, netip.MustParsePrefix(s).Addr())
		}
		o, err := p.Launch(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, s := range append(sources, o.Handle) {
			want = append(want, "tcp 8420-8420 "+s)
		}
		if got := cloud.SecurityGroupRules("us-east-1", "skyserve-chat-balancer"); !slices.Equal(got, want) {
			t.Errorf("it admits %q, want %q", got, want)
		}
		if changes := provision.Diff([]provision.Desired{w}, only(list(t, open(t, cloud)), w.ID)); len(changes) != 0 {
			t.Errorf("got %+v, want no change", changes)
		}
	}
	cloud.AddSecurityGroupRule("us-east-1", "skyserve-chat-balancer", 8420, "0.0.0.0/0")
	if changes := provision.Diff([]provision.Desired{w}, only(list(t, open(t, cloud)), w.ID)); len(changes) != 1 || changes[0].Action != provision.ActionRepair {
		t.Errorf("opened by hand: got %+v, want a repair", changes)
	}
	if err := p.Terminate(t.Context(), only(list(t, p), w.ID)[0]); err != nil {
		t.Error(err)
	}
}

// Each AWS partition has its own ARN prefix.
func TestPolicyUsesPartitionOfRegion(t *testing.T) {
	for region, want := range map[string]string{
		"us-east-1": "arn:aws:iam::*:role/skyserve/chat/skyserve-chat-replica", "cn-north-1": "arn:aws-cn:iam::*:role/skyserve/chat/skyserve-chat-replica",
		"us-gov-west-1": "arn:aws-us-gov:iam::*:role/skyserve/chat/skyserve-chat-replica",
	} {
		cloud := testcloud.NewAWS(nil, region)
		p, err := aws.New(t.Context(), config(cloud, region))
		if err != nil {
			t.Fatal(err)
		}
		launch(t, p, roleFor(provision.RoleBalancer, provision.GrantOperate))
		if text := cloud.RolePolicy("skyserve-chat-balancer", "skyserve"); !strings.Contains(text, want) {
			t.Errorf("%s: %s does not name %s", region, text, want)
		}
	}
}

// A provider on a machine of the service lists only machines, and launches and terminates replicas.
func TestMachinesOnlyProvider(t *testing.T) {
	cloud := newCloud(nil)
	launch(t, open(t, cloud), chat()...)
	p := asMachine(t, cloud, "lb-us-east-1-0")
	w := machine("us-east-1-2", provision.KindReplica, east, service.CapacitySpot)
	launch(t, p, w)
	have := list(t, p)
	if len(have) != 4 {
		t.Fatalf("it sees %+v, want four machines and nothing else", have)
	}
	for _, o := range only(have, w.ID) {
		if err := p.Terminate(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(cloud.Machines()); n != 3 {
		t.Errorf("there are %d machines, want 3", n)
	}
}

// A long service name results in a valid role name, which differs from that of another name with the same
// beginning.
func TestLongServiceNames(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	for _, end := range []string{"a", "b"} {
		w := roleFor(provision.RoleBalancer)
		w.Service = strings.Repeat("long", 14) + end
		launch(t, p, w)
		if have, err := p.List(t.Context(), w.Service); err != nil || len(have) != 1 {
			t.Errorf("listed %+v, %v", have, err)
		}
	}
	if left := cloud.RemainingResources(); len(left) != 4 {
		t.Errorf("there is %q, want two roles and two profiles", left)
	}
}

// Objects that are removed in the wrong order are deleted when no other object depends on them.
func TestFirewallDeletionWaitsForMachines(t *testing.T) {
	cloud := newCloud(nil)
	cloud.ShutdownReads = 20
	p := open(t, cloud)
	launch(t, p, chat()...)
	_, err := provision.Apply(t.Context(), provision.Diff(nil, list(t, p)), p, provision.ApplyOptions{})
	if left := cloud.RemainingResources(); err != nil || len(left) != 0 {
		t.Errorf("down ends in %v and leaves %q", err, left)
	}
}

// Objects of others, and objects without tags, are not listed and not changed.
func TestForeignObjectsAreIgnored(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	for _, w := range chat() {
		w.Service = "theirs"
		launch(t, p, w)
	}
	before := cloud.RemainingResources()
	launch(t, p, chat()...)
	if all, err := p.List(t.Context(), ""); err != nil || len(all) != 2*len(chat()) {
		t.Errorf("all services have %d objects, %v, want %d", len(all), err, 2*len(chat()))
	}
	if _, err := provision.Apply(t.Context(), provision.Diff(nil, list(t, p)), p, provision.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := cloud.RemainingResources(); !slices.Equal(before, after) {
		t.Errorf("there was %q, there is %q", before, after)
	}
}
