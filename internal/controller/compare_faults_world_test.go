//go:build compare && linux

package controller_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/sim/load"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

const (
	faultsName = "faults"
	// storeDisk is the size of the file systems of the stores.
	storeDisk = "size=384m"
	// settleLimit is how long the service may take until it is whole again.
	settleLimit = 3 * time.Minute
	// settledFor is longer than the status of a leader that was killed is reported.
	settledFor = 4 * time.Second
	// markerInterval is the interval of acknowledged writes.
	markerInterval = 150 * time.Millisecond
	// killMarkerInterval is that interval during kills, which take an hour: every file is read back.
	killMarkerInterval = 500 * time.Millisecond
	nftTable           = "skyserve_faults"
)

// controlWorld is a local service of three regions, each with a balancer's machine that has a controller and a
// member of the store, and one replica.
type controlWorld struct {
	*testkit.LiveService
	t        *testing.T
	control  []string // machines of controllers
	replicas []string // machines of replicas
	disks    bool     // each store can have a file system
	mounted  bool     // each store has one
	cgroups  string   // path of the cgroups of the machines; empty without
	client   *http.Client
	network  *regionNetwork // nil = machines are connected directly
}

func newControlWorld(t *testing.T) *controlWorld {
	t.Helper()
	document := strings.ReplaceAll(testkit.Quickstart(t, "../..", faultsName), "replicas: {min: 2, max: 8}", "replicas: {min: 1, max: 1}")
	if *controlRTT != "" {
		document = regexp.MustCompile(`(?m)^  rtt: .*$`).ReplaceAllString(document, "") // peers do not emulate theirs
	}
	w := openControlWorld(t, document)
	if *controlRTT == "" {
		w.openCgroups()
	} else {
		w.openNetwork(*controlRTT)
	}
	w.Run("up", w.Document)
	w.settle()
	w.disks = os.Getuid() == 0
	return w
}

// mountStores gives the store of each control machine a file system, once.
func (w *controlWorld) mountStores() {
	w.t.Helper()
	if w.mounted {
		return
	}
	for _, m := range w.control {
		w.mountStore(m)
	}
	w.mounted = true
}

