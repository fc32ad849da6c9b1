package aws_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/smithy-go"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// handleOf returns EC2's id of a machine of the service.
func handleOf(t testing.TB, cloud *testcloud.AWS, id string) string {
	t.Helper()
	all := cloud.Machines()
	i := slices.IndexFunc(all, func(m testcloud.AWSMachine) bool { return m.Tags["skyserve:id"] == id })
	if i < 0 {
		t.Fatalf("no machine is called %s", id)
	}
	return all[i].ID
}

// identityOf returns the identity of a machine of the service.
func identityOf(t testing.TB, cloud *testcloud.AWS, id string) sdk.CredentialsProvider {
	t.Helper()
	key, secret, token := cloud.MachineCredentials(handleOf(t, cloud, id))
	if key == "" {
		t.Fatalf("%s has no role", id)
	}
	return credentials.NewStaticCredentialsProvider(key, secret, token)
}

// asMachine returns the provider of a machine of the service, which authenticates with its IAM role.
func asMachine(t testing.TB, cloud *testcloud.AWS, id string) *aws.Provider {
	t.Helper()
	c := config(cloud, "us-east-1", "us-west-2")
	c.MachinesOnly, c.Credentials = true, identityOf(t, cloud, id)
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rootOn returns clients of EC2 and IAM with the credentials of a machine, as an intruder with root on it
// has.
func rootOn(t *testing.T, cloud *testcloud.AWS, id string) (*ec2.Client, *iam.Client) {
	t.Helper()
	c := sdk.Config{Region: "us-east-1", Credentials: identityOf(t, cloud, id), HTTPClient: httpClient(cloud), RetryMaxAttempts: 1}
	return ec2.NewFromConfig(c), iam.NewFromConfig(c)
}

// impostor is a launch of a replica with other user data by an intruder with root on a balancer. The tests
// change it into launches that must be denied.
func impostor(cloud *testcloud.AWS, replica string) *ec2.RunInstancesInput {
	var like testcloud.AWSMachine
	for _, m := range cloud.Machines() {
		if m.ID == replica {
			like = m
		}
	}
	tags := map[string]string{}
	for key, value := range like.Tags {
		tags[key] = value
	}
	tags["skyserve:id"] = "us-east-1-7"
	return &ec2.RunInstancesInput{
		MinCount: sdk.Int32(1), MaxCount: sdk.Int32(1), ImageId: sdk.String("ami-1"), InstanceType: ec2types.InstanceTypeC7iLarge,
		NetworkInterfaces:  []ec2types.InstanceNetworkInterfaceSpecification{{DeviceIndex: sdk.Int32(0), SubnetId: sdk.String("subnet-us-east-1b"), Groups: []string{like.Group}}},
		IamInstanceProfile: &ec2types.IamInstanceProfileSpecification{Name: sdk.String("skyserve-chat-replica")},
		UserData:           sdk.String("IyEvYmluL3NoCg=="),
		TagSpecifications:  []ec2types.TagSpecification{{ResourceType: ec2types.ResourceTypeInstance, Tags: ec2TagsOf(tags)}, {ResourceType: ec2types.ResourceTypeVolume, Tags: ec2TagsOf(tags)}},
	}
}

func ec2TagsOf(tags map[string]string) []ec2types.Tag {
	var all []ec2types.Tag
	for key, value := range tags {
		all = append(all, ec2types.Tag{Key: sdk.String(key), Value: sdk.String(value)})
	}
	return all
}

// retag changes a tag of all resources that a launch creates.
func retag(in *ec2.RunInstancesInput, key, value string) {
	for _, spec := range in.TagSpecifications {
		for i := range spec.Tags {
			if *spec.Tags[i].Key == key {
				spec.Tags[i].Value = sdk.String(value)
			}
		}
	}
}

// compromised is a service with an intruder who has root on a spare balancer, whose other balancer may launch balancers.
type compromised struct {
	t                   *testing.T
	cloud               *testcloud.AWS
	controller, replica string // EC2's ids of these machines
	behindBalancers     string // the firewall of balancers
	machines            *ec2.Client
	roles               *iam.Client
}

// replacing is the identity of balancers that launch other balancers, spares too.
var replacing = roleFor(provision.RoleBalancer, provision.GrantOperate, provision.GrantReplaceBalancers, provision.GrantReplaceSpares)

// spare is a balancer's machine with the identity of spares.
func spare(id string) provision.Desired {
	w := machine(id, provision.KindBalancer, east, service.CapacityOnDemand)
	w.Machine.Spare = true
	return w
}

func takeOver(t *testing.T) *compromised {
	cloud := newCloud(nil)
	operator := open(t, cloud)
	launch(t, operator, append(chat(), replacing, roleFor(provision.RoleSpare, provision.GrantOperate), spare("lb-us-east-1-1"))...)
	a := &compromised{t: t, cloud: cloud, controller: handleOf(t, cloud, "lb-us-east-1-0"), replica: handleOf(t, cloud, "us-east-1-0")}
	for _, m := range cloud.Machines() {
		if m.ID == a.controller {
			a.behindBalancers = m.Group
		}
	}
	a.machines, a.roles = rootOn(t, cloud, "lb-us-east-1-1")
	return a
}

// run launches a replica that change has modified.
func (a *compromised) run(change func(*ec2.RunInstancesInput)) error {
	in := impostor(a.cloud, a.replica)
	change(in)
	_, err := a.machines.RunInstances(a.t.Context(), in)
	return err
}

func (a *compromised) end(ids ...string) error {
	_, err := a.machines.TerminateInstances(a.t.Context(), &ec2.TerminateInstancesInput{InstanceIds: ids})
	return err
}

func (a *compromised) tag(id, key, value string) error {
	_, err := a.machines.CreateTags(a.t.Context(), &ec2.CreateTagsInput{Resources: []string{id}, Tags: ec2TagsOf(map[string]string{key: value})})
	return err
}

// An intruder with root on a balancer can launch, tag and terminate replicas of the service, like a
// controller. They cannot replace a balancer or the controller by a machine of their own.
func TestRootOnBalancerCannotBecomeController(t *testing.T) {
	for what, do := range map[string]func(a *compromised) error{
		"ends the controller's machine": func(a *compromised) error { return a.end(a.controller) },
		"ends it beside a replica":      func(a *compromised) error { return a.end(a.replica, a.controller) },
		"reads its console": func(a *compromised) error {
			_, err := a.machines.GetConsoleOutput(a.t.Context(), &ec2.GetConsoleOutputInput{InstanceId: sdk.String(a.controller)})
			return err
		},
		"launches a balancer": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { retag(in, "skyserve:kind", "balancer") })
		},
		"launches a balancer whose disk is a replica's": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) {
				disk := in.TagSpecifications[1]
				disk.Tags = slices.Clone(disk.Tags)
				for i, tag := range disk.Tags {
					disk.Tags[i] = ec2types.Tag{Key: tag.Key, Value: tag.Value}
				}
				retag(in, "skyserve:kind", "balancer")
				in.TagSpecifications[1] = disk
			})
		},
		"launches a balancer that says replica in capitals": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) {
				retag(in, "skyserve:kind", "balancer")
				for i := range in.TagSpecifications {
					in.TagSpecifications[i].Tags = append(in.TagSpecifications[i].Tags, ec2types.Tag{Key: sdk.String("SKYSERVE:KIND"), Value: sdk.String("replica")})
				}
			})
		},
		"launches what carries no tags": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { in.TagSpecifications = nil })
		},
		"launches for another owner": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { retag(in, "skyserve:owner", "you") })
		},
		"launches for another service": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { retag(in, "skyserve:service", "other") })
		},
		"launches with the role of balancers": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { in.IamInstanceProfile.Name = sdk.String("skyserve-chat-balancer") })
		},
		"launches with the role of spares": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { in.IamInstanceProfile.Name = sdk.String("skyserve-chat-spare") })
		},
		"launches behind the firewall of balancers": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { in.NetworkInterfaces[0].Groups = []string{a.behindBalancers} })
		},
		"launches with a key to log in with": func(a *compromised) error {
			return a.run(func(in *ec2.RunInstancesInput) { in.KeyName = sdk.String("mine") })
		},
		"makes a replica a balancer":               func(a *compromised) error { return a.tag(a.replica, "skyserve:kind", "balancer") },
		"makes the controller's machine a replica": func(a *compromised) error { return a.tag(a.controller, "skyserve:kind", "replica") },
		"renames the controller's machine":         func(a *compromised) error { return a.tag(a.controller, "skyserve:id", "lb-us-east-1-9") },
		"grants itself more": func(a *compromised) error {
			_, err := a.roles.PutRolePolicy(a.t.Context(), &iam.PutRolePolicyInput{
				RoleName: sdk.String("skyserve-chat-balancer"), PolicyName: sdk.String("more"), PolicyDocument: sdk.String(`{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`),
			})
			return err
		},
		"opens a firewall": func(a *compromised) error {
			_, err := a.machines.AuthorizeSecurityGroupIngress(a.t.Context(), &ec2.AuthorizeSecurityGroupIngressInput{GroupId: sdk.String(a.behindBalancers), IpProtocol: sdk.String("-1"), CidrIp: sdk.String("0.0.0.0/0")})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			a := takeOver(t)
			before := a.cloud.RemainingResources()
			err := do(a)
			var refused smithy.APIError
			if !errors.As(err, &refused) || !slices.Contains([]string{"UnauthorizedOperation", "AccessDenied"}, refused.ErrorCode()) {
				t.Errorf("got %v, want that it is denied", err)
			}
			if after := a.cloud.RemainingResources(); !slices.Equal(before, after) {
				t.Errorf("there was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
		})
	}
	a := takeOver(t)
	if err := a.run(func(*ec2.RunInstancesInput) {}); err != nil {
		t.Errorf("launching a replica, as a controller does: %v", err)
	}
	if err := a.end(a.replica); err != nil {
		t.Errorf("ending one: %v", err)
	}
}

