package gcp_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// downloads returns the configuration of a provider whose machines download their binary from a bucket.
func downloads(g *testcloud.GCE) gcp.Config {
	c := config(g)
	c.Binaries, c.Downloads, c.Regions = true, true, []string{"us-central1"}
	return c
}

// newGCEWithReplicaAccount returns a fake in which the commands of `doctor` for a service with a bucket were
// executed.
func newGCEWithReplicaAccount(t *testing.T, faults *testcloud.Faults) *testcloud.GCE {
	t.Helper()
	g := newGCE(faults)
	if err := g.RunGcloud(replicaAccountSetup(t)); err != nil {
		t.Fatal(err)
	}
	return g
}

// replicaAccountSetup returns the commands that `doctor` prints for the service chat with a bucket if the service
// account of replicas does not exist.
func replicaAccountSetup(t *testing.T) string {
	t.Helper()
	for _, f := range gcp.New(downloads(newGCE(nil))).Doctor(t.Context()) {
		if strings.Contains(f.Message, "skyserve-chat-replica@p.iam.gserviceaccount.com: service account not found") {
			return f.Hint
		}
	}
	t.Fatal("doctor does not print the commands for the service account of replicas")
	return ""
}

// program returns the desired program with a content.
func program(t *testing.T, content string) provision.Desired {
	t.Helper()
	sum := sha256.Sum256([]byte(content))
	hash := hex.EncodeToString(sum[:])
	file := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return provision.Desired{
		ID: provision.BinaryID("gcp", hash), Kind: provision.KindBinary, Service: "chat", Owner: "Ab:12", Region: "gcp/global",
		SpecHash: provision.BinarySpecHash(hash), Binary: &provision.Binary{SHA256: hash, Bucket: bucketName, File: file},
	}
}

// bucketName is the bucket of the service chat.
var bucketName = provision.BinaryBucket("chat", "Ab:12", "p")

// converge applies the changes to the desired programs and returns the objects that exist then.
func converge(t *testing.T, p *gcp.Provider, wants ...provision.Desired) ([]provision.Object, error) {
	t.Helper()
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		return nil, err
	}
	for _, w := range wants {
		if _, err := p.Launch(t.Context(), w); err != nil {
			return nil, err
		}
	}
	for _, o := range have {
		if !slices.ContainsFunc(wants, func(w provision.Desired) bool { return w.ID == o.ID }) {
			if err := p.Terminate(t.Context(), o); err != nil {
				return nil, err
			}
		}
	}
	return p.List(t.Context(), "chat")
}

// A service's bucket exists from the first binary to the deletion of the last one, and only machines of the
// service read it. A binary of several parts is uploaded like a small one.
func TestProgramBucketFollowsItsBinaries(t *testing.T) {
	for name, outcome := range map[string]testcloud.Outcome{"served": testcloud.Served, "lost responses": testcloud.ResponseLost, "lost requests": testcloud.RequestLost, "throttled": testcloud.Throttled} {
		g := newGCEWithReplicaAccount(t, &testcloud.Faults{DecideOutcome: everyNth(3, outcome)})
		p := gcp.New(downloads(g))
		first, second := program(t, strings.Repeat("first", 1<<20)), program(t, "second")
		for _, step := range []struct {
			name    string
			wants   []provision.Desired
			objects int
		}{
			{"first", []provision.Desired{first}, 1},
			{"again", []provision.Desired{first}, 1},
			{"another binary replaces it", []provision.Desired{second}, 1},
			{"down", nil, 0},
			{"down again", nil, 0},
		} {
			have, err := converge(t, p, step.wants...)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, step.name, err)
			}
			if changes := provision.Diff(step.wants, have); len(changes) > 0 {
				t.Errorf("%s, %s: there is to do: %+v", name, step.name, changes)
			}
			stored, retained := g.StoredObjects()
			if len(stored) != step.objects || len(g.Buckets()) != step.objects || retained > 0 || len(g.PublicBuckets()) > 0 {
				t.Errorf("%s, %s: stored %q in %q, retained %d, public %q", name, step.name, stored, g.Buckets(), retained, g.PublicBuckets())
			}
			if readers, location := g.BucketReaders(bucketName); step.objects > 0 && (strings.Join(readers, " ") != "serviceAccount:"+accountOfBalancers+" serviceAccount:skyserve-chat-replica@p.iam.gserviceaccount.com" || location != "US-CENTRAL1") {
				t.Errorf("%s, %s: %q read it in %s", name, step.name, readers, location)
			}
		}
	}
}

