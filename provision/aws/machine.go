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

// The images that machines boot, named by public parameters that AWS and Canonical
// keep at the newest: Ubuntu 22.04, with NVIDIA's driver and without.
const (
	imageGPU   = "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
	imagePlain = "resolve:ssm:/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
)

// rootDevice is the disk that both images boot from.
const rootDevice = "/dev/sda1"

// maxUserData is the most bytes of user data that EC2 takes.
const maxUserData = 16 << 10

// maxAttempts bounds how many machines of one id and one configuration EC2 may
// remember to have ended: it forgets them within hours.
const maxAttempts = 1000

// launchMachine makes a VM, or finds the one that runs already.
func (r *region) launchMachine(ctx context.Context, w provision.Want) (provision.Object, error) {
	if err := checkMachine(w); err != nil {
		return provision.Object{}, err
	}
	have, err := r.instances(ctx, ofService(w.Service), filter("tag:"+tagID, w.ID))
	if err != nil {
		return provision.Object{}, err
	}
	ended := map[string]bool{} // by token
	for _, i := range have {
		tags := fromEC2Tags(i.Tags)
		if over(i) {
			ended[aws.ToString(i.ClientToken)] = true
			if err := r.faltered(w.Offers[0], i); err != nil {
				return provision.Object{}, err
			}
			continue
		}
		if err := ownedError(w, tags); err != nil {
			return provision.Object{}, err
		}
		if o, ok := r.object(i); ok && o.Gone == "" && len(provision.Diff([]provision.Want{w}, []provision.Object{o})) == 0 {
			return o, nil
		}
	}
	var o provision.Object
	var last error
	_, err = r.p.appears(ctx, func() (bool, error) {
		o, last = r.run(ctx, w, ended)
		if known := codeOf(last); known != codeNoGroup && known != codeNoSubnet {
			return true, nil
		}
		r.forget() // they were made anew since they were remembered, or are not known everywhere yet
		return false, nil
	})
	return o, cmp.Or(err, last)
}

// checkMachine refuses a want of which no machine can be made.
func checkMachine(w provision.Want) error {
	switch {
	case w.Machine == nil || w.Machine.Role == "":
		return errors.New("reading what is wanted: it is not said what machine it is")
	case len(w.Offers) != 1:
		return fmt.Errorf("reading what is wanted: one offering has to be chosen, found %d", len(w.Offers))
	case len(w.Machine.UserData) > maxUserData:
		return fmt.Errorf("reading what is wanted: user data has %d bytes, EC2 takes %d", len(w.Machine.UserData), maxUserData)
	}
	return nil
}

// run asks EC2 for a machine until it gives one that has not ended: a token that was
// used before brings back what it made then.
func (r *region) run(ctx context.Context, w provision.Want, ended map[string]bool) (provision.Object, error) {
	in, err := r.request(ctx, w)
	if err != nil {
		return provision.Object{}, err
	}
	base, err := r.identifying(ctx, w)
	if err != nil {
		return provision.Object{}, fmt.Errorf("describing the launch: %w", err)
	}
	for attempt := range maxAttempts {
		token := tokenOf(base, attempt)
		if ended[token] {
			continue
		}
		in.ClientToken = aws.String(token)
		made, err := r.runOnce(ctx, in)
		switch codeOf(err) {
		case "IdempotentInstanceTerminated":
			continue
		case "IdempotentParameterMismatch": // another price is known, or the same name means another image by now
			if o, found, err := r.madeBy(ctx, token); found || err != nil {
				return o, err
			}
			continue
		}
		if refused := capacityError(w.Offers[0], err); refused != nil {
			return provision.Object{}, refused
		}
		if err != nil {
			return provision.Object{}, fmt.Errorf("%s: %w", w.Offers[0], plain(err))
		}
		if i := made.Instances[0]; !over(i) {
			i.Tags = ec2Tags(tagsOf(w)) // which an answer need not repeat
			o, _ := r.object(i)
			return o, nil
		}
	}
	return provision.Object{}, fmt.Errorf("launching: %d machines like this one have ended within hours", maxAttempts)
}

// identifying is what makes two launches of w the same one: the request without the price, which
// `up` and the controller may know from different sources.
func (r *region) identifying(ctx context.Context, w provision.Want) ([]byte, error) {
	w.CostPerHour = 0
	in, err := r.request(ctx, w)
	if err != nil {
		return nil, err
	}
	return json.Marshal(in)
}

// madeBy is the machine that a client token made; false where it has ended, or never was.
func (r *region) madeBy(ctx context.Context, token string) (o provision.Object, found bool, err error) {
	_, err = r.p.until(ctx, triesToBeGone, func() (bool, error) {
		made, err := r.instances(ctx, filter("client-token", token))
		for _, i := range made {
			if !over(i) {
				o, found = r.object(i)
			}
		}
		return len(made) > 0, err
	})
	return o, found, err
}