// An intruder with root on a replica has no permissions in the cloud.
func TestRootOnReplicaHasNoPermissions(t *testing.T) {
	cloud := newCloud(nil)
	launch(t, open(t, cloud), chat()...)
	machines, _ := rootOn(t, cloud, "us-east-1-0")
	var refused smithy.APIError
	if _, err := machines.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{}); !errors.As(err, &refused) || refused.ErrorCode() != "UnauthorizedOperation" {
		t.Errorf("listing: got %v", err)
	}
	_, err := machines.RunInstances(t.Context(), impostor(cloud, handleOf(t, cloud, "us-east-1-0")))
	if !errors.As(err, &refused) || refused.ErrorCode() != "UnauthorizedOperation" {
		t.Errorf("launching: got %v", err)
	}
}

// controlBalancers makes the calls of a controller that replaces balancers.
func controlBalancers(ctx context.Context, p *aws.Provider) error {
	err := control(ctx, p)
	if err != nil {
		return err
	}
	o, err := p.Launch(ctx, machine("lb-us-east-1-7", provision.KindBalancer, east, service.CapacityOnDemand))
	if err == nil {
		_, err = p.Fingerprint(ctx, o)
	}
	if err == nil {
		err = p.Terminate(ctx, o)
	}
	if err == nil {
		_, err = p.Launch(ctx, peersFirewall("192.0.2.2"))
	}
	return err
}

