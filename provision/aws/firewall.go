package aws

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/provision"
)

// A firewall is a security group of the machines' VPC. FromWorld admits every address. FromBalancers also
// admits every address, because balancers of other regions and clouds connect from public addresses. Those
// are unknown before the balancers run, and change when balancers are replaced. The port itself requires a
// client certificate of a balancer. With one region (Config.OneRegion), FromBalancers admits only the
// members of the balancers' security group. FromSameRole admits the members of the group itself, whose private
// addresses are in the same VPC, and the addresses of Desired.SameRole. All outbound traffic is allowed, which is EC2's
// default for a new group.

// ingress is a rule that admits one source to a range of ports.
type ingress struct {
	protocol string // tcp; -1 = all
	from, to int32
	source   string // a CIDR, or the id of a group or of a prefix list
}

// anyAddress matches all addresses.
var anyAddress = []string{"0.0.0.0/0", "::/0"}

// launchFirewall creates or repairs a security group. It changes the rules first and the tags last, so
// that List reports the group as changed until it is complete.
func (r *region) launchFirewall(ctx context.Context, w provision.Desired) (provision.Object, error) {
	role := w.Labels[labelRole]
	if role == "" {
		return provision.Object{}, fmt.Errorf("reading the desired firewall: label %s is required", labelRole)
	}
	tags := tagsOf(w)
	tags[tagRules] = rulesTag(w.Rules)
	tags[tagPeers] = peersTag(w.SameRole)
	balancers, err := r.balancersGroup(ctx, w)
	if err != nil {
		return provision.Object{}, err
	}
	var id string
	complete, err := r.p.waitVisible(ctx, func() (bool, error) {
		g, err := r.findGroup(ctx, groupName(w.Service, role))
		if err != nil {
			return false, err
		}
		if g == nil {
			err := r.createGroup(ctx, groupName(w.Service, role), tags)
			r.recordGroupFailure(groupKey(w, role), err)
			return false, err
		}
		if err := ownedError(w, fromEC2Tags(g.Tags)); err != nil {
			return false, err
		}
		id = aws.ToString(g.GroupId)
		desired := ingressFromRules(w.Rules, balancers, id, w.SameRole)
		unchanged, err := r.setRules(ctx, id, desired, ingressFromEC2(g.IpPermissions))
		return unchanged, ignoreCode(codeNoGroup, err) // a new group may not be visible yet
	})
	if err != nil {
		return provision.Object{}, err
	}
	if !complete {
		return provision.Object{}, fmt.Errorf("waiting for security group %s: EC2 does not list its rules yet; run the command again", groupName(w.Service, role))
	}
	err = r.p.retryOnCode(ctx, codeNoGroup, func() error {
		_, err := r.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{id}, Tags: ec2Tags(tags)})
		return err
	})
	if err != nil {
		return provision.Object{}, err
	}
	r.cacheGroupID(w, role, id)
	return objectOfDesired(w, id), nil
}

// findGroup finds a security group of the network by name; nil where there is none.
func (r *region) findGroup(ctx context.Context, name string) (*ec2types.SecurityGroup, error) {
	n, err := r.network(ctx)
	if err != nil {
		return nil, err
	}
	out, err := r.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
		Filters: []ec2types.Filter{filter("vpc-id", n.vpc), filter("group-name", name)},
	})
	if err != nil || len(out.SecurityGroups) == 0 {
		return nil, err
	}
	return &out.SecurityGroups[0], nil
}

// createGroup creates a security group without rules; an existing group is not an error.
func (r *region) createGroup(ctx context.Context, name string, tags map[string]string) error {
	n, err := r.network(ctx)
	if err != nil {
		return err
	}
	_, err = r.ec2.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
		GroupName: aws.String(name), VpcId: aws.String(n.vpc), Description: aws.String("Managed by skyserve. The tags contain the service and the role of its machines."),
		TagSpecifications: []ec2types.TagSpecification{{ResourceType: ec2types.ResourceTypeSecurityGroup, Tags: ec2Tags(tags)}},
	})
	return ignoreCode(codeGroupExists, err)
}

