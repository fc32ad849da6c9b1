package testcloud

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Who calls is read from the access key of a signature. A key that Credentials gave is that
// of a machine, whose role's policies decide each call; any other is the operator's, who may
// do everything that Deny does not refuse.

// machineKey is the prefix of the access keys of machines, as it does those that AWS gives for a time.
const machineKey = "ASIA"

// Credentials are those that a machine of an id gets from its metadata service: of the role of
// its instance profile. They are empty where it has none.
func (a *AWS) Credentials(id string) (accessKey, secret, token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.roleAt(id) == nil {
		return "", "", ""
	}
	return machineKey + strings.ToUpper(strings.TrimPrefix(id, "i-")), "secret", "token"
}

// Role is the name of the role of a machine, by its id; empty where it has none.
func (a *AWS) Role(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.roleAt(id); r != nil {
		return r.name
	}
	return ""
}

// roleAt is the role of a machine, by its id; nil without one. The caller holds mu.
func (a *AWS) roleAt(id string) *iamRole {
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

// caller is the machine that a call is of, by its id; empty = the operator's.
func (c awsCall) caller() string {
	number, isMachine := strings.CutPrefix(c.key, machineKey)
	if !isMachine {
		return ""
	}
	return "i-" + strings.ToLower(number)
}

// authorize refuses a call of a machine that the policies of its role do not allow.
func (a *AWS) authorize(c awsCall) error {
	id := c.caller()
	if id == "" || c.name() == "sts:GetCallerIdentity" { // which everybody may
		return nil
	}
	role := a.roleAt(id)
	if role == nil {
		return awsRefusal(http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid")
	}
	policies, err := role.evaluated()
	if err != nil {
		return err
	}
	for _, q := range a.questions(c) {
		q.context.add("aws:RequestedRegion", c.region)
		if !allowed(policies, q) {
			who := fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", AWSAccount, role.name, id)
			return c.denial(who, q)
		}
	}
	return nil
}

// evaluated are the policies of a role. Managed ones are not: the fake has no text of them.
func (r *iamRole) evaluated() ([]iamPolicy, error) {
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

// denial is how the service of a call says that its caller may not do what is asked.
func (c awsCall) denial(who string, q iamQuestion) error {
	text := fmt.Sprintf("User: %s is not authorized to perform: %s on resource: %s because no identity-based policy allows the %s action", who, q.action, q.resource, q.action)
	switch {
	case c.service == "ec2":
		return awsRefusal(http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. %s", text)
	case c.speaksJSON():
		return badRequest("AccessDeniedException", "%s", text)
	}
	return awsRefusal(http.StatusForbidden, "AccessDenied", "%s", text)
}

// questions are what a caller has to be allowed for a call, by the tables of the Service
// Authorization Reference.
func (a *AWS) questions(c awsCall) []iamQuestion {
	r := a.regions[c.region]
	switch {
	case r == nil || c.service != "ec2":
	case c.action == "RunInstances":
		return r.questionsOfLaunch(c)
	case c.action == "TerminateInstances" || c.action == "GetConsoleOutput" || c.action == "CreateTags":
		return r.questionsOfThings(c)
	}
	return []iamQuestion{{c.name(), "*", iamContext{}}}
}

// arn names something of a region.
func (r *ec2Region) arn(kind, id string) string {
	account := AWSAccount
	if kind == "image" {
		account = ""
	}
	return fmt.Sprintf("arn:aws:ec2:%s:%s:%s/%s", r.name, account, kind, id)
}

// questionsOfThings are those of an action on things that exist.
func (r *ec2Region) questionsOfThings(c awsCall) []iamQuestion {
	var all []iamQuestion
	for _, id := range slices.Concat(c.form.list("InstanceId"), c.form.list("ResourceId"), oneOf(c.form.get("InstanceId"))) {
		kind, tags := "instance", awsTags{}
		switch i, g := r.instances[id], r.groups[id]; {
		case i != nil:
			tags = i.tags
		case g != nil:
			kind, tags = "security-group", g.tags
		}
		q := iamQuestion{c.name(), r.arn(kind, id), iamContext{}}
		q.context.addTags("aws:ResourceTag/", tags)
		q.context.addRequest(c.form.readTags("Tag"))
		all = append(all, q)
	}
	return all
}

// oneOf is a list of a text, empty where that is.
func oneOf(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// questionsOfLaunch are those of RunInstances: about everything that it makes and uses, about
// the tags that it gives, the role that it hands over, and the parameter that names the image.
func (r *ec2Region) questionsOfLaunch(c awsCall) []iamQuestion {
	var all []iamQuestion
	ask := func(action, resource string) iamContext {
		q := iamQuestion{action, resource, iamContext{}}
		all = append(all, q)
		return q.context
	}
	f, face := c.form, c.form.sub("NetworkInterface.1")
	for _, made := range []string{"instance", "volume", "network-interface"} {
		ask(c.name(), r.arn(made, "*")).addRequest(f.tagsFor(made))
	}
	if f.get("InstanceMarketOptions.MarketType") == "spot" {
		ask(c.name(), r.arn("spot-instances-request", "*")).addRequest(f.tagsFor("spot-instances-request"))
	}
	for _, id := range slices.Concat(face.list("SecurityGroupId"), f.list("SecurityGroupId")) {
		context := ask(c.name(), r.arn("security-group", id))
		if g := r.groups[id]; g != nil {
			context.addTags("aws:ResourceTag/", g.tags)
		}
	}
	ask(c.name(), r.arn("subnet", cmp.Or(face.get("SubnetId"), f.get("SubnetId"), "default")))
	if target := f.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"); target != "" {
		ask(c.name(), r.arn("capacity-reservation", target))
	}
	if key := f.get("KeyName"); key != "" {
		ask(c.name(), r.arn("key-pair", key))
	}
	image, resolved := strings.CutPrefix(f.get("ImageId"), "resolve:ssm:")
	if resolved {
		ask("ssm:GetParameters", fmt.Sprintf("arn:aws:ssm:%s::parameter%s", r.name, image))
		image = "ami-of-parameter"
	}
	ask(c.name(), r.arn("image", image))
	for _, spec := range f.items("TagSpecification") {
		context := ask("ec2:CreateTags", r.arn(spec.get("ResourceType"), "*"))
		context.addRequest(spec.readTags("Tag"))
		context.add("ec2:CreateAction", c.action)
	}
	if name := f.get("IamInstanceProfile.Name"); name != "" {
		resource := iamARN("role", "/", name)
		if p := r.aws.profiles[name]; p != nil && r.aws.roles[p.role] != nil {
			resource = iamARN("role", r.aws.roles[p.role].path, p.role)
		}
		ask("iam:PassRole", resource).add("iam:PassedToService", "ec2.amazonaws.com")
	}
	return all
}

// addTags adds tags to what is known of a request.
func (c iamContext) addTags(prefix string, tags awsTags) {
	for key, value := range tags {
		c.add(prefix+key, value)
	}
}

// addRequest adds the tags that a request sets.
func (c iamContext) addRequest(tags awsTags) {
	c.addTags("aws:RequestTag/", tags)
	for key := range tags {
		c.add("aws:TagKeys", key)
	}
}
