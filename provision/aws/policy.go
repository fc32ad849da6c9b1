package aws

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"skyserve/provision"
)

// trust is one permission of a trust policy.
type trust struct {
	Effect    string            `json:"Effect"`
	Principal map[string]string `json:"Principal"`
	Action    string            `json:"Action"`
	Condition condition         `json:"Condition,omitempty"`
}

// trustPolicyFor returns the trust policy of an identity's role with these grants. If machines at AWS have the
// role, EC2 may assume it for them. With GrantFederated, machines at Google that have one service account may assume it, by
// tokens that they requested for AWS. Google's user accounts have no tokens with the id of a service account as azp, which
// is the condition key aud.
func trustPolicyFor(role string, grants []provision.Grant) (string, error) {
	var all []trust
	if hasMachines(role) {
		all = append(all, trust{"Allow", map[string]string{"Service": principalEC2}, "sts:AssumeRole", nil})
	}
	for _, g := range slices.Sorted(slices.Values(grants)) {
		if id, ok := g.FederatedAccount(); ok {
			all = append(all, trust{"Allow", map[string]string{"Federated": issuerGoogle}, "sts:AssumeRoleWithWebIdentity", condition{"StringEquals": {
				issuerGoogle + ":aud": id, issuerGoogle + ":oaud": AudienceGoogle, issuerGoogle + ":sub": id,
			}}})
		}
	}
	if len(all) == 0 {
		return "", fmt.Errorf("granting permissions to the role %s: neither machines nor another cloud use it", role)
	}
	text, err := json.Marshal(struct {
		Version   string
		Statement []trust
	}{"2012-10-17", all})
	return string(text), err
}

// hasMachines reports whether machines at AWS have the identity of a role. Others need no instance profile.
func hasMachines(role string) bool {
	return provision.ObjectKind(role).IsMachine() || role == string(provision.RoleSpare)
}

// identityRole returns the role of a machine's identity.
func identityRole(m provision.MachineConfig) string {
	if m.Spare {
		return string(provision.RoleSpare)
	}
	return string(m.Role)
}

// statement is one permission of a policy; the keys of a map are marshalled in sorted order.
type statement struct {
	Effect    string    `json:"Effect"`
	Action    []string  `json:"Action"`
	Resource  []string  `json:"Resource"`
	Condition condition `json:"Condition,omitempty"`
}

// condition contains the conditions of a permission by operator and key. A value is a string, or a list
// of alternatives.
type condition map[string]map[string]any

