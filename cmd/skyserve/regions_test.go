package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision/local"
)

// twoRegions is the service oneRegion with a balancer in a second region.
var twoRegions = strings.NewReplacer("    gpus: [{type: L4}]\n", "    gpus: [{type: L4}]\n    regions: {\"aws/eu-west-1\": {min: 0, max: 0}}\n",
	"  - name: aws/us-east-1\n", "  - name: aws/us-east-1\n  - name: aws/eu-west-1\n").Replace(oneRegion)

// localChat is a service on this computer with the name of oneRegion.
const localChat = "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n"

// machineRegions returns the regions of AWS that have machines.
func (e *emulated) machineRegions() (regions []string) {
	for _, m := range e.aws.Machines() {
		regions = append(regions, m.Region)
	}
	return slices.Compact(regions)
}

// denyTermination makes AWS reject the termination of machines.
func (e *emulated) denyTermination(denied bool) {
	e.aws.Configure(func() {
		e.aws.DenialCode = func(_, action string) string {
			if denied && action == "ec2:TerminateInstances" {
				return "UnauthorizedOperation"
			}
			return ""
		}
	})
}

// An up that cannot terminate the machines of a removed region leaves them to the next one; status lists them meanwhile.
func TestRemovedRegionIsKeptUntilEmpty(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.skyserve(exitOK, append(e.upOf(twoRegions), "--yes")...)
	up := append(e.upOf(oneRegion), "--yes")
	e.denyTermination(true)
	e.skyserve(exitCredentials, up...)
	s := e.status()
	if !slices.ContainsFunc(s.Regions, func(r deploy.RegionStatus) bool { return r.Name == "aws/eu-west-1" && len(r.Balancers) == 1 }) || len(s.Drift) == 0 {
		t.Errorf("status does not list the machine in the removed region: %+v", s)
	}
	e.denyTermination(false)
	if out := e.skyserve(exitOK, up...); !slices.Equal(e.machineRegions(), []string{"us-east-1"}) {
		t.Errorf("machines remain in %q after\n%s", e.machineRegions(), out)
	}
	svc := local.ServiceAt(filepath.Join(e.dir, "home", "services", "chat"))
	if d, err := readDeployment(svc); err != nil || !slices.Equal(d.regions, []service.Region{"aws/us-east-1"}) {
		t.Errorf("regions after the removal: %q, %v", d.regions, err)
	}
}

// down deletes the machines of regions that were removed from the file that it is given, which up has not applied yet.
func TestDownOfFileDeletesDeployedRegions(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.skyserve(exitOK, append(e.upOf(twoRegions), "--yes")...)
	file := e.upOf(oneRegion)[1]
	if out := e.skyserve(exitOK, e.at("down", file, "--yes")...); len(e.aws.Machines()) > 0 {
		t.Errorf("machines remain in %q after\n%s", e.machineRegions(), out)
	}
	e.ended()
}

// deployedInClouds stores a service as up does for machines in clouds.
func deployedInClouds(t *testing.T, text string) local.Service {
	t.Helper()
	svc := storedService(t, text)
	if err := svc.StoreValue(noteProgram, machineProgram{URL: "http://127.0.0.1:1/skyserve", SHA256: "0"}); err != nil {
		t.Fatal(err)
	}
	if _, err := identityOf(svc).Create("chat", time.Now()); err != nil {
		t.Fatal(err)
	}
	return svc
}

// A file for this computer does not replace a service of the same name in clouds, whose machines no command would find.
func TestServiceKeepsItsKind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "service.yaml")
	deployedInClouds(t, twoRegions)
	if err := os.WriteFile(file, []byte(localChat), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "chat runs in clouds (aws/us-east-1, aws/eu-west-1), but " + file + " describes a service on this computer of the same name (local/us)"
	for name, run := range map[string]func() error{
		"up": func() error {
			return runUp(t.Context(), &upOptions{file: file, dryRun: true, output: outputFlags{output: "text"}}, strings.NewReader(""), io.Discard, io.Discard)
		},
		"down": func() error {
			return runDown(t.Context(), &downOptions{name: file, yes: true, output: outputFlags{output: "text"}}, strings.NewReader(""), io.Discard, io.Discard)
		},
	} {
		if err := run(); errorText(err) != want || !strings.Contains(hintOf(err), "run 'skyserve down chat' first") {
			t.Errorf("%s: got %q with hint %q, want %q", name, errorText(err), hintOf(err), want)
		}
	}
}

// Without service.yaml, down does not find the machines in clouds: it keeps the keys, or says what remains.
func TestDownWithoutFileKeepsKeys(t *testing.T) {
	svc := deployedInClouds(t, "")
	o := &downOptions{name: "chat", yes: true, output: outputFlags{output: "text"}}
	var out bytes.Buffer
	err := runDown(t.Context(), o, strings.NewReader(""), &out, io.Discard)
	if !strings.Contains(errorText(err), "chat has machines in clouds, and its service.yaml is missing") || !strings.Contains(hintOf(err), "skyserve gc") || out.Len() > 0 {
		t.Errorf("got %q with hint %q\n%s", errorText(err), hintOf(err), &out)
	}
	if _, err := identityOf(svc).Authority(); err != nil {
		t.Errorf("the authority: %v", err)
	}
	o.purge = true
	if err := runDown(t.Context(), o, strings.NewReader(""), &out, io.Discard); !strings.Contains(errorText(err), "machines in clouds") || out.Len() > 0 {
		t.Errorf("down --purge: got %q\n%s", errorText(err), &out)
	}
}

// hintOf returns the hint of an error; empty if it has none.
func hintOf(err error) string {
	var coded *exitError
	if errors.As(err, &coded) {
		return coded.hint
	}
	return ""
}
