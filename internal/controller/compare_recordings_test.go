//go:build compare && linux

package controller_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/atomicfile"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
)

// Recordings of `skyserve top --record`, one a fault, and the file with the times at which the faults began.
const (
	recordingsDir = "../../docs/recordings/faults"
	beginsFile    = "begins.json"
)

const (
	// beforeBegin is how much of the time before a fault a recording shows, afterAlert of the time after its alert.
	beforeBegin = 4 * time.Second
	afterAlert  = time.Second
	// alertWithin is how long a recording waits for an alert.
	alertWithin = 8 * time.Minute
	// storedAfter is the time after the end of a minute in which all balancers have stored its load: earlier, it
	// cannot be compared with its forecast.
	storedAfter = 15 * time.Second
)

// recordedFault is a fault of the quickstart's service of real processes.
type recordedFault struct {
	name string
	// change are replacements in service.yaml, as for strings.NewReplacer.
	change []string
	// clients are those of the load before the fault; empty = none.
	clients string
	prepare func(*recorder)
	// inject begins the fault, and returns when it began.
	inject func(*recorder) time.Time
	// storedMinute: a stored minute shows the fault, which begins when the last one before the alert is stored.
	storedMinute bool
	// alert is the kind of its alert, object a prefix of the alert's object, and says a part of its message.
	alert, object, says string
}

// recorder records a fault.
type recorder struct {
	*controlWorld
	clouds *machines.Clouds // nil for a local service
}

var recordedFaults = []recordedFault{
	{name: "errors", clients: "us=30", inject: func(r *recorder) time.Time { return r.postFault("us-1", `{"error-rate":0.5}`) }, alert: telemetry.AlertErrors, object: "us-1"},
	{name: "slow", clients: "us=16", inject: func(r *recorder) time.Time { return r.postFault("us-1", `{"slow":4}`) }, alert: telemetry.AlertSlow, object: "us-1"},
	{name: "dead-balancer", inject: func(r *recorder) time.Time {
		r.Kill("lb-eu-0")
		return time.Now()
	}, alert: telemetry.AlertBalancer, object: "lb-eu-0"},
	{name: "partition", prepare: func(r *recorder) {
		for _, program := range []string{"ss", "nft"} {
			if _, err := exec.LookPath(program); err != nil {
				r.t.Fatalf("the partition requires %s: %v", program, err)
			}
		}
	}, inject: func(r *recorder) time.Time {
		r.cutOff("lb-asia-0")
		return time.Now()
	}, alert: telemetry.AlertBalancer, object: "lb-asia-0"},
	{name: "full-queue", change: []string{"  policy: cost", "  queue_limit: 20\n  policy: cost", "{min: 2, max: 2}", "{min: 1, max: 1}"}, inject: func(r *recorder) time.Time {
		r.startClients("us=400")
		return time.Now()
	}, alert: telemetry.AlertLimited, object: "lb-us-0"},
	{name: "certificate", change: []string{"  policy: cost", "  tls: {cert: DIR/cert.pem, key: DIR/key.pem}\n  policy: cost"}, inject: func(r *recorder) time.Time {
		end := r.status().Regions[0].Balancers[0].Certificate.ExpiresAt
		time.Sleep(time.Until(*end))
		return *end
	}, alert: telemetry.AlertCertificate, object: "lb-us-0 public", says: "expired"},
	{name: "full-disk", prepare: func(r *recorder) {
		if os.Getuid() != 0 {
			r.t.Skip("only root can mount file systems")
		}
		for _, m := range r.control { // any of them may lead when the fault begins
			r.mountStore(m)
		}
	}, inject: func(r *recorder) time.Time {
		r.fillDisk(r.status().Leadership.Leader)
		return time.Now()
	}, alert: telemetry.AlertStore, says: "free"},
	{name: "infeasible-plan", change: []string{"prompt_tokens_per_second: 15000", "prompt_tokens_per_second: 10"}, inject: func(r *recorder) time.Time {
		r.startClients("us=8")
		return r.awaitPlan(time.Now(), "infeasible") // a minute after the first requests
	}, alert: telemetry.AlertPlan, object: "plan"},
	{name: "forecast", storedMinute: true, prepare: func(r *recorder) {
		r.startClients("us=8")
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(2*time.Minute + storedAfter))) // a whole minute
		r.addHistory(2 * 24 * time.Hour)
		r.awaitPlan(time.Now(), "")
	}, inject: func(r *recorder) time.Time {
		half := 30 * time.Second
		time.Sleep(time.Until(time.Now().Add(half).Truncate(time.Minute).Add(half)))
		r.startClients("us=8")
		return time.Now()
	}, alert: telemetry.AlertForecast, object: "meta-llama", says: "x the forecast"},
	{name: "version-skew", inject: func(r *recorder) time.Time {
		r.Kill("lb-eu-0")
		cmd := r.Command("up", r.Document)
		cmd.Path = otherProgram(r.t)
		begin := time.Now() // the balancer may run, with the alert, some time before up ends
		if out, err := cmd.CombinedOutput(); err != nil {
			r.t.Fatalf("up with another version: %v: %s", err, out)
		}
		return begin
	}, alert: telemetry.AlertVersion, object: ""},
}