// openControlWorld returns a world whose service is not started yet.
func openControlWorld(t *testing.T, document string) *controlWorld {
	t.Helper()
	w := &controlWorld{
		t: t, control: []string{"lb-asia-0", "lb-eu-0", "lb-us-0"}, replicas: []string{"asia-0", "eu-0", "us-0"},
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	w.LiveService = testkit.NewLiveService(t, "../..", faultsName, document)
	return w
}

// others returns the other control machines.
func (w *controlWorld) others(machine string) []string {
	return slices.DeleteFunc(slices.Clone(w.control), func(m string) bool { return m == machine })
}

// status returns the status of the service.
func (w *controlWorld) status() (s deploy.ServiceStatus) {
	w.t.Helper()
	if err := json.Unmarshal(w.Run("status", faultsName, "-o", "json"), &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// settle waits until the service is whole and stays so: a leader with two standbys, a replicated store and ready replicas.
func (w *controlWorld) settle() (s deploy.ServiceStatus) {
	w.t.Helper()
	var since time.Time // since when the control plane is whole in the same term
	term := uint64(0)
	for end := time.Now().Add(settleLimit); ; time.Sleep(200 * time.Millisecond) {
		s = w.status()
		running := w.Processes()
		whole := s.Leadership != nil && s.Leadership.Leader != "" && len(s.Leadership.Standbys) == 2 && s.StoreState != nil && s.StoreState.Replicated && s.StoreState.Leader != ""
		for _, m := range slices.Concat(w.control, w.replicas) {
			whole = whole && len(running[m]) == 1
		}
		whole = whole && readyReplicas(s) == len(w.replicas)
		switch {
		case !whole || s.Leadership.Term != term:
			since, term = time.Now(), 0
			if whole {
				term = s.Leadership.Term
			}
		case time.Since(since) > settledFor:
			return s
		}
		if time.Now().After(end) {
			text, _ := json.Marshal(s)
			w.t.Fatalf("the service is not whole after %s: processes %v, status %s", settleLimit, running, text)
		}
	}
}

// awaitLeader waits until a controller leads and every machine runs, and returns the leader's machine.
func (w *controlWorld) awaitLeader() string {
	w.t.Helper()
	for end := time.Now().Add(settleLimit); ; time.Sleep(200 * time.Millisecond) {
		running := w.Processes()
		missing := slices.DeleteFunc(slices.Concat(w.control, w.replicas), func(m string) bool { return len(running[m]) == 1 })
		s := w.status()
		if len(missing) == 0 && s.Leadership != nil && s.Leadership.Leader != "" {
			return s.Leadership.Leader
		}
		if time.Now().After(end) {
			text, _ := json.Marshal(s)
			w.t.Fatalf("no controller leads, or %v do not run, after %s: %s", missing, settleLimit, text)
		}
	}
}

// readyReplicas counts the replicas that serve.
func readyReplicas(s deploy.ServiceStatus) (n int) {
	for _, region := range s.Regions {
		for _, r := range region.Replicas {
			if r.State == service.StateReady {
				n++
			}
		}
	}
	return n
}

// killMachines kills machines as kill -9 does, and returns the repair.
func (w *controlWorld) killMachines(machines ...string) (hit []string, repair func()) {
	w.t.Helper()
	for _, m := range machines {
		if !w.Kill(m) {
			w.t.Fatalf("%s does not run", m)
		}
		for w.PID(m) > 0 { // up must not find it alive
			time.Sleep(10 * time.Millisecond)
		}
	}
	return machines, func() { w.up("") }
}

// up starts what is missing, in the cgroup of a machine.
func (w *controlWorld) up(machine string, flags ...string) {
	w.t.Helper()
	cmd := w.Command(append([]string{"up", w.Document}, flags...)...)
	if machine != "" {
		dir, err := os.Open(filepath.Join(w.cgroups, machine))
		if err != nil {
			w.t.Fatal(err)
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("up: %v: %s", err, out)
	}
}

// stop stops a process, and returns what continues it.
func (w *controlWorld) stop(machine string) (resume func()) {
	w.t.Helper()
	pid := w.PID(machine)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			w.t.Fatal(err)
		}
	}
}

// startLoad starts clients at each balancer. The result stops them and returns their figures.
func (w *controlWorld) startLoad() func() load.Report {
	w.t.Helper()
	args := []string{"load", "--workload", "arena", "--clients", "2", "--duration", "1h", "--quiet", "-o", "json", "--model", "chat-small"}
	for i, region := range []string{"us", "eu", "asia"} {
		args = append(args, "--target", region+"="+w.URL(i))
	}
	cmd := w.Command(args...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = cmd.Process.Kill() }) // a test that fails does not wait for it
	return func() (r load.Report) {
		_ = cmd.Process.Signal(os.Interrupt) // its output is checked
		err := cmd.Wait()
		if decoding := json.Unmarshal(out.Bytes(), &r); decoding != nil {
			w.t.Fatalf("load: %v: %v: %s", err, decoding, problems.Bytes())
		}
		return r
	}
}

// writeMarkers uploads small files to the balancers in turn. A file is acknowledged by 200, and then on the disks of a
// majority of the store's members. The result ends the uploads and returns the texts of acknowledged files, by id.
func (w *controlWorld) writeMarkers(every time.Duration) func() map[string]string {
	ctx, cancel := context.WithCancel(w.t.Context())
	acked := map[string]string{}
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			text := fmt.Sprintf("marker %d\n", n)
			if id, err := w.upload(ctx, n%3, text); err == nil {
				acked[id] = text
			}
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	})
	return func() map[string]string {
		cancel()
		writer.Wait()
		return acked
	}
}

func (w *controlWorld) upload(ctx context.Context, balancer int, text string) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "marker.jsonl")
	if err == nil {
		_, err = io.WriteString(part, text)
	}
	if err = errors.Join(err, form.WriteField("purpose", "batch"), form.Close()); err != nil {
		return "", err
	}
	answer, err := w.call(ctx, http.MethodPost, w.URL(balancer)+"/v1/files", form.FormDataContentType(), &body)
	var f struct{ ID string }
	if err == nil {
		err = json.Unmarshal(answer, &f)
	}
	return f.ID, err
}

func (w *controlWorld) call(ctx context.Context, method, url, contentType string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	res, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", res.Status, text)
	}
	return text, err
}

