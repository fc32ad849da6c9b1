package aws_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// files returns files in the bucket of a service, which is in us-east-1; the provider's first region is region.
func files(t *testing.T, cloud *testcloud.AWS, region string) *aws.Files {
	t.Helper()
	launch(t, open(t, cloud), program(firstBinary), program(firstBinary))
	p, err := aws.New(t.Context(), config(cloud, region))
	if err != nil {
		t.Fatal(err)
	}
	return p.Files(bucketName, "batches/chat/")
}

func TestFiles(t *testing.T) {
	for _, region := range []string{"us-east-1", "us-west-2"} {
		t.Run(region, func(t *testing.T) {
			cloud, ctx := newCloud(&testcloud.Faults{}), t.Context()
			f := files(t, cloud, region)
			large := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
			for i, part := range [][]byte{large, []byte("end"), {}} {
				if err := f.PutPart(ctx, fmt.Sprint("file-1.", i), part); err != nil {
					t.Fatal(err)
				}
				if got, err := f.GetPart(ctx, fmt.Sprint("file-1.", i)); err != nil || !bytes.Equal(got, part) {
					t.Errorf("part %d: %d bytes, %v", i, len(got), err)
				}
			}
			if err := f.PutPart(ctx, "file-2.0", []byte("x")); err != nil {
				t.Fatal(err)
			}
			if names, err := f.PartNames(ctx, "file-1."); err != nil || !slices.Equal(names, []string{"file-1.0", "file-1.1", "file-1.2"}) {
				t.Errorf("%q, %v", names, err)
			}
			if all, err := f.PartNames(ctx, ""); err != nil || len(all) != 4 {
				t.Errorf("files of others are listed: %q, %v", all, err)
			}
			for range 2 { // a missing part is not an error
				if err := f.DeletePart(ctx, "file-1.0"); err != nil {
					t.Error(err)
				}
			}
			if _, err := f.GetPart(ctx, "file-1.0"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a deleted part: %v", err)
			}
			if stored := cloud.StoredObjects(); !slices.Contains(stored, bucketName+"/batches/chat/file-2.0") {
				t.Errorf("%q", stored)
			}
		})
	}
}

// Errors name the file; those of credentials are recognised.
func TestFilesFail(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	launch(t, p, program(firstBinary), program(firstBinary))
	if err := p.Files("none", "").PutPart(t.Context(), "file-1.0", []byte("x")); err == nil {
		t.Error("a part is stored in a bucket that does not exist")
	}
	cloud.DenialCode = func(_, action string) string { return map[string]string{"s3:GetObject": "ExpiredToken"}[action] }
	var credentials *provision.CredentialsError
	if _, err := p.Files(bucketName, "").GetPart(t.Context(), "file-1.0"); !errors.As(err, &credentials) {
		t.Errorf("expired credentials: %v", err)
	}
}