// controlSpares makes the calls of a controller that also replaces spares.
func controlSpares(ctx context.Context, p *aws.Provider) error {
	o, err := p.Launch(ctx, spare("lb-us-east-1-8"))
	if err == nil {
		err = p.Terminate(ctx, o)
	}
	if err == nil {
		err = controlBalancers(ctx, p)
	}
	return err
}

// peersFirewall is the firewall of balancers that admits another one by its address.
func peersFirewall(address string) provision.Desired {
	w := firewall(east, provision.RoleBalancer, provision.FirewallRule{Port: 8420, From: provision.FromSameRole})
	w.SameRole = []netip.Addr{netip.MustParseAddr(address)}
	return w
}

// control makes all calls of a controller in its cloud, from its machine.
func control(ctx context.Context, p *aws.Provider) error {
	offers, err := p.Offerings(ctx, east)
	if err != nil {
		return err
	}
	if _, err := p.CapacityAdvice(ctx, east, offers.WithGPU("L4", 1), 1); err != nil {
		return err
	}
	if _, err := p.Prices(ctx, east); err != nil {
		return err
	}
	if _, err := p.Reservations(ctx, east, []string{"cr-mine"}); err != nil {
		return err
	}
	reserved := machine("us-east-1-4", provision.KindReplica, east, service.CapacityReserved)
	reserved.Offerings[0].Reservation = "cr-mine"
	for _, w := range []provision.Desired{machine("us-east-1-2", provision.KindReplica, east, service.CapacitySpot), machine("us-east-1-3", provision.KindReplica, east, service.CapacityOnDemand), reserved} {
		o, err := p.Launch(ctx, w)
		if err != nil {
			return err
		}
		if _, err := p.Fingerprint(ctx, o); err != nil {
			return err
		}
	}
	have, err := p.List(ctx, "chat")
	for _, o := range have {
		if err == nil && o.Kind == provision.KindReplica {
			err = p.Terminate(ctx, o)
		}
	}
	return err
}