// cloudService is a service in emulated AWS.
const cloudService = `
name: faults
models:
  - {name: llama, engine: {kind: sim, speed: 10}, gpus: [{type: L4}]}
regions:
  - {name: aws/us-east-1, replicas: {min: 2, max: 2}, capacity: [spot]}
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
# %d is a port of local services
`

// recordedCloudFaults are faults of cloudService.
var recordedCloudFaults = []recordedFault{
	{name: "interruption", inject: func(r *recorder) time.Time {
		if _, err := r.clouds.SendInterruptionNotice("us-east-1-0"); err != nil {
			r.t.Error(err)
		}
		return time.Now()
	}, alert: telemetry.AlertInterruption, object: "us-east-1-0"},
	{name: "quota", inject: func(r *recorder) time.Time {
		refused := make(chan time.Time, 1)
		aws := r.clouds.AWS
		aws.Configure(func() {
			aws.QuotaLimits = map[string]float64{"L-3819A6DF": 4} // vCPUs of spot machines with GPUs: one g6.xlarge
			aws.CapacityErrorCode = func(_, instanceType, _ string) string {
				if strings.HasPrefix(instanceType, "g6") {
					select {
					case refused <- time.Now():
					default:
					}
				}
				return ""
			}
		})
		r.clouds.TerminateWithoutNotice(r.clouds.RunningMachineIDs()["us-east-1-0"])
		select {
		case at := <-refused:
			return at
		case <-time.After(alertWithin):
			r.t.Error("no replacement was launched")
			return time.Now()
		}
	}, alert: telemetry.AlertLaunch, object: "aws/us-east-1", says: "the quota is exhausted"},
}

// newCloudRecorder starts cloudService.
func newCloudRecorder(t *testing.T) *recorder {
	t.Helper()
	program, err := filepath.Abs("../../bin/skyserve")
	if err != nil {
		t.Fatal(err)
	}
	clouds := machines.New(machines.Options{Dir: t.TempDir(), Program: program, Environment: os.Environ(), Regions: []string{"us-east-1"}, Project: "p", Faults: &testcloud.Faults{}, OnEnded: func(string, error, string) {}})
	t.Cleanup(clouds.Close)
	aws := httptest.NewServer(clouds.AWSHandler())
	t.Cleanup(aws.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": aws.URL, "AWS_ACCESS_KEY_ID": "emulated", "AWS_SECRET_ACCESS_KEY": "emulated", "AWS_EC2_METADATA_DISABLED": "true", "KEYS": "key-of-a-client",
		"SKYSERVE_PROGRAM": "http://127.0.0.1:1/skyserve#sha256=" + strings.Repeat("0", 64),
	} {
		t.Setenv(name, value)
	}
	w := &controlWorld{t: t, client: &http.Client{Timeout: 5 * time.Second}}
	w.LiveService = testkit.NewLiveService(t, "../..", faultsName, cloudService)
	w.Run("up", w.Document, "--yes")
	return &recorder{controlWorld: w, clouds: clouds}
}

// otherProgram returns the path of a binary of another version, which SKYSERVE_OTHER names.
func otherProgram(t *testing.T) string {
	path := os.Getenv("SKYSERVE_OTHER")
	if path == "" {
		t.Skip("SKYSERVE_OTHER must name a binary of another version")
	}
	return path
}

