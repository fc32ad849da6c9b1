package testcloud

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// The access key of a signature identifies the caller. A key from MachineCredentials belongs to a machine:
// the policies of its IAM role authorize each call. Any other key is the operator's, whose calls are
// authorized unless DenialCode rejects them.

// machineKeyPrefix is the prefix of machines' access keys, as of all temporary access keys of AWS.
const machineKeyPrefix = "ASIA"

// machineSecret and machineToken belong to every access key of a machine.
const (
	machineSecret = "secret"
	machineToken  = "token"
)

// MachineCredentials returns the credentials that the metadata service returns to a machine, by its id: those
// of the IAM role of its instance profile. They are empty if the machine has none.
func (a *AWS) MachineCredentials(id string) (accessKey, secret, token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.roleOfMachine(id) == nil {
		return "", "", ""
	}
	return machineKeyPrefix + strings.ToUpper(strings.TrimPrefix(id, "i-")), machineSecret, machineToken
}

// MachineRole returns the name of a machine's IAM role, by its id; empty if it has none.
func (a *AWS) MachineRole(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.roleOfMachine(id); r != nil {
		return r.name
	}
	return ""
}

// roleOfMachine returns the role of a machine or of a session, by its id; nil without one, and for an expired session. The caller holds mu.
func (a *AWS) roleOfMachine(id string) *iamRole {
	if s, ok := a.sessions[id]; ok {
		if a.now().After(s.expires) {
			return nil
		}
		return a.roles[s.role]
	}
	for _, r := range a.regions {
		i := r.instances[id]
		if i == nil {
			continue
		}
		if p := a.profiles[i.profile]; p != nil {
			return a.roles[p.role]
		}
	}
	return nil
}

// callerMachine returns the id of the machine that sent a call; empty = the operator.
func (c awsCall) callerMachine() string {
	number, isMachine := strings.CutPrefix(c.key, machineKeyPrefix)
	if !isMachine {
		return ""
	}
	return "i-" + strings.ToLower(number)
}

