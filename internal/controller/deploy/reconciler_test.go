package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const kept = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - name: aws/us-east-1
    replicas: {min: 2, max: 3}
    capacity: [spot]
  - name: aws/eu-west-1
    replicas: {min: 1, max: 3}
`

// reconcilerWorld is a service in an in-memory cloud, with its controller's folder. Its machines have no
// addresses, so that their status is unknown.
type reconcilerWorld struct {
	*conformance.Memory
	dir   string
	owner string
	spec  *service.Spec
	// unresponsive are the regions that do not respond.
	unresponsive map[service.Region]bool
	// withoutOfferings are the regions whose offerings cannot be read.
	withoutOfferings map[service.Region]bool
	// duplicated are the IDs with a second machine.
	duplicated map[string]bool
	// ended are interrupted machines that the cloud does not list, scores the estimates of spot zones.
	ended    []provision.Object
	scores   map[string]float64
	advised  int // requests for scores
	records  provision.RecordUpdater
	noScores error
	store    testStore
	// refuse returns why a launch is refused; nil = none is.
	refuse func(provision.Desired) error
	// launched is called after a launch, listing before a region is listed; nil = nothing is.
	launched func()
	listing  func()
	// deliver replaces the bundle by that of another service.yaml.
	deliver func(text string)
}

// Launch launches an object, unless it is refused.
func (u *reconcilerWorld) Launch(ctx context.Context, desired provision.Desired) (provision.Object, error) {
	if u.refuse != nil {
		if err := u.refuse(desired); err != nil {
			return provision.Object{}, err
		}
	}
	o, err := u.Memory.Launch(ctx, desired)
	if u.launched != nil {
		u.launched()
	}
	return o, err
}

// Offerings returns the offerings of a region.
func (u *reconcilerWorld) Offerings(ctx context.Context, r service.Region) (provision.Offerings, error) {
	if u.withoutOfferings[r] {
		return nil, errors.New("throttled")
	}
	return u.Memory.Offerings(ctx, r)
}

func newReconcilerWorld(t *testing.T) *reconcilerWorld {
	t.Helper()
	return newReconcilerWorldOf(t, kept)
}

func newReconcilerWorldOf(t *testing.T, text string) *reconcilerWorld {
	t.Helper()
	home := identity.Home{Dir: t.TempDir()}
	authority, err := home.Create("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := deploy.DeploymentInput{Spec: parse(t, text), SpecYAML: []byte(text), Secrets: secrets, PeerToken: "p", Bundle: &deploy.ControllerBundle{CloudConfig: json.RawMessage("{}")}}
	if c.Bundle.Certificate, c.Bundle.DelegatedCA, err = home.Controller(time.Now()); err != nil {
		t.Fatal(err)
	}
	first := machineAt(cloud.FirstBalancer(c.Spec), provision.KindBalancer, cloud.ManagedRegions(c.Spec)[0], "", "1", 0)
	u := &reconcilerWorld{Memory: newCloud(c.Spec), dir: t.TempDir(), owner: authority.Owner(), spec: c.Spec, unresponsive: map[service.Region]bool{}}
	u.deliver = func(text string) {
		t.Helper()
		c.Spec, c.SpecYAML = parse(t, text), []byte(text)
		u.spec = c.Spec
		if err := os.RemoveAll(u.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(u.dir, os.DirFS(writeBundle(t, deployments(t, c, []provision.Object{first})[first.ID]))); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{identity.FileController, identity.FileDelegated} {
			if err := os.Chmod(filepath.Join(u.dir, name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	u.deliver(text)
	u.up(t)
	return u
}

// up makes the changes of an operator's `up`.
func (u *reconcilerWorld) up(t *testing.T) {
	t.Helper()
	dp := newDeployer(u.spec, u.Memory)
	dp.Owner = u.owner
	p, err := dp.Plan(t.Context())
	if err == nil {
		_, err = dp.Up(t.Context(), p, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reconciler returns a reconciler whose process has just started and that leads.
func (u *reconcilerWorld) reconciler() *deploy.Reconciler {
	rc := &deploy.Reconciler{Dir: u.dir, Open: func(_ context.Context, _ json.RawMessage, spec *service.Spec, owner string) (deploy.CloudAccess, error) {
		if owner != u.owner {
			return deploy.CloudAccess{}, errors.New("opened for " + owner)
		}
		lists := map[service.Region]deploy.Lister{}
		for _, r := range spec.Regions {
			lists[r.Name] = worldLister{u, r.Name}
		}
		return deploy.CloudAccess{Provider: u, Listers: lists, UserData: newDeployer(u.spec, u.Memory).UserData, RecordUpdater: u.records}, nil
	}}
	rc.UseRecords(u.store.nextTerm())
	return rc
}

// worldLister lists one region of it.
type worldLister struct {
	*reconcilerWorld
	region service.Region
}

func (l worldLister) List(ctx context.Context, name string) ([]provision.Object, error) {
	if l.listing != nil {
		l.listing()
	}
	if l.unresponsive[l.region] {
		return nil, errors.New("the cloud is out of order")
	}
	have, err := l.Memory.List(ctx, name)
	for _, o := range slices.Clone(have) {
		if l.duplicated[o.ID] {
			o.Handle += "-second"
			have = append(have, o)
		}
	}
	return slices.DeleteFunc(have, func(o provision.Object) bool { return o.Region != l.region }), err
}

// reconcileFor runs the reconciler for a duration.
func (u *reconcilerWorld) reconcileFor(t *testing.T, rc *deploy.Reconciler, d time.Duration, checkLeadership func() error) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), d)
	defer end()
	defer rc.Wait()
	for ctx.Err() == nil {
		interval := 5 * time.Second // the controller's loop
		if rc.Reconcile(ctx, checkLeadership) {
			interval = time.Second
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

func always() error { return nil }

// allServe reports all machines ready, with a request each. The reconciler polls less often than while the status of
// machines is unknown: tests over hours need a fifth of the CPU.
func allServe(have []provision.Object) map[string]deploy.AgentReport {
	seen := map[string]deploy.AgentReport{}
	for _, o := range have {
		seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady, InFlight: 1}}
	}
	return seen
}

// Statuses that the controller stops reading are discarded: a failure before the next observation is recorded.
func TestCancelledStatusesAreDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		var deaths []string
		rc.RecordEventsWith(func(e telemetry.Event) {
			if e.Kind == telemetry.EventDeath {
				deaths = append(deaths, e.Object)
			}
		})
		for _, observe := range []func(cancel func(), r *deploy.AgentReport){
			func(func(), *deploy.AgentReport) {},
			func(cancel func(), r *deploy.AgentReport) { cancel(); *r = deploy.AgentReport{Err: context.Canceled} },
			func(_ func(), r *deploy.AgentReport) { r.Phase = agent.PhaseFailed },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
				seen := allServe(have)
				r := seen["us-east-1-0"]
				observe(cancel, &r)
				seen["us-east-1-0"] = r
				return seen
			})
			rc.Reconcile(ctx, always)
			cancel()
			rc.Wait()
		}
		if !slices.Equal(deaths, []string{"us-east-1-0"}) {
			t.Errorf("failures of %q were recorded, want that of us-east-1-0", deaths)
		}
	})
}

// replicas returns the IDs of running replicas, with the regions that they are a fallback for.
func (u *reconcilerWorld) replicas() []string {
	var ids []string
	for _, o := range u.Objects() {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" {
			ids = append(ids, strings.TrimSuffix(o.ID+" for "+o.Labels["for"], " for "))
		}
	}
	slices.Sort(ids)
	return ids
}

var allKept = []string{"eu-west-1-0", "us-east-1-0", "us-east-1-1"}

// The second machine of an ID will be removed: it gets no deployment, and the first gets the one for
// its own addresses.
func TestDuplicateMachineGetsNoDeployment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		u.duplicated = map[string]bool{"us-east-1-0": true}
		rc := u.reconciler()
		var handles []string
		rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
			for _, o := range have {
				if o.ID == "us-east-1-0" {
					handles = append(handles, o.Handle)
				}
			}
			return nil
		})
		rc.Reconcile(t.Context(), always)
		rc.Wait()
		if len(handles) != 1 || strings.HasSuffix(handles[0], "-second") {
			t.Errorf("polled machines %q", handles)
		}
	})
}

func TestReconcilerReplacesLostReplicas(t *testing.T) {
	testkit.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		rc.SetProber(allServe)
		calls := u.CountChanges()
		u.reconcileFor(t, rc, 20*time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, allKept) || u.CountChanges() != calls {
			t.Errorf("without differences it launched %q in %d calls", got, u.CountChanges()-calls)
		}
		u.ChangeObject("us-east-1-1", nil) // deleted by the cloud
		u.ChangeObject("eu-west-1-0", func(o *provision.Object) { o.TerminatedReason = "taken by the cloud" })
		u.ChangeObject("firewall-us-east-1-balancer", func(o *provision.Object) { o.SpecHash = "changed by hand" })
		u.ChangeObject("lb-eu-west-1-0", nil)
		refused := errors.New("the lease is lost")
		u.reconcileFor(t, rc, 10*time.Second, func() error { return refused })
		if got := u.replicas(); len(got) != 1 {
			t.Errorf("without the lease it launched %q", got)
		}
		u.reconcileFor(t, rc, 10*time.Second, always)
		if got := u.replicas(); !slices.Equal(got, allKept) || len(u.Objects()) != 3+1+4+2 {
			t.Errorf("got %q, %d objects", got, len(u.Objects()))
		}
		for _, o := range u.Objects() {
			if o.ID == "lb-eu-west-1-0" || o.ID == "firewall-us-east-1-balancer" && o.SpecHash != "changed by hand" {
				t.Errorf("it changed %s, which only `up` may change", o.ID)
			}
		}
	})
}

// A controller whose machine is being terminated changes nothing: its successor does, whose configuration is current.
func TestReconcilerOnEndingMachineChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		u.ChangeObject("us-east-1-1", nil)
		u.ChangeObject("lb-us-east-1-0", func(o *provision.Object) { o.TerminatedReason = "the cloud terminates it" })
		u.reconcileFor(t, u.reconciler(), 10*time.Second, always)
		if got := u.replicas(); len(got) != 2 {
			t.Errorf("while its machine ends it launched %q", got)
		}
		u.ChangeObject("lb-us-east-1-0", func(o *provision.Object) { o.TerminatedReason = "" })
		u.reconcileFor(t, u.reconciler(), 10*time.Second, always)
		if got := u.replicas(); !slices.Equal(got, allKept) {
			t.Errorf("afterwards it has %q", got)
		}
	})
}

// Replicas of a region without capacity run in another region until the first has capacity again.
func TestReconcilerFallsBackToOtherRegions(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		u.CapacityError = func(o provision.Offering) *provision.CapacityError {
			if o.Region == "aws/us-east-1" {
				return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
			}
			return nil
		}
		rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport { // the new replica starts
			seen := allServe(have)
			if _, launched := seen["us-east-1-0"]; launched {
				seen["us-east-1-0"] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseStarting}}
			}
			return seen
		})
		u.ChangeObject("us-east-1-0", nil)
		u.reconcileFor(t, rc, 20*time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "eu-west-1-1 for aws/us-east-1", "us-east-1-1"}) {
			t.Errorf("without capacity: %q", got)
		}
		u.CapacityError = nil
		u.reconcileFor(t, rc, 20*time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "eu-west-1-1 for aws/us-east-1", "us-east-1-0", "us-east-1-1"}) {
			t.Errorf("with capacity, before the new replica is ready: %q", got)
		}
	})
}

// An unresponsive region is left unchanged, while the others are reconciled.
func TestUnresponsiveRegionIsUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		u.reconcileFor(t, rc, time.Second, always)
		u.unresponsive["aws/us-east-1"] = true
		u.ChangeObject("us-east-1-0", nil)
		u.ChangeObject("eu-west-1-0", nil)
		u.reconcileFor(t, rc, time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "us-east-1-1"}) {
			t.Errorf("while a region is unresponsive: %q", got)
		}
		s, err := rc.Current()
		if err != nil || len(s.Replicas) != 3 || len(s.Spec.Regions) != 2 {
			t.Errorf("got %+v (%v), want the last known state", s.Replicas, err)
		}
		change := controller.CapacityChange{
			Launch: []controller.ReplicaLaunch{{Model: "llama", Region: "aws/us-east-1", Count: 1}, {Model: "llama", Region: "aws/eu-west-1", Count: 1}},
			Remove: []string{"us-east-1-1"},
		}
		launched, err := rc.Apply(t.Context(), change, always)
		if !slices.Equal(launched, []string{"eu-west-1-1"}) || err == nil || !strings.Contains(err.Error(), "aws/us-east-1") {
			t.Errorf("launched %q: %v", launched, err)
		}
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "eu-west-1-1", "us-east-1-1"}) {
			t.Errorf("after a change: %q", got)
		}
		delete(u.unresponsive, "aws/us-east-1")
		u.reconcileFor(t, rc, time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "eu-west-1-1", "us-east-1-0", "us-east-1-1"}) {
			t.Errorf("once it responds again: %q", got)
		}
	})
}

// noisyRegion is a region whose errors differ each time.
type noisyRegion struct {
	*reconcilerWorld
	region service.Region
	calls  *int
}

// List fails with an error that differs each time.
func (n noisyRegion) List(ctx context.Context, name string) ([]provision.Object, error) {
	if n.region != "aws/us-east-1" {
		return worldLister{n.reconcilerWorld, n.region}.List(ctx, name)
	}
	*n.calls++
	return nil, fmt.Errorf("UnauthorizedOperation: Encoded authorization failure message: x9-AQoDYXdzEJr1AbCdEfGhIjKl%dQ", *n.calls)
}

// An error that only differs in generated numbers is logged once per interval; another error is logged
// immediately.
func TestReconcilerLogsRepeatedErrorsOnce(t *testing.T) {
	testkit.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		requests, log := 0, &strings.Builder{}
		rc := u.reconciler()
		open := rc.Open
		rc.Open = func(ctx context.Context, means json.RawMessage, spec *service.Spec, owner string) (deploy.CloudAccess, error) {
			reach, err := open(ctx, means, spec, owner)
			for r := range reach.Listers {
				reach.Listers[r] = noisyRegion{u, r, &requests}
			}
			return reach, err
		}
		rc.Logger = slog.New(slog.NewTextHandler(log, nil))
		u.reconcileFor(t, rc, time.Hour, always)
		if reported := strings.Count(log.String(), "level=ERROR"); requests < 100 || reported < 1 || reported > 10 {
			t.Errorf("logged %d times for %d failures", reported, requests)
		}
		u.unresponsive["aws/eu-west-1"] = true
		before := strings.Count(log.String(), "level=ERROR")
		u.reconcileFor(t, rc, 5*time.Second, always)
		if reported := strings.Count(log.String(), "level=ERROR"); reported != before+1 {
			t.Errorf("another error: logged %d times", reported-before)
		}
	})
}

// A fallback replica is not removed while balancers may send it requests. The reconciler does not wait
// for that and continues with everything else.
func TestFallbackReplicaInUseStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		dp := newDeployer(u.spec, u.Memory)
		dp.Owner = u.owner
		p, err := dp.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(p.Desired, func(desired provision.Desired) bool { return desired.ID == "eu-west-1-0" })
		extra := p.Desired[i]
		extra.ID, extra.Labels = "eu-west-1-1", map[string]string{"model": "llama", "gpu": "L4", "for": "aws/us-east-1"}
		extra.Offerings = extra.Offerings[:1]
		if _, err := u.Launch(t.Context(), extra); err != nil {
			t.Fatal(err)
		}
		rc := u.reconciler()
		rc.SetProber(allServe)
		u.reconcileFor(t, rc, 10*time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "eu-west-1-1 for aws/us-east-1", "us-east-1-0", "us-east-1-1"}) {
			t.Errorf("got %q", got)
		}
	})
}

// A region that becomes unresponsive while another turns out to have no capacity is left unchanged:
// its replicas are not launched again.
func TestRegionFailingMidwayIsUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		u.ChangeObject("eu-west-1-0", func(o *provision.Object) { o.SpecHash = "of another program" })
		u.CapacityError = func(o provision.Offering) *provision.CapacityError {
			u.unresponsive["aws/eu-west-1"] = true
			if o.Region == "aws/us-east-1" {
				return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
			}
			return nil
		}
		u.ChangeObject("us-east-1-0", nil)
		u.reconcileFor(t, u.reconciler(), time.Second, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "us-east-1-1"}) {
			t.Errorf("got %q", got)
		}
	})
}

// A fallback replica for a region is needed while that region is unresponsive.
func TestFallbackForUnresponsiveRegionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		u.ChangeObject("us-east-1-0", func(o *provision.Object) {
			o.ID, o.Region, o.Labels["for"] = "eu-west-1-1", "aws/eu-west-1", "aws/us-east-1"
		})
		u.unresponsive["aws/us-east-1"] = true
		u.reconcileFor(t, u.reconciler(), time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "eu-west-1-1 for aws/us-east-1", "us-east-1-1"}) {
			t.Errorf("got %q", got)
		}
	})
}

// A region whose offerings cannot be read is left unchanged until they can.
func TestRegionWithoutOfferingsHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		u.withoutOfferings = map[service.Region]bool{"aws/us-east-1": true}
		u.ChangeObject("us-east-1-0", nil)
		u.ChangeObject("eu-west-1-0", nil)
		rc := u.reconciler()
		u.reconcileFor(t, rc, time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"eu-west-1-0", "us-east-1-1"}) {
			t.Errorf("without its offerings: %q", got)
		}
		u.withoutOfferings = nil
		u.reconcileFor(t, rc, 10*time.Second, always)
		if got := u.replicas(); !slices.Equal(got, allKept) {
			t.Errorf("with its offerings: %q", got)
		}
	})
}

const spotFirst = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - name: aws/us-east-1
    replicas: {min: 2, max: 3}
    capacity: [spot, on_demand]
    on_demand_base: 1
`