// A controller's machine can manage replicas with the permissions of its role, and balancers only where the role
// grants it. Every permission of the role is required.
func TestBalancerRoleIsMinimalForController(t *testing.T) {
	testBalancerRole(t, control, provision.GrantOperate)
	testBalancerRole(t, controlBalancers, provision.GrantOperate, provision.GrantReplaceBalancers)
	testBalancerRole(t, controlSpares, provision.GrantOperate, provision.GrantReplaceBalancers, provision.GrantReplaceSpares)
	cloud := newCloud(nil)
	cloud.AddReservation("us-east-1", "cr-mine", "us-east-1b", "g6.xlarge", 1, false)
	launch(t, open(t, cloud), chat()...)
	var refused *provision.CredentialsError
	if err := controlBalancers(t.Context(), asMachine(t, cloud, "lb-us-east-1-0")); !errors.As(err, &refused) {
		t.Errorf("without the grant: got %v, want that launching a balancer is denied", err)
	}
}

// testBalancerRole checks that the role with these grants permits the calls of a controller, and nothing else.
func testBalancerRole(t *testing.T, control func(context.Context, *aws.Provider) error, grants ...provision.Grant) {
	t.Helper()
	const role, name = "skyserve-chat-balancer", "skyserve"
	type statement struct {
		Effect    string
		Action    []string
		Resource  []string
		Condition json.RawMessage `json:",omitempty"`
	}
	type policy struct{ Statement []statement }
	run := func(change func(*policy)) error {
		cloud := newCloud(nil)
		cloud.AddReservation("us-east-1", "cr-mine", "us-east-1b", "g6.xlarge", 1, false)
		launch(t, open(t, cloud), append(chat(), roleFor(provision.RoleBalancer, grants...), roleFor(provision.RoleSpare), peersFirewall("192.0.2.1"))...)
		var p policy
		if err := json.Unmarshal([]byte(cloud.RolePolicy(role, name)), &p); err != nil {
			t.Fatal(err)
		}
		change(&p)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		cloud.SetRolePolicy(role, name, string(text))
		return control(t.Context(), asMachine(t, cloud, "lb-us-east-1-0"))
	}
	var whole policy
	if err := run(func(p *policy) { whole = *p }); err != nil {
		t.Fatal(err)
	}
	for i, s := range whole.Statement {
		for n, action := range s.Action {
			if err := run(func(p *policy) { p.Statement[i].Action = without(s.Action, n) }); err == nil {
				t.Errorf("statement %d: %s is allowed, and not needed", i, action)
			}
		}
		for n, resource := range s.Resource {
			if err := run(func(p *policy) { p.Statement[i].Resource = without(s.Resource, n) }); err == nil {
				t.Errorf("statement %d: %v of %s is allowed, and not needed", i, s.Action, resource)
			}
		}
	}
}

// without returns a list without one element; never empty, because IAM rejects empty lists.
func without(all []string, n int) []string {
	less := slices.Delete(slices.Clone(all), n, n+1)
	if len(less) == 0 {
		return []string{fmt.Sprintf("none:%d", n)}
	}
	return less
}
