package aws_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
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

// A balancer's machine stores files in the folder of its service with its role, and can do nothing else in the bucket.
func TestMachineStoresFilesWithItsRole(t *testing.T) {
	cloud, ctx := newCloud(&testcloud.Faults{}), t.Context()
	cloud.AddBucket("batches", "us-west-2")
	operator := open(t, cloud)
	launch(t, operator, roleFor(provision.RoleBalancer, provision.GrantOperate, provision.GrantFiles("batches/all/chat")), firewall(east, provision.RoleBalancer), machine("lb-us-east-1-0", provision.KindBalancer, east, service.CapacityOnDemand))
	c := config(cloud, "us-east-1")
	c.Credentials = identityOf(t, cloud, "lb-us-east-1-0")
	p, err := aws.New(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	f := p.Files("batches", "all/chat")
	if err := f.PutPart(ctx, "file-1.0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := f.GetPart(ctx, "file-1.0"); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	for _, prefix := range []string{"", "file-1."} {
		if names, err := f.PartNames(ctx, prefix); err != nil || !slices.Equal(names, []string{"file-1.0"}) {
			t.Errorf("parts with the prefix %q: %q, %v", prefix, names, err)
		}
	}
	if err := f.DeletePart(ctx, "file-1.0"); err != nil {
		t.Error(err)
	}
	denied := func(what string, err error) {
		t.Helper()
		var credentials *provision.CredentialsError
		if !errors.As(err, &credentials) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, folder := range []string{"all/other", "all/chat2", "all", ""} {
		other := p.Files("batches", folder)
		denied("writing to "+folder, other.PutPart(ctx, "file-1.0", []byte("x")))
		_, err := other.PartNames(ctx, "")
		denied("listing "+folder, err)
	}
	cloud.ForeignBuckets = map[string]bool{"batches": true} // deleted, and created by somebody else
	denied("writing to a bucket of another account", f.PutPart(ctx, "file-1.0", []byte("x")))
}

func TestCheckFiles(t *testing.T) {
	for _, tt := range []struct {
		bucket, want string
		ok           bool
	}{
		{"batches", "s3://batches/all/chat: the bucket is in this AWS account", true},
		{"theirs", "bucket theirs belongs to another AWS account, and balancers may write only to buckets of their own account, " + testcloud.AWSAccount, false},
		{"none", "bucket none does not exist; create it: aws s3 mb s3://none", false},
	} {
		cloud := newCloud(&testcloud.Faults{})
		cloud.ForeignBuckets = map[string]bool{"theirs": true}
		cloud.AddBucket("batches", "us-west-2")
		c := open(t, cloud).CheckFiles(t.Context(), roleFor(provision.RoleBalancer, provision.GrantFiles(tt.bucket+"/all/chat")))
		var spec *provision.SpecError
		if c.OK != tt.ok || !strings.Contains(c.Message, tt.want) || errors.As(c.Err, &spec) == tt.ok {
			t.Errorf("%s: %+v, want %q", tt.bucket, c, tt.want)
		}
	}
	cloud := newCloud(&testcloud.Faults{})
	cloud.DenialCode = func(_, action string) string { return map[string]string{"s3:ListAllMyBuckets": "AccessDenied"}[action] }
	c := open(t, cloud).CheckFiles(t.Context(), roleFor(provision.RoleBalancer, provision.GrantFiles("batches/chat")))
	var credentials *provision.CredentialsError
	if c.OK || !errors.As(c.Err, &credentials) || !strings.Contains(c.Hint, "s3:List") {
		t.Errorf("without the permission to list buckets: %+v", c)
	}
}
