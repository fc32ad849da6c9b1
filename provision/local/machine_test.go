package local

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// firstPort is the first port of the services in these tests, some of which use ports of other services near it.
const firstPort = testkit.WideLocalPort

// portAt returns the loopback address of a port of these services.
func portAt(offset int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+offset)) }

var twoRegions = `
name: chat
models: [{name: org/m, engine: {kind: sim}, gpus: [{type: L4}, {type: A100, count: 2}]}]
regions:
  - {name: local/us, balancers: 2, replicas: {min: 2, max: 3}}
  - {name: local/eu, replicas: {min: 1, max: 3}}
local: {port: ` + strconv.Itoa(firstPort) + `}
`

// twoRegionsOf returns the service of twoRegions.
func twoRegionsOf(t *testing.T) *service.Spec {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(twoRegions))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// provider returns the provider of a new service with two regions.
func provider(t *testing.T) (*Provider, Service) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	svc := newService(t, "chat")
	p := NewProvider(svc, exe, "build", 5*time.Second).WithSpec(twoRegionsOf(t))
	t.Cleanup(func() {
		have, err := svc.Objects()
		for _, o := range have {
			err = errors.Join(err, p.Terminate(context.Background(), o))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return p, svc
}

func launch(t *testing.T, p *Provider, w provision.Desired) provision.Object {
	t.Helper()
	o, err := p.Launch(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Ports match the documentation, in whatever order machines are launched.
func TestPortsFollowTheFile(t *testing.T) {
	p, _ := provider(t)
	eu, replica := launch(t, p, machine("lb-eu-0", provision.KindBalancer)), launch(t, p, machine("eu-0", provision.KindReplica))
	us := launch(t, p, machine("lb-us-0", provision.KindBalancer))
	for got, want := range map[string]string{
		us.Address: "http://" + portAt(0), us.Admin: "http://" + portAt(100), us.Endpoints.Listen.Store: portAt(300),
		eu.Address: "http://" + portAt(2), us.Endpoints.Controller: portAt(310), us.Endpoints.Listen.Routes: portAt(305),
		eu.Endpoints.Controller: portAt(312), eu.Endpoints.Listen.Store: portAt(302), eu.Endpoints.Listen.Agent: portAt(502),
		replica.Address: "http://" + portAt(202), replica.Endpoints.Listen.Replica: portAt(702),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A machine starts with the content of its cloud-init document, in a private directory, and runs its
// units there.
func TestMachineDirectory(t *testing.T) {
	p, svc := provider(t)
	o := launch(t, p, machine("us-0", provision.KindReplica))
	dir := filepath.Join(svc.Dir(), "machines", "us-0")
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", info, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "node.json"))
	var c agent.Config
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || c.Service != "chat" || c.ID != "us-0" || c.Listen != o.Endpoints.Listen.Agent || c.Runner != agent.RunnerInProcess || c.Dir != filepath.Join(dir, "state") {
		t.Errorf("got %+v, %v", c, err)
	}
	if f, err := p.Fingerprint(t.Context(), o); f != "" || err != nil {
		t.Errorf("fingerprint before it is published: %q, %v", f, err)
	}
	want := strings.Repeat("a", 52)
	line := agent.ConsoleLine(identity.Name{Service: "chat", Role: identity.Replica, ID: "us-0"}, want)
	if err := os.WriteFile(filepath.Join(dir, "console"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := p.Fingerprint(t.Context(), o); f != want || err != nil {
		t.Errorf("got %q, %v", f, err)
	}
	if err := p.Terminate(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its disk remains: %v", err)
	}
}

// A machine whose process ended starts again with the same id, disk and ports. A machine with another
// configuration has a new disk.
func TestRestartedMachineKeepsDisk(t *testing.T) {
	p, svc := provider(t)
	w := machine("us-0", provision.KindReplica)
	w.Labels = map[string]string{"launch": "first"}
	before := launch(t, p, w)
	kept := filepath.Join(svc.Dir(), "machines", "us-0", "state", "node.key")
	if err := os.WriteFile(kept, []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	kill(t, p, svc, "us-0")
	w.Labels = map[string]string{"launch": "second"}
	after := launch(t, p, w)
	if after.Handle != before.Handle || after.Endpoints != before.Endpoints || after.Labels["launch"] != "first" {
		t.Errorf("it is another one: %+v, was %+v", after, before)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	kill(t, p, svc, "us-0")
	w.SpecHash = "other"
	if other := launch(t, p, w); other.Handle == before.Handle {
		t.Errorf("it is the same one: %+v", other)
	}
	if _, err := os.Stat(kept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has the disk of the one before: %v", err)
	}
}

// kill ends the process of a machine with SIGKILL.
func kill(t *testing.T, p *Provider, svc Service, id string) {
	t.Helper()
	rec, alive, err := readObject(svc.objectFile(id))
	if err != nil || !alive {
		t.Fatalf("%s does not run: %v", id, err)
	}
	if err := unix.Kill(rec.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !p.waitReleased(t.Context(), id, killTimeout) {
		t.Fatal("it did not end")
	}
}

func TestPortInUseNamesItsUser(t *testing.T) {
	p, svc := provider(t)
	ln, err := net.Listen("tcp", portAt(0))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	changes := provision.Changes{
		{Action: provision.ActionLaunch, Desired: machine("lb-us-0", provision.KindBalancer)},
		{Action: provision.ActionTerminate, Observed: provision.Object{ID: "lb-us-1", Kind: provision.KindBalancer}},
	}
	var taken *provision.PortTakenError
	if err := p.CheckPorts(changes); !errors.As(err, &taken) || taken.Addr != portAt(0) || taken.ID != "lb-us-0" || taken.Setting != "local.port" {
		t.Errorf("got %v", err)
	}
	if _, err := p.Launch(t.Context(), changes[0].Desired); !errors.As(err, &taken) {
		t.Errorf("launching: got %v", err)
	}
	if have, err := svc.Objects(); len(have) > 0 || err != nil {
		t.Errorf("something was started: %+v, %v", have, err)
	}
}

// Offerings contains this computer with the service's GPUs, without a price; List returns the objects
// of the selected regions only.
func TestOfferingsAndList(t *testing.T) {
	p, _ := provider(t)
	offers, err := p.Offerings(t.Context(), "local/us")
	if err != nil || len(offers) != 3 || len(offers.WithGPU("L4", 1)) != 1 || len(offers.WithGPU("A100", 2)) != 1 || len(offers.WithGPU("", 0)) != 1 {
		t.Errorf("got %+v, %v", offers, err)
	}
	launch(t, p, machine("us-0", provision.KindReplica))
	for region, want := range map[service.Region]int{"local/us": 1, "local/eu": 0} {
		if have, err := p.InRegions(region).List(t.Context(), "chat"); len(have) != want || err != nil {
			t.Errorf("%s: got %+v, %v", region, have, err)
		}
	}
	have, err := p.List(t.Context(), "chat")
	if err != nil || !slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == "us-0" && o.Owner == "me" }) {
		t.Errorf("got %+v, %v", have, err)
	}
}

// Processes of a version without machines are listed and terminated.
func TestTerminateProcessOfEarlierVersion(t *testing.T) {
	p, svc := provider(t)
	cmd, log, err := p.command(p.exe, provision.Object{ID: "controller", Kind: provision.KindController, Service: "chat", SpecHash: "s", Admin: "http://127.0.0.1:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.waitHeld(t.Context(), provision.Desired{ID: "controller", SpecHash: "s"}, cmd, 0); err != nil {
		t.Fatal(err)
	}
	have, err := p.List(t.Context(), "chat")
	if err != nil || len(have) != 1 || have[0].TerminatedReason != "" || have[0].Handle == "" || have[0].Endpoints != (provision.MachineEndpoints{}) {
		t.Fatalf("got %+v, %v", have, err)
	}
	if err := p.Terminate(t.Context(), have[0]); err != nil {
		t.Fatal(err)
	}
	if have, err := svc.Objects(); len(have) > 0 || err != nil {
		t.Errorf("remaining: %+v, %v", have, err)
	}
}

// A machine returns to an earlier version with the installed binary of that version, which must still exist.
func TestMachineRunsEarlierBinary(t *testing.T) {
	p, svc := provider(t)
	w := machine("us-0", provision.KindReplica)
	w.BuildHash = "earlier"
	if _, err := p.Launch(t.Context(), w); err == nil || !strings.Contains(err.Error(), "starting us-0 with the earlier binary") {
		t.Errorf("without the binary: %v", err)
	}
	if err := copyExecutable(p.exe, filepath.Join(svc.home.dir, dirBin, binaryPrefix+"earlier")); err != nil {
		t.Fatal(err)
	}
	if o := launch(t, p, w); o.BuildHash != "earlier" {
		t.Errorf("it runs the build %q", o.BuildHash)
	}
	if o := launch(t, p, machine("us-1", provision.KindReplica)); o.BuildHash != "build" {
		t.Errorf("another machine runs the build %q", o.BuildHash)
	}
}
