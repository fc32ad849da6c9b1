// The longest tests, each of a whole control plane in emulated clouds. While they wait, shorter tests run. Go resumes the
// parallel tests of a package in the reverse order of their files and lines: this file is the last one, and its last
// test the longest. In another order the same tests pass, but the longest ones would run alone at the end.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
)

// Another boot image replaces the balancers of a service with one controller and store: each old machine is terminated once
// the new one serves, with the history, and the service's name has its address. With an image that does not boot, the old
// machines go on. Of two balancers, the one without the controller is replaced first.
func TestLongFewBalancersAreUpdatedWithoutGap(t *testing.T) {
	needsLongFlag(t)
	text := strings.Replace(fewBalancersService, "balancer:\n", "  - {name: aws/eu-west-1, replicas: {min: 0, max: 1}, images: {cpu: IMAGE}}\nbalancer:\n", 1)
	testFewBalancers(t, text, []string{"lb-eu-west-1-0", "lb-us-east-1-0"})
}

// Three balancers in two clouds run three controllers with a replicated store, whose members only admit each other.
// After the loss of a machine, that of the leader too, another controller leads with the same store and replaces it.
func TestLongControlPlaneInClouds(t *testing.T) {
	testkit.Slow(t)
	needsLongFlag(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	e := emulate(t)
	up := e.upOf(replicatedService + "dns: {provider: route53, name: chat.example.com, zone: example.com}\n")
	e.runDoctorCommands(up)
	e.skyserve(exitOK, append(up, "--yes")...)
	machines := []string{"lb-eu-west-1-0", "lb-us-central1-0", "lb-us-east-1-0"}
	before := e.replicated(machines...)
	if got, want := e.routesAt(), e.routesWanted(); !slices.Equal(got, want) || len(got) != 6 {
		t.Errorf("the routes admit %q, want %q", got, want)
	}
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}

	lost := e.loseLeader(before)
	e.restore(up, lost, machines...)
	if after := e.replicated(machines...); after.Leadership.Term <= before.Leadership.Term {
		t.Errorf("the term began again: %+v after %+v", after.Leadership, before.Leadership)
	}
	second := "lb-us-central1-0"
	if lost == second {
		second = "lb-us-east-1-0"
	}
	e.TerminateWithoutNotice(e.instance(second))
	e.restore(up, second, machines...)
	if got, want := e.routesAt(), e.routesWanted(); !slices.Equal(got, want) || len(got) != 6 {
		t.Errorf("after the replacement the routes admit %q, want %q", got, want)
	}
	e.downAndCheckEmpty()
}

// Of four balancers three are the control plane. The leading controller replaces each lost one, without a person and
// with one launch: first the spare, then, while no capacity is left, the leader, whose place the spare takes before the
// machine is launched, then another member, whose place the new machine may take. No process of a machine that runs restarts, and the spare's identity, which
// may not launch balancers, stays.
func TestLongControlPlaneTakesSpareBalancer(t *testing.T) {
	testkit.Slow(t)
	needsLongFlag(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	const spare = "lb-eu-west-1-1"
	e := emulate(t)
	text := strings.Replace(replicatedService, "  - name: aws/eu-west-1\n", "  - name: aws/eu-west-1\n    balancers: 2\n", 1)
	up := e.upOf(text + "dns: {provider: route53, name: chat.example.com, zone: example.com}\n")
	e.skyserve(exitOK, append(up, "--yes")...)
	machines := []string{"lb-eu-west-1-0", "lb-us-central1-0", "lb-us-east-1-0"}
	before := e.replicated(machines...)
	all := append(slices.Clone(machines), spare)
	launches := e.launches()

	ended := e.instance(spare)
	e.TerminateWithoutNotice(ended)
	e.awaitReplacement(spare)
	if now := e.replicated(machines...); now.Leadership.Term != before.Leadership.Term {
		t.Errorf("the loss of the spare changed the leader: %+v, before %+v", now.Leadership, before.Leadership)
	}
	launches = e.checkLaunches(launches, 1)

	// The only balancer of Google Cloud is not replaced by a spare: no other machine can tell that it has ended.
	processes := e.processesOf(all...)
	lost := before.Leadership.Leader
	if lost == "lb-us-central1-0" {
		lost = "lb-us-east-1-0"
	}
	e.capacityAtAWS(false)
	e.loseMember(before, lost)
	rest := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id == lost })
	withinTime(t, 90*time.Second, "the spare balancer runs a controller", func() error { // on a busy machine elections take longer
		if now := e.processesOf(spare)[spare]; len(now) != 2 {
			return fmt.Errorf("it runs the processes %v", now)
		}
		return nil
	})
	if _, runs := e.RunningMachineIDs()[lost]; runs {
		t.Errorf("%s runs without capacity", lost)
	}
	e.capacityAtAWS(true)
	e.awaitReplacement(lost)
	second := e.replicated(rest...) // members stay
	launches = e.checkLaunches(launches, 1)
	for id, now := range e.processesOf(rest...) {
		if len(now) != 2 || !slices.Equal(now[:len(processes[id])], processes[id]) {
			t.Errorf("%s runs the processes %v, before %v", id, now, processes[id])
		}
	}
	if role := e.aws.MachineRole(e.instance(spare)); role != "skyserve-chat-spare" {
		t.Errorf("the spare has the role %q", role)
	}

	last := "lb-eu-west-1-0" // the third machine at AWS
	if lost == last {
		last = "lb-us-east-1-0"
	}
	e.loseMember(second, last)
	e.awaitReplacement(last)
	e.checkLaunches(launches, 1)
	withinTime(t, 90*time.Second, "three members are left", func() error { // a lost member is removed after half a minute
		s := e.status()
		if s.StoreState == nil || !s.StoreState.Replicated || len(s.StoreState.Members) != 3 || len(s.Problems) > 0 {
			return fmt.Errorf("the store is %+v, problems %q", s.StoreState, s.Problems)
		}
		return nil
	})
	e.downAndCheckEmpty()
}

