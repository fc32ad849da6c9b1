package aws

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// maxTokenAttempts is the maximum number of terminated machines with one id and one configuration. EC2
// deletes its records of terminated machines within hours.
const maxTokenAttempts = 1000

// launchMachine creates a VM, or returns the running one.
func (r *region) launchMachine(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if err := checkMachine(w); err != nil {
		return provision.Object{}, err
	}
	have, err := r.listInstances(ctx, ofService(w.Service), filter("tag:"+tagID, w.ID))
	if err != nil {
		return provision.Object{}, err
	}
	ended := map[string]bool{} // by token
	for _, i := range have {
		tags := fromEC2Tags(i.Tags)
		if hasEnded(i) {
			ended[aws.ToString(i.ClientToken)] = true
			if err := r.startFailure(w.Offerings[0], i); err != nil {
				return provision.Object{}, err
			}
			continue
		}
		if err := ownedError(w, tags); err != nil {
			return provision.Object{}, err
		}
		if o, ok := r.objectFromInstance(i); ok && o.TerminatedReason == "" && len(provision.Diff([]provision.Desired{w}, []provision.Object{o})) == 0 {
			return o, nil
		}
	}
	var o provision.Object
	var last error
	_, err = r.p.waitVisible(ctx, func() (bool, error) {
		o, last = r.launchWithToken(ctx, w, ended)
		if known := codeOf(last); known != codeNoGroup && known != codeNoSubnet {
			return true, nil
		}
		r.clearCache() // the group or subnet was created again since it was cached, or is not propagated yet
		return false, nil
	})
	return o, cmp.Or(err, last)
}

// checkMachine rejects a desired machine whose configuration is incomplete or too large.
func checkMachine(w provision.Desired) error {
	switch {
	case w.Machine == nil || w.Machine.Role == "":
		return errors.New("reading the desired machine: configuration and role are required")
	case len(w.Offerings) != 1:
		return fmt.Errorf("reading the desired machine: number of offerings must be 1, got %d", len(w.Offerings))
	case len(w.Machine.UserData) > maxUserData:
		return fmt.Errorf("reading the desired machine: user data is limited to %d bytes, got %d", maxUserData, len(w.Machine.UserData))
	}
	return nil
}

// launchWithToken launches a machine. With a token that was used before, EC2 returns the machine of the
// earlier launch. So launchWithToken uses new tokens until EC2 returns a machine that has not ended.
func (r *region) launchWithToken(ctx context.Context, w provision.Desired, ended map[string]bool) (provision.Object, error) {
	in, err := r.request(ctx, w)
	if err != nil {
		return provision.Object{}, err
	}
	base, err := r.launchKey(ctx, w)
	if err != nil {
		return provision.Object{}, fmt.Errorf("encoding the launch request: %w", err)
	}
	for attempt := range maxTokenAttempts {
		token := tokenOf(base, attempt)
		if ended[token] {
			continue
		}
		in.ClientToken = aws.String(token)
		var out *ec2.RunInstancesOutput
		_, err := r.runWithImages(in, imagesOf(w), func() (err error) {
			out, err = r.runOnce(ctx, in)
			return err
		})
		switch codeOf(err) {
		case codeTokenOfEnded:
			continue
		case codeTokenOfAnotherCall: // the price has changed, or the image name resolves to another image, or another image name was used
			if o, found, err := r.instanceOfToken(ctx, token); found || err != nil {
				return o, err
			}
			continue
		}
		if noCapacity := capacityError(w.Offerings[0], err); noCapacity != nil {
			return provision.Object{}, noCapacity
		}
		if missing := imageError(w, err); missing != nil {
			return provision.Object{}, missing
		}
		if err != nil {
			return provision.Object{}, fmt.Errorf("%s: %w", w.Offerings[0], plainError(err))
		}
		if i := out.Instances[0]; !hasEnded(i) {
			i.Tags = ec2Tags(tagsOf(w)) // the response may omit the tags
			o, _ := r.objectFromInstance(i)
			return o, nil
		}
	}
	return provision.Object{}, fmt.Errorf("launching: %d machines with this configuration were launched and terminated within the last hours; check in EC2 why they were terminated", maxTokenAttempts)
}

// launchKey returns the part of the request that identifies a launch: all but the price, because `up` and
// the controller may read it from different sources. Its image is always the first name of imagesOf, also
// if the region has only another one. So all image names of a launch have the same tokens, and only one of them can
// launch a machine.
func (r *region) launchKey(ctx context.Context, w provision.Desired) ([]byte, error) {
	w.CostPerHour = 0
	in, err := r.request(ctx, w)
	if err != nil {
		return nil, err
	}
	return json.Marshal(in)
}

// instanceOfToken returns the running machine of a client token; false if it has ended or never existed.
func (r *region) instanceOfToken(ctx context.Context, token string) (o provision.Object, found bool, err error) {
	_, err = r.p.pollUntil(ctx, notFoundConfirmations, func() (bool, error) {
		instances, err := r.listInstances(ctx, filter("client-token", token))
		for _, i := range instances {
			if !hasEnded(i) {
				o, found = r.objectFromInstance(i)
			}
		}
		return len(instances) > 0, err
	})
	return o, found, err
}

// runOnce sends one request. It repeats the request until the instance profile and its role have
// propagated from IAM to EC2, which takes some seconds.
func (r *region) runOnce(ctx context.Context, in *ec2.RunInstancesInput) (*ec2.RunInstancesOutput, error) {
	var out *ec2.RunInstancesOutput
	var last error
	_, err := r.p.waitVisible(ctx, func() (bool, error) {
		out, last = r.ec2.RunInstances(ctx, in)
		notPropagated := codeOf(last) == codeInvalidParameter && strings.Contains(last.Error(), textNoInstanceProfile)
		return !notPropagated, nil
	})
	return out, cmp.Or(err, last)
}

