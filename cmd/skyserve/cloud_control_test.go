package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
)

// replicatedService has three balancers in two clouds, in which three controllers with a replicated store run.
const replicatedService = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
    regions: {"aws/eu-west-1": {min: 0, max: 0}, "gcp/us-central1": {min: 0, max: 0}}
regions:
  - name: aws/us-east-1
  - name: aws/eu-west-1
  - name: gcp/us-central1
balancer:
  auth: {keys_from: env:KEYS}
  insecure: true
`

// replicated waits until a leader, all standbys and a replicated store are shown, and returns the status.
func (e *emulated) replicated(machines ...string) (s deploy.ServiceStatus) {
	e.t.Helper()
	withinTime(e.t, 90*time.Second, fmt.Sprintf("controllers and members are on %v", machines), func() error { // a dead member leaves after 30 s
		s = e.status()
		if s.Leadership == nil || s.StoreState == nil {
			return fmt.Errorf("leadership %+v, store %+v", s.Leadership, s.StoreState)
		}
		var members []string
		for _, m := range s.StoreState.Members {
			members = append(members, m.Node)
		}
		if all := append([]string{s.Leadership.Leader}, s.Leadership.Standbys...); !sameSet(all, machines) || !sameSet(members, machines) {
			return fmt.Errorf("the controllers are on %v and the members of the store on %v", all, members)
		}
		return nil
	})
	within(e.t, "the store is replicated", func() error {
		if s = e.status(); s.Leadership == nil || s.StoreState == nil || !s.StoreState.Replicated {
			return fmt.Errorf("leadership %+v, store %+v", s.Leadership, s.StoreState)
		}
		return nil
	})
	return s
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// routesAt returns who may reach the port of the store's routes in the two regions of AWS and at Google, sorted.
func (e *emulated) routesAt() (admitted []string) {
	e.t.Helper()
	for _, place := range []string{"us-east-1", "eu-west-1"} {
		for _, rule := range e.aws.SecurityGroupRules(place, "skyserve-chat-balancer") {
			if source, is := strings.CutPrefix(rule, "tcp 8420-8420 "); is && !strings.HasPrefix(source, "sg-") {
				admitted = append(admitted, place+" "+source)
			}
		}
	}
	for _, f := range e.gce.Firewalls() {
		for _, a := range f.Allowed {
			for _, source := range f.SourceRanges {
				if slices.Contains(a.Ports, "8420") {
					admitted = append(admitted, "us-central1 "+source)
				}
			}
		}
	}
	slices.Sort(admitted)
	return admitted
}

// loseLeader ends the machine of the leader of a status, and waits until another controller leads and the loss is shown.
func (e *emulated) loseLeader(before deploy.ServiceStatus) (lost string) {
	e.t.Helper()
	return e.loseMember(before, before.Leadership.Leader)
}

// loseMember ends the machine of a controller without notice, and waits until another controller leads.
func (e *emulated) loseMember(before deploy.ServiceStatus, id string) (lost string) {
	e.t.Helper()
	lost = id
	e.TerminateWithoutNotice(e.instance(lost))
	within(e.t, "another controller leads", func() error {
		s := e.status()
		if l := s.Leadership; l == nil || l.Leader == lost || lost == before.Leadership.Leader && l.Term <= before.Leadership.Term || len(l.Standbys) == 0 {
			return fmt.Errorf("got %+v, store %s", l, s.Store)
		}
		if !strings.Contains(s.Store, lost+" offline") {
			return errors.New(s.Store)
		}
		return nil
	})
	return lost
}

// atGoogle are the regions of Google in these tests, which share a network.
var atGoogle = []string{"europe-west4", "us-central1", "us-east4"}

// addressesOf returns the public addresses of the balancers in a status, by ID.
func addressesOf(s deploy.ServiceStatus) map[string]string {
	addresses := map[string]string{}
	for _, r := range s.Regions {
		for _, b := range r.Balancers {
			addresses[b.ID] = strings.TrimSuffix(strings.TrimPrefix(b.Endpoint, "http://"), ":8000")
		}
	}
	return addresses
}

// routesWanted returns what routesAt should be: the addresses of all balancers in other networks.
func (e *emulated) routesWanted() []string {
	e.t.Helper()
	return routesOf(e.status())
}

// routesOf is routesWanted for a status.
func routesOf(s deploy.ServiceStatus) (want []string) {
	addresses := addressesOf(s)
	for _, at := range s.Regions {
		place := at.Name.ShortName()
		for _, r := range s.Regions {
			other := r.Name.ShortName()
			if other == place || slices.Contains(atGoogle, other) && slices.Contains(atGoogle, place) {
				continue
			}
			for _, b := range r.Balancers {
				want = append(want, place+" "+addresses[b.ID]+"/32")
			}
		}
	}
	slices.Sort(want)
	return want
}

// atAWS returns the entries of routesAt at AWS.
func atAWS(routes []string) []string {
	return slices.DeleteFunc(slices.Clone(routes), func(r string) bool {
		place, _, _ := strings.Cut(r, " ")
		return slices.Contains(atGoogle, place)
	})
}

// recordOf returns the address in a balancer's record of chat.example.com.
func (e *emulated) recordOf(id string) string {
	for _, s := range e.names.RecordSets(e.zone) {
		if s.SetIdentifier == id && s.Type == "A" && s.ResourceRecords != nil {
			return s.ResourceRecords.ResourceRecord[0].Value
		}
	}
	return ""
}

// runDoctorCommands runs the commands of Google that doctor prints.
func (e *emulated) runDoctorCommands(up []string) {
	e.t.Helper()
	var found struct{ Findings []struct{ Hint string } }
	args := append([]string{"doctor"}, up[1:]...)
	cmd := e.command(append(args, "-o", "json")...)
	out, _ := cmd.Output() // it fails, because the commands are missing
	if err := json.Unmarshal(out, &found); err != nil {
		e.t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range found.Findings {
		if err := e.gce.RunGcloud(f.Hint); err != nil {
			e.t.Fatal(err)
		}
	}
}

// restore waits until the machine of a lost balancer is replaced by the leading controller, without a person. 'up' then
// launches nothing.
func (e *emulated) restore(up []string, lost string, machines ...string) {
	e.t.Helper()
	launched := e.awaitReplacement(lost)
	e.replicated(machines...)
	e.skyserve(exitOK, append(up, "--yes")...)
	if now := e.instance(lost); now != launched {
		e.t.Errorf("up replaced %s, which the controller had launched, by %s", launched, now)
	}
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "no change") {
		e.t.Errorf("up again after the replacement of %s:\n%s", lost, out)
	}
}

// awaitReplacement waits until a controller has launched the machine of a lost balancer, which is then ready, admitted by the
// firewalls at AWS, and has its record if the service has a name. An event names who launched it. It returns the machine.
func (e *emulated) awaitReplacement(lost string) (launched string) {
	e.t.Helper()
	withinTime(e.t, 2*time.Minute, "a controller launches "+lost, func() error { // another leader waits for half a minute
		if _, runs := e.RunningMachineIDs()[lost]; !runs {
			return errors.New("it runs nowhere")
		}
		return nil
	})
	launched = e.instance(lost)
	within(e.t, "the new machine serves", func() error {
		s := e.status()
		if state := states(s)[lost]; state != service.StateReady {
			return fmt.Errorf("it is %s", state)
		}
		if got, want := e.routesAt(), routesOf(s); !sameSet(atAWS(got), atAWS(want)) {
			return fmt.Errorf("the routes admit %q, want %q", got, want)
		}
		if got, want := e.recordOf(lost), addressesOf(s)[lost]; got != want && len(e.names.RecordSets(e.zone)) > 0 {
			return fmt.Errorf("its record has the address %q, want %q", got, want)
		}
		return nil
	})
	within(e.t, "status takes it for no stranger, and for none without a record", func() error {
		if out := e.skyserve(exitOK, e.at("status", "chat")...); strings.Contains(out, "not launched by") || strings.Contains(out, "do not contain its new address") {
			return errors.New(out)
		}
		return nil
	})
	within(e.t, "an event names who launched it, and why", func() error {
		out := e.skyserve(exitOK, "events", "chat", "--kind", "launch")
		for line := range strings.Lines(out) {
			// Google lists a machine that has ended as stopped; AWS no longer lists it.
			cause := strings.Contains(line, "gcp/") && strings.Contains(line, " stopped") || strings.Contains(line, "aws/") && strings.Contains(line, "its cloud no longer lists it")
			if strings.Contains(line, "controller") && strings.Contains(line, "launched "+lost) && cause {
				return nil
			}
		}
		return errors.New(out)
	})
	return launched
}

// Three balancers in two clouds run three controllers with a replicated store, whose members only admit each other.
// After the loss of a machine, that of the leader too, another controller leads with the same store and replaces it.
func TestControlPlaneInClouds(t *testing.T) {
	testkit.Slow(t)
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

// The only balancer at AWS is lost, with its disk: a controller at Google replaces it by the identity of its own machine,
// and its DNS record has the new address, without a person.
func TestOnlyBalancerAtAWSIsReplaced(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(replicatedService, "  - name: aws/us-east-1\n", "  - name: gcp/europe-west4\n", 1) + "dns: {provider: route53, name: chat.example.com, zone: example.com}\n"
	up := e.upOf(text)
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "controllers in the other cloud replace a lost balancer in aws") {
		t.Errorf("up does not show who replaces it:\n%s", out)
	}
	machines := []string{"lb-eu-west-1-0", "lb-europe-west4-0", "lb-us-central1-0"}
	before := e.replicated(machines...)
	e.restore(up, e.loseMember(before, "lb-eu-west-1-0"), machines...)
	e.downAndCheckEmpty()
}

// All balancers are at Google, and the name is in Route 53: the DNS record of a replaced balancer has the new address without
// a person, by a role at AWS that permits nothing else and that 'down' removes.
func TestRecordMovesWithoutMachineAtAWS(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	e := emulate(t)
	text := strings.NewReplacer("aws/us-east-1", "gcp/us-east4", "aws/eu-west-1", "gcp/europe-west4").Replace(replicatedService)
	up := e.upOf(text + "dns: {provider: route53, name: chat.example.com, zone: example.com}\n")
	e.runDoctorCommands(up)
	const shown = "controllers at Google change the DNS records of balancers that they replace"
	if out := e.skyserve(exitChanges, append(up, "--dry-run", "--detailed-exitcode")...); !strings.Contains(out, shown) || !strings.Contains(out, "identity-aws-records") {
		t.Errorf("up --dry-run does not show the role:\n%s", out)
	}
	if out := e.skyserve(exitOK, append([]string{"doctor"}, up[1:]...)...); !strings.Contains(out, shown) || !strings.Contains(out, "listing IAM roles") {
		t.Errorf("doctor does not check the role:\n%s", out)
	}
	e.skyserve(exitOK, append(up, "--yes")...)
	if policy := e.aws.RolePolicy("skyserve-chat-records", "skyserve"); !strings.Contains(policy, e.zone) || strings.Contains(policy, `"ec2:`) {
		t.Errorf("the role permits\n%s", policy)
	}
	const lost = "lb-us-east4-0"
	machines := []string{"lb-europe-west4-0", "lb-us-central1-0", lost}
	e.replicated(machines...)
	e.TerminateWithoutNotice(e.instance(lost))
	e.restore(up, lost, machines...)
	e.downAndCheckEmpty()
}

