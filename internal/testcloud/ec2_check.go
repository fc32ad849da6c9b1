package testcloud

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"skyserve/internal/service"
)

// The limits of tags: their number per resource, and the lengths of keys and values.
const (
	maxTags     = 50
	maxTagKey   = 128
	maxTagValue = 256
)

// iamTagPattern matches the characters IAM allows in a tag's key or value.
var iamTagPattern = service.LazyPattern(`^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$`)

// validate rejects tags that no service of AWS accepts; with iam set, also those that only IAM rejects.
func (t awsTags) validate(iam bool) error {
	if len(t) > maxTags {
		return fmt.Errorf("more than %d tags", maxTags)
	}
	for key, value := range t {
		switch {
		case key == "" || utf8.RuneCountInString(key) > maxTagKey:
			return fmt.Errorf("tag keys have 1 to %d characters: %q", maxTagKey, key)
		case utf8.RuneCountInString(value) > maxTagValue:
			return fmt.Errorf("tag values have up to %d characters: %q", maxTagValue, value)
		case strings.HasPrefix(strings.ToLower(key), "aws:"):
			return fmt.Errorf("tag keys beginning with aws: are for internal use: %q", key)
		case iam && (!iamTagPattern().MatchString(key) || !iamTagPattern().MatchString(value)):
			return fmt.Errorf("tags of IAM have letters, digits, spaces and _.:/=+-@: %q", key+"="+value)
		}
	}
	return nil
}

// validateLaunch rejects launch parameters that cannot be combined.
func (f awsForm) validateLaunch() error {
	spot := f.get("InstanceMarketOptions.MarketType") == "spot"
	interfaces := len(f.items("NetworkInterface")) > 0
	reserved := f.sub("CapacityReservationSpecification")
	switch {
	case interfaces && (f.get("SubnetId") != "" || len(f.list("SecurityGroupId")) > 0):
		return badRequest("InvalidParameterCombination", "Network interfaces and an instance-level subnet ID or security groups may not be specified on the same request")
	case spot && f.get("InstanceInitiatedShutdownBehavior") == "stop":
		return badRequest("UnsupportedOperation", "instance_initiated_shutdown_behavior=stop is not supported for spot instances.")
	case spot && f.get("InstanceMarketOptions.SpotOptions.SpotInstanceType") != "persistent" && f.get("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior") == "stop":
		return badRequest("InvalidParameterCombination", "The request with type 'one-time' is not supported when instanceInterruptionBehavior is set to 'stop'.")
	case spot && len(reserved) > 0:
		return badRequest("InvalidParameterCombination", "Capacity Reservations cannot be used with Spot instances")
	case len(f.get("ClientToken")) > 64:
		return badRequest("InvalidParameterValue", "The client token is longer than 64 characters")
	}
	for _, spec := range f.items("TagSpecification") {
		if err := spec.readTags("Tag").validate(false); err != nil {
			return badRequest("InvalidParameterValue", "%v", err)
		}
	}
	return f.validateDisks()
}

// validateDisks rejects volumes that EC2 does not offer.
func (f awsForm) validateDisks() error {
	for _, disk := range f.items("BlockDeviceMapping") {
		ebs := disk.sub("Ebs")
		size, speed, ops := ebs.number("VolumeSize"), ebs.number("Throughput"), max(ebs.number("Iops"), 3000)
		switch {
		case size < 8:
			return badRequest("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot, expect size >= 8GB", size)
		case speed != 0 && ebs.get("VolumeType") != "gp3":
			return badRequest("InvalidParameterCombination", "The parameter throughput is not supported for %s volumes.", ebs.get("VolumeType"))
		case speed != 0 && (speed < 125 || speed > 1000):
			return badRequest("InvalidParameterValue", "Volume throughput of %d MiB/s is out of range", speed)
		case speed*4 > ops:
			return badRequest("InvalidParameterCombination", "Throughput (MiBps) to iops ratio of %d/%d is too high; maximum is 0.250000", speed, ops)
		}
	}
	return nil
}

// RenewImages changes the image parameters to newer images, as publishers do every few weeks.
func (a *AWS) RenewImages() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.images++
}

// dryRun returns the result of a dry run. Like EC2 it checks the caller's permissions and the resources that
// the request names. It checks neither capacity nor quotas.
func (r *ec2Region) dryRun(f awsForm) error {
	if err := f.validateLaunch(); err != nil {
		return err
	}
	if _, err := r.readInstance(f); err != nil {
		return err
	}
	return newAWSError(http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
}
