package deploy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// TestMain runs this test binary as a machine of this computer when it is started as one.
func TestMain(m *testing.M) {
	if object := os.Getenv(local.EnvObject); object != "" {
		runMachineProcess(object)
		return
	}
	if dir := os.Getenv(envAgents); dir != "" {
		if err := serveAgents(dir); err != nil {
			panic(err)
		}
		return
	}
	testkit.CollectRarely()
	setEnvironment()
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // tests with processes wait
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// setEnvironment replaces the settings of clouds that the environment has. All tests share it, so that they can be
// parallel.
func setEnvironment() {
	settings := map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret",
		"KEYS":   "key",
		"GORACE": "atexit_sleep_ms=0", // otherwise a process with the race detector ends a second later
	}
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "AWS_") && settings[name] == "" {
			settings[name] = ""
		}
	}
	for name, value := range settings {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
}

const twoClouds = `
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
  - name: gcp/europe-west4
    replicas: {min: 1, max: 3}
`

func parse(t interface{ Fatal(...any) }, text string) *service.Spec {
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// newCloud returns a cloud with all known machine types in two zones of every region.
func newCloud(spec *service.Spec) *conformance.Memory {
	m := &conformance.Memory{RegionOfferings: map[service.Region]provision.Offerings{}}
	for _, r := range cloud.ManagedRegions(spec) {
		if cloud.RunsOnThisComputer(r) {
			m.RegionOfferings[r] = provision.Offerings{{Type: "local", Region: r, Capacity: service.CapacityOnDemand}}
		}
		for _, kind := range provision.MachineTypes(r.Cloud()) {
			for _, zone := range []string{"a", "b"} {
				for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot} {
					m.RegionOfferings[r] = append(m.RegionOfferings[r], kind.Offering(r, r.ShortName()+zone, capacity))
				}
			}
		}
	}
	return m
}

func newDeployer(spec *service.Spec, p provision.Provider) *deploy.Deployer {
	return &deploy.Deployer{
		Spec: spec, Owner: "me", Provider: p,
		UserData: func(n cloud.MachineInput) (string, error) { return "#cloud-config\n# " + n.ID, nil },
	}
}

// up plans and applies, as a program that has just started.
func up(spec *service.Spec, p provision.Provider) (*deploy.MachinePlan, error) {
	dp := newDeployer(spec, p)
	plan, err := dp.Plan(context.Background())
	if err != nil {
		return nil, err
	}
	return dp.Up(context.Background(), plan, nil)
}

// machines returns the running VMs with their types.
func machines(m *conformance.Memory) []string {
	var out []string
	for _, o := range m.Objects() {
		if o.Offering != nil && o.TerminatedReason == "" {
			out = append(out, fmt.Sprintf("%s %s %s", o.ID, o.Offering.Capacity, o.Offering.Zone))
		}
	}
	slices.Sort(out)
	return out
}

func TestUpIsIdempotentAndDownDeletesAll(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"europe-west4-0 on_demand europe-west4a", "lb-europe-west4-0 on_demand europe-west4a", "lb-us-east-1-0 on_demand us-east-1a",
		"us-east-1-0 spot us-east-1a", "us-east-1-1 spot us-east-1b",
	}
	if got := machines(m); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	calls := m.CountChanges()
	if p, err := up(spec, m); err != nil || len(p.Changes) != 0 || p.ChangesBilling() || m.CountChanges() != calls {
		t.Errorf("the second up: %+v, %v", p, err)
	}
	if err := deploy.Down(context.Background(), m, "chat", "me", nil); err != nil || len(m.Objects()) != 0 {
		t.Errorf("down: %v, left %+v", err, m.Objects())
	}
	if err := deploy.Down(context.Background(), m, "chat", "me", nil); err != nil {
		t.Errorf("down again: %v", err)
	}
}

// After a crash before or after any call of up, a change or down, a second run leads to the same
// result without remains or duplicates.
func TestRerunAfterCrash(t *testing.T) {
	for name, text := range map[string]string{"two clouds": twoClouds, "this computer": localService} {
		t.Run(name, func(t *testing.T) { testCrashes(t, text) })
	}
}

// localService is a service of this computer, with a static region.
const localService = `
name: chat
models:
  - name: llama
    engine: {kind: sim}
regions:
  - {name: local/us, replicas: {min: 2, max: 3}}
  - name: local/eu
    replicas: {min: 1, max: 3}
  - {name: static/paris, endpoints: ["http://10.0.0.7:8000"]}
dns: {provider: embedded, name: chat.skyserve.test}
`