// After a crash at any call, the same command completes, and down leaves nothing.
func TestProgramRecoversFromCrashAtAnyCall(t *testing.T) {
	w := program(t, "first")
	for _, outcome := range []testcloud.Outcome{testcloud.ResponseLost, testcloud.RequestLost} {
		crashed, at := true, 0
		for crashed {
			at++
			crashed = false
			dead := false
			faults, first := &testcloud.Faults{}, 0
			faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
				switch {
				case !dead || c.Number-first < at:
					return testcloud.Served
				case c.Number-first == at:
					crashed = true
					return outcome
				}
				return testcloud.RequestLost
			}
			p := gcp.New(downloads(newGCEWithReplicaAccount(t, faults)))
			run := func(dies bool, wants ...provision.Desired) error {
				if dies {
					for _, n := range faults.CallCounts() {
						first += n
					}
				}
				dead = dies
				_, err := converge(t, p, wants...)
				return err
			}
			if err := run(true, w); crashed == (err == nil) {
				t.Fatalf("crash at call %d: got %v", at, err)
			}
			if err := run(false, w); err != nil {
				t.Fatalf("crash at call %d (outcome %d), and again: %v", at, outcome, err)
			}
			have, err := p.List(t.Context(), "chat")
			if err != nil || len(provision.Diff([]provision.Desired{w}, have)) > 0 {
				t.Fatalf("crash at call %d (outcome %d): got %+v, %v", at, outcome, have, err)
			}
			if err := run(false); err != nil {
				t.Fatalf("down: %v", err)
			}
		}
		if at < 12 {
			t.Errorf("there were only %d calls to crash at", at)
		}
	}
}

func TestProgramIsUploadedOnce(t *testing.T) {
	faults := &testcloud.Faults{}
	p := gcp.New(downloads(newGCEWithReplicaAccount(t, faults)))
	w := program(t, "first")
	launched(t, p, w)
	launched(t, p, w)
	if n := faults.CallCounts()["storage.objects.insert"]; n != 1 {
		t.Errorf("uploaded %d times", n)
	}
}

// Public access and missing readers are drift, which the next launch repairs.
func TestBucketAccessIsRepaired(t *testing.T) {
	g := newGCEWithReplicaAccount(t, nil)
	p := gcp.New(downloads(g))
	w := program(t, "first")
	launched(t, p, w)
	g.AllowPublicAccess()
	have, err := p.List(t.Context(), "")
	if err != nil || len(provision.Diff([]provision.Desired{w}, have)) != 1 {
		t.Errorf("got %+v, %v, want drift", have, err)
	}
	have, err = converge(t, p, w)
	if readers, _ := g.BucketReaders(bucketName); err != nil || len(provision.Diff([]provision.Desired{w}, have)) > 0 || len(g.PublicBuckets()) > 0 || len(readers) != 2 {
		t.Errorf("got %+v, %v, public: %q, readers: %q", have, err, g.PublicBuckets(), readers)
	}
}

// Each problem is found by the check before anything is created, and by the launch, with the way out.
func TestProgramProblems(t *testing.T) {
	absent := func(w *provision.Desired) { w.Binary.File = "" }
	for _, tt := range []struct {
		name    string
		change  func(g *testcloud.GCE)
		want    func(w *provision.Desired)
		problem string
		onlyNow bool // only the launch finds it
	}{
		{name: "a taken name", change: func(g *testcloud.GCE) { g.AddForeignBucket(bucketName) }, problem: "the name is taken by another account: rename the service, or pass --program URL"},
		{name: "no permission to create it", change: func(g *testcloud.GCE) { g.DenyPermissions("storage.buckets.create") }, problem: "storage.buckets.create"},
		{name: "no permission to upload", change: func(g *testcloud.GCE) { g.DenyPermissions("storage.objects.create") }, problem: "storage.objects.create"},
		{name: "no permission to share it", change: func(g *testcloud.GCE) { g.DenyPermissions("storage.buckets.setIamPolicy") }, problem: "storage.buckets.setIamPolicy"},
		{name: "neither stored nor here", want: absent, problem: "pass --program FILE"},
		{name: "a changed file", want: func(w *provision.Desired) { w.Binary.SHA256 = strings.Repeat("0", 64) }, problem: "the file has changed", onlyNow: true},
		{name: "another owner", change: func(g *testcloud.GCE) {
			other := program(t, "first")
			other.Owner = "Cd:34"
			launched(t, gcp.New(downloads(g)), other)
		}, problem: "Cd:34"},
	} {
		g := newGCEWithReplicaAccount(t, nil)
		w := program(t, "first")
		if tt.change != nil {
			tt.change(g)
		}
		if tt.want != nil {
			tt.want(&w)
		}
		p := gcp.New(downloads(g))
		if c := p.CheckBinary(t.Context(), w); !tt.onlyNow && (c.OK || c.Err == nil || !strings.Contains(c.Message, tt.problem)) {
			t.Errorf("%s: the check found %+v", tt.name, c)
		}
		if _, err := p.Launch(t.Context(), w); err == nil || !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s: the launch got %v", tt.name, err)
		}
	}
}

