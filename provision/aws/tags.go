package aws

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The tags of every created object. Every field that List returns is in the tags, or in the object that
// they are on.
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
	tagPrice       = tagPrefix + "price"  // USD per hour
	tagRules       = tagPrefix + "rules"  // of a firewall: the desired rules
	tagGrants      = tagPrefix + "grants" // of an identity: the desired grants
	tagLabel       = tagPrefix + "label:" // followed by the label's name
	tagName        = "Name"               // displayed in the console
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

// objectFromTags reads an object from its tags; false where they are not those of a service.
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

// objectOfWant returns the object that launching w creates.
func objectOfWant(w provision.Desired, handle string) provision.Object {
	o, _ := objectFromTags(tagsOf(w), w.Region, handle)
	return o
}

// groupName returns the security group name of a role of machine. It is the same for every owner, so
// that a second owner's launch fails.
func groupName(name, role string) string { return "skyserve-" + name + "-" + role }

// roleName returns the name of the IAM role, and of its instance profile, for a role of machine. IAM
// allows 64 characters: a longer name is truncated and ends in a hash.
func roleName(name, role string) string {
	const most, digits = 64, 12
	full := groupName(name, role)
	if len(full) <= most {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return full[:most-1-digits] + "-" + hex.EncodeToString(sum[:])[:digits]
}

// iamPath returns the path of a service's roles and profiles; of all services, where the name is empty.
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

// missingTags returns the tags of want that have lacks or has with another value.
func missingTags(want, have map[string]string) map[string]string {
	lacking := maps.Clone(want)
	maps.DeleteFunc(lacking, func(key, value string) bool { return have[key] == value })
	return lacking
}

// ownedError returns an error where the tags are of another owner, or nil.
func ownedError(w provision.Desired, tags map[string]string) error {
	if tags[tagService] == w.Service && tags[tagOwner] == w.Owner {
		return nil
	}
	return &provision.OwnedError{Resource: "the service " + w.Service, Where: string(w.Region), Owner: tags[tagOwner]}
}