// checkMarkers reads acknowledged files back, and deletes them.
func (w *controlWorld) checkMarkers(acked map[string]string) (n int, lost []string) {
	w.t.Helper()
	for id, text := range acked {
		var got []byte
		var err error
		for try := range 10 { // a balancer may be connecting to its store
			if got, err = w.call(w.t.Context(), http.MethodGet, w.URL(try%3)+"/v1/files/"+id+"/content", "", nil); err == nil {
				break
			}
			time.Sleep(300 * time.Millisecond)
		}
		if err != nil || string(got) != text {
			lost = append(lost, fmt.Sprintf("%s: %q, %v", id, got, err))
		}
		_, _ = w.call(w.t.Context(), http.MethodDelete, w.URL(0)+"/v1/files/"+id, "", nil) // the limit of files is far
	}
	return len(acked), lost
}

// sampleProcesses watches the processes of the machines. The result ends it and returns the machines of which two
// processes held the disk, and replicas beyond replicas.max.
func (w *controlWorld) sampleProcesses() func() []string {
	ctx, cancel := context.WithCancel(w.t.Context())
	seen := map[string]bool{}
	var sampler sync.WaitGroup
	sampler.Go(func() {
		doubled := map[string]int{}
		for ctx.Err() == nil {
			running := w.Processes()
			for machine, pids := range running {
				known := slices.Contains(w.control, machine) || slices.Contains(w.replicas, machine)
				if known && len(pids) == 1 {
					delete(doubled, machine)
					continue
				}
				// A process that starts while another holds its machine ends by itself: it must not stay.
				if doubled[machine]++; doubled[machine] > 20 || !known {
					seen[fmt.Sprint(machine, " ", len(pids))] = true
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return func() []string {
		cancel()
		sampler.Wait()
		return slices.Sorted(maps.Keys(seen))
	}
}

// events returns the events of the service since a time, oldest first.
func (w *controlWorld) events(since time.Time) (events []telemetry.Event) {
	w.t.Helper()
	out := w.Run("events", faultsName, "--limit", "1000", "--since", since.UTC().Format(time.RFC3339Nano), "-o", "json")
	for line := range bytes.Lines(out) {
		var e telemetry.Event
		if err := json.Unmarshal(line, &e); err != nil {
			w.t.Fatalf("%v: %s", err, line)
		}
		if e.At.After(since) {
			events = append(events, e)
		}
	}
	return events
}

// copyStore writes a backup of the service's store to a file, and returns a store with its content.
func (w *controlWorld) copyStore(file string) *store.Store {
	w.t.Helper()
	w.Run("backup", file, "--service", faultsName, "--force")
	server, err := store.Serve(w.t.Context(), store.Options{Dir: w.t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(server.Close)
	st, err := store.Connect(w.t.Context(), server.URL(), "", store.ForService(faultsName))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(st.Close)
	f, err := os.Open(file)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if _, err := st.RestoreBackup(w.t.Context(), f, faultsName, true); err != nil {
		w.t.Fatal(err)
	}
	return st
}

// snapshot returns the snapshot of a balancer that responds.
func (w *controlWorld) snapshot() (s telemetry.Snapshot) {
	w.t.Helper()
	if err := json.Unmarshal(w.Run("top", faultsName, "--once", "-o", "json"), &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// storeDir returns the directory of a machine's store.
func (w *controlWorld) storeDir(machine string) string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.MachineDir(machine), "state", "*", "store"))
	if err != nil || len(found) != 1 {
		w.t.Fatalf("the store of %s: %v, %v", machine, found, err)
	}
	return found[0]
}

// mountStore gives the store of a machine a small file system.
func (w *controlWorld) mountStore(machine string) {
	w.t.Helper()
	_, repair := w.killMachines(machine)
	dir, content := w.storeDir(machine), filepath.Join(w.t.TempDir(), machine)
	err := os.CopyFS(content, os.DirFS(dir))
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, storeDisk)
	}
	if err == nil {
		w.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		err = os.CopyFS(dir, os.DirFS(content))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	repair()
	w.settle()
}

// eraseStore removes everything from the disk of a store.
func (w *controlWorld) eraseStore(machine string) {
	w.t.Helper()
	dir := w.storeDir(machine)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *controlWorld) needsDisks() string {
	if !w.disks {
		return "only root can mount file systems"
	}
	return ""
}

// fillDisk uses all space of a store's disk, and returns what frees it.
func (w *controlWorld) fillDisk(machine string) (repair func()) {
	w.t.Helper()
	var disk unix.Statfs_t
	if err := unix.Statfs(w.storeDir(machine), &disk); err != nil || disk.Type != unix.TMPFS_MAGIC {
		w.t.Fatalf("the store of %s has no file system of its own (%v): filling it would fill the computer's disk", machine, err)
	}
	name := filepath.Join(w.storeDir(machine), "fill")
	f, err := os.Create(name)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			w.t.Fatal(err)
		}
	}
}

// openCgroups makes a cgroup for each control machine.
func (w *controlWorld) openCgroups() {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" && os.Getuid() == 0 {
			w.cgroups = filepath.Join(f[1], fmt.Sprint(nftTable, "_", os.Getpid()))
		}
	}
	if _, err := exec.LookPath("nft"); err != nil || w.cgroups == "" {
		w.cgroups = ""
		return
	}
	w.t.Cleanup(func() { // the machines have stopped: this runs after down
		for _, m := range w.control {
			_ = os.Remove(filepath.Join(w.cgroups, m))
		}
		_ = os.Remove(w.cgroups)
	})
	for _, m := range w.control {
		if err := os.MkdirAll(filepath.Join(w.cgroups, m), 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *controlWorld) needsCuts() string {
	if w.cgroups == "" && w.network == nil {
		return "cutting the network needs root, cgroup2 and nft"
	}
	return ""
}

// place runs each control machine in its cgroup, since a socket belongs to the one in which its process was when it
// opened it, and replicas in none.
func (w *controlWorld) place() {
	w.t.Helper()
	if w.network != nil {
		return
	}
	for _, m := range slices.Concat(w.control, w.replicas) {
		for {
			s := w.settle()
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.PID(m)))
			if err != nil {
				w.t.Fatal(err)
			}
			in, own := strings.Contains(string(text), nftTable), strings.Contains(string(text), filepath.Base(w.cgroups)+"/"+m+"\n")
			if own || !in && !slices.Contains(w.control, m) {
				break
			}
			w.t.Logf("moving %s, leader %s", m, s.Leadership.Leader)
			w.killMachines(m)
			if slices.Contains(w.control, m) {
				w.up(m)
			} else {
				w.up("")
			}
		}
	}
}

// cut cuts the network between a machine and others, and returns what repairs it.
func (w *controlWorld) cut(machine string, others []string) (repair func()) {
	w.t.Helper()
	if w.network != nil {
		return w.network.cut(w.t, machine, others)
	}
	w.dropPackets(machine, others)
	return w.uncut
}

// dropPackets drops all packets between a machine and others, until uncut.
func (w *controlWorld) dropPackets(machine string, others []string) {
	w.t.Helper()
	var rules strings.Builder
	match := func(m string) string {
		return fmt.Sprintf("socket cgroupv2 level 2 %q", strings.TrimPrefix(filepath.Join(w.cgroups, m), "/sys/fs/cgroup/"))
	}
	fmt.Fprintf(&rules, "table inet %s {\n chain sent { type filter hook output priority 0;\n", nftTable)
	fmt.Fprintf(&rules, "  %s meta mark set 0x5e1\n", match(machine))
	for _, o := range others {
		fmt.Fprintf(&rules, "  %s meta mark set 0x5e2\n", match(o))
	}
	fmt.Fprintf(&rules, " }\n chain received { type filter hook input priority 0;\n  meta mark 0x5e2 %s drop\n", match(machine))
	for _, o := range others {
		fmt.Fprintf(&rules, "  meta mark 0x5e1 %s drop\n", match(o))
	}
	rules.WriteString(" }\n}\n")
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("cutting the network: %v: %s\n%s", err, out, rules.String())
	}
	w.t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "inet", nftTable).Run() })
}

// uncut ends dropPackets.
func (w *controlWorld) uncut() {
	if out, err := exec.Command("nft", "delete", "table", "inet", nftTable).CombinedOutput(); err != nil {
		w.t.Fatalf("repairing the network: %v: %s", err, out)
	}
}
