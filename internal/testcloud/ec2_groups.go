package testcloud

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// ec2Group is a security group.
type ec2Group struct {
	id, name, vpc string
	tags          awsTags
	rules         []ec2Rule
	unseen        int // remaining lists that omit a new group, or still contain a deleted one
	notFoundCalls int // remaining calls with its id that fail as not found
	deleted       bool
}

// ec2Rule allows one source to reach a port range: an IPv4 CIDR, an IPv6 CIDR or a group.
type ec2Rule struct {
	protocol            string
	from, to            int
	cidr, cidr6, source string
}

type ec2Range struct {
	CIDR string `xml:"cidrIp"`
}

type ec2Range6 struct {
	CIDR string `xml:"cidrIpv6"`
}

type ec2Pair struct {
	Group string `xml:"groupId"`
	User  string `xml:"userId"`
}

type ec2Permission struct {
	Protocol string      `xml:"ipProtocol"`
	From     int         `xml:"fromPort"`
	To       int         `xml:"toPort"`
	Ranges   []ec2Range  `xml:"ipRanges>item"`
	Ranges6  []ec2Range6 `xml:"ipv6Ranges>item"`
	Pairs    []ec2Pair   `xml:"groups>item"`
}

// permissions returns the rules as lists show them: one entry per port range.
func (g *ec2Group) permissions() []ec2Permission {
	var all []ec2Permission
	for _, rule := range g.rules {
		at := slices.IndexFunc(all, func(p ec2Permission) bool {
			return p.Protocol == rule.protocol && p.From == rule.from && p.To == rule.to
		})
		if at < 0 {
			at, all = len(all), append(all, ec2Permission{Protocol: rule.protocol, From: rule.from, To: rule.to})
		}
		switch p := &all[at]; {
		case rule.cidr != "":
			p.Ranges = append(p.Ranges, ec2Range{rule.cidr})
		case rule.cidr6 != "":
			p.Ranges6 = append(p.Ranges6, ec2Range6{rule.cidr6})
		default:
			p.Pairs = append(p.Pairs, ec2Pair{rule.source, AWSAccount})
		}
	}
	return all
}

// readRules returns the rules of a request, with one source each.
func (f awsForm) readRules() []ec2Rule {
	var rules []ec2Rule
	for _, p := range f.items("IpPermissions") {
		from, _ := strconv.Atoi(p.get("FromPort"))
		to, _ := strconv.Atoi(p.get("ToPort"))
		rule := ec2Rule{protocol: p.get("IpProtocol"), from: from, to: to}
		for _, r := range p.items("IpRanges") {
			rules = append(rules, ec2Rule{rule.protocol, from, to, r.get("CidrIp"), "", ""})
		}
		for _, r := range p.items("Ipv6Ranges") {
			rules = append(rules, ec2Rule{rule.protocol, from, to, "", r.get("CidrIpv6"), ""})
		}
		for _, r := range p.items("Groups") {
			rules = append(rules, ec2Rule{rule.protocol, from, to, "", "", r.get("GroupId")})
		}
	}
	return rules
}

type groupAnswer struct {
	ID string `xml:"groupId"`
}

func (r *ec2Region) createGroup(f awsForm) (any, error) {
	vpc := cmp.Or(f.get("VpcId"), r.vpc)
	for _, g := range r.groups {
		if g.name == f.get("GroupName") && g.vpc == vpc && !g.deleted {
			return nil, badRequest("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", g.name, g.vpc)
		}
	}
	if err := f.tagsFor("security-group").validate(false); err != nil {
		return nil, badRequest("InvalidParameterValue", "%v", err)
	}
	switch {
	case vpc == "":
		return nil, badRequest("VPCIdNotSpecified", "No default VPC for this user")
	case vpc != r.vpc && !slices.Contains(r.networks, vpc):
		return nil, badRequest("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", vpc)
	}
	g := &ec2Group{id: r.aws.nextID("sg"), name: f.get("GroupName"), vpc: vpc, tags: f.tagsFor("security-group"), unseen: r.aws.faults.StaleLists, notFoundCalls: r.aws.faults.StaleLists}
	r.groups[g.id] = g
	return groupAnswer{g.id}, nil
}

type ec2GroupDoc struct {
	ID          string          `xml:"groupId"`
	Name        string          `xml:"groupName"`
	Vpc         string          `xml:"vpcId"`
	Permissions []ec2Permission `xml:"ipPermissions>item"`
	Tags        []awsTag        `xml:"tagSet>item"`
}

type groupsAnswer struct {
	Groups []ec2GroupDoc `xml:"securityGroupInfo>item"`
	Next   string        `xml:"nextToken,omitempty"`
}

