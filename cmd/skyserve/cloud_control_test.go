package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
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
	withinTime(e.t, 90*time.Second, "the store is replicated", func() error {
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

// loseLeader is loseMember for the leader of a status.
func (e *emulated) loseLeader(before deploy.ServiceStatus) (lost string) {
	e.t.Helper()
	return e.loseMember(before, before.Leadership.Leader)
}

// loseMember ends the machine of a controller without notice, and waits until another controller leads and the loss is
// shown, or the machine is replaced already.
func (e *emulated) loseMember(before deploy.ServiceStatus, id string) (lost string) {
	e.t.Helper()
	lost = id
	ended := e.instance(lost)
	e.TerminateWithoutNotice(ended)
	within(e.t, "another controller leads", func() error {
		s := e.status()
		if l := s.Leadership; l == nil || l.Leader == lost || lost == before.Leadership.Leader && l.Term <= before.Leadership.Term || len(l.Standbys) == 0 {
			return fmt.Errorf("got %+v, store %s", l, s.Store)
		}
		runs, replaced := e.RunningMachineIDs()[lost]
		if replaced = replaced && runs != ended; !replaced && !strings.Contains(s.Store, lost+" offline") {
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