// setRules adds missing rules and removes excess rules; unchanged when the group already matched. Another
// process may be doing the same at the same time.
func (r *region) setRules(ctx context.Context, group string, desired, observed []ingress) (unchanged bool, err error) {
	add := slices.DeleteFunc(slices.Clone(desired), func(i ingress) bool { return slices.Contains(observed, i) })
	remove := slices.DeleteFunc(slices.Clone(observed), func(i ingress) bool { return slices.Contains(desired, i) })
	if len(add) > 0 {
		_, err = r.ec2.AuthorizeSecurityGroupIngress(ctx, &ec2.AuthorizeSecurityGroupIngressInput{GroupId: aws.String(group), IpPermissions: toPermissions(add)})
		if err = ignoreCode(codeRuleExists, err); err != nil {
			return false, err
		}
	}
	if len(remove) > 0 {
		_, err = r.ec2.RevokeSecurityGroupIngress(ctx, &ec2.RevokeSecurityGroupIngressInput{GroupId: aws.String(group), IpPermissions: toPermissions(remove)})
		if err = ignoreCode(codeNoRule, err); err != nil {
			return false, err
		}
	}
	return len(add) == 0 && len(remove) == 0, nil
}

// balancersGroup returns the id of the group of all balancers that a firewall admits; empty where it admits none,
// or they are not all in one group.
func (r *region) balancersGroup(ctx context.Context, w provision.Desired) (string, error) {
	fromBalancers := func(rule provision.FirewallRule) bool { return rule.From == provision.FromBalancers }
	if !r.p.cfg.OneRegion || !slices.ContainsFunc(w.Rules, fromBalancers) {
		return "", nil
	}
	return r.waitGroupID(ctx, w, string(provision.KindBalancer))
}

// ingressFromRules converts the rules of a group to EC2's form, sorted. balancers is that of balancersGroup, self the
// id of the group, and peers are those of provision.Desired.
func ingressFromRules(rules []provision.FirewallRule, balancers, self string, peers []netip.Addr) []ingress {
	var all []ingress
	for _, rule := range rules {
		port, sources := int32(rule.Port), anyAddress
		switch {
		case rule.From == provision.FromBalancers && balancers != "":
			sources = []string{balancers}
		case rule.From == provision.FromSameRole:
			sources = []string{self}
			for _, ip := range peers {
				sources = append(sources, netip.PrefixFrom(ip, ip.BitLen()).String())
			}
		}
		for _, source := range sources {
			all = append(all, ingress{"tcp", port, port, source})
		}
	}
	slices.SortFunc(all, compareIngress)
	return slices.Compact(all)
}

func compareIngress(a, b ingress) int {
	return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.source, b.source))
}

// ingressFromEC2 splits the rules of a group into single sources, sorted.
func ingressFromEC2(all []ec2types.IpPermission) []ingress {
	var in []ingress
	for _, p := range all {
		var sources []string
		for _, s := range p.IpRanges {
			sources = append(sources, aws.ToString(s.CidrIp))
		}
		for _, s := range p.Ipv6Ranges {
			sources = append(sources, aws.ToString(s.CidrIpv6))
		}
		for _, s := range p.UserIdGroupPairs {
			sources = append(sources, aws.ToString(s.GroupId))
		}
		for _, s := range p.PrefixListIds {
			sources = append(sources, aws.ToString(s.PrefixListId))
		}
		for _, source := range sources {
			in = append(in, ingress{aws.ToString(p.IpProtocol), aws.ToInt32(p.FromPort), aws.ToInt32(p.ToPort), source})
		}
	}
	slices.SortFunc(in, compareIngress)
	return in
}

// toPermissions converts rules to EC2's API type.
func toPermissions(all []ingress) []ec2types.IpPermission {
	var out []ec2types.IpPermission
	for _, i := range all {
		p := ec2types.IpPermission{IpProtocol: aws.String(i.protocol), FromPort: aws.Int32(i.from), ToPort: aws.Int32(i.to)}
		switch {
		case strings.HasPrefix(i.source, "sg-"):
			p.UserIdGroupPairs = []ec2types.UserIdGroupPair{{GroupId: aws.String(i.source)}}
		case strings.HasPrefix(i.source, "pl-"):
			p.PrefixListIds = []ec2types.PrefixListId{{PrefixListId: aws.String(i.source)}}
		case strings.Contains(i.source, ":"):
			p.Ipv6Ranges = []ec2types.Ipv6Range{{CidrIpv6: aws.String(i.source)}}
		default:
			p.IpRanges = []ec2types.IpRange{{CidrIp: aws.String(i.source)}}
		}
		out = append(out, p)
	}
	return out
}

