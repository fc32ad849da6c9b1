package aws

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The tags of every created object. List reads each field from the tags or from EC2's description of the
// object.
const (
	tagPrefix      = "skyserve:"
	tagService     = tagPrefix + "service"
	tagOwner       = tagPrefix + "owner"
	tagID          = tagPrefix + "id"
	tagKind        = tagPrefix + "kind"
	tagSpec        = tagPrefix + "spec"
	tagFixed       = tagPrefix + "fixed"
	tagBuild       = tagPrefix + "build"
	tagCapacity    = tagPrefix + "capacity"
	tagReservation = tagPrefix + "reservation"
	tagEnds        = tagPrefix + "ends"    // when the cloud terminates the machine, in RFC 3339
	tagPrice       = tagPrefix + "price"   // USD per hour
	tagRules       = tagPrefix + "rules"   // of a firewall: the desired rules
	tagPeers       = tagPrefix + "peers"   // of a firewall: provision.Desired.SameRole
	tagGrants      = tagPrefix + "grants"  // of an identity: the desired grants
	tagRecords     = tagPrefix + "records" // of an identity: the desired grant of records
	tagLabel       = tagPrefix + "label:"  // followed by the label's name
	tagName        = "Name"                // displayed in the console
)

// labelRole is the role of the machines that a firewall or identity is for.
const labelRole = "role"

// globalRegion is the region of objects that exist once for all regions.
const globalRegion = service.Region(service.CloudAWS + "/global")

// tagsOf returns the tags of a desired object; empty ones are omitted.
func tagsOf(w provision.Desired) map[string]string {
	tags := map[string]string{
		tagService: w.Service, tagOwner: w.Owner, tagID: w.ID, tagKind: string(w.Kind), tagSpec: w.SpecHash,
		tagFixed: w.ImmutableHash, tagBuild: w.BuildHash, tagName: w.Service + "/" + w.ID,
	}
	if len(w.Offerings) == 1 {
		o := w.Offerings[0]
		tags[tagCapacity], tags[tagReservation] = string(o.Capacity), o.Reservation
		if !o.Ends.IsZero() {
			tags[tagEnds] = o.Ends.UTC().Format(time.RFC3339)
		}
		if w.CostPerHour > 0 {
			tags[tagPrice] = strconv.FormatFloat(w.CostPerHour, 'f', -1, 64)
		}
	}
	for name, value := range w.Labels {
		tags[tagLabel+name] = value
	}
	maps.DeleteFunc(tags, func(_, value string) bool { return value == "" })
	return tags
}

// objectFromTags reads an object from its tags; false if skyserve did not create it.
func objectFromTags(tags map[string]string, region service.Region, handle string) (provision.Object, bool) {
	o := provision.Object{
		ID: tags[tagID], Kind: provision.ObjectKind(tags[tagKind]), Service: tags[tagService], Owner: tags[tagOwner], Region: region,
		SpecHash: tags[tagSpec], ImmutableHash: tags[tagFixed], BuildHash: tags[tagBuild], Handle: handle,
	}
	for key, value := range tags {
		if name, ok := strings.CutPrefix(key, tagLabel); ok {
			if o.Labels == nil {
				o.Labels = map[string]string{}
			}
			o.Labels[name] = value
		}
	}
	return o, o.Service != "" && o.ID != "" && o.Kind != ""
}

// objectOfDesired returns the object that launching w creates.
func objectOfDesired(w provision.Desired, handle string) provision.Object {
	o, _ := objectFromTags(tagsOf(w), w.Region, handle)
	return o
}

// groupName returns the security group name for a role of machines. It is the same for every owner, so that
// the launch of a second owner fails.
func groupName(name, role string) string { return "skyserve-" + name + "-" + role }

// roleName returns the name of the IAM role, and of its instance profile, for a role of machines. IAM
// allows 64 characters: a longer name is truncated and ends in a hash.
func roleName(name, role string) string {
	const maxLength, digits = 64, 12
	full := groupName(name, role)
	if len(full) <= maxLength {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return full[:maxLength-1-digits] + "-" + hex.EncodeToString(sum[:])[:digits]
}

// iamPath returns the path of a service's roles and profiles; of all services if the name is empty.
func iamPath(name string) string {
	if name == "" {
		return "/skyserve/"
	}
	return "/skyserve/" + name + "/"
}

// ec2Tags converts tags to EC2's API type, sorted.
func ec2Tags(tags map[string]string) []ec2types.Tag {
	var all []ec2types.Tag
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, ec2types.Tag{Key: aws.String(key), Value: aws.String(tags[key])})
	}
	return all
}

// iamTags converts tags to IAM's API type, sorted.
func iamTags(tags map[string]string) []iamtypes.Tag {
	var all []iamtypes.Tag
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, iamtypes.Tag{Key: aws.String(key), Value: aws.String(tags[key])})
	}
	return all
}

func fromEC2Tags(all []ec2types.Tag) map[string]string {
	tags := map[string]string{}
	for _, t := range all {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return tags
}

func fromIAMTags(all []iamtypes.Tag) map[string]string {
	tags := map[string]string{}
	for _, t := range all {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return tags
}

// missingTags returns the tags of want that are not in have, or have another value there.
func missingTags(want, have map[string]string) map[string]string {
	missing := maps.Clone(want)
	maps.DeleteFunc(missing, func(key, value string) bool { return have[key] == value })
	return missing
}

// ownedError returns a *provision.OwnedError if the tags have another owner or service; else nil.
func ownedError(w provision.Desired, tags map[string]string) error {
	if tags[tagService] == w.Service && tags[tagOwner] == w.Owner {
		return nil
	}
	return &provision.OwnedError{Resource: "service " + w.Service, Where: string(w.Region), Owner: tags[tagOwner]}
}
