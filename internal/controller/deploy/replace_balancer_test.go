package deploy_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

const threeBalancers = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - {name: aws/us-east-1, replicas: {min: 0, max: 1}}
  - {name: aws/eu-west-1, replicas: {min: 0, max: 1}}
  - {name: aws/us-west-2, replicas: {min: 0, max: 1}}
`

// controllerIDs are the balancers that run a controller, of three and more.
var controllerIDs = []string{"lb-us-east-1-0", "lb-eu-west-1-0", "lb-us-west-2-0"}

var fourBalancers = strings.Replace(threeBalancers, "name: aws/us-east-1,", "name: aws/us-east-1, balancers: 2,", 1)

// threeAndTwoSpares has the spares lb-us-east-1-1 and lb-us-east-1-2.
var threeAndTwoSpares = strings.Replace(fourBalancers, "balancers: 2,", "balancers: 3,", 1)

// controlWorld is a service whose balancers an `up` launched and enrolled.
type controlWorld struct {
	*reconcilerWorld
	t      *testing.T
	silent map[string]bool // machines that do not respond
	events []telemetry.Event
	text   string // of service.yaml
}

func newControlWorld(t *testing.T, text string) *controlWorld {
	t.Helper()
	n := &controlWorld{reconcilerWorld: newReconcilerWorldOf(t, text), t: t, silent: map[string]bool{}, text: text}
	n.deliver()
	return n
}

// deliver delivers the bundle of an `up` that recorded all existing balancers.
func (n *controlWorld) deliver() {
	n.t.Helper()
	file := filepath.Join(n.dir, "content.json")
	raw, err := os.ReadFile(file)
	content := map[string]any{}
	if err == nil {
		err = json.Unmarshal(raw, &content)
	}
	enrolled := map[string][]string{}
	for _, o := range n.balancers("") {
		enrolled[o.ID] = append(enrolled[o.ID], o.Handle)
	}
	content["enrolled"], content["controllers"] = enrolled, controllerIDs
	if err == nil {
		raw, err = json.Marshal(content)
	}
	if err = errors.Join(err, os.WriteFile(file, raw, 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

// balancers returns the running balancers of an ID; of all without one.
func (n *controlWorld) balancers(id string) []provision.Object {
	return slices.DeleteFunc(n.Objects(), func(o provision.Object) bool {
		return o.Kind != provision.KindBalancer || o.TerminatedReason != "" || id != "" && o.ID != id
	})
}

// controller returns the controller of a process that has just begun to lead.
func (n *controlWorld) controller() *deploy.Reconciler {
	rc := n.reconciler()
	rc.RecordEventsWith(func(e telemetry.Event) { n.events = append(n.events, e) })
	rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
		seen := map[string]deploy.AgentReport{}
		for _, o := range have {
			listed := slices.ContainsFunc(n.Objects(), func(other provision.Object) bool { return other.Handle == o.Handle && o.Handle != "" })
			switch {
			case n.silent[o.Handle] || !listed && !n.silent["not "+o.Handle]:
				seen[o.ID] = deploy.AgentReport{Err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}}
			default:
				seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady, Revision: "of another up"}}
			}
		}
		return seen
	})
	return rc
}

// lines returns the recorded events about a machine.
func (n *controlWorld) lines(id string) (lines []string) {
	for _, e := range n.events {
		if e.Object == id {
			lines = append(lines, fmt.Sprintf("%s %s: %s (%s)", e.Actor, e.Kind, e.Message, e.Reason))
		}
	}
	return lines
}

// accepted returns the handles that an operator accepts as balancers, from the record in the store.
func (n *controlWorld) accepted(by identity.Party) map[string][]string {
	n.t.Helper()
	e := enrolments(n.t, memoryNotes{})
	var l telemetry.BalancerLaunches
	n.store.read(n.t, telemetry.BalancerLaunchesRecord, &l)
	e.AcceptSigned([]*telemetry.BalancerLaunches{&l}, by)
	return e.Handles()
}

func (n *controlWorld) party() identity.Party {
	n.t.Helper()
	p, _, err := identity.Home{Dir: n.dir}.ReadController()
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// In a service with three balancers or more, the leader replaces a lost one, with or without a controller: a machine
// that its cloud lists as ended at once, one that is not listed any more after ten seconds, and one that is silent after three
// minutes, once it is terminated. The launch is recorded before and after, so that operators accept the machine.
func TestControllerReplacesLostBalancer(t *testing.T) {
	t.Parallel()
	services := map[string]struct {
		text, id string
		count    int
	}{
		"three": {threeBalancers, "lb-eu-west-1-0", 3}, "four, one with a controller": {fourBalancers, "lb-eu-west-1-0", 4}, "four, the one without": {fourBalancers, "lb-us-east-1-1", 4},
	}
	for name, service := range services {
		t.Run(name, func(t *testing.T) { testReplacement(t, service.text, service.id, service.count) })
	}
}

func testReplacement(t *testing.T, text, id string, count int) {
	for name, tt := range map[string]struct {
		lose   func(n *controlWorld)
		within time.Duration
		not    time.Duration // before this nothing is launched
		events []string
	}{
		"ended": {
			lose: func(n *controlWorld) {
				n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "host failure" })
			},
			within: 10 * time.Second,
			events: []string{"controller death: " + id + " ended unexpectedly (host failure)", "controller launch: launched " + id + " (replaces one that ended: host failure)"},
		},
		"not listed": {
			lose: func(n *controlWorld) { n.ChangeObject(id, nil) }, not: 9 * time.Second, within: 21 * time.Second,
			events: []string{"controller death: " + id + " ended unexpectedly (its cloud no longer lists it)", "controller launch: launched " + id + " (replaces one that ended: its cloud no longer lists it)"},
		},
		"silent": {
			lose: func(n *controlWorld) { n.silent[n.balancers(id)[0].Handle] = true }, not: 175 * time.Second, within: 195 * time.Second,
			events: []string{"controller replace: replaced " + id + " (no response for 3m0s)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newControlWorld(t, text)
				n.ChangeObject(id, func(o *provision.Object) { o.Started = time.Now().Add(-time.Hour) })
				rc := n.controller()
				n.reconcileFor(t, rc, time.Minute, always)
				before := n.balancers(id)[0].Handle
				calls := n.CountChanges()
				tt.lose(n)
				n.reconcileFor(t, rc, tt.not, always)
				if n.CountChanges() != calls {
					t.Fatalf("it changed something within %s", tt.not)
				}
				n.reconcileFor(t, rc, tt.within-tt.not, always)
				after := n.balancers(id)
				if len(after) != 1 || after[0].Handle == before || len(n.balancers("")) != count {
					t.Fatalf("got %+v of %d", after, len(n.balancers("")))
				}
				if got := n.accepted(n.party())[id]; !slices.Equal(got, []string{after[0].Handle}) {
					t.Errorf("operators accept %q, want %s", got, after[0].Handle)
				}
				if got := n.lines(id); !slices.Equal(got, tt.events) {
					t.Errorf("events %q, want %q", got, tt.events)
				}
				calls = n.CountChanges()
				n.reconcileFor(t, n.controller(), time.Hour, always) // of another leader, which reads the record
				if n.CountChanges() != calls {
					t.Errorf("it changed more in the following hour: %+v", n.balancers(id))
				}
			})
		})
	}
}

// A leader that dies at any call of a replacement leaves one machine, which the next leader recognises and operators
// accept.
func TestControllerDiesDuringReplacement(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	const id = "lb-us-west-2-0"
	for _, lose := range []string{"ended", "silent"} {
		for _, effect := range []bool{false, true} {
			for at := 1; at <= 2; at++ {
				synctest.Test(t, func(t *testing.T) {
					n := newControlWorld(t, threeBalancers)
					n.ChangeObject(id, func(o *provision.Object) {
						o.Started = time.Now().Add(-time.Hour)
						if lose == "ended" {
							o.TerminatedReason = "host failure"
						}
					})
					old := ""
					if all := n.balancers(id); len(all) > 0 {
						old = all[0].Handle
						n.silent[old] = true
					}
					n.RestartAfterCrash()
					n.CrashAt, n.CrashAfterEffect = at, effect
					n.reconcileFor(t, n.controller(), 5*time.Minute, always)
					n.RestartAfterCrash()
					n.reconcileFor(t, n.controller(), 10*time.Minute, always)
					got := n.balancers(id)
					if len(got) != 1 || got[0].Handle == old || !slices.Contains(n.accepted(n.party())[id], got[0].Handle) {
						t.Errorf("%s, a crash at call %d (effective: %v): got %+v, accepted are %v", lose, at, effect, got, n.accepted(n.party()))
					}
				})
			}
		}
	}
}

// A leader that loses the store after the launch, before it has recorded the machine, leaves one that the next leader
// recognises at once.
func TestStoreIsLostDuringReplacement(t *testing.T) {
	const id = "lb-eu-west-1-0"
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, threeBalancers)
		n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "host failure" })
		n.launched = func() { n.store.down = true }
		n.reconcileFor(t, n.controller(), 10*time.Minute, always)
		launched := n.balancers(id)
		if len(launched) != 1 || len(n.accepted(n.party())[id]) != 0 {
			t.Fatalf("got %+v, accepted are %v", launched, n.accepted(n.party()))
		}
		n.store.down, n.launched = false, nil
		calls := n.CountChanges()
		n.reconcileFor(t, n.controller(), 10*time.Second, always)
		if got := n.accepted(n.party())[id]; !slices.Equal(got, []string{launched[0].Handle}) || n.CountChanges() != calls {
			t.Errorf("the next leader records %q and makes %d changes, want %s and none", got, n.CountChanges()-calls, launched[0].Handle)
		}
	})
}

// Nothing is launched while the machine may come back, while nothing proves that it is lost, without a majority of
// the store, without the lease, or where controllers do not replace balancers.
func TestControllerKeepsBalancers(t *testing.T) {
	t.Parallel()
	const id = "lb-eu-west-1-0"
	lost := func(n *controlWorld) { n.ChangeObject(id, nil) }
	silent := func(n *controlWorld) { n.silent[n.balancers(id)[0].Handle] = true }
	for name, tt := range map[string]struct {
		text  string
		lose  func(n *controlWorld)
		may   func() error
		alert string
		about string // the machine of the alert; empty = id
	}{
		"two balancers": {text: strings.Replace(threeBalancers, "  - {name: aws/us-west-2, replicas: {min: 0, max: 1}}\n", "", 1), lose: lost, alert: "only in a service with three or more"},
		"four balancers, another one with a controller does not respond either": {text: fourBalancers, lose: func(n *controlWorld) {
			silent(n)
			n.silent[n.balancers("lb-us-west-2-0")[0].Handle] = true
		}},
		"four balancers, most do not respond": {text: fourBalancers, lose: func(n *controlWorld) {
			for _, o := range n.balancers("") {
				n.silent[o.Handle] = o.ID != "lb-us-east-1-0"
			}
		}},
		"no balancer of its cloud is left, of four": {
			text: strings.Replace(fourBalancers, "aws/us-west-2", "gcp/us-central1", 1), lose: func(*controlWorld) {},
			alert: "only a balancer in gcp can launch machines there", about: "lb-us-central1-0",
		},
		"the lease is lost":           {lose: lost, may: func() error { return errors.New("superseded") }},
		"its region does not respond": {lose: func(n *controlWorld) { n.unresponsive["aws/eu-west-1"] = true; lost(n) }},
		"it responds, although no list contains it": {lose: func(n *controlWorld) {
			n.silent["not "+n.balancers(id)[0].Handle] = true
			lost(n)
		}},
		"it boots": {lose: func(n *controlWorld) {
			n.ChangeObject(id, func(o *provision.Object) { o.Started = time.Now().Add(5 * time.Minute) })
			silent(n)
		}},
		"another one does not respond either": {lose: func(n *controlWorld) {
			silent(n)
			n.silent[n.balancers("lb-us-west-2-0")[0].Handle] = true
		}},
		"the store has no majority": {lose: func(n *controlWorld) { n.store.down = true; lost(n) }},
		"a stranger has its tags": {lose: func(n *controlWorld) {
			n.ChangeObject(id, func(o *provision.Object) { o.Handle = "stranger" })
		}, alert: "another machine (stranger) has its tags"},
		"no balancer of its cloud is left": {
			text: strings.Replace(threeBalancers, "aws/us-west-2", "gcp/us-central1", 1), lose: func(*controlWorld) {},
			alert: "only a balancer in gcp can launch machines there", about: "lb-us-central1-0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				text := tt.text
				if text == "" {
					text = threeBalancers
				}
				n := newControlWorld(t, text)
				n.ChangeObject(id, func(o *provision.Object) { o.Started = time.Now().Add(-time.Hour) })
				rc := n.controller()
				n.reconcileFor(t, rc, time.Minute, always)
				tt.lose(n)
				calls := n.CountChanges()
				checkLeadership := tt.may
				if checkLeadership == nil {
					checkLeadership = always
				}
				n.reconcileFor(t, rc, 10*time.Minute, checkLeadership)
				if n.CountChanges() != calls {
					t.Errorf("it changed something: %+v", n.balancers(""))
				}
				if tt.alert != "" {
					n.wantAlert(rc, cmp.Or(tt.about, id), tt.alert)
				}
			})
		})
	}
}

// Two of five balancers do not respond, one with a controller and one without: both are replaced, since the other
// controllers and most balancers do.
func TestControllerReplacesTwoLostBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, threeAndTwoSpares)
		rc := n.controller()
		n.reconcileFor(t, rc, time.Minute, always)
		lost := []string{"lb-eu-west-1-0", "lb-us-east-1-2"}
		before := map[string]string{}
		for _, id := range lost {
			n.ChangeObject(id, func(o *provision.Object) { o.Started = time.Now().Add(-time.Hour) })
			before[id] = n.balancers(id)[0].Handle
			n.silent[before[id]] = true
		}
		n.reconcileFor(t, rc, 5*time.Minute, always)
		for _, id := range lost {
			if now := n.balancers(id); len(now) != 1 || now[0].Handle == before[id] {
				t.Errorf("%s is %+v, before %s", id, now, before[id])
			}
		}
	})
}

// Balancers at Google wait for 'up' where those that may launch others have the same account as those that may not.
func TestSparesAtGoogleNeedAnAccount(t *testing.T) {
	const id = "lb-us-central1-2"
	text := strings.NewReplacer("aws/us-east-1", "gcp/us-central1, balancers: 3", "aws/eu-west-1", "gcp/europe-west4", "aws/us-west-2", "gcp/us-east4").Replace(threeBalancers)
	for account, want := range map[string]int{"": 0, "gcp: {spare_account: spare@p.iam.gserviceaccount.com}\n": 1} {
		synctest.Test(t, func(t *testing.T) {
			n := newControlWorld(t, text+account)
			rc := n.controller()
			n.reconcileFor(t, rc, time.Minute, always)
			n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "host failure" })
			n.reconcileFor(t, rc, 5*time.Minute, always)
			if got := n.balancers(id); len(got) != want {
				t.Errorf("with %q there is %+v", account, got)
			}
			if account == "" {
				n.wantAlert(rc, id, "gcp.spare_account is not set")
			}
		})
	}
}

// wantAlert checks that an alert about a machine contains a text and the next step.
func (n *controlWorld) wantAlert(rc *deploy.Reconciler, id, text string) {
	n.t.Helper()
	for _, a := range rc.Alerts() {
		if a.Object == id && strings.Contains(a.Message, text) && strings.Contains(a.NextStep, "skyserve up") {
			return
		}
	}
	n.t.Errorf("no alert about %s with %q: %+v", id, text, rc.Alerts())
}

// A launch that the cloud or a bound refuses is shown with the next step, and tried again at growing intervals; other
// zones of the region are tried at once.
func TestRefusedReplacementOfBalancer(t *testing.T) {
	t.Parallel()
	const id = "lb-eu-west-1-0"
	denied := &provision.CredentialsError{Cloud: service.CloudAWS, Action: "ec2:RunInstances", Err: errors.New("not authorized")}
	for name, tt := range map[string]struct {
		text    string
		refuse  func(provision.Offering) error
		tries   [2]int // attempts within two hours: at least, at most
		alert   string
		running int
	}{
		"the role is of an earlier version": {
			refuse: func(provision.Offering) error { return denied }, tries: [2]int{4, 10}, alert: "not authorized",
		},
		"no capacity in any zone": {
			refuse: func(o provision.Offering) error {
				return &provision.CapacityError{Offering: o, Scope: provision.ScopeZone, Code: "InsufficientInstanceCapacity"}
			}, tries: [2]int{8, 20}, alert: "InsufficientInstanceCapacity", // in two zones
		},
		"no capacity in one zone": {
			refuse: func(o provision.Offering) error {
				if strings.HasSuffix(o.Zone, "a") {
					return &provision.CapacityError{Offering: o, Scope: provision.ScopeZone}
				}
				return nil
			}, tries: [2]int{1, 2}, running: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newControlWorld(t, threeBalancers)
				rc := n.controller()
				n.reconcileFor(t, rc, time.Minute, always)
				tries := 0
				n.refuse = func(desired provision.Desired) error {
					tries++
					return tt.refuse(desired.Offerings[0])
				}
				n.ChangeObject(id, nil)
				n.reconcileFor(t, rc, 2*time.Hour, always)
				if tries < tt.tries[0] || tries > tt.tries[1] {
					t.Errorf("%d attempts, want %d to %d", tries, tt.tries[0], tt.tries[1])
				}
				if len(n.balancers(id)) != tt.running {
					t.Errorf("got %+v", n.balancers(id))
				}
				if tt.alert == "" {
					return
				}
				n.wantAlert(rc, id, tt.alert)
				if !slices.ContainsFunc(n.events, func(e telemetry.Event) bool {
					return e.Kind == telemetry.EventFailure && strings.Contains(e.Reason, "replacing "+id) && strings.Contains(e.Reason, "skyserve up")
				}) {
					t.Errorf("no event about the failure: %+v", n.events)
				}
			})
		})
	}
}

// A balancer that is lost again and again is replaced at growing intervals.
func TestBalancerIsLostRepeatedly(t *testing.T) {
	t.Parallel()
	const id = "lb-eu-west-1-0"
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, threeBalancers)
		rc := n.controller()
		handles := map[string]bool{}
		for range 4 * 60 {
			n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "host failure" })
			n.reconcileFor(t, rc, time.Minute, always)
			for _, o := range n.balancers(id) {
				handles[o.Handle] = true
			}
		}
		if len(handles) < 4 || len(handles) > 12 {
			t.Errorf("%d machines were launched within four hours, want 4 to 12", len(handles))
		}
	})
}

// An 'up' and a controller that replace the same balancer at the same time launch one machine, although the lists of
// both are older than the other's launch, and both record it.
func TestUpAndControllerLaunchOneBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := parse(t, strings.Replace(pair, "dns:", "#", 1))
		n := newOperatorWorld(t, &testcloud.Faults{})
		operator, controller := memoryNotes{}, memoryNotes{}
		launch := func(notes memoryNotes, enrolled map[string][]string) *deploy.Enrolments {
			t.Helper()
			dp := newDeployer(spec, n.open(t))
			dp.Enrolments = enrolments(t, notes)
			dp.Enrolments.LabelKey = "key"
			dp.Enrolments.SetEnrolled(enrolled)
			plan, err := dp.Plan(t.Context())
			if err == nil {
				_, err = dp.Up(t.Context(), plan, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			return dp.Enrolments
		}
		enrolled := launch(operator, nil).Handles()
		for _, m := range n.aws.Machines() {
			n.aws.TerminateInstance(m.ID)
		}
		for _, i := range n.gce.Instances() {
			n.gce.SetInstanceStatus(i.Name, "TERMINATED")
		}
		n.faults.StaleLists = 100 // neither lists what the other launches
		byController, byOperator := launch(controller, enrolled).Handles(), launch(operator, nil).Handles()
		for id, handles := range byController {
			if all := byOperator[id]; len(handles) != 1 || len(all) != 2 || all[1] != handles[0] {
				t.Errorf("%s: the controller launched %q, up %q", id, handles, all)
			}
		}
		if len(byController) != 2 {
			t.Errorf("the controller launched %v", byController)
		}
	})
}

// The firewalls of the other networks admit a replaced balancer once it has an address, and not again. What they do
// not admit, or what DNS records do not contain, is shown until 'up' knows the machine.
func TestReplacedBalancerIsAdmitted(t *testing.T) {
	t.Parallel()
	const id, group = "lb-eu-west-1-0", "firewall-us-east-1-balancer"
	synctest.Test(t, func(t *testing.T) {
		text := threeBalancers + "dns: {provider: route53, name: chat.example.com, zone: example.com}\n"
		n := newControlWorld(t, text)
		n.addresses()
		records := &recordMover{err: errors.New("not authorized to change records")}
		n.records = records
		rc := n.controller()
		n.reconcileFor(t, rc, time.Minute, always)
		before := n.object(group).SpecHash
		n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "host failure" })
		n.refuse = func(desired provision.Desired) error {
			if desired.Kind == provision.KindFirewall {
				return errors.New("not authorized to repair " + desired.ID)
			}
			return nil
		}
		n.reconcileFor(t, rc, time.Minute, always)
		if len(n.balancers(id)) != 1 || n.object(group).SpecHash != before {
			t.Fatalf("got %+v, %+v", n.balancers(id), n.object(group))
		}
		n.addresses()
		n.reconcileFor(t, rc, time.Minute, always)
		n.wantAlert(rc, id, "not authorized to repair "+group)
		n.wantAlert(rc, id, "the records of chat.example.com do not contain its new address, so clients reach the other balancers: moving records of chat.example.com: not authorized to change records")
		if records.calls == 0 || records.calls > 2 {
			t.Errorf("it tried to move records %d times within a minute, want once or twice", records.calls)
		}
		n.refuse, records.err = nil, nil
		n.reconcileFor(t, rc, 2*time.Minute, always)
		if got, want := records.last, n.object(id).PublicIP; len(got.Records) != 1 || got.Records[0].ID != id || got.Records[0].Address != want || got.Name != "chat.example.com" || got.Owner != n.owner {
			t.Errorf("moved are %+v, want %s at %s", got, id, want)
		}
		for _, a := range rc.Alerts() {
			if a.Object == id {
				t.Errorf("after the records were moved there is the alert %+v", a)
			}
		}
		moves := records.calls
		admitted := n.object(group).SpecHash
		if admitted == before {
			t.Error("the firewall does not admit the new machine")
		}
		if p, err := newDeployerOf(n.reconcilerWorld).Plan(t.Context()); err != nil || len(p.Changes) > 0 {
			t.Errorf("up would change %+v, %v", p.Changes, err)
		}
		calls := n.CountChanges()
		n.reconcileFor(t, rc, time.Hour, always)
		if n.CountChanges() != calls {
			t.Error("it changed more in the following hour")
		}
		if records.calls != moves {
			t.Errorf("it moved records %d times more", records.calls-moves)
		}
		n.deliver()
		n.reconcileFor(t, rc, time.Minute, always)
		for _, a := range rc.Alerts() {
			if a.Object == id {
				t.Errorf("after 'up' there is the alert %+v", a)
			}
		}
	})
}

// recordMover counts the attempts to move records.
type recordMover struct {
	calls int
	last  provision.PublicName
	err   error
}

func (m *recordMover) UpdateRecords(_ context.Context, _ string, n provision.PublicName) error {
	m.calls, m.last = m.calls+1, n
	return m.err
}

// Where no machine has an identity that could change the records, an alert says that 'up' does.
func TestRecordsWaitForUpWithoutAWS(t *testing.T) {
	const id = "lb-eu-west-1-0"
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, threeBalancers+"dns: {provider: route53, name: chat.example.com, zone: example.com}\n")
		n.addresses()
		rc := n.controller()
		n.reconcileFor(t, rc, time.Minute, always)
		n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "host failure" })
		n.reconcileFor(t, rc, time.Minute, always)
		n.addresses()
		n.reconcileFor(t, rc, time.Minute, always)
		n.wantAlert(rc, id, "no machine of the service has an identity at AWS")
	})
}

// object returns an object by its ID.
func (n *controlWorld) object(id string) provision.Object {
	n.t.Helper()
	all := n.Objects()
	i := slices.IndexFunc(all, func(o provision.Object) bool { return o.ID == id })
	if i < 0 {
		n.t.Fatalf("there is no %s", id)
	}
	return all[i]
}

// addresses gives every balancer an address that depends on its handle.
func (n *controlWorld) addresses() {
	for _, o := range n.balancers("") {
		n.ChangeObject(o.ID, func(o *provision.Object) {
			o.PublicIP = netip.AddrFrom4([4]byte{192, 0, 2, o.Handle[len(o.Handle)-1]})
			o.PrivateIP = o.PublicIP
		})
	}
}

// newDeployerOf returns the deployer of an operator of a service.
func newDeployerOf(u *reconcilerWorld) *deploy.Deployer {
	dp := newDeployer(u.spec, u.Memory)
	dp.Owner = u.owner
	return dp
}