// rulesTag encodes rules in a tag: "8000/world 8300/balancers".
func rulesTag(rules []provision.FirewallRule) string {
	var words []string
	for _, r := range rules {
		words = append(words, strconv.Itoa(r.Port)+"/"+string(r.From))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// rulesOf decodes a tag of rulesTag; invalid entries are skipped.
func rulesOf(tag string) []provision.FirewallRule {
	var rules []provision.FirewallRule
	for word := range strings.FieldsSeq(tag) {
		number, from, _ := strings.Cut(word, "/")
		if port, err := strconv.Atoi(number); err == nil {
			rules = append(rules, provision.FirewallRule{Port: port, From: provision.RuleSource(from)})
		}
	}
	return rules
}

// peersTag encodes addresses in a tag, which may have 256 characters: eight hexadecimal digits each.
func peersTag(peers []netip.Addr) string {
	var text string
	for _, ip := range peers {
		text += hex.EncodeToString(ip.AsSlice())
	}
	return text
}

// peersOf decodes a tag of peersTag; none if it is invalid.
func peersOf(tag string) []netip.Addr {
	all, err := hex.DecodeString(tag)
	if err != nil {
		return nil
	}
	var peers []netip.Addr
	for part := range slices.Chunk(all, 4) {
		if ip, ok := netip.AddrFromSlice(part); ok {
			peers = append(peers, ip)
		}
	}
	return peers
}

// listFirewalls lists the security groups of a service, or of all services. If the rules of a group do not
// match its tags, driftSuffix is appended to SpecHash.
func (r *region) listFirewalls(ctx context.Context, name string) ([]provision.Object, error) {
	var groups []ec2types.SecurityGroup
	pages := ec2.NewDescribeSecurityGroupsPaginator(r.ec2, &ec2.DescribeSecurityGroupsInput{Filters: []ec2types.Filter{ofService(name)}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		groups = append(groups, page.SecurityGroups...)
	}
	ids := map[string]string{}
	for _, g := range groups {
		ids[aws.ToString(g.VpcId)+aws.ToString(g.GroupName)] = aws.ToString(g.GroupId)
	}
	var objects []provision.Object
	for _, g := range groups {
		tags := fromEC2Tags(g.Tags)
		o, owned := objectFromTags(tags, r.regionID(), aws.ToString(g.GroupId))
		if !owned {
			continue
		}
		balancers := ""
		if r.p.cfg.OneRegion {
			balancers = ids[aws.ToString(g.VpcId)+groupName(o.Service, string(provision.KindBalancer))]
		}
		if !slices.Equal(ingressFromEC2(g.IpPermissions), ingressFromRules(rulesOf(tags[tagRules]), balancers, aws.ToString(g.GroupId), peersOf(tags[tagPeers]))) {
			o.SpecHash += driftSuffix
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// driftSuffix is appended to the SpecHash of an object that does not match its tags.
const driftSuffix = " but changed"

// maxGroupDeletePolls is the maximum number of attempts to delete a security group that machines still
// use. EC2 may release the network interface of a machine with GPUs only after ten minutes.
const maxGroupDeletePolls = 300

// deleteFirewall removes a security group once no machine uses it.
func (r *region) deleteFirewall(ctx context.Context, o provision.Object) error {
	r.clearCache()
	var last error
	deleted, err := r.p.pollUntil(ctx, maxGroupDeletePolls, func() (bool, error) {
		_, last = r.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: aws.String(o.Handle)})
		switch codeOf(last) {
		case codeDependency, codeGroupInUse:
			return false, nil
		case codeNoGroup:
			return true, nil
		}
		return last == nil, last
	})
	if err == nil && !deleted {
		return errors.Join(errors.New("waiting for the last machine to release the security group"), plainError(last))
	}
	return err
}
