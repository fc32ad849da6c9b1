package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
)

// programsDir is the directory of staticProgram's file; TestMain removes it.
var programsDir string

// staticProgram returns a skyserve that runs on VMs: the test binary if that was built without cgo. Otherwise
// it links the packages of the test binary without shared libraries, once: a build without cgo compiles almost every
// package again, and is the last resort, for systems without a static C library.
var staticProgram = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil || unusableProgram(self) == nil {
		return self, err
	}
	if programsDir, err = os.MkdirTemp("", "skyserve-program"); err != nil {
		return "", err
	}
	file := filepath.Join(programsDir, "skyserve")
	build := func(cgo, flags string) error {
		cmd := exec.Command("go", "build", "-ldflags", "-s -w "+flags, "-o", file, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH=amd64")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("linking with CGO_ENABLED=%s: %w\n%s", cgo, err, out)
		}
		return nil
	}
	if static := build("1", "-linkmode external -extldflags -static"); static != nil {
		if err := build("0", ""); err != nil {
			return "", errors.Join(static, err)
		}
	}
	return file, nil
})

// linkProgram makes file a link to a skyserve that runs on VMs.
func linkProgram(t *testing.T, file string) {
	t.Helper()
	program, err := staticProgram()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = os.Symlink(program, file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkStored checks that the bucket in each of some clouds contains one binary, the same in all, and is private. It
// returns the names of the objects.
func (e *emulated) checkStored(aws, google int) []string {
	e.t.Helper()
	atAWS := e.aws.StoredObjects()
	atGoogle, retained := e.gce.StoredObjects()
	hashes := map[string]bool{}
	for _, name := range append(atAWS, atGoogle...) {
		_, key, _ := strings.Cut(name, "/")
		hashes[key] = true
	}
	public := append(e.aws.PublicBuckets(), e.gce.PublicBuckets()...)
	if len(atAWS) != aws || len(atGoogle) != google || len(hashes) > 1 || retained > 0 || len(public) > 0 {
		e.t.Fatalf("stored %q and %q, want %d and %d with one hash; retained %d, public %q", atAWS, atGoogle, aws, google, retained, public)
	}
	return slices.Sorted(maps.Keys(hashes))
}

// Without --program, up stores its own binary in a private bucket of each cloud, from which machines download it
// with their own identity. Another binary replaces the machines and the stored one, and down deletes the buckets.
func TestLongUpStoresItsOwnProgram(t *testing.T) {
	needsLongFlag(t)
	testkit.Slow(t)
	testkit.NotUnderRace(t, "runs a binary of its own; other tests cover the same code")
	t.Parallel()
	e := emulateWith(t, machines.Options{Bootstrap: true})
	e.gce.SetPolicyDelay(1) // the first download of a machine is denied
	e.program = filepath.Join(e.dir, "operator", "skyserve")
	linkProgram(t, e.program)
	const google = "  - name: gcp/us-central1\n    capacity: [on_demand]\n    replicas: {min: 1, max: 1}\n"
	atGoogle := strings.Replace(oneRegion, "  - name: aws/us-east-1\n", google, 1)
	inBoth := strings.Replace(oneRegion, "regions:\n", "regions:\n"+google, 1)

	e.gce.DenyPermissions("storage.objects.create")
	up := e.at("up", e.upOf(atGoogle)[1], "--yes")
	if out := e.skyserve(exitCredentials, up...); !strings.Contains(out, "storage.objects.create") || !strings.Contains(out, "Storage Admin") || len(e.gce.Buckets()) > 0 {
		t.Errorf("without a permission: %q\n%s", e.gce.Buckets(), out)
	}
	e.gce.DenyPermissions()
	base := endpointIn(e.skyserve(exitOK, up...), "us-central1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	first := e.checkStored(0, 1)
	if out := e.skyserve(exitOK, append(up, "--dry-run", "--detailed-exitcode")...); strings.Contains(out, "program-") {
		t.Errorf("a second up:\n%s", out)
	}
	if s := e.status(); len(s.Drift) > 0 {
		t.Errorf("status has drift: %+v", s.Drift)
	}
	e.skyserve(exitOK, e.at("doctor", up[1])...)

	f := e.program
	text, err := os.ReadFile(f)
	if err == nil {
		err = os.Remove(f)
	}
	if err == nil {
		// A process that another test starts would inherit the open file, and executing it would fail.
		syscall.ForkLock.RLock()
		err = os.WriteFile(f, append(text, "another version"...), 0o700) //nolint:gosec // it is run
		syscall.ForkLock.RUnlock()
	}
	if err != nil {
		t.Fatal(err)
	}
	launched := e.instance("us-central1-0")
	up = e.at("up", e.upOf(inBoth)[1], "--yes")
	base = endpointIn(e.skyserve(exitOK, up...), "us-east-1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	if second := e.checkStored(1, 1); slices.Equal(first, second) || e.instance("us-central1-0") == launched {
		t.Errorf("stored %q, then %q; the replica was %s and %s", first, second, launched, e.instance("us-central1-0"))
	}

	for _, id := range []string{"us-central1-0", "us-east-1-0"} { // the controller replaces them
		e.TerminateWithoutNotice(e.instance(id))
		e.machine(id, true)
	}
	e.awaitStates(map[string]service.ReplicaState{"us-central1-0": service.StateReady, "us-east-1-0": service.StateReady})

	e.skyserve(exitOK, e.at("down", "chat", "--yes")...)
	e.checkNothingIsLeft("")
	if n := e.faults.CallCounts(); n["s3:PutObject"] != 1 || n["s3:GetObject"] < 3 || n["storage.objects.insert"] < 2*30 {
		t.Errorf("got the calls %v", n)
	}
}
