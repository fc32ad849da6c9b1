package gcp

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/provision"
)

// The rules of a prerequisite, by the ends of their names. The rule of an identity is disabled and has no
// effect: it only stores the identity's note. This package does not create the service account of an
// identity. No other Compute Engine object costs nothing, is independent of a machine and has space for a
// note.
const (
	ruleWorld     = "world"
	ruleBalancers = "balancers"
	rulePeers     = "peers"
	ruleRest      = "rest"
	ruleIdentity  = "identity"
)

var ruleEnds = map[provision.ObjectKind][]string{
	provision.KindFirewall: {ruleWorld, ruleBalancers, rulePeers, ruleRest},
	provision.KindIdentity: {ruleIdentity},
}

// The priorities of rules; a lower number is evaluated first. Rules that admit traffic precede the rule
// that denies the rest. The latter follows rules that an operator created by hand (default priority 1000)
// and precedes those of the default network, which admit ssh and internal traffic (65534).
const (
	priorityAllow = 1000
	priorityDeny  = 65000
)

// prerequisiteZone is the first part of a prerequisite's handle. The first part of a machine's handle is its
// zone.
const prerequisiteZone = "global"

// rulePrefix returns the name prefix of a prerequisite's rules. It does not contain the owner, so that two
// owners of one service name collide before either has created a machine.
func rulePrefix(n note) string {
	const longestEnd = len("-" + ruleBalancers)
	return resourceName(maxNameLength-longestEnd, []string{"foundation", n.Service, n.ID, string(n.Kind)}, n.Service, n.ID)
}

// nameOf returns the name of a prerequisite's rule.
func nameOf(prefix, end string) string { return prefix + "-" + end }

// rulesFor returns the rules of a prerequisite, by the ends of their names.
func (p *Provider) rulesFor(n note) (map[string]*computepb.Firewall, error) {
	text, err := n.text()
	if err != nil {
		return nil, err
	}
	prefix := rulePrefix(n)
	rule := func(end string, priority int32) *computepb.Firewall {
		return &computepb.Firewall{
			Name: new(nameOf(prefix, end)), Description: &text, Network: new("global/networks/" + p.cfg.Network),
			Direction: new(computepb.Firewall_INGRESS.String()), Priority: &priority, Disabled: new(false),
			TargetTags: []string{n.tag(n.Role, n.Region.ShortName())},
		}
	}
	rules := map[string]*computepb.Firewall{}
	if n.Kind == provision.KindIdentity {
		rules[ruleIdentity] = rule(ruleIdentity, priorityDeny)
		rules[ruleIdentity].Disabled = new(true)
		denyAll(rules[ruleIdentity])
		return rules, nil
	}
	rules[ruleRest] = rule(ruleRest, priorityDeny)
	denyAll(rules[ruleRest])
	if ports := portsFrom(n.Rules, provision.FromWorld); len(ports) > 0 {
		rules[ruleWorld] = rule(ruleWorld, priorityAllow)
		allowPorts(rules[ruleWorld], ports)
		rules[ruleWorld].SourceRanges = []string{"0.0.0.0/0"}
	}
	if ports := portsFrom(n.Rules, provision.FromBalancers); len(ports) > 0 {
		rules[ruleBalancers] = rule(ruleBalancers, priorityAllow)
		allowPorts(rules[ruleBalancers], ports)
		rules[ruleBalancers].SourceTags = []string{n.tag(provision.RoleBalancer, "")}
	}
	if ports := portsFrom(n.Rules, provision.FromSameRole); len(ports) > 0 {
		rules[rulePeers] = rule(rulePeers, priorityAllow)
		allowPorts(rules[rulePeers], ports)
		rules[rulePeers].SourceTags = []string{n.tag(n.Role, "")} // matches private addresses of the network
		for _, ip := range n.Peers {
			rules[rulePeers].SourceRanges = append(rules[rulePeers].SourceRanges, netip.PrefixFrom(ip, ip.BitLen()).String())
		}
	}
	return rules, nil
}

func allowPorts(f *computepb.Firewall, ports []string) {
	f.Allowed = []*computepb.Allowed{{IPProtocol: new("tcp"), Ports: ports}}
}

func denyAll(f *computepb.Firewall) {
	f.SourceRanges = []string{"0.0.0.0/0"}
	f.Denied = []*computepb.Denied{{IPProtocol: new("all")}}
}