// A replica on demand for lack of spot capacity is replaced by spot once there is capacity, within
// replicas.max. Replicas whose desired capacity type is on demand stay.
func TestReconcilerReturnsToSpot(t *testing.T) {
	testkit.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorldOf(t, spotFirst)
		capacities := func() string {
			var all []string
			for _, o := range u.Objects() {
				if o.Kind == provision.KindReplica {
					all = append(all, o.ID+" "+string(o.Offering.Capacity))
				}
			}
			slices.Sort(all)
			return strings.Join(all, ", ")
		}
		rc := u.reconciler()
		rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport { // all of them serve
			seen := map[string]deploy.AgentReport{}
			for _, o := range have {
				seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady}}
			}
			return seen
		})
		u.reconcileFor(t, rc, 30*time.Minute, always)
		if got := capacities(); got != "us-east-1-0 on_demand, us-east-1-1 spot" {
			t.Fatalf("at first: %s", got)
		}
		requests := 0
		u.CapacityError = func(o provision.Offering) *provision.CapacityError {
			if requests++; o.Capacity == service.CapacitySpot {
				return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
			}
			return nil
		}
		u.ChangeObject("us-east-1-1", nil)
		u.reconcileFor(t, rc, 8*time.Minute, always)
		if got := capacities(); got != "us-east-1-0 on_demand, us-east-1-1 on_demand" {
			t.Errorf("without spot: %s", got)
		}
		requests = 0
		u.reconcileFor(t, rc, time.Hour, always)
		if got := capacities(); got != "us-east-1-0 on_demand, us-east-1-1 on_demand" || requests < 3 || requests > 12 {
			t.Errorf("an hour later: %s, requested %d times", got, requests)
		}
		u.CapacityError = nil
		u.reconcileFor(t, rc, 25*time.Minute, always)
		if got := capacities(); got != "us-east-1-0 on_demand, us-east-1-1 on_demand, us-east-1-2 spot" { // balancers have not reported yet that they use it
			t.Errorf("with spot: %s", got)
		}
	})
}