// TestRecordFaults records each fault with `skyserve top --record` from some seconds before it until its alert.
func TestRecordFaults(t *testing.T) {
	for _, f := range recordedFaults {
		t.Run(f.name, func(t *testing.T) {
			r := newRecorder(t, f)
			begins := r.recordFault(f)
			saveBegin(t, f.name, begins)
		})
	}
	for _, f := range recordedCloudFaults {
		t.Run(f.name, func(t *testing.T) {
			saveBegin(t, f.name, newCloudRecorder(t).recordFault(f))
		})
	}
}

func newRecorder(t *testing.T, f recordedFault) *recorder {
	t.Helper()
	document := testkit.Quickstart(t, "../..", faultsName)
	document = strings.Replace(document, "replicas: {min: 2, max: 8}", "replicas: {min: 2, max: 2}", 1)
	document = strings.ReplaceAll(document, "replicas: {min: 2, max: 8}", "replicas: {min: 1, max: 1}")
	for i := 0; i < len(f.change); i += 2 {
		if !strings.Contains(document, f.change[i]) {
			t.Fatalf("%s: the service.yaml of the quickstart has no %q", f.name, f.change[i])
		}
	}
	document = strings.NewReplacer(f.change...).Replace(document)
	if strings.Contains(document, "DIR/") {
		dir := t.TempDir()
		writeShortCertificate(t, dir)
		document = strings.ReplaceAll(document, "DIR/", dir+"/")
	}
	w := &controlWorld{t: t, control: []string{"lb-asia-0", "lb-eu-0", "lb-us-0"}, replicas: []string{"asia-0", "eu-0", "us-0", "us-1"}, client: &http.Client{Timeout: 5 * time.Second}}
	if strings.Contains(document, "queue_limit") {
		w.replicas = []string{"asia-0", "eu-0", "us-0"}
	}
	w.LiveService = testkit.NewLiveService(t, "../..", faultsName, document)
	w.Run("up", w.Document)
	w.settle()
	return &recorder{controlWorld: w}
}

// recordFault records a fault and returns when it began.
func (r *recorder) recordFault(f recordedFault) time.Time {
	t := r.t
	if f.prepare != nil {
		f.prepare(r)
		r.settle()
	}
	if f.clients != "" {
		r.startClients(f.clients)
		time.Sleep(30 * time.Second) // the engines' paces are known, and the first requests have ended
	}
	if f.says == "" { // a certificate that is about to expire has a warning
		r.awaitNoAlerts()
	}
	file := filepath.Join(recordingsDir, f.name+".jsonl.gz")
	if err := os.MkdirAll(recordingsDir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := r.Command("top", faultsName, "-o", "json", "-n", "100000", "--interval", "500ms", "--record", file)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	began, found := make(chan time.Time, 1), make(chan bool, 1)
	go func() {
		defer close(began) // also if inject fails the test
		time.Sleep(beforeBegin)
		began <- f.inject(r)
	}()
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var s telemetry.Snapshot
			if json.Unmarshal(lines.Bytes(), &s) != nil {
				continue
			}
			if slices.ContainsFunc(s.Alerts, func(a telemetry.Alert) bool {
				return a.Kind == f.alert && strings.HasPrefix(a.Object, f.object) && strings.Contains(a.Message, f.says)
			}) {
				found <- true
				break
			}
		}
		for lines.Scan() { // the pipe must not fill
		}
	}()
	var alertAt time.Time
	select {
	case <-found:
		alertAt = time.Now()
	case <-time.After(alertWithin):
		t.Errorf("no alert %s within %s: %s", f.alert, alertWithin, r.Run("status", faultsName))
	}
	time.Sleep(afterAlert)
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Error(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Error(err)
	}
	begin := <-began
	if f.storedMinute {
		begin = alertAt.Add(-storedAfter).Truncate(time.Minute).Add(storedAfter)
	}
	if alertAt.Before(begin) {
		t.Errorf("%s: the alert came %s before the fault", f.name, begin.Sub(alertAt))
	}
	t.Logf("%s: began %s, alert %s later", f.name, begin.Format(time.TimeOnly), alertAt.Sub(begin))
	return begin
}