// authorize rejects a machine's call that the policies of its role do not allow.
func (a *AWS) authorize(c awsCall) error {
	id := c.callerMachine()
	if id == "" || c.qualifiedAction() == "sts:GetCallerIdentity" { // every caller has this permission
		return nil
	}
	role := a.roleOfMachine(id)
	if role == nil {
		return newAWSError(http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid")
	}
	policies, err := role.parsedPolicies()
	if err != nil {
		return err
	}
	for _, q := range a.accessRequests(c) {
		q.context.addValue("aws:RequestedRegion", c.region)
		if !allowed(policies, q) {
			who := fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", AWSAccount, role.name, id)
			return c.denial(who, q)
		}
	}
	return nil
}

// parsedPolicies returns the inline policies of a role. Managed policies are omitted: the emulation does not
// have their text.
func (r *iamRole) parsedPolicies() ([]iamPolicy, error) {
	var all []iamPolicy
	for _, name := range slices.Sorted(maps.Keys(r.policies)) {
		p, err := readPolicy(r.policies[name])
		if err != nil {
			return nil, fmt.Errorf("reading the policy %s of %s: %w", name, r.name, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// denial returns the error with which the service of a call denies a request.
func (c awsCall) denial(who string, q iamRequest) error {
	text := fmt.Sprintf("User: %s is not authorized to perform: %s on resource: %s because no identity-based policy allows the %s action", who, q.action, q.resource, q.action)
	switch {
	case c.service == "ec2":
		return newAWSError(http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. %s", text)
	case c.usesJSON():
		return badRequest("AccessDeniedException", "%s", text)
	}
	return newAWSError(http.StatusForbidden, "AccessDenied", "%s", text)
}

// accessRequests returns the permissions that a call requires, by the tables of the Service Authorization
// Reference.
func (a *AWS) accessRequests(c awsCall) []iamRequest {
	r := a.regions[c.region]
	switch {
	case r == nil || c.service != "ec2":
	case c.action == "RunInstances":
		return r.launchAccessRequests(c)
	case slices.Contains([]string{"TerminateInstances", "GetConsoleOutput", "CreateTags", "AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"}, c.action):
		return r.resourceAccessRequests(c)
	}
	return []iamRequest{{c.qualifiedAction(), "*", iamContext{}}}
}

// arn returns the ARN of a resource of the region.
func (r *ec2Region) arn(kind, id string) string {
	account := AWSAccount
	if kind == "image" {
		account = ""
	}
	return fmt.Sprintf("arn:aws:ec2:%s:%s:%s/%s", r.name, account, kind, id)
}

// resourceAccessRequests returns the permissions for an action on existing resources.
func (r *ec2Region) resourceAccessRequests(c awsCall) []iamRequest {
	var all []iamRequest
	for _, id := range slices.Concat(c.form.list("InstanceId"), c.form.list("ResourceId"), nonEmptyList(c.form.get("InstanceId")), nonEmptyList(c.form.get("GroupId"))) {
		kind, tags := "instance", awsTags{}
		switch i, g := r.instances[id], r.groups[id]; {
		case i != nil:
			tags = i.tags
		case g != nil:
			kind, tags = "security-group", g.tags
		}
		q := iamRequest{c.qualifiedAction(), r.arn(kind, id), iamContext{}}
		q.context.addTags("aws:ResourceTag/", tags)
		q.context.addRequestTags(c.form.readTags("Tag"))
		all = append(all, q)
	}
	return all
}

// nonEmptyList returns a list with a text, or none if the text is empty.
func nonEmptyList(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// launchAccessRequests returns the permissions for RunInstances: for every resource that it creates or uses,
// the tags that it sets, the role that it passes, and the parameter that refers to the image.
func (r *ec2Region) launchAccessRequests(c awsCall) []iamRequest {
	var all []iamRequest
	require := func(action, resource string) iamContext {
		q := iamRequest{action, resource, iamContext{}}
		all = append(all, q)
		return q.context
	}
	f, nic := c.form, c.form.sub("NetworkInterface.1")
	for _, made := range []string{"instance", "volume", "network-interface"} {
		require(c.qualifiedAction(), r.arn(made, "*")).addRequestTags(f.tagsFor(made))
	}
	if f.get("InstanceMarketOptions.MarketType") == "spot" {
		require(c.qualifiedAction(), r.arn("spot-instances-request", "*")).addRequestTags(f.tagsFor("spot-instances-request"))
	}
	for _, id := range slices.Concat(nic.list("SecurityGroupId"), f.list("SecurityGroupId")) {
		context := require(c.qualifiedAction(), r.arn("security-group", id))
		if g := r.groups[id]; g != nil {
			context.addTags("aws:ResourceTag/", g.tags)
		}
	}
	require(c.qualifiedAction(), r.arn("subnet", cmp.Or(nic.get("SubnetId"), f.get("SubnetId"), "default")))
	if target := f.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"); target != "" {
		require(c.qualifiedAction(), r.arn("capacity-reservation", target))
	}
	if key := f.get("KeyName"); key != "" {
		require(c.qualifiedAction(), r.arn("key-pair", key))
	}
	image, resolved := strings.CutPrefix(f.get("ImageId"), "resolve:ssm:")
	if resolved {
		require("ssm:GetParameters", fmt.Sprintf("arn:aws:ssm:%s::parameter%s", r.name, image))
		image = "ami-of-parameter"
	}
	require(c.qualifiedAction(), r.arn("image", image))
	for _, spec := range f.items("TagSpecification") {
		context := require("ec2:CreateTags", r.arn(spec.get("ResourceType"), "*"))
		context.addRequestTags(spec.readTags("Tag"))
		context.addValue("ec2:CreateAction", c.action)
	}
	if name := f.get("IamInstanceProfile.Name"); name != "" {
		resource := iamARN("role", "/", name)
		if p := r.aws.profiles[name]; p != nil && r.aws.roles[p.role] != nil {
			resource = iamARN("role", r.aws.roles[p.role].path, p.role)
		}
		require("iam:PassRole", resource).addValue("iam:PassedToService", "ec2.amazonaws.com")
	}
	return all
}

// addTags adds tags to the condition context of a request.
func (c iamContext) addTags(prefix string, tags awsTags) {
	for key, value := range tags {
		c.addValue(prefix+key, value)
	}
}

// addRequestTags adds the tags that a request sets.
func (c iamContext) addRequestTags(tags awsTags) {
	c.addTags("aws:RequestTag/", tags)
	for key := range tags {
		c.addValue("aws:TagKeys", key)
	}
}
