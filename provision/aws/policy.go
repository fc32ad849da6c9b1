package aws

import (
	"encoding/json"
	"slices"
	"strings"

	"skyserve/provision"
)

// trustPolicy lets EC2 hand a role to machines.
const trustPolicy = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`

// statement is one permission of a policy; a map is written in the order of its keys.
type statement struct {
	Effect    string    `json:"Effect"`
	Action    []string  `json:"Action"`
	Resource  []string  `json:"Resource"`
	Condition condition `json:"Condition,omitempty"`
}

// condition is what must be so of a request, by operator and key: a string, or a list of which
// one must fit.
type condition map[string]map[string]any

// policyFor is what machines of a service may do with these grants, as a policy of
// IAM; empty where they may do nothing. The same grants give the same text.
func policyFor(name, owner, partition string, grants []provision.Grant) (string, error) {
	var statements []statement
	if slices.Contains(grants, provision.GrantOperate) {
		statements = operate(name, owner, "arn:"+partition+":")
	}
	for _, g := range slices.Sorted(slices.Values(grants)) {
		if place, ok := g.Session(); ok {
			statements = append(statements, session(place))
		}
		if folder, ok := g.Read(); ok {
			statements = append(statements, read(folder, "arn:"+partition+":s3:::")...)
		}
		if zone, of, ok := g.Challenge(); ok {
			statements = append(statements, challenge(zone, of, "arn:"+partition+":route53:::"))
		}
	}
	if len(statements) == 0 {
		return "", nil
	}
	text, err := json.Marshal(struct {
		Version   string
		Statement []statement
	}{"2012-10-17", statements})
	return string(text), err
}

// read lets a machine list and get what is below a folder of a bucket.
func read(folder, arn string) []statement {
	bucket, prefix, _ := strings.Cut(folder, "/")
	return []statement{
		{"Allow", []string{"s3:GetObject"}, []string{arn + folder + "/*"}, nil},
		{"Allow", []string{"s3:ListBucket"}, []string{arn + bucket}, condition{"StringEquals": {"s3:prefix": prefix + "/"}}},
	}
}

// challenge lets a machine change the TXT record by which an authority makes sure of a name,
// and nothing else in the hosted zone. IAM compares names in lower case and without the last
// dot; every record of a change must fit.
func challenge(zone, name, arn string) statement {
	return statement{"Allow", []string{"route53:ChangeResourceRecordSets"}, []string{arn + "hostedzone/" + zone}, condition{
		"ForAllValues:StringEquals": {
			"route53:ChangeResourceRecordSetsNormalizedRecordNames": "_acme-challenge." + name,
			"route53:ChangeResourceRecordSetsRecordTypes":           "TXT",
		},
	}}
}

// session lets the agent of Systems Manager on a machine of one region open the channels
// of Session Manager, the least that it asks for. They cannot be narrowed to a machine: the
// agent speaks for the one whose credentials it has.
func session(place string) statement {
	return statement{"Allow", []string{
		"ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
		"ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
	}, []string{"*"}, condition{"StringEquals": {"aws:RequestedRegion": place}}}
}

// tagKeys are the keys of all tags of machines. IAM heeds the case of none of them when it
// looks for one, and machines are told apart by the one in lower case: another that differs in
// nothing else must not be given.
var tagKeys = []string{
	tagBuild, tagCapacity, tagFixed, tagID, tagKind, tagLabel + "*", tagName, tagOwner, tagPrice, tagReservation, tagService, tagSpec,
}

// operate lets a balancer's machine launch, list and end replicas of its service, and nothing
// else. It is bound to the kind of machine, so that whoever has root on a balancer can put none
// of theirs in the place of a balancer or of the controller: a machine that it launches is
// tagged as a replica, stands behind the firewall of replicas and has their role, and no tag
// can be changed afterwards. What EC2 lists cannot be narrowed to tags, and prices are
// everybody's; everything else is.
func operate(name, owner, arn string) []statement {
	replica := string(provision.KindReplica)
	having := func(prefix string) map[string]any {
		return map[string]any{prefix + tagService: name, prefix + tagOwner: owner, prefix + tagKind: replica}
	}
	tagged := condition{"StringEquals": having("aws:RequestTag/"), "ForAllValues:StringLike": {"aws:TagKeys": tagKeys}}
	launching := condition{"StringEquals": having("aws:RequestTag/"), "ForAllValues:StringLike": {"aws:TagKeys": tagKeys}}
	launching["StringEquals"]["ec2:CreateAction"] = "RunInstances"
	ours := condition{"StringEquals": having("aws:ResourceTag/")}
	group := condition{"StringEquals": {
		"aws:ResourceTag/" + tagService: name, "aws:ResourceTag/" + tagOwner: owner, "aws:ResourceTag/" + tagLabel + labelRole: replica,
	}}
	toEC2 := condition{"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
	ec2 := func(kinds ...string) []string {
		var resources []string
		for _, k := range kinds {
			resources = append(resources, arn+"ec2:*:*:"+k+"/*")
		}
		return resources
	}
	allow := func(actions, resources []string, when condition) statement {
		return statement{"Allow", actions, resources, when}
	}
	return []statement{
		allow([]string{
			"ec2:DescribeInstances", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeSecurityGroups", "ec2:DescribeSpotPriceHistory",
			"ec2:DescribeSubnets", "ec2:DescribeVpcs", "pricing:GetProducts",
		}, []string{"*"}, nil),
		allow([]string{"ec2:RunInstances"}, ec2("instance", "volume"), tagged),
		allow([]string{"ec2:RunInstances"}, ec2("security-group"), group),
		allow([]string{"ec2:RunInstances"}, append(ec2("network-interface", "subnet", "spot-instances-request", "capacity-reservation"), arn+"ec2:*::image/*"), nil),
		allow([]string{"ec2:CreateTags"}, ec2("instance", "volume"), launching),
		allow([]string{"ec2:GetConsoleOutput", "ec2:TerminateInstances"}, ec2("instance"), ours),
		allow([]string{"ssm:GetParameters"}, []string{arn + "ssm:*:*:parameter/aws/service/*"}, nil),
		allow([]string{"iam:PassRole"}, []string{arn + "iam::*:role" + iamPath(name) + roleName(name, replica)}, toEC2),
	}
}

// partitionOf is the part of AWS that a region is in.
func partitionOf(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// grantsTag writes grants into a tag.
func grantsTag(grants []provision.Grant) string {
	var words []string
	for _, g := range grants {
		words = append(words, string(g))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// grantsOf reads what grantsTag wrote.
func grantsOf(tag string) []provision.Grant {
	var grants []provision.Grant
	for word := range strings.FieldsSeq(tag) {
		grants = append(grants, provision.Grant(word))
	}
	return grants
}