func testCrashes(t *testing.T, text string) {
	spec := parse(t, text)
	bigger := parse(t, strings.Replace(text, "{min: 1, max: 3}", "{min: 2, max: 3}\n    balancers: 2", 1))
	down := func(_ *service.Spec, p provision.Provider) (*deploy.MachinePlan, error) {
		return nil, deploy.Down(context.Background(), p, "chat", "me", nil)
	}
	for name, tt := range map[string]struct {
		before, spec *service.Spec
		verb         func(*service.Spec, provision.Provider) (*deploy.MachinePlan, error)
	}{
		"up":      {nil, spec, up},
		"growing": {spec, bigger, up},
		"less":    {bigger, parse(t, strings.Replace(text, "{min: 2, max: 3}", "{min: 0, max: 1}", 1)), up},
		"down":    {spec, spec, down},
	} {
		run := func(at int, late bool) *conformance.Memory {
			m := newCloud(spec)
			if tt.before != nil {
				if _, err := up(tt.before, m); err != nil {
					t.Fatal(err)
				}
			}
			m.RestartAfterCrash()
			m.CrashAt, m.CrashAfterEffect = at, late
			_, err := tt.verb(tt.spec, m)
			if at == 0 && err != nil || at > 0 && err != nil && !errors.Is(err, conformance.ErrCrash) {
				t.Fatalf("%s: crash at %d: got %v", name, at, err)
			}
			if at > 0 && err == nil && len(m.Objects()) > 0 { // down lists the objects again before it fails
				t.Fatalf("%s: crash at %d was not reported", name, at)
			}
			return m
		}
		whole := run(0, false)
		for at := 1; at <= whole.CountChanges(); at++ {
			for _, late := range []bool{false, true} {
				m := run(at, late)
				m.RestartAfterCrash()
				if _, err := tt.verb(tt.spec, m); err != nil {
					t.Fatalf("%s again after a crash at %d: %v", name, at, err)
				}
				if got, want := machines(m), machines(whole); !slices.Equal(got, want) {
					t.Fatalf("%s: crash at %d (late %t): got %q, want %q", name, at, late, got, want)
				}
				if len(m.Objects()) != len(whole.Objects()) {
					t.Fatalf("%s: crash at %d (late %t): %d objects, want %d", name, at, late, len(m.Objects()), len(whole.Objects()))
				}
			}
		}
	}
}

// refuseRegions rejects every launch of a replica in some regions.
func refuseRegions(regions ...service.Region) func(provision.Offering) *provision.CapacityError {
	return func(o provision.Offering) *provision.CapacityError {
		if o.GPU == "" || !slices.Contains(regions, o.Region) {
			return nil
		}
		return &provision.CapacityError{Offering: o, Scope: provision.ScopeZone, Code: "InsufficientInstanceCapacity", Err: errors.New("none")}
	}
}

func TestReplicasFallBackToOtherRegions(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	m.CapacityError = refuseRegions("aws/us-east-1")
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	away := []string{
		"europe-west4-0 on_demand europe-west4a", "europe-west4-1 on_demand europe-west4b", "europe-west4-2 on_demand europe-west4a",
		"lb-europe-west4-0 on_demand europe-west4a", "lb-us-east-1-0 on_demand us-east-1a",
	}
	if got := machines(m); !slices.Equal(got, away) {
		t.Errorf("got %q, want %q", got, away)
	}
	if _, err := up(spec, m); err != nil || !slices.Equal(machines(m), away) {
		t.Errorf("up again without capacity: %v, %q", err, machines(m))
	}
	m.CapacityError = nil
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	home := []string{
		"europe-west4-0 on_demand europe-west4a", "lb-europe-west4-0 on_demand europe-west4a", "lb-us-east-1-0 on_demand us-east-1a",
		"us-east-1-0 spot us-east-1a", "us-east-1-1 spot us-east-1b",
	}
	if got := machines(m); !slices.Equal(got, home) {
		t.Errorf("once there is capacity: got %q, want %q", got, home)
	}
}

func TestUpKeepsPlacedReplicasWithoutCapacity(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	m.CapacityError = refuseRegions("aws/us-east-1", "gcp/europe-west4")
	_, err := up(spec, m)
	var short *deploy.MissingReplicasError
	if !errors.As(err, &short) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"2 replicas of llama in aws/us-east-1", "1 replica of llama in gcp/europe-west4", "spot g6.xlarge in us-east-1a: InsufficientInstanceCapacity"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
	if got := machines(m); len(got) != 2 {
		t.Errorf("got %q, want the balancers", got)
	}
	m.CapacityError = refuseRegions("aws/us-east-1")
	m.ChangeObject("lb-us-east-1-0", nil)
	if _, err := up(spec, m); err != nil || len(machines(m)) != 5 {
		t.Errorf("later: %v, %q", err, machines(m))
	}
}