// Whichever call a controller crashes before or after, the next one creates no duplicates.
func TestCrashedReconcilerCreatesNoDuplicates(t *testing.T) {
	for _, late := range []bool{false, true} {
		died := 0
		for at := 1; ; at++ {
			done := false
			synctest.Test(t, func(t *testing.T) {
				u := newReconcilerWorld(t)
				u.ChangeObject("us-east-1-1", nil)
				u.ChangeObject("eu-west-1-0", func(o *provision.Object) { o.TerminatedReason = "taken by the cloud" })
				u.RestartAfterCrash()
				u.CrashAt, u.CrashAfterEffect = at, late
				rc := u.reconciler()
				u.reconcileFor(t, rc, time.Second, always)
				change := controller.CapacityChange{Launch: []controller.ReplicaLaunch{{Model: "llama", Region: "aws/us-east-1", Count: 1}}}
				_, err := rc.Apply(t.Context(), change, always)
				done = u.CountChanges() < at
				u.RestartAfterCrash()
				u.reconcileFor(t, u.reconciler(), 10*time.Second, always)
				want := allKept
				if got := u.replicas(); err == nil || late && len(got) > len(want) {
					want = append(slices.Clone(want), "us-east-1-2") // the launch was its last call
				}
				if got := u.replicas(); !slices.Equal(got, want) {
					t.Errorf("crashed at call %d (late %t): %q, want %q", at, late, got, want)
				}
			})
			if done {
				break
			}
			died++
		}
		if died < 3 {
			t.Errorf("only %d crash points", died)
		}
	}
}

func TestStrategyChangesCloudReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		if _, err := rc.Current(); err == nil {
			t.Error("it returns a state before the first observation")
		}
		stands := func(want ...string) {
			t.Helper()
			u.reconcileFor(t, rc, time.Second, always)
			s, err := rc.Current()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range s.Replicas {
				line := r.ID + " " + r.Model + " " + r.GPU
				if r.Donation != nil && r.Donation.Draining() {
					line += " leaves"
				}
				got = append(got, line)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		carry := func(o controller.CapacityChange, want ...string) {
			t.Helper()
			launched, err := rc.Apply(t.Context(), o, always)
			slices.Sort(launched)
			if err != nil || !slices.Equal(launched, want) {
				t.Errorf("%+v launched %q, %v, want %q", o, launched, err, want)
			}
		}
		stands("us-east-1-0 llama L4", "us-east-1-1 llama L4", "eu-west-1-0 llama L4")
		carry(controller.CapacityChange{Launch: []controller.ReplicaLaunch{{Model: "llama", Region: "aws/us-east-1", Count: 9}, {Model: "llama", Region: "aws/eu-west-1", Count: 1}}}, "eu-west-1-1", "us-east-1-2")
		stands("us-east-1-0 llama L4", "us-east-1-1 llama L4", "us-east-1-2 llama L4", "eu-west-1-0 llama L4", "eu-west-1-1 llama L4")

		now := time.Now().UTC()
		removed := controller.CapacityChange{Drain: []controller.ReplicaDrain{{ID: "us-east-1-1", Donation: service.Donation{Since: now, Until: now}}}}
		carry(removed)
		stands("us-east-1-0 llama L4", "us-east-1-1 llama L4 leaves", "us-east-1-2 llama L4", "eu-west-1-0 llama L4", "eu-west-1-1 llama L4")
		rc = u.reconciler() // the next controller reads which replicas drain
		stands("us-east-1-0 llama L4", "us-east-1-1 llama L4 leaves", "us-east-1-2 llama L4", "eu-west-1-0 llama L4", "eu-west-1-1 llama L4")
		carry(controller.CapacityChange{Remove: []string{"us-east-1-1"}})
		stands("us-east-1-0 llama L4", "us-east-1-2 llama L4", "eu-west-1-0 llama L4", "eu-west-1-1 llama L4")
		carry(controller.CapacityChange{Launch: []controller.ReplicaLaunch{{Model: "llama", Region: "aws/us-east-1", Count: 1}}}, "us-east-1-1") // the new replica with that ID does not drain
		stands("us-east-1-0 llama L4", "us-east-1-1 llama L4", "us-east-1-2 llama L4", "eu-west-1-0 llama L4", "eu-west-1-1 llama L4")

		refused := errors.New("the lease is lost")
		if _, err := rc.Apply(t.Context(), controller.CapacityChange{Remove: []string{"us-east-1-0"}}, func() error { return refused }); !errors.Is(err, refused) || len(u.replicas()) != 5 {
			t.Errorf("without the lease: %v, and %q remain", err, u.replicas())
		}
	})
}

// While machines are observed or changed, a strategy waits for its next round.
func TestChangesAreExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		u.ChangeObject("us-east-1-1", nil)
		var busy error
		u.CapacityError = func(provision.Offering) *provision.CapacityError {
			_, busy = rc.Apply(t.Context(), controller.CapacityChange{}, always)
			return nil
		}
		u.reconcileFor(t, rc, time.Second, always)
		if !errors.Is(busy, controller.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", busy)
		}
	})
}