// A new binary replaces the machines of three controllers one at a time: their store keeps its history, although every disk
// is new afterwards. One whose first machine does not become healthy returns to the earlier binary by itself.
func TestUpdateInCloudsKeepsStore(t *testing.T) {
	testkit.Slow(t)
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

// Of four balancers three are the control plane. The leading controller replaces each lost one, without a person and
// with one launch: first the spare, then, while no capacity is left, the leader, whose place the spare takes before the
// machine is launched, then another member, whose place the new machine may take. No process of a machine that runs restarts, and the spare's identity, which
// may not launch balancers, stays.
func TestSpareBalancerJoinsControlPlane(t *testing.T) {
	testkit.Slow(t)
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
	within(t, "three members are left", func() error {
		s := e.status()
		if s.StoreState == nil || !s.StoreState.Replicated || len(s.StoreState.Members) != 3 || len(s.Problems) > 0 {
			return fmt.Errorf("the store is %+v, problems %q", s.StoreState, s.Problems)
		}
		return nil
	})
	e.downAndCheckEmpty()
}

// processesOf returns the processes of the balancers, and of the controllers, of machines.
func (e *emulated) processesOf(ids ...string) map[string][]int {
	e.t.Helper()
	of := map[string][]int{}
	for _, id := range ids {
		of[id] = append(e.unitProcesses(id, "balancer/config.yaml"), e.unitProcesses(id, "controller/config.yaml")...)
	}
	return of
}

// checkLaunches checks the number of machines that were launched since an earlier number, and returns the present one.
func (e *emulated) checkLaunches(earlier, want int) int {
	e.t.Helper()
	now := e.launches()
	if now-earlier != want {
		e.t.Errorf("%d machines were launched, want %d", now-earlier, want)
	}
	return now
}

// capacityAtAWS sets whether AWS has capacity for further machines.
func (e *emulated) capacityAtAWS(has bool) {
	e.aws.Configure(func() {
		e.aws.CapacityErrorCode = func(string, string, string) string {
			if has {
				return ""
			}
			return "InsufficientInstanceCapacity"
		}
	})
}
