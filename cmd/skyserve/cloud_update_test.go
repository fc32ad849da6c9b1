package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
)

// updatedService has one replica, and permits a second one while the first is replaced.
const updatedService = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 2}, images: {gpu: ami-00000000000000001}}
balancer:
  auth: {keys_from: env:KEYS}
  insecure: true
`

// Another boot image replaces the only replica of a service, whose clients do not notice: the old machine is terminated
// once the new one serves. With an image that does not boot, the old machine stays, and up fails.
func TestReplicaUpdateInCloudHasHealthGate(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "starts the machines of a service; other tests cover the same code")
	t.Parallel()
	hangs := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(hangs, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	var broken atomic.Bool
	e := emulateWith(t, machines.Options{ProgramOf: func(string) string {
		if broken.Load() {
			return hangs
		}
		return ""
	}})
	out := e.skyserve(exitOK, append(e.upOf(updatedService), "--yes")...)
	base := endpointIn(out, "us-east-1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	old, balancer := e.instance("us-east-1-0"), e.instance("lb-us-east-1-0")
	of := func(image string) []string {
		return append(e.upOf(strings.Replace(updatedService, "ami-00000000000000001", image, 1)), "--yes")
	}
	stop := chatting(base)

	broken.Store(true)
	out = e.skyserve(exitFailed, append(of("ami-00000000000000002"), "--timeout", "2s")...)
	if !strings.Contains(out, "us-east-1-0 keeps running") || !strings.Contains(out, "run the earlier version; run 'skyserve up") {
		t.Errorf("up with an image that does not boot:\n%s", out)
	}
	if now := e.RunningMachineIDs(); now["us-east-1-0"] != old || now["us-east-1-1"] != "" || now["lb-us-east-1-0"] != balancer {
		t.Errorf("these machines run: %v", now)
	}

	broken.Store(false)
	out = e.skyserve(exitOK, of("ami-00000000000000003")...)
	if now := e.RunningMachineIDs(); now["us-east-1-0"] != "" || now["us-east-1-1"] == "" || now["lb-us-east-1-0"] != balancer {
		t.Errorf("these machines run: %v\n%s", now, out)
	}
	if err := stop(); err != nil {
		t.Errorf("clients noticed: %v", err)
	}
	if out := e.skyserve(exitOK, of("ami-00000000000000003")...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	e.downAndCheckEmpty()
}

// fewBalancersService is updatedService with a name, where the boot image of the balancer is the one that changes.
var fewBalancersService = strings.Replace(updatedService, "gpu: ami-00000000000000001", "cpu: IMAGE", 1) +
	"dns: {provider: route53, name: chat.example.com, zone: example.com, ttl: 1s}\n"

// TestLongFewBalancersAreUpdatedWithoutGap for a service with one balancer.
func TestOneBalancerInCloudIsUpdatedWithoutGap(t *testing.T) {
	testFewBalancers(t, fewBalancersService, []string{"lb-us-east-1-0"})
}

// testFewBalancers is TestLongFewBalancersAreUpdatedWithoutGap for a service with balancers, in the order of their
// replacement.
func testFewBalancers(t *testing.T, text string, ids []string) {
	t.Helper()
	testkit.Slow(t)
	testkit.NotUnderRace(t, "starts the machines of a service; other tests cover the same code")
	t.Parallel()
	hangs := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(hangs, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	var broken atomic.Bool
	e := emulateWith(t, machines.Options{ProgramOf: func(string) string {
		if broken.Load() {
			return hangs
		}
		return ""
	}})
	of := func(image string) []string {
		return append(e.upOf(strings.ReplaceAll(text, "IMAGE", image)), "--yes")
	}
	serve := func() (err error) {
		for _, id := range ids {
			err = errors.Join(err, chatAt("http://"+e.recordOf(id)+":8000", "key-of-a-client"))
		}
		return err
	}
	e.skyserve(exitOK, of("ami-00000000000000001")...)
	within(t, "a chat at each balancer", serve)
	event, _, _ := strings.Cut(e.skyserve(exitOK, "events", "chat", "-o", "json"), "\n")
	before := e.RunningMachineIDs()

	broken.Store(true)
	out := e.skyserve(exitFailed, append(of("ami-00000000000000002"), "--timeout", "10s")...) // the launch itself takes seconds on a loaded machine
	if now := e.RunningMachineIDs(); !maps.Equal(now, before) || !strings.Contains(out, ids[0]+" keeps running") || !strings.Contains(out, "run the earlier version; run 'skyserve up") {
		t.Errorf("these machines run: %v, want %v\n%s", now, before, out)
	}
	if err := serve(); err != nil {
		t.Errorf("after an image that does not boot: %v", err)
	}

	broken.Store(false)
	var failures []error
	terminated := 0
	e.hold(func(c testcloud.Call) {
		if c.Action == "ec2:TerminateInstances" {
			terminated, failures = terminated+1, append(failures, serve())
		}
	})
	out = e.skyserve(exitOK, of("ami-00000000000000003")...)
	e.hold(nil)
	if err := errors.Join(failures...); err != nil || terminated != len(ids) {
		t.Errorf("while %d old machines are terminated, not every address of the name serves: %v\n%s", terminated, err, out)
	}
	now := e.RunningMachineIDs()
	for id, instance := range before {
		if now[id] == "" || (now[id] != instance) != slices.Contains(ids, id) {
			t.Errorf("these machines run: %v, before %v", now, before)
		}
	}
	if after := e.skyserve(exitOK, "events", "chat", "--limit", "500", "-o", "json"); event == "" || !strings.Contains(after, event) {
		t.Errorf("the history is lost: no %s in\n%s", event, after)
	}
	if out := e.skyserve(exitOK, of("ami-00000000000000003")...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	if len(ids) > 1 {
		e.loseFewBalancers(of("ami-00000000000000003"), ids)
	}
	e.downAndCheckEmpty()
}

// loseFewBalancers ends the machines of the two balancers of a service, which wait for 'up': first the one without a
// controller, then the other one. status and top say so, with the next step.
func (e *emulated) loseFewBalancers(up, ids []string) {
	e.t.Helper()
	const isLost, nextStep = "its machine is lost, and no controller can replace it: controllers launch balancers only in a service with three or more", "'skyserve up' with the service.yaml of chat"
	for i, tt := range []struct{ status, top string }{
		{status: isLost, top: isLost},
		{status: "planning, scaling, replacement and adoption are suspended", top: "no balancer of aws/us-east-1 responds"},
	} {
		lost := ids[i]
		e.TerminateWithoutNotice(e.instance(lost))
		says := func(what string, command ...string) {
			e.t.Helper()
			within(e.t, command[0]+" says that "+lost+" waits for up", func() error {
				out, _ := e.command(command...).CombinedOutput() // what is missing may be its exit code
				if text := strings.Join(strings.Fields(string(out)), " "); !strings.Contains(text, what) || !strings.Contains(text, nextStep) {
					return fmt.Errorf("no %q with %q in\n%s", what, nextStep, out)
				}
				return nil
			})
		}
		says(tt.status, e.at("status", "chat")...)
		says(tt.top, "top", "chat", "--once")
		if _, runs := e.RunningMachineIDs()[lost]; runs {
			e.t.Errorf("%s was replaced without up", lost)
		}
		e.skyserve(exitOK, up...)
		within(e.t, "status no longer says so after up", func() error {
			if out := e.skyserve(exitOK, e.at("status", "chat")...); strings.Contains(out, tt.status) {
				return errors.New(out)
			}
			return nil
		})
	}
}

// In clouds the preview says that requests for a renamed model wait, and then fail, until its new replicas are ready.
func TestPreviewOfRenamedModelInCloud(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "starts the machines of a service; other tests cover the same code")
	t.Parallel()
	e := emulateWith(t, machines.Options{})
	renamed := strings.Replace(updatedService, "name: m\n", "name: renamed\n    aliases: [m]\n", 1)
	e.skyserve(exitOK, append(e.upOf(updatedService), "--yes")...)
	out := e.skyserve(exitOK, append(e.upOf(renamed), "--dry-run")...)
	if !strings.Contains(out, "requests for m wait until their new models have a ready replica, for at most 1m (balancer.max_wait), and then get 503: in clouds,") || !strings.Contains(out, reasonModelRemoved) {
		t.Errorf("the preview:\n%s", out)
	}
	e.downAndCheckEmpty()
}
