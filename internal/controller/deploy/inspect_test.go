package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
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
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// cloudRegion is one region's view of a cloud: identities are in every region's list.
type cloudRegion struct {
	*conformance.Memory
	region service.Region
	hangs  bool
	err    error
}

func (r cloudRegion) List(ctx context.Context, name string) ([]provision.Object, error) {
	if r.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if r.err != nil {
		return nil, r.err
	}
	var have []provision.Object
	all, err := r.Memory.List(ctx, name)
	for _, o := range all {
		if o.Region == r.region || o.Kind == provision.KindIdentity {
			have = append(have, o)
		}
	}
	return have, err
}

// newInspector returns the service of twoClouds after `up`, with addresses for all machines, and its
// inspector. Machines without an entry in responses report that they are ready.
func newInspector(t *testing.T, responses map[string]func(context.Context) (agent.Status, error)) (*conformance.Memory, *deploy.Inspector) {
	t.Helper()
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	for n, o := range m.Objects() {
		ip := netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n+1))
		m.ChangeObject(o.ID, func(o *provision.Object) { o.PublicIP, o.PrivateIP = ip, ip })
	}
	i := &deploy.Inspector{Deployer: newDeployer(spec, m), Listers: map[service.Region]deploy.Lister{}}
	for _, r := range cloud.ManagedRegions(spec) {
		i.Listers[r] = cloudRegion{Memory: m, region: r}
	}
	i.ReadStatus = func(ctx context.Context, _ []provision.Object, o provision.Object) (agent.Status, error) {
		if f := responses[o.ID]; f != nil {
			return f(ctx)
		}
		return agent.Status{Phase: agent.PhaseReady}, nil
	}
	return m, i
}

// machineState returns the state and reason of a machine.
func machineState(t *testing.T, s *deploy.ServiceStatus, id string) string {
	t.Helper()
	for _, r := range s.Regions {
		for _, m := range append(r.Balancers, r.Replicas...) {
			if m.ID == id {
				return strings.TrimSpace(string(m.State) + " " + m.Reason)
			}
		}
	}
	t.Fatalf("no %s in %+v", id, s)
	return ""
}

func TestStatusOfHealthyService(t *testing.T) {
	m, i := newInspector(t, nil)
	s, err := i.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var cost float64
	for _, o := range m.Objects() {
		cost += o.CostPerHour
	}
	if s.State != deploy.StateReady || len(s.Problems) > 0 || s.Drift == nil || len(s.Drift) > 0 || len(s.Regions) != 2 || math.Abs(s.CostPerHour-cost) > 1e-9 {
		t.Errorf("got %+v, want a cost of %v", s, cost)
	}
	if got := s.Regions[0]; got.Name != "aws/us-east-1" || len(got.Balancers) != 1 || len(got.Replicas) != 2 || got.Endpoint != got.Balancers[0].Endpoint || got.Replicas[0].Model != "llama" {
		t.Errorf("the first region is %+v", got)
	}
}

