package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// Only working machines of balancers are updated one at a time: those that have ended or do not respond are replaced
// together, since two lost members of the store return only together.
func TestUpdatesAreOfWorkingBalancers(t *testing.T) {
	works := provision.Object{ID: "lb-us-0", Kind: provision.KindBalancer, SpecHash: "s"}
	silent, ended, replica := works, works, works
	silent.SpecHash, ended.TerminatedReason, replica.Kind = "", "host failure", provision.KindReplica
	for name, tt := range map[string]struct {
		action provision.ChangeAction
		have   provision.Object
		want   bool
	}{
		"works": {provision.ActionReplace, works, true}, "does not respond": {provision.ActionReplace, silent, false}, "has ended": {provision.ActionReplace, ended, false},
		"a replica": {provision.ActionReplace, replica, false}, "only reloads": {provision.ActionReload, works, false}, "is removed": {provision.ActionTerminate, works, false},
	} {
		c := provision.Change{Action: tt.action, Observed: tt.have}
		if tt.action != provision.ActionTerminate {
			c.Desired = provision.Desired{ID: tt.have.ID, Kind: tt.have.Kind}
		}
		if got := isUpdate(c); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A region gets another name, and all processes are killed before 'up' has recorded the controllers: they are those of the
// earlier names. The balancer with the other name may hold a copy without which the store has no majority, so 'up' with the
// earlier name starts it too, and deletes it only once the store is replicated.
func TestEndedMembersAreStarted(t *testing.T) {
	const text = `
name: chat
models: [{name: m, engine: {kind: sim}}]
regions: [{name: local/us}, {name: local/eu}, {name: local/asia}]
`
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	ended := func(id string, region service.Region) provision.Object {
		return provision.Object{ID: id, Kind: provision.KindBalancer, Region: region, SpecHash: "s", TerminatedReason: "process exited", PublicIP: netip.MustParseAddr("127.0.0.1"), Endpoints: provision.MachineEndpoints{Listen: provision.Addresses{Routes: "127.0.0.1:1"}}}
	}
	launch := func(o provision.Object) provision.Change {
		return provision.Change{Action: provision.ActionLaunch, Desired: provision.Desired{ID: o.ID, Kind: o.Kind, Region: o.Region, SpecHash: "s"}, Observed: o}
	}
	tokyo := ended("lb-tokyo-0", "local/tokyo")
	runs, inCloud, replica := tokyo, tokyo, tokyo
	runs.TerminatedReason, inCloud.Region, replica.Kind = "", "aws/ap-northeast-1", provision.KindReplica
	changed := launch(ended("lb-eu-0", "local/eu"))
	changed.Desired.SpecHash = "another disk"
	for name, tt := range map[string]struct {
		eu      provision.Change
		removed provision.Object
		want    string
	}{
		"all have ended":                     {launch(ended("lb-eu-0", "local/eu")), tokyo, "lb-eu-0 lb-tokyo-0 lb-us-0"},
		"one gets another disk":              {changed, tokyo, "lb-tokyo-0 lb-us-0"},
		"the removed one runs no controller": {launch(ended("lb-eu-0", "local/eu")), runs, ""},
		"the removed one was in a cloud":     {launch(ended("lb-eu-0", "local/eu")), inCloud, ""},
		"only a replica is removed":          {launch(ended("lb-eu-0", "local/eu")), replica, ""},
	} {
		us := ended("lb-us-0", "local/us")
		changes := provision.Changes{tt.eu, launch(us), {Action: provision.ActionTerminate, Observed: tt.removed}}
		u := &upRun{up: &up{}, spec: spec, controllers: []string{"lb-asia-0", "lb-eu-0", "lb-us-0"}, changes: &deploy.MachinePlan{
			Observed: []provision.Object{us, tt.eu.Observed, tt.removed}, Changes: changes,
		}}
		var ids []string
		for _, c := range u.endedMembers() {
			ids = append(ids, c.ID())
		}
		if slices.Sort(ids); strings.Join(ids, " ") != tt.want {
			t.Errorf("%s: starts %q, want %q", name, ids, tt.want)
		}
	}
}

// service.yaml must keep a balancer with the store. A machine in a cloud that has ended has none, and --replace gives up a
// machine with what it stores.
func TestServiceKeepsStore(t *testing.T) {
	balancer := func(region service.Region) provision.Object {
		return provision.Object{ID: provision.BalancerID(region, 0), Kind: provision.KindBalancer, Region: region, PublicIP: netip.MustParseAddr("127.0.0.1"), Endpoints: provision.MachineEndpoints{Listen: provision.Addresses{Routes: "127.0.0.1:1"}}}
	}
	ended := func(o provision.Object) provision.Object {
		o.TerminatedReason = "ended"
		return o
	}
	us, eu, asia := balancer("local/us"), balancer("local/eu"), balancer("local/asia")
	const rented = "balancer: {auth: {keys_from: env:KEYS}, insecure: true}\n"
	for name, tt := range map[string]struct {
		have    []provision.Object
		regions string
		replace []string
		more    string // further lines of service.yaml
		want    string // the removed regions with the store; empty = it is kept
	}{
		"one stays":                 {have: []provision.Object{us, eu, asia}, regions: "local/us local/b local/c"},
		"all get another name":      {have: []provision.Object{us, eu, asia}, regions: "local/a local/b local/c", want: "local/asia, local/eu, local/us"},
		"all have ended":            {have: []provision.Object{ended(us), ended(eu), ended(asia)}, regions: "local/a local/b local/c", want: "local/asia, local/eu, local/us"},
		"the only one":              {have: []provision.Object{us}, regions: "local/a", want: "local/us"},
		"the only one of two":       {have: []provision.Object{us, balancer("local/a")}, regions: "local/a", want: "local/us"},
		"given up":                  {have: []provision.Object{us}, regions: "local/a", replace: []string{"lb-us-0"}},
		"given up in part":          {have: []provision.Object{us, eu, asia}, regions: "local/a local/b local/c", replace: []string{"lb-us-0"}, want: "local/asia, local/eu"},
		"in another server":         {have: []provision.Object{us}, regions: "local/a", more: "store: {url: nats://127.0.0.1:4222}\n"},
		"a machine that has ended":  {have: []provision.Object{ended(balancer("aws/us-east-1"))}, regions: "aws/eu-west-1", more: rented},
		"a machine that still runs": {have: []provision.Object{balancer("aws/us-east-1")}, regions: "aws/eu-west-1", more: rented, want: "aws/us-east-1"},
	} {
		text := "name: chat\nmodels: [{name: m, engine: {kind: sim}, gpus: [{type: L4}]}]\n" + tt.more + "regions:\n"
		for region := range strings.FieldsSeq(tt.regions) {
			text += "  - {name: " + region + "}\n"
		}
		spec, err := service.Parse("service.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		u := &upRun{up: &up{upOptions: &upOptions{replace: tt.replace}}, spec: spec, changes: &deploy.MachinePlan{Observed: tt.have}}
		for _, o := range tt.have {
			if o.ID != "lb-a-0" {
				u.controllers = append(u.controllers, o.ID)
			}
		}
		err = u.checkStoreKept()
		if got := fmt.Sprint(err); tt.want == "" && err != nil || tt.want != "" && !strings.Contains(got, "("+tt.want+")") {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// earlierWorld is a service in AWS that an `up` with one program launched and another `up` with another program changes.
type earlierWorld struct {
	*upRun
	machines *conformance.Memory
}

func newEarlierWorld(t *testing.T, text string) *earlierWorld {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	m := &conformance.Memory{RegionOfferings: map[service.Region]provision.Offerings{}}
	for _, r := range spec.Regions {
		for _, kind := range provision.MachineTypes(r.Name.Cloud()) {
			m.RegionOfferings[r.Name] = append(m.RegionOfferings[r.Name], kind.Offering(r.Name, r.Name.ShortName()+"a", service.CapacityOnDemand))
		}
	}
	program := func(digit string) machineProgram {
		return machineProgram{URL: "https://example.com/skyserve", SHA256: strings.Repeat(digit, 64)}
	}
	return &earlierWorld{machines: m, upRun: &upRun{
		up: &up{}, spec: spec, operator: operator{owner: "owner"}, places: provision.MultiCloud{service.CloudAWS: m}, program: program("1"), earlierProgram: program("0"),
	}}
}

// desired returns a balancer's machine with a program.
func (w *earlierWorld) desired(t *testing.T, id string, p machineProgram) provision.Desired {
	t.Helper()
	plan, err := newDeployer(w.spec, w.operator.owner, w.places, p).Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(plan.Desired, func(d provision.Desired) bool { return d.ID == id })
	if i < 0 {
		t.Fatalf("no %s in %+v", id, plan.Desired)
	}
	return plan.Desired[i]
}

// A machine in a cloud whose new program does not become ready returns to the recorded program of the last `up`. The machine
// that failed is replaced if it exists. If service.yaml has changed the machine too, it does not return.
func TestCloudMachineReturnsToEarlierProgram(t *testing.T) {
	const id, text = "lb-us-east-1-0", `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4}]}]
regions: [{name: aws/us-east-1, replicas: {min: 0, max: 1}}]
`
	moved := strings.Replace(text, "name: aws/us-east-1,", "name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: [subnet-0a1b2c3d],", 1)
	for name, tt := range map[string]struct {
		before, now string
		failed      bool // the machine with the new program exists
		want        provision.ChangeAction
		problem     string
	}{
		"the failed machine exists":     {text, text, true, provision.ActionReplace, ""},
		"it was not launched":           {text, text, false, provision.ActionLaunch, ""},
		"service.yaml has changed, too": {text, moved, true, "", "run 'skyserve up' with the earlier service.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			before, now := newEarlierWorld(t, tt.before), newEarlierWorld(t, tt.now)
			earlier, failing := before.desired(t, id, before.earlierProgram), now.desired(t, id, now.program)
			if earlier.SpecHash == failing.SpecHash {
				t.Fatal("another program is no change")
			}
			c := provision.Change{Action: provision.ActionReplace, Desired: failing, Observed: provision.Object{ID: id, Kind: provision.KindBalancer, Handle: "i-earlier", SpecHash: earlier.SpecHash}}
			failedHandle := ""
			if tt.failed {
				o, err := now.machines.Launch(t.Context(), failing)
				if err != nil {
					t.Fatal(err)
				}
				failedHandle = o.Handle
			}
			back, err := now.toEarlier(t.Context(), c)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || back.Action != tt.want || back.Desired.SpecHash != earlier.SpecHash || back.Observed.Handle != failedHandle {
				t.Errorf("got %s of %q with %s, want %s of %q with %s (%v)", back.Action, back.Observed.Handle, back.Desired.SpecHash, tt.want, failedHandle, earlier.SpecHash, err)
			}
			if document := back.Desired.Machine.UserData; !strings.Contains(document, strings.Repeat("0", 64)) || strings.Contains(document, strings.Repeat("1", 64)) {
				t.Errorf("the machine downloads another program:\n%s", document)
			}
		})
	}
}

// fallbackService has three balancers, and a replica that runs in the other region if its own has no capacity.
const fallbackService = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: m, engine: {kind: sim, speed: 100}, gpus: [{type: L4}]}]
regions:
  - {name: aws/us-east-1, balancers: 2, replicas: {min: 1, max: 2}}
  - {name: aws/eu-west-1, replicas: {min: 0, max: 2}}
`

// An update of several controllers replaces only one balancer before that one is ready, also if the same run launches a
// replica whose region has no capacity. The replica runs elsewhere, and belongs to the run.
func TestUpdateWithFallbackReplacesOneBalancer(t *testing.T) {
	w := newEarlierWorld(t, fallbackService)
	ids := []string{"lb-eu-west-1-0", "lb-us-east-1-0", "lb-us-east-1-1"}
	earlier := newDeployer(w.spec, w.operator.owner, w.places, w.earlierProgram)
	plan, err := earlier.Plan(t.Context())
	if err == nil {
		_, err = earlier.Up(t.Context(), plan, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	handles := func() map[string]string {
		of := map[string]string{}
		for _, o := range w.machines.Objects() {
			of[o.ID] = o.Handle
		}
		return of
	}
	before := handles()
	w.machines.ChangeObject("us-east-1-0", nil)
	w.machines.CapacityError = func(o provision.Offering) *provision.CapacityError {
		if o.GPUs > 0 && o.Region == "aws/us-east-1" {
			return &provision.CapacityError{Offering: o, Code: "InsufficientInstanceCapacity"}
		}
		return nil
	}
	w.svc = storedService(t, fallbackService)
	if w.enrolments, err = deploy.ReadEnrolments(w.svc); err != nil {
		t.Fatal(err)
	}
	w.errOut, w.upOptions, w.controllers = io.Discard, &upOptions{timeout: time.Second}, ids
	w.deployer = newDeployer(w.spec, w.operator.owner, w.places, w.program)
	w.deployer.ListObserved = func(ctx context.Context) ([]provision.Object, error) {
		have, err := w.machines.List(ctx, "chat")
		for i := range have {
			have[i].PrivateIP, have[i].PublicIP = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1")
		}
		return have, err
	}
	if w.changes, err = w.deployer.Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err = w.updateBalancers(t.Context()); err == nil || !strings.Contains(err.Error(), "does not have the peer token") {
		t.Errorf("the update of the first balancer: %v", err)
	}
	after, replaced := handles(), 0
	for _, id := range ids {
		if after[id] != before[id] {
			replaced++
		}
	}
	if replaced > 1 || after["us-east-1-0"] != "" || after["eu-west-1-0"] == "" {
		t.Errorf("%d balancers were replaced: %v, before %v", replaced, after, before)
	}
	if !w.isChanged("eu-west-1-0") || w.isChanged("us-east-1-0") || !slices.ContainsFunc(w.changes.Desired, func(d provision.Desired) bool { return d.ID == "eu-west-1-0" }) {
		t.Errorf("the run has the changes %+v", w.changes.Changes)
	}
}

// `up` reports a replica that runs in another region than planned first, with its cost, and delivers to it as to a machine
// that it has launched.
func TestFallbackReplicaIsReported(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "starts the machines of a service; other tests cover the same code")
	t.Parallel()
	e := emulate(t)
	e.aws.Configure(func() {
		e.aws.CapacityErrorCode = func(zone, machine, _ string) string {
			if strings.HasPrefix(zone, "us-east-1") && strings.HasPrefix(machine, "g6.") {
				return "InsufficientInstanceCapacity"
			}
			return ""
		}
	})
	text := strings.Replace(fallbackService, "balancers: 2, ", "", 1)
	var document struct {
		Ready   bool
		Changes []struct{ ID string }
		Cost    struct{ Then float64 } `json:"cost_per_hour"`
	}
	e.document(&document, append(e.upOf(text), "--yes", "-o", "json")...)
	var ids []string
	for _, c := range document.Changes {
		ids = append(ids, c.ID)
	}
	if !document.Ready || !slices.Contains(ids, "eu-west-1-0") || slices.Contains(ids, "us-east-1-0") || !slices.Contains(ids, "lb-us-east-1-0") {
		t.Errorf("the document: %+v", document)
	}
	want := testcloud.FakePrice("eu-west-1", "g6.xlarge") + testcloud.FakePrice("eu-west-1", "c7i.large") + testcloud.FakePrice("us-east-1", "c7i.large")
	if got := document.Cost.Then; got < want-0.001 || got > want+0.001 {
		t.Errorf("it costs %g, want %g", got, want)
	}
	e.downAndCheckEmpty()
}

// The replica that does not respond is replaced before the one that is ready, which has the lower ID.
func TestReplicasThatDoNotServeAreReplacedFirst(t *testing.T) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	party := func(role identity.Role, id string) identity.Party {
		key, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := authority.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: id}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return identity.NewParty(chain, key)
	}
	ready := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(agent.Status{Phase: agent.PhaseReady})
	}))
	ready.Listener = tls.NewListener(ready.Listener, party(identity.Replica, "us-0").Server(identity.Operator))
	ready.Start()
	defer ready.Close()
	silent := httptest.NewServer(nil)
	silent.Close() // nothing listens there any more
	u := &upRun{up: &up{}, spec: &service.Spec{Name: "chat"}, operator: operator{party: party(identity.Operator, "ops")}, changes: &deploy.MachinePlan{}}
	for i, server := range []*httptest.Server{ready, silent} {
		id := fmt.Sprint("us-", i)
		o := provision.Object{ID: id, Kind: provision.KindReplica, Region: "local/us", Handle: id}
		o.Endpoints.Listen.Agent = server.Listener.Addr().String()
		u.changes.Observed = append(u.changes.Observed, o)
		u.changes.Changes = append(u.changes.Changes, provision.Change{Action: provision.ActionReplace, Desired: provision.Desired{ID: id, Kind: o.Kind, Region: o.Region}, Observed: o})
	}
	u.replaceNotServingFirst(t.Context())
	if got := []string{u.changes.Changes[0].ID(), u.changes.Changes[1].ID()}; !slices.Equal(got, []string{"us-1", "us-0"}) {
		t.Errorf("replaced in the order %q", got)
	}
}

func TestMachineNamesTheNumberOfAlternatives(t *testing.T) {
	offer := provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Capacity: service.CapacitySpot}
	for n, want := range map[int]string{1: offer.String(), 2: offer.String() + ", or 1 other", 3: offer.String() + ", or 2 others"} {
		c := provision.Change{Desired: provision.Desired{Region: "aws/us-east-1", Offerings: slices.Repeat([]provision.Offering{offer}, n)}}
		if got := formatMachine(c); got != want {
			t.Errorf("%d offerings: got %q, want %q", n, got, want)
		}
	}
}