// cutOff drops all packets to the ports on which the processes of a machine listen.
func (r *recorder) cutOff(machine string) {
	r.t.Helper()
	listening, err := exec.Command("ss", "-Hltnp").Output()
	if err != nil {
		r.t.Fatalf("listing ports: %v", err)
	}
	family := r.family(r.PID(machine))
	var ports []string
	for line := range strings.Lines(string(listening)) {
		fields := strings.Fields(line)
		if slices.ContainsFunc(family, func(pid int) bool { return strings.Contains(line, fmt.Sprintf("pid=%d,", pid)) }) {
			ports = append(ports, fields[3][strings.LastIndex(fields[3], ":")+1:])
		}
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf("table inet %[1]s {\n chain input { type filter hook input priority 0;\n  tcp dport { %[2]s } drop\n  tcp sport { %[2]s } drop\n }\n}\n", nftTable, strings.Join(ports, ", ")))
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("cutting off the ports %v: %v: %s", ports, err, out)
	}
	r.t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "inet", nftTable).Run() })
}

// family returns a process and its descendants.
func (r *recorder) family(pid int) []int {
	all := []int{pid}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range children {
		text, _ := os.ReadFile(file) // it may have ended
		for _, child := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, r.family(n)...)
			}
		}
	}
	return all
}

// awaitPlan waits for a plan with a status that was made after a time, and returns when it was made. An empty status
// matches all.
func (r *recorder) awaitPlan(since time.Time, status string) time.Time {
	for ; ; time.Sleep(500 * time.Millisecond) {
		if p := r.snapshot().Plan; p != nil && p.Error == "" && p.Waiting == "" && p.At.After(since) && strings.Contains(p.Status, status) {
			return p.At
		}
	}
}

// addHistory restores the service's store from a backup to which a history is added: before the service started, the
// load was that of the last whole minute, with random differences of up to 10 %.
func (r *recorder) addHistory(length time.Duration) {
	t, ctx, file := r.t, r.t.Context(), filepath.Join(r.t.TempDir(), "faults.backup")
	st := r.copyStore(file)
	first, whole := int64(math.MaxInt64), time.Now().Add(-storedAfter).Unix()/60-1
	var usual []telemetry.Point
	if err := st.ReadPoints(ctx, 0, func(p telemetry.Point) error {
		if first = min(first, p.Minute); p.Minute == whole {
			usual = append(usual, p)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(usual) == 0 {
		t.Fatal("the last whole minute had no load")
	}
	random := mathrand.New(mathrand.NewPCG(1, 2))
	var added []telemetry.Point
	for minute := first - int64(length/time.Minute); minute < first; minute++ {
		for _, p := range usual {
			factor := 0.9 + 0.2*random.Float64()
			p.Minute = minute
			for _, n := range []*int64{&p.Requests, &p.PromptTokens, &p.CachedTokens, &p.OutputTokens} {
				*n = int64(factor * float64(*n))
			}
			added = append(added, p)
		}
	}
	if err := st.AppendPoints(ctx, added); err != nil {
		t.Fatal(err)
	}
	if _, err := store.WriteBackupFile(file, func(w io.Writer) error {
		_, err := st.WriteBackup(ctx, w, faultsName, "")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.Run("restore", file, "--service", faultsName, "--force")
}

// awaitNoAlerts waits until the service has no alert.
func (r *recorder) awaitNoAlerts() {
	for range 60 {
		if len(r.status().Alerts) == 0 {
			return
		}
		time.Sleep(time.Second)
	}
	r.t.Fatalf("the service has alerts before the fault: %v", r.status().Alerts)
}

// postFault injects a fault into the engine of a replica.
func (r *recorder) postFault(replica, faults string) time.Time {
	for _, region := range r.status().Regions {
		for _, m := range region.Replicas {
			if m.ID != replica {
				continue
			}
			res, err := r.client.Post(m.URL+"/fault", "application/json", bytes.NewBufferString(faults))
			if err != nil {
				r.t.Error(err)
				return time.Now()
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				r.t.Errorf("injecting a fault into %s: %s", replica, res.Status)
			}
			return time.Now()
		}
	}
	r.t.Errorf("there is no replica %s", replica)
	return time.Now()
}

// writeShortCertificate writes a certificate that expires in a minute, and its key.
func writeShortCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	fields := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Minute)}
	der, err := x509.CreateCertificate(rand.Reader, fields, fields, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := atomicfile.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// saveBegin writes when a fault began to beginsFile.
func saveBegin(t *testing.T, name string, at time.Time) {
	t.Helper()
	file, begins := filepath.Join(recordingsDir, beginsFile), map[string]time.Time{}
	if text, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(text, &begins); err != nil {
			t.Fatal(err)
		}
	}
	begins[name] = at.UTC()
	text, err := json.MarshalIndent(begins, "", "  ")
	if err == nil {
		err = atomicfile.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