// A machine that hangs or is in any other state does not affect the status of the others.
func TestStatusOfMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		responds := func(phase agent.Phase, reason string, err error) func(context.Context) (agent.Status, error) {
			return func(context.Context) (agent.Status, error) { return agent.Status{Phase: phase, Reason: reason}, err }
		}
		for _, c := range []struct {
			name, want string
			response   func(context.Context) (agent.Status, error)
			change     func(*provision.Object)
			state      deploy.ServiceState
		}{
			{name: "hangs", want: "NOT_READY no response within 2s", state: deploy.StateDegraded, response: func(ctx context.Context) (agent.Status, error) {
				<-ctx.Done()
				return agent.Status{}, ctx.Err()
			}},
			{name: "refuses connections", want: "NOT_READY connection refused", state: deploy.StateDegraded, response: responds("", "", errors.New("connection refused"))},
			{name: "stranger", want: "STARTING enrolling: it has no valid certificate of the service; the controller or 'skyserve up' issues one", state: deploy.StateDegraded, response: responds("", "", fmt.Errorf("connect: %w", identity.ErrUntrusted))},
			{name: "pulls", want: "STARTING image: 3 of 9 layers", state: deploy.StateDegraded, response: responds(agent.PhaseImage, "3 of 9 layers", nil)},
			{name: "waits", want: "STARTING waiting", state: deploy.StateDegraded, response: responds(agent.PhaseWaiting, "", nil)},
			{name: "failed", want: "FAILED no GPU", state: deploy.StateDegraded, response: responds(agent.PhaseFailed, "no GPU", nil)},
			{name: "failed, and tries again", want: "FAILED no_space: the disk is full", state: deploy.StateDegraded, response: func(context.Context) (agent.Status, error) {
				return agent.Status{Phase: agent.PhaseImage, Failure: &agent.Failure{Kind: agent.FailureNoSpace, Permanent: true, Message: "the disk is full"}}, nil
			}},
			{name: "fails at times", want: "STARTING image", state: deploy.StateDegraded, response: func(context.Context) (agent.Status, error) {
				return agent.Status{Phase: agent.PhaseImage, Failure: &agent.Failure{Kind: agent.FailureUnknown}}, nil
			}},
			{name: "drains", want: "DRAINING", state: deploy.StateDegraded, response: responds(agent.PhaseDraining, "", nil)},
			{name: "interrupted", want: "INTERRUPTED in 2 minutes", state: deploy.StateDegraded, response: responds(agent.PhaseInterrupted, "in 2 minutes", nil)},
			{name: "boots", want: "PROVISIONING waiting for an address", state: deploy.StateDegraded, change: func(o *provision.Object) { o.PublicIP, o.PrivateIP = netip.Addr{}, netip.Addr{} }},
			{name: "stopped by the cloud", want: "INTERRUPTED stopped by the cloud", state: deploy.StateDegraded, change: func(o *provision.Object) { o.TerminatedReason = "stopped by the cloud" }},
			{name: "well", want: "READY", state: deploy.StateReady},
		} {
			m, i := newInspector(t, map[string]func(context.Context) (agent.Status, error){"us-east-1-1": c.response})
			if c.change != nil {
				m.ChangeObject("us-east-1-1", c.change)
			}
			began := time.Now()
			s, err := i.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := machineState(t, s, "us-east-1-1"); !strings.HasPrefix(got, c.want) || s.State != c.state || machineState(t, s, "us-east-1-0") != "READY" || time.Since(began) > 2*time.Second {
				t.Errorf("%s: after %s %s, and the service is %s", c.name, time.Since(began), got, s.State)
			}
		}
	})
}

// A controller that cannot work, for example on a full disk, has its own status: the balancer on its
// machine serves. Its warnings are shown too.
func TestStatusOfControllerWithFullDisk(t *testing.T) {
	full := "readiness probe returned HTTP status 503"
	alert := telemetry.Alert{Severity: telemetry.SeverityCritical, Kind: telemetry.AlertStore, Message: "no space left on device"}
	for phase, c := range map[agent.Phase]struct {
		unit  agent.UnitStatus
		state deploy.ServiceState
		want  string
	}{
		agent.PhaseStarting: {agent.UnitStatus{Running: true, Reason: full, Alerts: []telemetry.Alert{alert}}, deploy.StateDegraded, "STARTING " + full},
		agent.PhaseFailed:   {agent.UnitStatus{Reason: "exit status 1"}, deploy.StateDegraded, "FAILED exit status 1"},
		agent.PhaseReady:    {agent.UnitStatus{Running: true, Ready: true, Reason: "warning: 12 MiB free"}, deploy.StateReady, "READY warning: 12 MiB free"},
	} {
		c.unit.Name = deploy.UnitController
		_, i := newInspector(t, map[string]func(context.Context) (agent.Status, error){"lb-us-east-1-0": func(context.Context) (agent.Status, error) {
			return agent.Status{Phase: phase, Reason: "controller: ...", Units: []agent.UnitStatus{{Name: "balancer", Running: true, Ready: true}, c.unit}}, nil
		}})
		s, err := i.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := machineState(t, s, "lb-us-east-1-0"); !strings.HasPrefix(got, "READY") || s.State != c.state || s.Controller == nil {
			t.Errorf("%s: the balancer is %s and the service %s with %+v", phase, got, s.State, s.Controller)
		}
		if !slices.Equal(s.Controller.Alerts, c.unit.Alerts) {
			t.Errorf("%s: got the alerts %+v, want %+v", phase, s.Controller.Alerts, c.unit.Alerts)
		}
		if got := string(s.Controller.State) + " " + s.Controller.Reason; got != c.want {
			t.Errorf("%s: got %q, want %q", phase, got, c.want)
		}
	}
}