// policyFor returns the IAM policy of a service's machines with these grants; empty without grants. The
// result does not depend on the order of the grants.
func policyFor(name, owner, partition string, grants []provision.Grant) (string, error) {
	var statements []statement
	if slices.Contains(grants, provision.GrantOperate) {
		kinds := []string{string(provision.KindReplica)}
		if slices.Contains(grants, provision.GrantReplaceBalancers) {
			kinds = append(kinds, string(provision.KindBalancer))
		}
		passed := slices.Clone(kinds)
		if slices.Contains(grants, provision.GrantReplaceSpares) {
			passed = append(passed, string(provision.RoleSpare))
		}
		statements = operateStatements(name, owner, "arn:"+partition+":", kinds, passed)
	}
	for _, g := range slices.Sorted(slices.Values(grants)) {
		if place, ok := g.SessionRegion(); ok {
			statements = append(statements, sessionStatement(place))
		}
		if folder, ok := g.ReadFolder(); ok {
			statements = append(statements, readStatements(folder, "arn:"+partition+":s3:::")...)
		}
		if f, ok := g.StoredFolder(); ok {
			statements = append(statements, filesStatements(f, "arn:"+partition+":s3:::")...)
		}
		if bucket, pattern, ok := g.BinaryObjects(); ok {
			statements = append(statements, programStatement(bucket, pattern, "arn:"+partition+":s3:::"))
		}
		if zone, of, ok := g.ChallengeRecord(); ok {
			statements = append(statements, challengeStatement(zone, of, "arn:"+partition+":route53:::"))
		}
		if zone, of, checks, ok := g.Records(); ok {
			statements = append(statements, recordsStatements(zone, of, checks, "arn:"+partition+":route53:::")...)
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

// readStatements permits listing and reading the objects below a folder of a bucket.
func readStatements(folder, arn string) []statement {
	bucket, prefix, _ := strings.Cut(folder, "/")
	return []statement{
		{"Allow", []string{"s3:GetObject"}, []string{arn + folder + "/*"}, nil},
		{"Allow", []string{"s3:ListBucket"}, []string{arn + bucket}, condition{"StringEquals": {"s3:prefix": prefix + "/"}}},
	}
}

// filesStatements permits listing, reading, writing and deleting the objects below a folder of a bucket of the
// machine's own AWS account: nobody else can receive the files by creating a bucket with the name of a deleted one.
func filesStatements(f provision.BucketFolder, arn string) []statement {
	own := map[string]any{"aws:ResourceAccount": "${aws:PrincipalAccount}"}
	return []statement{
		{"Allow", []string{"s3:DeleteObject", "s3:GetObject", "s3:PutObject"}, []string{arn + f.Bucket + "/" + f.Folder + "/*"}, condition{"StringEquals": own}},
		{"Allow", []string{"s3:ListBucket"}, []string{arn + f.Bucket}, condition{"StringEquals": own, "StringLike": {"s3:prefix": f.Folder + "/*"}}},
	}
}

// challengeStatement permits changing the TXT record of a dns-01 challenge for a name, and nothing else in
// the hosted zone. IAM compares names in lower case and without the last dot. Every record of a change
// must match.
func challengeStatement(zone, name, arn string) statement {
	return statement{"Allow", []string{"route53:ChangeResourceRecordSets"}, []string{arn + "hostedzone/" + zone}, condition{
		"ForAllValues:StringEquals": {
			"route53:ChangeResourceRecordSetsNormalizedRecordNames": "_acme-challenge." + name,
			"route53:ChangeResourceRecordSetsRecordTypes":           "TXT",
		},
	}}
}

// recordsStatements permits changing the records of balancers below a name, and the targets of their health checks: see
// dns.Route53.UpdateRecords. Health checks are named one by one, because conditions cannot select them.
func recordsStatements(zone, name string, healthChecks []string, arn string) []statement {
	below := provision.RecordsLabel + name
	statements := []statement{
		{"Allow", []string{"route53:ListResourceRecordSets"}, []string{arn + "hostedzone/" + zone}, nil},
		{"Allow", []string{"route53:ChangeResourceRecordSets"}, []string{arn + "hostedzone/" + zone}, condition{
			"ForAllValues:StringEquals": {"route53:ChangeResourceRecordSetsRecordTypes": []string{"A", "AAAA", "TXT"}},
			"ForAllValues:StringLike":   {"route53:ChangeResourceRecordSetsNormalizedRecordNames": []string{below, "*." + below}},
		}},
	}
	var checks []string
	for _, id := range healthChecks {
		checks = append(checks, arn+"healthcheck/"+id)
	}
	if len(checks) > 0 {
		statements = append(statements, statement{"Allow", []string{"route53:UpdateHealthCheck"}, checks, nil})
	}
	return statements
}

// sessionStatement permits the Systems Manager agent on machines of one region to open the channels of
// Session Manager. These are the minimum permissions of the agent. They cannot be restricted to a machine,
// because only its credentials identify the agent.
func sessionStatement(place string) statement {
	return statement{"Allow", []string{
		"ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
		"ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
	}, []string{"*"}, condition{"StringEquals": {"aws:RequestedRegion": place}}}
}

// tagKeys are the keys of all tags of machines. IAM ignores the case of a key in a condition, but List
// reads only the lower-case keys. So keys that differ only in case must be denied.
var tagKeys = []string{
	tagBuild, tagCapacity, tagEnds, tagFixed, tagID, tagKind, tagLabel + "*", tagName, tagOwner, tagPrice, tagReservation, tagService, tagSpec,
}

// operateStatements permits a balancer's machine to launch, list and terminate machines of these kinds of its
// service, and nothing else. With replicas only, an intruder with root on a balancer cannot launch another balancer
// or a controller: a machine that a balancer launches must have the tags of a replica, the firewall of replicas and
// their IAM role, and no tag can be changed afterwards. All permissions are restricted by tags or names, except EC2's
// list calls, which cannot be restricted to tags, and prices, which are public. passed are the roles of the machines'
// identities.
func operateStatements(name, owner, arn string, kinds, passed []string) []statement {
	var kind any = kinds
	if len(kinds) == 1 {
		kind = kinds[0]
	}
	having := func(prefix string) map[string]any {
		return map[string]any{prefix + tagService: name, prefix + tagOwner: owner, prefix + tagKind: kind}
	}
	tagged := condition{"StringEquals": having("aws:RequestTag/"), "ForAllValues:StringLike": {"aws:TagKeys": tagKeys}}
	launching := condition{"StringEquals": having("aws:RequestTag/"), "ForAllValues:StringLike": {"aws:TagKeys": tagKeys}}
	launching["StringEquals"]["ec2:CreateAction"] = "RunInstances"
	ours := condition{"StringEquals": having("aws:ResourceTag/")}
	group := condition{"StringEquals": {
		"aws:ResourceTag/" + tagService: name, "aws:ResourceTag/" + tagOwner: owner, "aws:ResourceTag/" + tagLabel + labelRole: kind,
	}}
	toEC2 := condition{"StringEquals": {"iam:PassedToService": principalEC2}}
	ec2 := func(types ...string) []string {
		var resources []string
		for _, k := range types {
			resources = append(resources, arn+"ec2:*:*:"+k+"/*")
		}
		return resources
	}
	var roles []string
	for _, k := range passed {
		roles = append(roles, arn+"iam::*:role"+iamPath(name)+roleName(name, k))
	}
	allow := func(actions, resources []string, when condition) statement {
		return statement{"Allow", actions, resources, when}
	}
	statements := []statement{
		allow([]string{
			"ec2:DescribeAvailabilityZones", "ec2:DescribeCapacityReservations", "ec2:DescribeInstances", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeSecurityGroups", "ec2:DescribeSpotPriceHistory",
			"ec2:DescribeSubnets", "ec2:DescribeVpcs", "ec2:GetSpotPlacementScores", "pricing:GetProducts",
		}, []string{"*"}, nil),
		allow([]string{"ec2:RunInstances"}, ec2("instance", "volume"), tagged),
		allow([]string{"ec2:RunInstances"}, ec2("security-group"), group),
		allow([]string{"ec2:RunInstances"}, append(ec2("network-interface", "subnet", "spot-instances-request", "capacity-reservation"), arn+"ec2:*::image/*"), nil),
		allow([]string{"ec2:CreateTags"}, ec2("instance", "volume"), launching),
		allow([]string{"ec2:GetConsoleOutput", "ec2:TerminateInstances"}, ec2("instance"), ours),
		allow([]string{"ssm:GetParameters"}, []string{arn + "ssm:*:*:parameter/aws/service/*"}, nil),
		allow([]string{"iam:PassRole"}, roles, toEC2),
	}
	if balancer := string(provision.KindBalancer); slices.Contains(kinds, balancer) { // the firewall admits other balancers by address
		statements = append(statements, allow([]string{"ec2:AuthorizeSecurityGroupIngress", "ec2:CreateTags", "ec2:RevokeSecurityGroupIngress"}, ec2("security-group"), condition{
			"StringEquals": {
				"aws:ResourceTag/" + tagService: name, "aws:ResourceTag/" + tagOwner: owner, "aws:ResourceTag/" + tagLabel + labelRole: balancer,
			},
			"ForAllValues:StringLike": {"aws:TagKeys": append(slices.Clone(tagKeys), tagRules, tagPeers)},
		}))
	}
	return statements
}

// partitionOf returns the AWS partition of a region.
func partitionOf(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return partitionChina
	case strings.HasPrefix(region, "us-gov-"):
		return partitionGovCloud
	}
	return "aws"
}

// grantTags encodes grants in tags. The grant of records, which contains an id of each balancer's health check, is in tags
// of its own: a value is limited to 256 characters, so it continues in further tags. The first ones are set even when empty,
// to overwrite earlier values.
func grantTags(grants []provision.Grant) map[string]string {
	words := map[string][]string{tagGrants: nil, tagRecords: nil}
	for _, g := range grants {
		tag := tagGrants
		if _, _, _, ok := g.Records(); ok {
			tag = tagRecords
		}
		words[tag] = append(words[tag], string(g))
	}
	tags := map[string]string{}
	for tag, all := range words {
		slices.Sort(all)
		tags[tag] = strings.Join(all, " ")
	}
	text := tags[tagRecords]
	for n := 0; ; n++ {
		part := text[:min(len(text), maxTagValue)]
		tags[recordsTag(n)], text = part, text[len(part):]
		if len(part) < maxTagValue {
			return tags
		}
	}
}

// recordsTag returns the key of the tag with a part of the grant of records.
func recordsTag(n int) string {
	if n == 0 {
		return tagRecords
	}
	return tagRecords + "-" + strconv.Itoa(n+1)
}

// grantsOf decodes the tags of grantTags. A part that is not full is the last one: tags after it are of an earlier grant.
func grantsOf(tags map[string]string) []provision.Grant {
	records := ""
	for n := 0; ; n++ {
		part := tags[recordsTag(n)]
		if records += part; len(part) < maxTagValue {
			break
		}
	}
	var grants []provision.Grant
	for word := range strings.FieldsSeq(tags[tagGrants] + " " + records) {
		grants = append(grants, provision.Grant(word))
	}
	return grants
}