// tokenOf returns the client token of an attempt at a request.
func tokenOf(request []byte, attempt int) string {
	sum := sha256.Sum256(fmt.Appendf(request[:len(request):len(request)], "#%d", attempt))
	return hex.EncodeToString(sum[:]) // 64 characters, EC2's maximum
}

// request returns the launch request of w, without its token.
func (r *region) request(ctx context.Context, w provision.Desired) (*ec2.RunInstancesInput, error) {
	if _, err := r.subnet(ctx, w.Offerings[0].Zone); err != nil { // before the wait for the group
		return nil, err
	}
	group, err := r.waitGroupID(ctx, w, string(w.Machine.Role))
	if err != nil {
		return nil, err
	}
	return r.requestWithGroup(ctx, w, group)
}

// requestWithGroup is request with the id of the security group; empty = the network's default group.
func (r *region) requestWithGroup(ctx context.Context, w provision.Desired, group string) (*ec2.RunInstancesInput, error) {
	offer := w.Offerings[0]
	subnet, err := r.subnet(ctx, offer.Zone)
	if err != nil {
		return nil, err
	}
	face := ec2types.InstanceNetworkInterfaceSpecification{
		DeviceIndex: aws.Int32(0), AssociatePublicIpAddress: aws.Bool(true), DeleteOnTermination: aws.Bool(true),
	}
	if group != "" {
		face.Groups = []string{group}
	}
	if subnet != "" {
		face.SubnetId = aws.String(subnet)
	}
	in := &ec2.RunInstancesInput{
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		ImageId:                           aws.String(imagesOf(w)[0]),
		InstanceType:                      ec2types.InstanceType(offer.Type),
		NetworkInterfaces:                 []ec2types.InstanceNetworkInterfaceSpecification{face},
		IamInstanceProfile:                &ec2types.IamInstanceProfileSpecification{Name: aws.String(roleName(w.Service, identityRole(*w.Machine)))},
		UserData:                          aws.String(base64.StdEncoding.EncodeToString([]byte(w.Machine.UserData))),
		InstanceInitiatedShutdownBehavior: ec2types.ShutdownBehaviorTerminate, // a machine that shuts itself down leaves no billed disk
		MetadataOptions: &ec2types.InstanceMetadataOptionsRequest{ // containers are one hop away: they must not obtain the machine's credentials
			HttpTokens: ec2types.HttpTokensStateRequired, HttpPutResponseHopLimit: aws.Int32(1),
		},
		TagSpecifications: []ec2types.TagSpecification{
			{ResourceType: ec2types.ResourceTypeInstance, Tags: ec2Tags(tagsOf(w))},
			{ResourceType: ec2types.ResourceTypeVolume, Tags: ec2Tags(tagsOf(w))},
		},
	}
	if w.Machine.DiskGiB > 0 {
		in.BlockDeviceMappings = []ec2types.BlockDeviceMapping{{DeviceName: aws.String(rootDevice), Ebs: diskOf(w)}}
	}
	setCapacity(in, offer)
	return in, nil
}

// throughputGPU is the disk throughput of a machine with GPUs, in MiB/s. With it, reading weights of 140 GB
// takes five minutes instead of twenty. It costs less than three cents an hour and requires no additional
// IOPS.
const throughputGPU = 500

// diskOf returns the boot disk of a machine.
func diskOf(w provision.Desired) *ec2types.EbsBlockDevice {
	disk := &ec2types.EbsBlockDevice{VolumeSize: aws.Int32(int32(w.Machine.DiskGiB)), VolumeType: ec2types.VolumeTypeGp3, DeleteOnTermination: aws.Bool(true)}
	if w.Offerings[0].GPU != "" {
		disk.Throughput = aws.Int32(throughputGPU)
	}
	return disk
}

// setCapacity sets the capacity type of a launch. Reserved capacity may use any open reservation. A
// commitment that is only a billing discount requires no reservation. On-demand capacity does not use
// reservations. A block requires its own market type besides the reservation.
func setCapacity(in *ec2.RunInstancesInput, o provision.Offering) {
	switch {
	case o.Capacity == service.CapacitySpot:
		in.InstanceMarketOptions = &ec2types.InstanceMarketOptionsRequest{
			MarketType: ec2types.MarketTypeSpot,
			SpotOptions: &ec2types.SpotMarketOptions{
				SpotInstanceType: ec2types.SpotInstanceTypeOneTime, InstanceInterruptionBehavior: ec2types.InstanceInterruptionBehaviorTerminate,
			},
		}
	case o.Reservation != "":
		if o.Block {
			in.InstanceMarketOptions = &ec2types.InstanceMarketOptionsRequest{MarketType: ec2types.MarketTypeCapacityBlock}
		}
		in.CapacityReservationSpecification = &ec2types.CapacityReservationSpecification{
			CapacityReservationTarget: &ec2types.CapacityReservationTarget{CapacityReservationId: aws.String(o.Reservation)},
		}
	case o.Capacity == service.CapacityReserved:
		in.CapacityReservationSpecification = &ec2types.CapacityReservationSpecification{CapacityReservationPreference: ec2types.CapacityReservationPreferenceOpen}
	default:
		in.CapacityReservationSpecification = &ec2types.CapacityReservationSpecification{CapacityReservationPreference: ec2types.CapacityReservationPreferenceNone}
	}
}