func (r *ec2Region) describeGroups(f awsForm) (any, error) {
	groups, err := filtered(f, r.groups, func(g *ec2Group) attributes {
		return g.tags.addTo(attributes{"group-name": g.name, "vpc-id": g.vpc, "group-id": g.id})
	})
	if err != nil {
		return nil, err
	}
	var docs []ec2GroupDoc
	for _, g := range groups {
		seen := g.unseen == 0
		g.unseen = max(0, g.unseen-1)
		if seen == g.deleted {
			continue
		}
		docs = append(docs, ec2GroupDoc{g.id, g.name, g.vpc, g.permissions(), g.tags.xmlTags()})
	}
	part, next := paginate(r.aws, docs, f.get("NextToken"), f.get("MaxResults"))
	return groupsAnswer{part, next}, nil
}

// findGroup returns the group of a request.
func (r *ec2Region) findGroup(f awsForm) (*ec2Group, error) {
	g := r.groups[f.get("GroupId")]
	if g == nil || g.deleted {
		return nil, badRequest("InvalidGroup.NotFound", "The security group '%s' does not exist", f.get("GroupId"))
	}
	return g, nil
}

// findVisibleGroup returns a group by id for a call that depends on it. A new group may not be visible
// everywhere in EC2 yet.
func (r *ec2Region) findVisibleGroup(id string) (*ec2Group, error) {
	g, err := r.findGroup(awsForm{"GroupId": id})
	if err == nil && g.notFoundCalls > 0 {
		g.notFoundCalls--
		return nil, badRequest("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
	}
	return g, err
}

func (r *ec2Region) authorizeIngress(f awsForm) (any, error) {
	g, err := r.findVisibleGroup(f.get("GroupId"))
	if err != nil {
		return nil, err
	}
	rules := f.readRules()
	for _, rule := range rules {
		switch {
		case slices.Contains(g.rules, rule):
			return nil, badRequest("InvalidPermission.Duplicate", "the specified rule already exists")
		case rule.source != "":
			if _, err := r.findVisibleGroup(rule.source); err != nil {
				return nil, err
			}
		}
	}
	g.rules = append(g.rules, rules...)
	return success(), nil
}

func (r *ec2Region) revokeIngress(f awsForm) (any, error) {
	g, err := r.findGroup(f)
	if err != nil {
		return nil, err
	}
	rules := f.readRules()
	for _, rule := range rules {
		if !slices.Contains(g.rules, rule) {
			return nil, badRequest("InvalidPermission.NotFound", "The specified rule does not exist in this security group.")
		}
	}
	g.rules = slices.DeleteFunc(g.rules, func(rule ec2Rule) bool { return slices.Contains(rules, rule) })
	return success(), nil
}

func (r *ec2Region) deleteGroup(f awsForm) (any, error) {
	g, err := r.findGroup(f)
	if err != nil {
		return nil, err
	}
	inUse := false
	for _, i := range r.instances {
		if i.group == g.id && i.hasInterface() {
			inUse = true
			i.advance()
		}
	}
	for _, other := range r.groups {
		inUse = inUse || other != g && !other.deleted && slices.ContainsFunc(other.rules, func(rule ec2Rule) bool { return rule.source == g.id })
	}
	if inUse {
		return nil, badRequest("DependencyViolation", "resource %s has a dependent object", g.id)
	}
	g.deleted, g.unseen = true, r.aws.faults.StaleLists
	return success(), nil
}

// AddSecurityGroupRule adds a rule to the security group with a name, like a manual change in the console.
func (a *AWS) AddSecurityGroupRule(region, group string, port int, cidr string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.regions[region].groups {
		if g.name == group {
			g.rules = append(g.rules, ec2Rule{protocol: "tcp", from: port, to: port, cidr: cidr})
		}
	}
}

// DeleteSecurityGroup moves the machines of the security group with a name to the default group and deletes
// the group, like a manual change in the console.
func (a *AWS) DeleteSecurityGroup(region, group string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.regions[region]
	for _, g := range r.groups {
		if g.name != group || g.deleted {
			continue
		}
		g.deleted = true
		for _, i := range r.instances {
			if i.group == g.id {
				i.group, i.groupName = "sg-default", "default"
			}
		}
	}
}

// SecurityGroupRules returns the rules of the security group with a name, sorted: tcp 8000-8000 0.0.0.0/0.
func (a *AWS) SecurityGroupRules(region, group string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var rules []string
	for _, g := range a.regions[region].groups {
		for _, r := range g.rules {
			if g.name == group && !g.deleted {
				rules = append(rules, fmt.Sprintf("%s %d-%d %s", r.protocol, r.from, r.to, r.cidr+r.cidr6+r.source))
			}
		}
	}
	slices.Sort(rules)
	return rules
}