// portsFrom returns the ports that rules open to a source, sorted.
func portsFrom(rules []provision.FirewallRule, from provision.RuleSource) []string {
	var ports []int
	for _, r := range rules {
		if r.From == from {
			ports = append(ports, r.Port)
		}
	}
	slices.Sort(ports)
	var texts []string
	for _, port := range slices.Compact(ports) {
		texts = append(texts, strconv.Itoa(port))
	}
	return texts
}

// sameRule reports whether two rules match, apart from the fields that the cloud fills in.
func sameRule(have, want *computepb.Firewall) bool {
	return path.Base(have.GetNetwork()) == path.Base(want.GetNetwork()) && have.GetDescription() == want.GetDescription() && have.GetDirection() == want.GetDirection() &&
		have.GetPriority() == want.GetPriority() && have.GetDisabled() == want.GetDisabled() &&
		equalSets(have.GetSourceRanges(), want.GetSourceRanges()) && equalSets(have.GetSourceTags(), want.GetSourceTags()) &&
		equalSets(have.GetTargetTags(), want.GetTargetTags()) && equalSets(trafficOf(have), trafficOf(want))
}

// trafficOf returns the protocols and ports that a rule admits or denies.
func trafficOf(f *computepb.Firewall) []string {
	var all []string
	for _, a := range f.GetAllowed() {
		all = append(all, fmt.Sprint("allow ", a.GetIPProtocol(), a.GetPorts()))
	}
	for _, d := range f.GetDenied() {
		all = append(all, fmt.Sprint("deny ", d.GetIPProtocol(), d.GetPorts()))
	}
	return all
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// listPrerequisites lists the firewalls and identities of a service; those of every service for the empty
// name.
func (p *Provider) listPrerequisites(ctx context.Context, name string) ([]provision.Object, error) {
	client, project, err := newClient(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return nil, wrapError(err, "listing firewall rules")
	}
	filter := `name eq "skyserve-.*"`
	found := map[string]*prerequisite{} // by prefix
	var order []string
	for rule, err := range client.List(ctx, &computepb.ListFirewallsRequest{Project: project, Filter: &filter}).All() {
		if err != nil {
			return nil, wrapError(err, "listing the firewall rules of project %s", project)
		}
		n, owned := readNote(rule.GetDescription())
		if !owned || !p.hasRegion(n.Region) || name != "" && n.Service != name {
			continue
		}
		prefix := rulePrefix(n)
		if !slices.ContainsFunc(ruleEnds[n.Kind], func(end string) bool { return nameOf(prefix, end) == rule.GetName() }) {
			continue // a copy that somebody created under another name
		}
		if found[prefix] == nil {
			found[prefix] = &prerequisite{note: n, rules: map[string]*computepb.Firewall{}}
			order = append(order, prefix)
		}
		found[prefix].rules[rule.GetName()] = rule
	}
	var all []provision.Object
	for _, prefix := range order {
		o, err := p.prerequisiteObject(found[prefix])
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// prerequisite contains the observed rules of one prerequisite.
type prerequisite struct {
	note  note
	rules map[string]*computepb.Firewall // by name
}

// prerequisiteObject converts a prerequisite to an object. When its rules do not match its note, its
// SpecHash differs from the note's, so that it is repaired.
func (p *Provider) prerequisiteObject(f *prerequisite) (provision.Object, error) {
	want, err := p.rulesFor(f.note)
	if err != nil {
		return provision.Object{}, err
	}
	o := f.note.Object
	o.Handle = prerequisiteZone + "/" + rulePrefix(f.note)
	matches := len(want) == len(f.rules)
	for _, rule := range want {
		have, ok := f.rules[rule.GetName()]
		matches = matches && ok && sameRule(have, rule)
	}
	if !matches {
		o.SpecHash += changedSuffix
	}
	return o, nil
}

// launchPrerequisite creates or repairs the rules of a prerequisite.
func (p *Provider) launchPrerequisite(ctx context.Context, w provision.Desired) (provision.Object, error) {
	n := noteOf(w, nil)
	if w.Kind == provision.KindIdentity {
		if err := p.checkIdentity(ctx, w); err != nil {
			return provision.Object{}, err
		}
	}
	want, err := p.rulesFor(n)
	if err != nil {
		return provision.Object{}, err
	}
	prefix := rulePrefix(n)
	for _, end := range ruleEnds[w.Kind] {
		if rule := want[end]; rule != nil {
			err = p.setRule(ctx, n, rule)
		} else {
			err = p.removeRule(ctx, n, nameOf(prefix, end))
		}
		if err != nil {
			return provision.Object{}, err
		}
	}
	o := n.Object
	o.Handle = prerequisiteZone + "/" + prefix
	return o, nil
}