// A new binary replaces the machines of three controllers one at a time: their store keeps its history, although every disk
// is new afterwards. One whose first machine does not become healthy returns to the earlier binary by itself.
func TestLongControlPlaneUpdateKeepsStore(t *testing.T) {
	testkit.Slow(t)
	needsLongFlag(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	e := emulateWith(t, machines.Options{ProgramOf: func(userData string) string {
		if strings.Contains(userData, strings.Repeat("2", 64)) {
			return broken
		}
		return ""
	}})
	up := e.upOf(replicatedService)
	e.skyserve(exitOK, append(up, "--yes")...)
	balancers := []string{"lb-eu-west-1-0", "lb-us-central1-0", "lb-us-east-1-0"}
	before := e.replicated(balancers...)
	history := e.skyserve(exitOK, "events", "chat", "--kind", "leader", "-o", "json")
	first, _, _ := strings.Cut(history, "\n")
	if first == "" {
		t.Fatal("there is no event before the update")
	}
	of := func(version string) []string {
		other := slices.Clone(up)
		for i := range other {
			other[i] = strings.Replace(other[i], strings.Repeat("0", 64), strings.Repeat(version, 64), 1)
		}
		return append(other, "--yes")
	}
	earlier := e.RunningMachineIDs()
	out := e.skyserve(exitFailed, append(of("2"), "--timeout", "40s")...)
	if !strings.Contains(out, "the new version did not become ready") || !strings.Contains(out, "it is back on the earlier version") || strings.Contains(out, "updated lb-") {
		t.Errorf("up with a broken version:\n%s", out)
	}
	for _, id := range balancers[1:] {
		if e.instance(id) != earlier[id] {
			t.Errorf("%s was replaced by a broken version", id)
		}
	}
	e.replicated(balancers...)
	if after := e.skyserve(exitOK, "events", "chat", "--limit", "500", "-o", "json"); !strings.Contains(after, first) {
		t.Errorf("the history is lost: no %s in\n%s", first, after)
	}
	earlier = e.RunningMachineIDs()
	out = e.skyserve(exitOK, of("1")...)
	for _, id := range balancers {
		if !strings.Contains(out, "updated "+id) || e.instance(id) == earlier[id] {
			t.Errorf("%s was not updated:\n%s", id, out)
		}
	}
	if after := e.replicated(balancers...); after.Leadership.Term < before.Leadership.Term {
		t.Errorf("the term began again: %+v after %+v", after.Leadership, before.Leadership)
	}
	if after := e.skyserve(exitOK, "events", "chat", "--limit", "500", "-o", "json"); !strings.Contains(after, first) {
		t.Errorf("the history is lost: no %s in\n%s", first, after)
	}
	e.downAndCheckEmpty()
}
