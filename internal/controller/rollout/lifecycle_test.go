package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/controller/rollout"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/local"
)

// patience bounds every wait of these tests; nothing takes nearly as long.
const patience = 60 * time.Second

// world is a state directory of its own with a service in it.
type world struct {
	*testing.T
	svc  local.Service
	port int
}

// newWorld makes a world whose ports are free and whose processes end with it.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else a process built to find races takes a second to end
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := home.Service("chat")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, svc: svc, port: freePorts(t)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := rollout.Down(ctx, svc, time.Second, true, nil); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	return w
}

// freePorts finds a base from which on all ports of a small service are free.
func freePorts(t *testing.T) int {
	t.Helper()
	first := 20_000 + os.Getpid()%20*500 // the scripts of cmd/skyserve have theirs below
	for base := first; base < first+3_000; base += 500 {
		taken := false
		for _, offset := range []int{0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203, 204, 205, 300, 310} {
			taken = taken || local.PortTaken(net.JoinHostPort("127.0.0.1", strconv.Itoa(base+offset)))
		}
		if !taken {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

// yaml is a service of two local regions; us has the given count of replicas.
func (w *world) yaml(us int, model string) string {
	return fmt.Sprintf(`name: chat
models:
  - {name: %s, engine: {kind: sim}}
regions:
  - {name: local/us, replicas: {min: %d, max: 5}}
  - {name: local/eu, replicas: {min: 1, max: 5}}
balancer: {policy: least-load}
local: {port: %d, rtt: {us-eu: 1ms}}
`, model, us, w.port)
}

// plan plans a service.yaml.
func (w *world) plan(text string) *rollout.Plan {
	w.Helper()
	spec, err := rollout.Read("service.yaml", []byte(text))
	if err != nil {
		w.Fatal(err)
	}
	plan, err := rollout.NewPlan(w.svc, spec, []byte(text), false)
	if err != nil {
		w.Fatal(err)
	}
	return plan
}

// up brings a service.yaml up, waits until it works, and says what was done.
func (w *world) up(text string) []string {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	plan := w.plan(text)
	if _, err := plan.Apply(ctx, nil); err != nil {
		w.Fatal(err)
	}
	if err := plan.Wait(ctx, nil); err != nil {
		w.Fatal(err)
	}
	var done []string
	for _, c := range plan.Changes {
		done = append(done, string(c.Action)+" "+c.ID())
	}
	slices.Sort(done)
	return done
}

// pids is the process of every object that runs.
func (w *world) pids() map[string]string {
	w.Helper()
	objects, err := w.svc.Objects()
	if err != nil {
		w.Fatal(err)
	}
	pids := map[string]string{}
	for _, o := range objects {
		if o.Gone == "" {
			pids[o.ID] = o.Handle
		}
	}
	return pids
}

// kill ends a process without a word and waits until its lock is free.
func (w *world) kill(id string) {
	w.Helper()
	pid, err := strconv.Atoi(w.pids()[id])
	if err != nil {
		w.Fatalf("%s has no process: %v", id, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	w.until(func() bool { return w.pids()[id] == "" })
}

// until waits for a condition.
func (w *world) until(holds func() bool) {
	w.Helper()
	for end := time.After(patience); !holds(); {
		select {
		case <-end:
			w.Fatal("waited in vain")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

var allIDs = []string{"controller", "eu-0", "lb-eu-0", "lb-us-0", "us-0", "us-1"}

func TestLifecycle(t *testing.T) {
	w := newWorld(t)
	text := w.yaml(2, "m")

	var want []string
	for _, id := range allIDs {
		want = append(want, "launch "+id)
	}
	if got := w.up(text); !reflect.DeepEqual(got, want) {
		t.Fatalf("first up: got %q, want %q", got, want)
	}
	if got := w.up(text); got != nil {
		t.Fatalf("second up: got %q, want no change", got)
	}
	w.checkPrivate()
	w.checkStatus(rollout.StateReady)
	for _, id := range allIDs {
		w.checkRepair(id, text)
	}

	pids, ports := w.pids(), w.svc.Ports()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := rollout.Down(ctx, w.svc, 5*time.Second, false, nil); err != nil {
		t.Fatal(err)
	}
	w.checkGone(pids, ports)
}

// checkPrivate makes sure that nobody else can read the state directory.
func (w *world) checkPrivate() {
	w.Helper()
	err := filepath.WalkDir(w.svc.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, w.svc.StoreDir()+"/") {
			return err // the store's directory itself is closed to others
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			w.Errorf("%s: mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

// checkStatus makes sure that the service does as expected.
func (w *world) checkStatus(want rollout.State) {
	w.Helper()
	status, err := rollout.GetStatus(context.Background(), w.svc)
	if err != nil {
		w.Fatal(err)
	}
	if status.State != want {
		w.Errorf("got %s, want %s: %+v", status.State, want, status)
	}
}

// checkRepair kills one process and makes sure that up repairs that one and
// touches no other.
func (w *world) checkRepair(id, text string) {
	w.Helper()
	before := w.pids()
	w.kill(id)
	w.checkStatus(rollout.StateDegraded)
	if got, want := w.up(text), []string{"launch " + id}; !reflect.DeepEqual(got, want) {
		w.Errorf("after kill -9 of %s: got %q, want %q", id, got, want)
	}
	after := w.pids()
	if after[id] == before[id] {
		w.Errorf("%s: still process %s", id, after[id])
	}
	delete(before, id)
	delete(after, id)
	if !reflect.DeepEqual(after, before) {
		w.Errorf("repairing %s touched others: got %v, want %v", id, after, before)
	}
}

// checkGone makes sure that no file, process or port is left.
func (w *world) checkGone(pids map[string]string, ports map[string][]string) {
	w.Helper()
	if entries, err := os.ReadDir(w.svc.Home().Dir()); err != nil || len(entries) > 0 {
		w.Errorf("left in the state directory: %v, %v", entries, err)
	}
	for id, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			w.Fatal(err)
		}
		w.Logf("%s was process %d", id, pid)
		w.until(func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }) // one that stops itself may take a moment
	}
	if len(ports) != len(pids) {
		w.Errorf("got ports of %d processes, want %d", len(ports), len(pids))
	}
	for _, addrs := range ports {
		for _, addr := range addrs {
			if local.PortTaken(addr) {
				w.Errorf("%s is still taken", addr)
			}
		}
	}
}

func TestAChangedFileReplacesOnlyWhatDiffers(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(2, "m"))
	before := w.pids()
	if got, want := w.up(w.yaml(3, "m")), []string{"launch us-2", "reload controller"}; !reflect.DeepEqual(got, want) {
		t.Errorf("one replica more: got %q, want %q", got, want)
	}
	if got, want := w.up(w.yaml(1, "m")), []string{"reload controller", "terminate us-1", "terminate us-2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("two replicas less: got %q, want %q", got, want)
	}
	after := w.pids()
	for _, id := range []string{"lb-us-0", "lb-eu-0", "us-0", "eu-0"} {
		if after[id] != before[id] {
			t.Errorf("%s was restarted", id)
		}
	}
	policy := strings.Replace(w.yaml(1, "m"), "least-load", "round-robin", 1)
	if got, want := w.up(policy), []string{"reload lb-eu-0", "reload lb-us-0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("another policy: got %q, want %q", got, want)
	}
	w.checkSame(after)
	if got := w.up(policy); got != nil {
		t.Errorf("the same policy again: got %q, want no change", got)
	}
}

// checkSame makes sure that the balancers are the processes that they were.
func (w *world) checkSame(before map[string]string) {
	w.Helper()
	after := w.pids()
	for _, id := range []string{"lb-us-0", "lb-eu-0"} {
		if after[id] != before[id] {
			w.Errorf("%s was process %s and is %q", id, before[id], after[id])
		}
	}
}

// A balancer that refuses its file is told of and goes on, the others are left
// alone, and a mended file makes all of them as wanted.
func TestARefusedReloadIsAnErrorAndConverges(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	before := w.pids()
	tau := func(n int) string {
		return strings.Replace(w.yaml(1, "m"), "least-load", fmt.Sprintf("least-load, tau: %d", n), 1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	result, err := w.plan(tau(tauRefused)).Apply(ctx, nil)
	if err == nil || !strings.Contains(err.Error(), "reloading lb-eu-0: balancer.tau: is 77") || len(result.Failed) != 1 || len(result.Skipped) != 1 {
		t.Errorf("got %v with %+v, want the refusal of the first and the other skipped", err, result)
	}
	w.checkSame(before)
	w.checkStatus(rollout.StateReady)
	if got, want := w.up(tau(5)), []string{"reload lb-eu-0", "reload lb-us-0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("the mended file: got %q, want %q", got, want)
	}
	w.checkSame(before)
	if got := w.up(w.yaml(1, "m")); len(got) != 2 {
		t.Errorf("back again: got %q, want both to reload", got)
	}
}

// A balancer that cannot read its file again is started again.
func TestABalancerThatCannotReloadIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	before := w.pids()
	text := strings.Replace(w.yaml(1, "m"), "least-load", fmt.Sprintf("least-load, tau: %d", tauTooOld), 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := map[provision.Action]int{}
	if _, err := w.plan(text).Apply(ctx, func(c provision.Change, p provision.Phase, _ error) {
		if p == provision.PhaseDone {
			done[c.Action]++
		}
	}); err != nil {
		t.Fatal(err)
	}
	after := w.pids()
	if done[provision.ActionReplace] != 2 || len(done) != 1 || after["lb-us-0"] == before["lb-us-0"] || after["lb-eu-0"] == before["lb-eu-0"] {
		t.Errorf("done %v; before %v, after %v; want both replaced", done, before, after)
	}
	if got := w.up(text); got != nil {
		t.Errorf("again: got %q, want no change", got)
	}
}

// Balancers whose admin API asks for a token come to work, reload, and are asked
// for their status, also by those who do not have the token in their environment;
// another token takes another process.
func TestAdminTokens(t *testing.T) {
	w := newWorld(t)
	t.Setenv(local.EnvAdminToken, "first")
	w.up(w.yaml(1, "m"))
	before := w.pids()
	w.checkStatus(rollout.StateReady)
	policy := strings.Replace(w.yaml(1, "m"), "least-load", "round-robin", 1)
	if got, want := w.up(policy), []string{"reload lb-eu-0", "reload lb-us-0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("another policy: got %q, want %q", got, want)
	}
	w.checkSame(before)

	if err := os.Unsetenv(local.EnvAdminToken); err != nil { // the cleanup of Setenv restores what was before
		t.Fatal(err)
	}
	w.checkStatus(rollout.StateReady)
	if got, want := w.up(w.yaml(1, "m")), []string{"reload lb-eu-0", "reload lb-us-0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("from another shell: got %q, want %q", got, want)
	}
	w.checkSame(before)
	w.checkPrivate()

	t.Setenv(local.EnvAdminToken, "second")
	replaced := []string{"replace controller", "replace lb-eu-0", "replace lb-us-0"}
	if got := w.up(w.yaml(1, "m")); !reflect.DeepEqual(got, replaced) {
		t.Errorf("another token: got %q, want %q", got, replaced)
	}
	w.checkStatus(rollout.StateReady)
	t.Setenv(local.EnvAdminToken, "")
	if got := w.up(w.yaml(1, "m")); !reflect.DeepEqual(got, replaced) {
		t.Errorf("no token: got %q, want %q", got, replaced)
	}
}

func TestAStaticRegionIsAttached(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	text := strings.Replace(w.yaml(1, "m"), "balancer:", fmt.Sprintf("  - {name: static/paris, endpoints: [\"http://127.0.0.1:%d\"]}\nbalancer:", w.port+200), 1)
	want := []string{"launch lb-paris-0", "reload lb-eu-0", "reload lb-us-0", "replace controller"}
	if got := w.up(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	status, err := rollout.GetStatus(context.Background(), w.svc)
	if err != nil || len(status.Regions) != 3 {
		t.Fatalf("got %+v, %v", status, err)
	}
	paris := status.Regions[2]
	if paris.Name != "static/paris" || len(paris.Replicas) != 1 || paris.Replicas[0].State != service.StateReady || paris.Endpoint == "" {
		t.Errorf("got %+v", paris)
	}
}

func TestAProcessThatEndsIsSaidWithItsLastWords(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	plan := w.plan(w.yaml(1, "broken"))
	_, err := plan.Apply(ctx, nil)
	if err == nil { // it held its object file for a moment
		err = plan.Wait(ctx, nil)
	}
	var start *provision.StartError
	if !errors.As(err, &start) || !strings.Contains(err.Error(), "loading weights: no such file") {
		t.Errorf("got %v, want a StartError with the process's last words", err)
	}
}

func TestATakenPortStartsNothing(t *testing.T) {
	w := newWorld(t)
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(w.port+201)))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = w.plan(w.yaml(2, "m")).Apply(context.Background(), nil)
	var taken *provision.PortTakenError
	if !errors.As(err, &taken) || taken.Addr != ln.Addr().String() || taken.ID != "us-1" {
		t.Errorf("got %v, want %s taken, which us-1 needs", err, ln.Addr())
	}
	if _, err := os.Stat(w.svc.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a state directory was made (%v)", err)
	}
}

func TestDownWorksWithWhatIsLeft(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	pids, ports := w.pids(), w.svc.Ports()
	objects := filepath.Join(w.svc.Dir(), "objects")
	if err := os.Remove(filepath.Join(objects, "us-0.json")); err != nil { // its process stops itself
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(objects, "eu-0.json"), []byte("{"), 0o600); err != nil { // its process mends it
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(objects, "us-9.json"), []byte("{"), 0o600); err != nil { // nobody's
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := rollout.Down(ctx, w.svc, 5*time.Second, false, nil); err != nil {
		t.Fatal(err)
	}
	w.checkGone(pids, ports)
	if err := rollout.Down(ctx, w.svc, time.Second, false, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestAProcessThatDoesNotEndIsKilled(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "stubborn"))
	pids, ports := w.pids(), w.svc.Ports()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := rollout.Down(ctx, w.svc, 200*time.Millisecond, false, nil); err != nil {
		t.Fatal(err)
	}
	w.checkGone(pids, ports)
}

func TestWhatCannotBeStoppedIsListed(t *testing.T) {
	for _, purge := range []bool{false, true} {
		w := newWorld(t)
		path := filepath.Join(w.svc.Dir(), "objects", "us-0.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil { // somebody who does not say who he is
			t.Fatal(err)
		}
		err = rollout.Down(context.Background(), w.svc, time.Second, purge, nil)
		var left *provision.LeftoverError
		if !errors.As(err, &left) || !strings.Contains(err.Error(), "us-0") {
			t.Errorf("purge %t: got %v", purge, err)
		}
		if _, err := os.Stat(path); (err == nil) == purge {
			t.Errorf("purge %t: the state directory: %v", purge, err)
		}
		f.Close()
	}
}

func TestAMovedBasePortIsRefusedWhileItRuns(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	text := strings.Replace(w.yaml(1, "m"), strconv.Itoa(w.port), strconv.Itoa(w.port+10), 1)
	spec, err := rollout.Read("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	_, err = rollout.NewPlan(w.svc, spec, []byte(text), false)
	var bad *provision.SpecError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "local.port") {
		t.Errorf("got %v", err)
	}
}

func TestCloudsAreRefused(t *testing.T) {
	text := strings.Replace((&world{T: t, port: 8001}).yaml(1, "m"), "local/eu", "aws/us-east-1", 1)
	text = strings.Replace(text, ", rtt: {us-eu: 1ms}", "", 1)
	text = strings.Replace(text, "balancer: {", "balancer: {insecure: true, ", 1)
	_, err := rollout.Read("service.yaml", []byte(text))
	var bad *provision.SpecError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "regions[1].name") || !strings.Contains(err.Error(), "aws/us-east-1") {
		t.Errorf("got %v", err)
	}
}

func TestWaitingSaysWhatItWaitsFor(t *testing.T) {
	w := newWorld(t)
	text := strings.Replace(w.yaml(1, "m"), "balancer:", "  - {name: static/paris, endpoints: [\"http://127.0.0.1:1\"]}\nbalancer:", 1)
	plan := w.plan(text)
	if _, err := plan.Apply(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	timeout, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	ctx, cancel := context.WithCancelCause(timeout)
	late := errors.New("too late")
	ready := map[string]bool{}
	err := plan.Wait(ctx, func(id string) {
		if ready[id] = true; len(ready) == 5 { // all but the endpoint and its balancer
			cancel(late)
		}
	})
	var not *rollout.NotReadyError
	if !errors.As(err, &not) || !errors.Is(err, late) || not.Ready != 5 {
		t.Fatalf("got %v", err)
	}
	if want := []string{"lb-paris-0", "paris-127-0-0-1-1"}; !reflect.DeepEqual(not.Waiting, want) {
		t.Errorf("got %q, want %q", not.Waiting, want)
	}
}

func TestNameIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(file, []byte("name: chat\nregions: wrong\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{"": "", "chat": "chat", file: "chat"} {
		if got, err := rollout.NameIn(arg); err != nil || got != want {
			t.Errorf("%q: got %q, %v", arg, got, err)
		}
	}
	if _, err := rollout.NameIn(file + ".missing.yaml"); err == nil {
		t.Error("want an error for a file that is not there")
	}
}