// runOnce sends one request, again for as long as EC2 does not know the instance
// profile yet, or not that it has a role: IAM's news take some seconds.
func (r *region) runOnce(ctx context.Context, in *ec2.RunInstancesInput) (*ec2.RunInstancesOutput, error) {
	var out *ec2.RunInstancesOutput
	var last error
	_, err := r.p.appears(ctx, func() (bool, error) {
		out, last = r.ec2.RunInstances(ctx, in)
		unknown := codeOf(last) == "InvalidParameterValue" && strings.Contains(last.Error(), "IAM Instance Profile")
		return !unknown, nil
	})
	return out, cmp.Or(err, last)
}

// tokenOf is the client token of an attempt at a request.
func tokenOf(request []byte, attempt int) string {
	sum := sha256.Sum256(fmt.Appendf(request[:len(request):len(request)], "#%d", attempt))
	return hex.EncodeToString(sum[:]) // 64 letters, the most that EC2 takes
}

// request is the launch of w, without its token.
func (r *region) request(ctx context.Context, w provision.Want) (*ec2.RunInstancesInput, error) {
	offer, role := w.Offers[0], string(w.Machine.Role)
	subnet, err := r.subnet(ctx, offer.Zone)
	if err != nil {
		return nil, err
	}
	group, err := r.groupID(ctx, w, role)
	if err != nil {
		return nil, err
	}
	face := ec2types.InstanceNetworkInterfaceSpecification{
		DeviceIndex: aws.Int32(0), Groups: []string{group}, AssociatePublicIpAddress: aws.Bool(true), DeleteOnTermination: aws.Bool(true),
	}
	if subnet != "" {
		face.SubnetId = aws.String(subnet)
	}
	in := &ec2.RunInstancesInput{
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		ImageId:                           aws.String(imageOf(w)),
		InstanceType:                      ec2types.InstanceType(offer.Type),
		NetworkInterfaces:                 []ec2types.InstanceNetworkInterfaceSpecification{face},
		IamInstanceProfile:                &ec2types.IamInstanceProfileSpecification{Name: aws.String(roleName(w.Service, role))},
		UserData:                          aws.String(base64.StdEncoding.EncodeToString([]byte(w.Machine.UserData))),
		InstanceInitiatedShutdownBehavior: ec2types.ShutdownBehaviorTerminate, // a machine that is shut down from inside leaves no disk to pay for
		MetadataOptions: &ec2types.InstanceMetadataOptionsRequest{ // containers are a hop away: they must not have the machine's identity
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
	pay(in, offer)
	return in, nil
}

// throughputGPU is how fast the disk of a machine with GPUs is, in MiB/s: weights of 140 GB
// are read in five minutes instead of twenty, for less than three cents an hour; and no
// more operations have to be paid for than every volume has.
const throughputGPU = 500

// diskOf is the disk that a machine boots from.
func diskOf(w provision.Want) *ec2types.EbsBlockDevice {
	disk := &ec2types.EbsBlockDevice{VolumeSize: aws.Int32(int32(w.Machine.DiskGiB)), VolumeType: ec2types.VolumeTypeGp3, DeleteOnTermination: aws.Bool(true)}
	if w.Offers[0].GPU != "" {
		disk.Throughput = aws.Int32(throughputGPU)
	}
	return disk
}

// imageOf is the image that a machine boots.
func imageOf(w provision.Want) string {
	if w.Offers[0].GPU == "" {
		return cmp.Or(w.Machine.Image, imagePlain)
	}
	return cmp.Or(w.Machine.Image, imageGPU)
}

// pay says how a launch is paid for. What is reserved may fill any reservation that
// is open, and costs as agreed where the commitment is one of billing only; what is
// on demand leaves reservations to those who ask for them.
func pay(in *ec2.RunInstancesInput, o provision.Offering) {
	switch {
	case o.Capacity == service.CapacitySpot:
		in.InstanceMarketOptions = &ec2types.InstanceMarketOptionsRequest{
			MarketType: ec2types.MarketTypeSpot,
			SpotOptions: &ec2types.SpotMarketOptions{
				SpotInstanceType: ec2types.SpotInstanceTypeOneTime, InstanceInterruptionBehavior: ec2types.InstanceInterruptionBehaviorTerminate,
			},
		}
	case o.Reservation != "":
		in.CapacityReservationSpecification = &ec2types.CapacityReservationSpecification{
			CapacityReservationTarget: &ec2types.CapacityReservationTarget{CapacityReservationId: aws.String(o.Reservation)},
		}
	case o.Capacity == service.CapacityReserved:
		in.CapacityReservationSpecification = &ec2types.CapacityReservationSpecification{CapacityReservationPreference: ec2types.CapacityReservationPreferenceOpen}
	default:
		in.CapacityReservationSpecification = &ec2types.CapacityReservationSpecification{CapacityReservationPreference: ec2types.CapacityReservationPreferenceNone}
	}
}
