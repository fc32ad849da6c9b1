package gcp_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

func TestFiles(t *testing.T) {
	g := newGCEWithReplicaAccount(t, &testcloud.Faults{})
	p := gcp.New(downloads(g))
	if _, err := p.Launch(t.Context(), program(t, "first")); err != nil {
		t.Fatal(err)
	}
	bucket := g.Buckets()[0]
	conformance.RunFiles(t, p.Files(bucket, "/batches/chat"), bucket+"/batches/chat/", func() []string { stored, _ := g.StoredObjects(); return stored })
	conformance.RunMissingFiles(t, p.Files("none", ""), "gs://none/")
}

// storing returns the balancers' identity with a bucket for files.
func storing(bucket string) provision.Desired {
	w := identity()
	w.Grants = append(w.Grants, provision.GrantFiles(bucket+"/all/chat"))
	return w
}

// The command of a failed check lets a balancer's machine store files. Without store.files its access scopes deny it.
func TestMachineStoresFilesWithItsAccount(t *testing.T) {
	g, ctx := newGCE(nil), t.Context()
	g.AddBucket("batches")
	p := provider(g)
	c := p.CheckFiles(ctx, storing("batches"))
	command, isCommand := strings.CutPrefix(c.Hint, "run: ")
	var denied *provision.CredentialsError
	if c.OK || !isCommand || !errors.As(c.Err, &denied) || !strings.Contains(c.Message, "bucket batches does not grant it to the balancers' service account skyserve-chat-lb@p.iam") {
		t.Fatalf("before the permission is granted: %+v", c)
	}
	if err := g.RunGcloud(command); err != nil {
		t.Fatal(err)
	}
	if c := p.CheckFiles(ctx, storing("batches")); !c.OK || !strings.Contains(c.Message, "no problem found") {
		t.Errorf("after %s: %+v", command, c)
	}
	with := balancer("lb-us-central1-0")
	with.Machine.StoresFiles = true
	for _, w := range []provision.Desired{balancer("lb-us-central1-1"), with} {
		o := launched(t, p, w)
		_, text := g.MachineCredentials(nameOf(t, g, w.ID))
		cfg := config(g)
		cfg.FilesOnly = true
		f := withToken(cfg, token{value: text}).Files("batches", "all/chat")
		err := f.PutPart(ctx, "file-1.0", []byte("x"))
		if errors.As(err, &denied) == w.Machine.StoresFiles || err == nil != w.Machine.StoresFiles {
			t.Errorf("a machine with StoresFiles %v: %v", w.Machine.StoresFiles, err)
		}
		if w.Machine.StoresFiles {
			if got, err := f.GetPart(ctx, "file-1.0"); err != nil || string(got) != "x" {
				t.Errorf("%q, %v", got, err)
			}
			if names, err := f.PartNames(ctx, ""); err != nil || !slices.Equal(names, []string{"file-1.0"}) {
				t.Errorf("%q, %v", names, err)
			}
			if err := f.DeletePart(ctx, "file-1.0"); err != nil {
				t.Error(err)
			}
		}
		if err := p.Terminate(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCheckFilesFails(t *testing.T) {
	g := newGCE(nil)
	g.AddForeignBucket("theirs")
	g.AddBucket("batches")
	for bucket, want := range map[string]string{
		"none":   "bucket none does not exist; create it: gcloud storage buckets create gs://none",
		"theirs": "bucket theirs belongs to another project, or you have no permission to read it",
	} {
		if c := provider(g).CheckFiles(t.Context(), storing(bucket)); c.OK || c.Err == nil || !strings.Contains(c.Message, want) {
			t.Errorf("%s: %+v, want %q", bucket, c, want)
		}
	}
	g.FailCalls("storage.buckets.getIamPolicy", http.StatusForbidden, "forbidden", "Permission 'storage.buckets.getIamPolicy' denied")
	if c := provider(g).CheckFiles(t.Context(), storing("batches")); !c.OK || !strings.Contains(c.Message, "not checked: the permissions of balancers") {
		t.Errorf("a policy that the operator may not read: %+v", c)
	}
}
