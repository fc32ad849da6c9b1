package testcloud

import (
	"slices"
	"strings"
)

// ec2Parameters are public parameters of Systems Manager whose values are image ids, as published by AWS and
// Canonical. This table was written from their documentation, independently of the code that launches
// machines.
//
// Sources, read in October 2026:
//   - AWS, "Finding the ID of a DLAMI" (docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html):
//     the name is /aws/service/deeplearning/ami/ARCHITECTURE/TYPE/latest/ami-id, and TYPE is the
//     name of the image without the words deep, learning and ami. The image is called "Deep
//     Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)". The example command on that page
//     omits the word gpu, against its own rule; scripts in public repositories that launch
//     the image include it.
//   - Canonical, "Find Ubuntu images on AWS" (documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images).
var ec2Parameters = []string{
	"/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
	"/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
	"/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
	"/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
}

// resolveImage rejects an image that does not exist. EC2 reports a missing parameter in its own words, not in
// those of Systems Manager: "SsmInvalidParameter: The following aliases are invalid: ..." (seen in notes of
// public repositories about launches with resolve:ssm, read in November 2026).
func (r *ec2Region) resolveImage(name string) error {
	parameter, named := strings.CutPrefix(name, "resolve:ssm:")
	switch {
	case named && (!slices.Contains(ec2Parameters, parameter) || r.aws.LacksImage != nil && r.aws.LacksImage(r.name, parameter)):
		return badRequest("SsmInvalidParameter", "The following aliases are invalid: %s", parameter)
	case !named && r.aws.LacksImage != nil && r.aws.LacksImage(r.name, name):
		return badRequest("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", name)
	case !named && !strings.HasPrefix(name, "ami-"):
		return badRequest("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", name)
	}
	return nil
}
