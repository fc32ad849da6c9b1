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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// instances lists the machines that pass filters, those that have ended included.
func (r *region) instances(ctx context.Context, filters ...ec2types.Filter) ([]ec2types.Instance, error) {
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

// over says whether an instance has ended, or ends and cannot be kept from it.
func over(i ec2types.Instance) bool {
	state := stateOf(i)
	return state == ec2types.InstanceStateNameShuttingDown || state == ec2types.InstanceStateNameTerminated
}

func stateOf(i ec2types.Instance) ec2types.InstanceStateName {
	if i.State == nil {
		return ""
	}
	return i.State.Name
}

// object is an instance as its tags and EC2 say; false where it is not ours.
func (r *region) object(i ec2types.Instance) (provision.Object, bool) {
	o, ours := objectOf(fromEC2Tags(i.Tags), r.place(), aws.ToString(i.InstanceId))
	r.complete(&o, i)
	if state := stateOf(i); state == ec2types.InstanceStateNameStopping || state == ec2types.InstanceStateNameStopped {
		o.Gone = fmt.Sprintf("%s: %s", state, cmp.Or(aws.ToString(i.StateTransitionReason), "EC2 gives no reason"))
	}
	if ours && !grouped(o, i) { // then nothing that its firewall lets in reaches it
		o.Spec, o.Fixed = "", ""
	}
	return o, ours
}

// grouped says whether a machine is in its security group, as far as EC2 says.
func grouped(o provision.Object, i ec2types.Instance) bool {
	return len(i.SecurityGroups) == 0 || slices.ContainsFunc(i.SecurityGroups, func(g ec2types.GroupIdentifier) bool {
		return aws.ToString(g.GroupName) == groupName(o.Service, string(o.Kind))
	})
}

// complete fills in what EC2 says of a machine: what it runs on, since when, and where
// it is reached: http:// and its address, without a port.
func (r *region) complete(o *provision.Object, i ec2types.Instance) {
	tags := fromEC2Tags(i.Tags)
	offer := provision.Offering{
		Type: string(i.InstanceType), Region: r.place(),
		Capacity: service.CapacityType(cmp.Or(tags[tagCapacity], string(service.CapacityOnDemand))),
	}
	if known, ok := provision.MachineTypeOf(service.CloudAWS, offer.Type); ok {
		offer = known.Offer(r.place(), "", offer.Capacity)
	}
	if i.Placement != nil {
		offer.Zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	if price, err := strconv.ParseFloat(tags[tagPrice], 64); err == nil { // without the tag, the list price stands
		offer.PricePerHour, offer.PriceFrom = price, "price at launch"
	}
	offer.Reservation = tags[tagReservation]
	o.Offering, o.CostPerHour, o.Started = &offer, offer.PricePerHour, aws.ToTime(i.LaunchTime)
	o.PublicIP, o.PrivateIP = addressOf(i.PublicIpAddress), addressOf(i.PrivateIpAddress)
	reached := o.PublicIP
	if r.p.cfg.OneRegion && o.Kind == provision.KindReplica {
		reached = o.PrivateIP // groups know their members by this one
	}
	if reached.IsValid() {
		o.Address = "http://" + reached.String()
	}
}

// addressOf reads an address; what is none stays zero.
func addressOf(text *string) netip.Addr {
	a, err := netip.ParseAddr(aws.ToString(text))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// Fingerprint is that of the key that a machine wrote to its console; empty as long as EC2
// does not show it. Only the machine writes there, and only its account reads it.
func (p *Provider) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	r, err := p.region(o.Region)
	if err != nil {
		return "", err
	}
	text, err := r.console(ctx, o.Handle)
	if err != nil {
		return "", explain(fmt.Sprintf("reading the console of %s (%s) in %s", o.ID, o.Handle, o.Region), err)
	}
	role := identity.Balancer
	if o.Kind == provision.KindReplica {
		role = identity.Replica
	}
	fingerprint, _ := agent.FindLine(text, identity.Name{Service: o.Service, Role: role, ID: o.ID})
	return fingerprint, nil
}

// console is the last text that a machine has written to its console, 64 KiB at most;
// EC2 shows it some seconds later.
func (r *region) console(ctx context.Context, id string) (string, error) {
	out, err := r.ec2.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: aws.String(id), Latest: aws.Bool(true)})
	if err != nil {
		return "", err
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
	return string(text), err
}

// triesToVanish bounds the looks at something that is going: about three minutes.
const triesToVanish = 90

// triesToBeGone is how often EC2 has to say that it does not know a machine before
// that is believed: of one that was just made, it says so for a moment.
const triesToBeGone = 3

// terminateMachine ends a VM and returns when lists show that it ends.
func (r *region) terminateMachine(ctx context.Context, o provision.Object) error {
	id := []string{o.Handle}
	known, err := r.p.until(ctx, triesToBeGone, func() (bool, error) {
		_, err := r.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: id})
		if codeOf(err) == codeNoInstance {
			return false, nil
		}
		return err == nil, err
	})
	if !known || err != nil {
		return err
	}
	gone, err := r.p.until(ctx, triesToVanish, func() (bool, error) {
		out, err := r.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: id})
		if err != nil {
			return codeOf(err) == codeNoInstance, unless(codeNoInstance, err)
		}
		for _, reservation := range out.Reservations {
			for _, i := range reservation.Instances {
				if !over(i) {
					return false, nil
				}
			}
		}
		return true, nil
	})
	if err == nil && !gone {
		return errors.New("waiting for it to shut down: EC2 still shows it running")
	}
	return err
}

// codeNoInstance is EC2's code for a machine that it does not know.
const codeNoInstance = "InvalidInstanceID.NotFound"

// unless is err, or nil where it has this code.
func unless(code string, err error) error {
	if codeOf(err) == code {
		return nil
	}
	return err
}