// Without the service account of replicas, `up` creates nothing and prints the commands.
func TestProgramRequiresReplicaAccount(t *testing.T) {
	g := newGCE(nil)
	p := gcp.New(downloads(g))
	w := program(t, "first")
	_, err := p.Launch(t.Context(), w)
	c := p.CheckBinary(t.Context(), w)
	for _, err := range []error{err, c.Err} {
		var denied *provision.CredentialsError
		if !errors.As(err, &denied) || !strings.Contains(denied.Hint, "gcloud iam service-accounts create skyserve-chat-replica --project p") {
			t.Errorf("got %v", err)
		}
	}
	if len(g.Buckets()) > 0 {
		t.Errorf("created %q", g.Buckets())
	}
}

// An operator needs each of the documented permissions.
func TestProgramPermissionsAreMinimal(t *testing.T) {
	all := []string{
		"storage.buckets.create", "storage.buckets.delete", "storage.buckets.getIamPolicy", "storage.buckets.list", "storage.buckets.setIamPolicy", "storage.buckets.update",
		"storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
	}
	do := func(role []string) error {
		g := newGCEWithReplicaAccount(t, nil)
		g.SetOperatorPermissions(append(role, "compute.instances.list", "compute.firewalls.list")...)
		p, w := gcp.New(downloads(g)), program(t, "first")
		if _, err := converge(t, p, w); err != nil {
			return err
		}
		g.AllowPublicAccess()
		if _, err := converge(t, p, w); err != nil {
			return err
		}
		_, err := converge(t, p)
		return err
	}
	if err := do(all); err != nil {
		t.Error(err)
	}
	for i, permission := range all {
		if err := do(slices.Delete(slices.Clone(all), i, i+1)); err == nil {
			t.Errorf("%s is not needed", permission)
		}
	}
}

// Machines may download binaries from the bucket, and do nothing else with it.
func TestMachinesMayOnlyDownloadTheBinary(t *testing.T) {
	g := newGCEWithReplicaAccount(t, nil)
	p := gcp.New(downloads(g))
	w := program(t, "first")
	for _, w := range []provision.Desired{w, balancer("lb-us-central1-0"), replica("us-central1-0", "spot")} {
		launched(t, p, w)
	}
	at, err := p.LocateBinary(t.Context(), "chat", "Ab:12", w.Binary.SHA256)
	if err != nil || at.Bucket != bucketName {
		t.Fatal(at, err)
	}
	object, _, _ := strings.Cut(at.URL, "?")
	for _, id := range []string{"lb-us-central1-0", "us-central1-0"} {
		_, token := g.MachineCredentials(nameOf(t, g, id))
		for call, want := range map[string]int{
			"GET " + at.URL: http.StatusOK, "DELETE " + object: http.StatusForbidden, "GET http://gce/storage/v1/b?project=p": http.StatusForbidden,
			"GET http://gce/storage/v1/b/" + bucketName + "/iam": http.StatusForbidden, "POST http://gce/upload/storage/v1/b/" + bucketName + "/o?uploadType=multipart": http.StatusForbidden,
		} {
			method, url, _ := strings.Cut(call, " ")
			r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			answer, err := (testcloud.HandlerTransport{Handler: g}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != want || want == http.StatusOK && string(text) != "first" {
				t.Errorf("%s: %s: got %s %s, %v, want %d", id, call, answer.Status, text, err, want)
			}
		}
	}
}

// Without Config.Binaries no call requires a permission in Cloud Storage.
func TestProgramsAreListedOnlyIfConfigured(t *testing.T) {
	faults := &testcloud.Faults{}
	if _, err := provider(newGCE(faults)).List(t.Context(), ""); err != nil || faults.CallCounts()["storage.buckets.list"] != 0 {
		t.Errorf("listed buckets %d times, %v", faults.CallCounts()["storage.buckets.list"], err)
	}
}