func TestBalancerWithoutCapacityIsAnError(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	m.CapacityError = func(o provision.Offering) *provision.CapacityError {
		if o.GPU != "" {
			return nil
		}
		return &provision.CapacityError{Offering: o, Scope: provision.ScopeQuota, Code: "VcpuLimitExceeded", Err: errors.New("limit 0")}
	}
	_, err := up(spec, m)
	var none *provision.AllOfferingsExhaustedError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "VcpuLimitExceeded") {
		t.Errorf("got %v", err)
	}
}

func TestUpRepairsManualChanges(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	m.ChangeObject("us-east-1-1", nil)
	m.ChangeObject("us-east-1-0", func(o *provision.Object) { o.TerminatedReason = "interrupted by the cloud" })
	m.ChangeObject("firewall-us-east-1-replica", func(o *provision.Object) { o.SpecHash = "port 22 is open" })
	m.ChangeObject("identity-gcp-balancer", nil)
	dp := newDeployer(spec, m)
	plan, err := dp.Plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range plan.Changes {
		got = append(got, fmt.Sprintf("%s %s: %s", c.Action, c.ID(), c.Reason))
	}
	want := []string{
		"repair firewall-us-east-1-replica: does not match its configuration", "launch identity-gcp-balancer: new",
		"launch us-east-1-0: interrupted by the cloud", "launch us-east-1-1: new",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := dp.Up(context.Background(), plan, nil); err != nil {
		t.Fatal(err)
	}
	if again, err := dp.Plan(context.Background()); err != nil || len(again.Changes) != 0 {
		t.Errorf("remaining changes: %+v, %v", again, err)
	}
}

func TestOtherOwnersServiceIsUnchanged(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	if _, err := up(spec, m); err != nil {
		t.Fatal(err)
	}
	before := len(m.Objects())
	stranger := newDeployer(spec, m)
	stranger.Owner = "you"
	var owned *provision.OwnedError
	if _, err := stranger.Plan(context.Background()); !errors.As(err, &owned) || !strings.Contains(err.Error(), "chat") {
		t.Errorf("up: got %v", err)
	}
	if err := deploy.Down(context.Background(), m, "chat", "you", nil); !errors.As(err, &owned) {
		t.Errorf("down: got %v", err)
	}
	if len(m.Objects()) != before {
		t.Errorf("%d objects remain of %d", len(m.Objects()), before)
	}
}

func TestOrphans(t *testing.T) {
	spec := parse(t, twoClouds)
	m := newCloud(spec)
	for _, name := range []string{"chat", "old"} {
		other := parse(t, strings.Replace(twoClouds, "name: chat", "name: "+name, 1))
		if _, err := up(other, m); err != nil {
			t.Fatal(err)
		}
	}
	orphans, err := deploy.Orphans(context.Background(), m, []deploy.ServiceKey{{Name: "chat", Owner: "me"}})
	if err != nil || len(orphans) == 0 || slices.ContainsFunc(orphans, func(o provision.Object) bool { return o.Service != "old" }) {
		t.Fatalf("got %+v, %v", orphans, err)
	}
	if err := deploy.DeleteObjects(context.Background(), m, orphans, nil); err != nil {
		t.Fatal(err)
	}
	left, err := m.List(context.Background(), "")
	if err != nil || slices.ContainsFunc(left, func(o provision.Object) bool { return o.Service == "old" }) || len(machines(m)) != 5 {
		t.Errorf("left: %+v, %v", left, err)
	}
}

// Whatever launches are rejected, interrupted and repeated: replicas never exceed their maximum, and a
// further up changes nothing.
func TestUpConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := parse(t, twoClouds)
		m := newCloud(spec)
		for range rapid.IntRange(1, 4).Draw(t, "ups") {
			var out []service.Region
			for _, r := range cloud.ManagedRegions(spec) {
				if rapid.Bool().Draw(t, "exhausted") {
					out = append(out, r)
				}
			}
			m.CapacityError = refuseRegions(out...)
			for _, o := range m.Objects() {
				if o.Kind == provision.KindReplica && rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
					m.ChangeObject(o.ID, func(o *provision.Object) { o.TerminatedReason = "interrupted" })
				}
			}
			_, err := up(spec, m)
			var short *deploy.MissingReplicasError
			if err != nil && !errors.As(err, &short) {
				t.Fatal(err)
			}
			count := map[service.Region]int{}
			for _, o := range m.Objects() {
				if o.Kind == provision.KindReplica && o.TerminatedReason == "" {
					count[o.Region]++
				}
			}
			for r, n := range count {
				if n > 3 {
					t.Fatalf("%s has %d replicas", r, n)
				}
			}
			before := machines(m)
			if _, err := up(spec, m); (err != nil) != (short != nil) || !slices.Equal(machines(m), before) {
				t.Fatalf("up again: %v, %q, before %q", err, machines(m), before)
			}
		}
	})
}
