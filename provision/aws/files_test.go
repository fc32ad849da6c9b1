package aws_test

import (
	"errors"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// The bucket is in us-east-1, wherever the provider's first region is.
func TestFiles(t *testing.T) {
	for _, region := range []string{"us-east-1", "us-west-2"} {
		t.Run(region, func(t *testing.T) {
			cloud := newCloud(&testcloud.Faults{})
			launch(t, open(t, cloud), program(firstBinary), program(firstBinary))
			p, err := aws.New(t.Context(), config(cloud, region))
			if err != nil {
				t.Fatal(err)
			}
			conformance.RunFiles(t, p.Files(bucketName, "batches/chat/"), bucketName+"/batches/chat/", cloud.StoredObjects)
		})
	}
}

// Errors name the file; those of credentials are recognised.
func TestFilesFail(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	launch(t, p, program(firstBinary), program(firstBinary))
	conformance.RunMissingFiles(t, p.Files("none", ""), "s3://none/")
	cloud.DenialCode = func(_, action string) string { return map[string]string{"s3:GetObject": "ExpiredToken"}[action] }
	var credentials *provision.CredentialsError
	if _, err := p.Files(bucketName, "").GetPart(t.Context(), "file-1.0"); !errors.As(err, &credentials) {
		t.Errorf("expired credentials: %v", err)
	}
}
