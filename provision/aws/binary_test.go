package aws_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// firstBinary and secondBinary are the contents of two binaries.
const firstBinary, secondBinary = "first", "second"

// bucketName is the bucket of the service chat.
var bucketName = provision.BinaryBucket("chat", "me", testcloud.AWSAccount)

// binaryDir contains the binaries of program; the name of each is its content.
const binaryDir = "testdata"

// program returns the desired program with a content.
func program(content string) provision.Desired {
	sum := sha256.Sum256([]byte(content))
	hash := hex.EncodeToString(sum[:])
	return provision.Desired{
		ID: provision.BinaryID("aws", hash), Kind: provision.KindBinary, Service: "chat", Owner: "me", Region: world,
		SpecHash: provision.BinarySpecHash(hash),
		Binary:   &provision.Binary{SHA256: hash, Bucket: bucketName, File: filepath.Join(binaryDir, content)},
	}
}

// A service's bucket exists from the first binary to the deletion of the last one, and is private.
func TestProgramBucketFollowsItsBinaries(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	for _, step := range []struct {
		name  string
		wants []provision.Desired
		left  []string
	}{
		{"first", []provision.Desired{program(firstBinary)}, []string{"bucket in us-east-1 with 1 objects"}},
		{"again", []provision.Desired{program(firstBinary)}, []string{"bucket in us-east-1 with 1 objects"}},
		{"another binary replaces it", []provision.Desired{program(secondBinary)}, []string{"bucket in us-east-1 with 1 objects"}},
		{"down", nil, nil},
		{"down again", nil, nil},
	} {
		have, err := converge(t, p, step.wants)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if changes := provision.Diff(step.wants, have); len(changes) > 0 {
			t.Errorf("%s: there is to do: %+v", step.name, changes)
		}
		if left := cloud.RemainingResources(); !slices.Equal(left, step.left) {
			t.Errorf("%s: left %q, want %q", step.name, left, step.left)
		}
		if public := cloud.PublicBuckets(); len(public) > 0 {
			t.Errorf("%s: %q are public", step.name, public)
		}
	}
}

func TestProgramIsUploadedOnce(t *testing.T) {
	faults := &testcloud.Faults{}
	p := open(t, newCloud(faults))
	launch(t, p, program(firstBinary), program(firstBinary))
	if n := faults.CallCounts()["s3:PutObject"]; n != 1 {
		t.Errorf("uploaded %d times", n)
	}
}

func TestPublicAccessIsBlockedAgain(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	launch(t, p, program(firstBinary))
	cloud.UnblockPublicAccess()
	if _, err := converge(t, p, []provision.Desired{program(firstBinary)}); err != nil || len(cloud.PublicBuckets()) > 0 {
		t.Errorf("public: %q, %v", cloud.PublicBuckets(), err)
	}
}

// A name that another AWS account has taken is an error that names the bucket and the way out.
func TestBucketOfAnotherAccount(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	cloud.ForeignBuckets = map[string]bool{bucketName: true}
	_, err := open(t, cloud).Launch(t.Context(), program(firstBinary))
	var taken *provision.BucketTakenError
	if !errors.As(err, &taken) || !strings.Contains(err.Error(), bucketName) || !strings.Contains(err.Error(), "--program URL") {
		t.Errorf("got %v", err)
	}
}

// A file that changed after its hash was computed is not stored.
func TestChangedFileIsNotUploaded(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	w := program(firstBinary)
	w.Binary.File = filepath.Join(binaryDir, secondBinary)
	if _, err := p.Launch(t.Context(), w); err == nil || !strings.Contains(err.Error(), "BadDigest") {
		t.Errorf("got %v", err)
	}
	if left := cloud.RemainingResources(); !slices.Equal(left, []string{"bucket in us-east-1 with 0 objects"}) {
		t.Errorf("left %q", left)
	}
	if _, err := converge(t, p, nil); err != nil || len(cloud.RemainingResources()) > 0 {
		t.Errorf("left %q, %v", cloud.RemainingResources(), err)
	}
}

// Without Config.Binaries no call requires a permission in S3.
func TestProgramsAreListedOnlyIfConfigured(t *testing.T) {
	faults := &testcloud.Faults{}
	cloud := newCloud(faults)
	c := config(cloud, "us-east-1")
	c.Binaries = false
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	list(t, p)
	if n := faults.CallCounts()["s3:ListAllMyBuckets"]; n != 0 {
		t.Errorf("listed buckets %d times", n)
	}
}

// A machine whose role has the grant may download binaries, and do nothing else with the bucket.
func TestMachinesMayOnlyDownloadTheBinary(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	w := program(firstBinary)
	launch(t, p, w, roleFor(provision.RoleReplica, provision.GrantBinary(bucketName)), firewall(east, provision.RoleReplica),
		machine("us-east-1-0", provision.KindReplica, east, service.CapacityOnDemand))
	key, _, _ := cloud.MachineCredentials(cloud.Machines()[0].ID)
	object := "/" + provision.BinaryKey(w.Binary.SHA256)
	for call, want := range map[string]int{
		"GET " + object: http.StatusOK, "PUT " + object: http.StatusForbidden, "DELETE " + object: http.StatusForbidden,
		"GET /other": http.StatusForbidden, "GET /?list-type=2": http.StatusForbidden,
	} {
		method, path, _ := strings.Cut(call, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+bucketName+".s3.us-east-1.amazonaws.com"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+key+"/20261124/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0")
		answer, err := httpClient(cloud).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: got %s, want %d", call, answer.Status, want)
		}
	}
}
