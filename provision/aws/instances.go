package aws

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// listInstances lists the machines that match filters, including terminated ones.
func (r *region) listInstances(ctx context.Context, filters ...ec2types.Filter) ([]ec2types.Instance, error) {
	var all []ec2types.Instance
	pages := ec2.NewDescribeInstancesPaginator(r.ec2, &ec2.DescribeInstancesInput{Filters: filters})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, reservation := range page.Reservations {
			all = append(all, reservation.Instances...)
		}
	}
	return all, nil
}

// hasEnded reports whether an instance has terminated, or is irreversibly shutting down.
func hasEnded(i ec2types.Instance) bool {
	state := stateOf(i)
	return state == ec2types.InstanceStateNameShuttingDown || state == ec2types.InstanceStateNameTerminated
}

func stateOf(i ec2types.Instance) ec2types.InstanceStateName {
	if i.State == nil {
		return ""
	}
	return i.State.Name
}

// objectFromInstance converts an instance to an object, by its tags and EC2's description; false when
// skyserve did not create it.
func (r *region) objectFromInstance(i ec2types.Instance) (provision.Object, bool) {
	o, owned := objectFromTags(fromEC2Tags(i.Tags), r.regionID(), aws.ToString(i.InstanceId))
	r.addInstanceDetails(&o, i)
	if state := stateOf(i); state == ec2types.InstanceStateNameStopping || state == ec2types.InstanceStateNameStopped {
		o.TerminatedReason = fmt.Sprintf("%s: %s", state, cmp.Or(aws.ToString(i.StateTransitionReason), "EC2 reported no reason"))
	}
	o.Interrupted = isInterrupted(i)
	if owned && !inFirewallGroup(o, i) { // its firewall rules do not apply: it must be replaced
		o.SpecHash, o.ImmutableHash = "", ""
	}
	return o, owned
}

// inFirewallGroup reports whether a machine is in its security group; true if EC2 lists no groups.
func inFirewallGroup(o provision.Object, i ec2types.Instance) bool {
	return len(i.SecurityGroups) == 0 || slices.ContainsFunc(i.SecurityGroups, func(g ec2types.GroupIdentifier) bool {
		return aws.ToString(g.GroupName) == groupName(o.Service, string(o.Kind))
	})
}

// addInstanceDetails sets the fields that follow from EC2's description of a machine: its offering, its
// start time, and its address in the form http://IP, without a port.
func (r *region) addInstanceDetails(o *provision.Object, i ec2types.Instance) {
	tags := fromEC2Tags(i.Tags)
	offer := provision.Offering{
		Type: string(i.InstanceType), Region: r.regionID(),
		Capacity: service.CapacityType(cmp.Or(tags[tagCapacity], string(service.CapacityOnDemand))),
	}
	if known, ok := provision.MachineTypeOf(service.CloudAWS, offer.Type); ok {
		offer = known.Offering(r.regionID(), "", offer.Capacity)
	}
	if i.Placement != nil {
		offer.Zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	if price, err := strconv.ParseFloat(tags[tagPrice], 64); err == nil { // without the tag, the list price applies
		offer.PricePerHour, offer.PriceSource = price, "price at launch"
	}
	offer.Reservation, offer.Block = tags[tagReservation], i.InstanceLifecycle == ec2types.InstanceLifecycleTypeCapacityBlock
	if ends, err := time.Parse(time.RFC3339, tags[tagEnds]); err == nil {
		offer.Ends = ends
	}
	o.Offering, o.CostPerHour, o.Started = &offer, offer.PricePerHour, aws.ToTime(i.LaunchTime)
	o.PublicIP, o.PrivateIP = addressOf(i.PublicIpAddress), addressOf(i.PrivateIpAddress)
	ip := o.PublicIP
	if r.p.cfg.OneRegion && o.Kind == provision.KindReplica {
		ip = o.PrivateIP // security groups match their members by the private address
	}
	if ip.IsValid() {
		o.Address = "http://" + ip.String()
	}
}

// addressOf parses an address; zero for an invalid one.
func addressOf(text *string) netip.Addr {
	a, err := netip.ParseAddr(aws.ToString(text))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// Fingerprint returns the fingerprint of the key that a machine wrote to its console; empty until EC2
// returns it. Only the machine can write to its console, and only its AWS account can read it.
func (p *Provider) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	r, err := p.region(o.Region)
	if err != nil {
		return "", err
	}
	text, err := r.consoleOutput(ctx, o.Handle)
	if err != nil {
		return "", wrapError(fmt.Sprintf("reading the console of %s (%s) in %s", o.ID, o.Handle, o.Region), err)
	}
	role := identity.Balancer
	if o.Kind == provision.KindReplica {
		role = identity.Replica
	}
	fingerprint, _ := agent.FindConsoleLine(text, identity.Name{Service: o.Service, Role: role, ID: o.ID})
	return fingerprint, nil
}

// consoleOutput returns the latest console output of a machine, at most 64 KiB. EC2 returns output with
// a delay of some seconds.
func (r *region) consoleOutput(ctx context.Context, id string) (string, error) {
	out, err := r.ec2.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: aws.String(id), Latest: aws.Bool(true)})
	if err != nil {
		return "", err
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
	return string(text), err
}

// maxTerminationPolls is the maximum number of polls for a terminating object: about three minutes.
const maxTerminationPolls = 90

// notFoundConfirmations is the number of consecutive reports of EC2 after which an unknown machine counts
// as deleted. A machine that was just created is also unknown for a moment.
const notFoundConfirmations = 3

// terminateMachine terminates a VM and returns when EC2 shows it as shutting down.
func (r *region) terminateMachine(ctx context.Context, o provision.Object) error {
	id := []string{o.Handle}
	known, err := r.p.pollUntil(ctx, notFoundConfirmations, func() (bool, error) {
		_, err := r.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: id})
		if codeOf(err) == codeNoInstance {
			return false, nil
		}
		return err == nil, err
	})
	if !known || err != nil {
		return err
	}
	ended, err := r.p.pollUntil(ctx, maxTerminationPolls, func() (bool, error) {
		out, err := r.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: id})
		if err != nil {
			return codeOf(err) == codeNoInstance, ignoreCode(codeNoInstance, err)
		}
		for _, reservation := range out.Reservations {
			for _, i := range reservation.Instances {
				if !hasEnded(i) {
					return false, nil
				}
			}
		}
		return true, nil
	})
	if err == nil && !ended {
		return errors.New("waiting for the machine to shut down: EC2 still reports it as running")
	}
	return err
}

// ignoreCode returns err, or nil where it has this code.
func ignoreCode(code string, err error) error {
	if codeOf(err) == code {
		return nil
	}
	return err
}