// A region that does not respond does not prevent the status of others; the changes of `up` are then unknown.
func TestStatusOfUnresponsiveRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, i := newInspector(t, nil)
		i.Listers["gcp/europe-west4"] = cloudRegion{Memory: m, region: "gcp/europe-west4", hangs: true}
		s, err := i.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.State != deploy.StateDegraded || s.Drift != nil || len(s.Problems) != 2 || machineState(t, s, "us-east-1-0") != "READY" {
			t.Errorf("got %+v", s)
		}
		if want := "listing the objects of chat in gcp/europe-west4: no response within 10s"; s.Problems[0] != want {
			t.Errorf("got %q, want %q", s.Problems[0], want)
		}
		m.ChangeObject("lb-us-east-1-0", nil)
		if s, err = i.Status(t.Context()); err != nil || s.State != deploy.StateUnknown {
			t.Errorf("without known balancers: %+v, %v", s, err)
		}
	})
}

func TestStatusErrors(t *testing.T) {
	m, i := newInspector(t, nil)
	denied := &provision.CredentialsError{Cloud: "aws", Err: errors.New("expired"), Hint: "log in"}
	for r := range i.Listers {
		i.Listers[r] = cloudRegion{Memory: m, region: r, err: denied}
	}
	var credentials *provision.CredentialsError
	if _, err := i.Status(t.Context()); !errors.As(err, &credentials) || strings.Count(err.Error(), "expired") != 1 {
		t.Errorf("without credentials: %v", err)
	}
	_, i = newInspector(t, nil)
	i.Deployer.Owner = "you"
	var owned *provision.OwnedError
	if _, err := i.Status(t.Context()); !errors.As(err, &owned) {
		t.Errorf("of another owner: %v", err)
	}
}

// Status shows the changes of `up`: missing, changed and excess machines.
func TestStatusShowsDrift(t *testing.T) {
	m, i := newInspector(t, nil)
	m.ChangeObject("us-east-1-1", nil)
	m.ChangeObject("firewall-us-east-1-replica", func(o *provision.Object) { o.SpecHash = "port 22 is open" })
	s, err := i.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range s.Drift {
		got = append(got, fmt.Sprintf("%s %s: %s", c.Action, c.ID, c.Reason))
	}
	if want := "repair firewall-us-east-1-replica: does not match its configuration, launch us-east-1-1: new"; strings.Join(got, ", ") != want || s.State != deploy.StateDegraded {
		t.Errorf("got %q (%s), want %q", got, s.State, want)
	}
	i.Deployer.UserData = nil
	if s, err = i.Status(t.Context()); err != nil || s.Drift != nil || len(s.Problems) != 1 {
		t.Errorf("without UserData: %+v, %v", s, err)
	}
}

// A balancer without a certificate is enrolled by `up`. If its key has changed, `up` refuses that, and the status names
// the command that replaces the machine instead.
func TestStatusOfBalancerWithAnotherKey(t *testing.T) {
	const id = "lb-us-east-1-0"
	pin := fmt.Errorf("dialling: %w", &identity.PinError{Want: "first", Found: "other"})
	for _, tt := range []struct {
		name, recorded string
		presents       error
		want           string
	}{
		{"it boots", "", nil, "STARTING enrolling: it has no valid certificate of the service; 'skyserve up' issues one"},
		{"its certificate has expired", "first", nil, "STARTING enrolling: it has no valid certificate of the service; 'skyserve up' issues one"},
		{"it has stopped responding", "first", errors.New("connection refused"), "STARTING enrolling: it has no valid certificate of the service; 'skyserve up' issues one"},
		{"its key has changed", "first", pin, "UNREACHABLE its key has changed: 'skyserve up' gives it no certificate; find out who changed the machine or impersonates it, then run 'skyserve up --replace " + id + "'"},
	} {
		m, i := newInspector(t, map[string]func(context.Context) (agent.Status, error){id: func(context.Context) (agent.Status, error) {
			return agent.Status{}, fmt.Errorf("connect: %w", identity.ErrUntrusted)
		}})
		notes := "["
		for _, o := range m.Objects() {
			if o.Kind == provision.KindBalancer {
				notes += fmt.Sprintf(`{"id":%q,"handle":%q,"fingerprint":%q},`, o.ID, o.Handle, tt.recorded)
			}
		}
		i.Enrolments = enrolments(t, memoryNotes{"balancers.json": strings.TrimSuffix(notes, ",") + "]"})
		i.CheckKey = func(_ context.Context, o provision.Object, fingerprint string) error {
			if o.ID != id || fingerprint != tt.recorded {
				t.Errorf("%s: checked the key %q of %s", tt.name, fingerprint, o.ID)
			}
			return tt.presents
		}
		s, err := i.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := machineState(t, s, id); got != tt.want || s.State != deploy.StateDegraded {
			t.Errorf("%s: %s, and the service is %s", tt.name, got, s.State)
		}
	}
}
