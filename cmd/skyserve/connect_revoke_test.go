package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
	"skyserve/provision/local"
)

const oneRegion = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
regions:
  - name: aws/us-east-1
balancer:
  auth: {keys_from: env:KEYS}
  insecure: true
`

// operatorsOf is the JSON output of connect --list and --revoke.
type operatorsOf struct {
	Service     string
	List        int
	Operators   []operatorRow
	Controllers []operatorRow
}

// operators runs connect on the machine from which the service was deployed, and parses its
// output.
func (e *emulated) operators(args ...string) (all operatorsOf, errOut string) {
	e.t.Helper()
	cmd := e.command(e.at(append([]string{"connect", "-o", "json"}, args...)...)...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &all)
	}
	if err != nil {
		e.t.Fatalf("connect %s: %v: %s%s", args, err, out.String(), stderr.String())
	}
	return all, stderr.String()
}

// admin returns the admin URL of the first balancer, as stored by up.
func (e *emulated) admin() string {
	e.t.Helper()
	text, err := os.ReadFile(filepath.Join(e.dir, "home", "services", "chat", local.FileAdmins))
	var urls []string
	if err == nil {
		err = json.Unmarshal(text, &urls)
	}
	if err != nil || len(urls) == 0 {
		e.t.Fatalf("reading the admin URLs: %v in %s", err, text)
	}
	return urls[0]
}

// A revoked operator is listed as such, and all machines reject it, also those launched later. The
// operator who revoked it is still accepted.
func TestRevokingAnOperator(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(oneRegion), "--yes")
	e.skyserve(exitOK, up...)
	c := &testCloud{t: t, program: e.program}
	first, second := filepath.Join(e.dir, "home"), t.TempDir()
	url := e.admin()
	code, end := c.invite(first, url)
	if out, errOut, exit := c.runs(second, "connect", url, "--code", code(), "--as", "bob@laptop"); exit != exitOK {
		t.Fatalf("exit %d: %s%s", exit, out, errOut)
	}
	if errOut, exit := end(); exit != exitOK {
		t.Fatalf("exit %d: %s", exit, errOut)
	}
	fetchSnapshot := func(home string) (string, int) {
		_, errOut, exit := c.runs(home, "top", "--once", "-o", "json")
		return errOut, exit
	}
	if errOut, exit := fetchSnapshot(second); exit != exitOK {
		t.Fatalf("before: exit %d: %s", exit, errOut)
	}
	all, _ := e.operators("--list")
	var bob operatorRow
	for _, o := range all.Operators {
		if o.Name == "bob@laptop" {
			bob = o
		}
	}
	if len(all.Operators) != 2 || all.List != 0 || bob.Fingerprint == "" || bob.Revoked || bob.Self || bob.ExpiresAt.IsZero() {
		t.Fatalf("listed are %+v", all)
	}
	after, errOut := e.operators("--revoke", bob.Fingerprint[:12])
	if after.List != 1 || !strings.Contains(errOut, "2 of 2 machines have revocation list 1") {
		t.Errorf("revoked: %+v, %s", after, errOut)
	}
	for _, o := range after.Operators {
		if o.Revoked != (o.Name == "bob@laptop") {
			t.Errorf("revoked: %+v", o)
		}
	}
	taken, err := identity.Home{Dir: filepath.Join(second, "services", "chat", dirIdentity)}.OperatorParty("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	client := secure(t, taken)
	within(t, "the revoked operator is rejected", func() error {
		resp, err := client.Get(url + "/healthz")
		status := http.StatusForbidden // count a failed handshake as 403
		if err == nil {
			resp.Body.Close()
			status = resp.StatusCode
		}
		if status != http.StatusForbidden {
			return fmt.Errorf("the revoked operator gets %d", status)
		}
		return nil
	})
	if errOut, exit := fetchSnapshot(second); exit == exitOK || !strings.Contains(errOut, "tls") {
		t.Errorf("the revoked operator: exit %d: %s", exit, errOut)
	}
	if errOut, exit := fetchSnapshot(first); exit != exitOK {
		t.Errorf("the revoking operator: exit %d: %s", exit, errOut)
	}
	if out := e.skyserve(exitOK, "connect", "--list"); !hasRow(out, []string{"bob@laptop", "operator", bob.Fingerprint, bob.ExpiresAt.Format("2006-01-02"), "yes"}) {
		t.Errorf("listed are\n%s", out)
	}
	for _, m := range e.aws.Machines() {
		if m.Market == "on_demand" && strings.HasPrefix(m.Type, "g6.") {
			e.aws.TerminateInstance(m.ID)
		}
	}
	e.skyserve(exitOK, up...) // launches the replica again
	if _, errOut := e.operators("--revoke", "bob@laptop"); !strings.Contains(errOut, "2 of 2 machines have revocation list 1") {
		t.Errorf("once more: %s", errOut)
	}
	e.revokeController(up)
}

// revokeController revokes the controller and its delegated authority. Machines that it certified
// keep working, and `up` issues another certificate, with which the controller works again.
func (e *emulated) revokeController(up []string) {
	e.t.Helper()
	const name = "controllers" // they share their certificates, whichever machines they run on
	after, errOut := e.operators("--revoke", name)
	if len(after.Controllers) != 2 || !strings.Contains(errOut, "2 of 2 machines have revocation list 2") || !strings.Contains(errOut, "skyserve up") {
		e.t.Fatalf("revoked: %+v, %s", after, errOut)
	}
	for _, c := range after.Controllers {
		if !c.Revoked || c.Name != name || c.ExpiresAt.Before(time.Now().AddDate(0, 11, 0)) {
			e.t.Errorf("revoked: %+v", c)
		}
	}
	e.skyserve(exitOK, up...)
	within(e.t, "another controller is at work, and the replica serves", func() error {
		var s struct {
			State      string
			Controller struct{ State, Reason string }
		}
		e.document(&s, e.at("status", "-o", "json")...)
		if s.State != "READY" || s.Controller.State != "READY" {
			return fmt.Errorf("got %+v", s)
		}
		return nil
	})
	if all, _ := e.operators("--list"); len(all.Controllers) != 4 {
		e.t.Errorf("certificates of controllers: %+v", all.Controllers)
	}
}

// Invalid arguments of --revoke and --list are rejected.
func TestRevokeRejectsInvalidArguments(t *testing.T) {
	testkit.Slow(t)
	c := newCloud(t)
	home := t.TempDir()
	svc := filepath.Join(home, "services", "chat")
	if err := os.MkdirAll(svc, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.home.Dir, filepath.Join(svc, dirIdentity)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown operator": {[]string{"--revoke", "eve"}, exitFailed, `revoking "eve": no operator of chat has that name or fingerprint`},
		"own certificate":  {[]string{"--revoke", "ann"}, exitUsage, "this machine's own certificate cannot be revoked"},
		"list and revoke":  {[]string{"--list", "--revoke", "ann"}, exitUsage, "cannot be combined"},
		"with a URL":       {[]string{"--list", "https://127.0.0.1:1"}, exitUsage, "cannot be combined"},
		"no URL":           {nil, exitUsage, "the admin URL of a balancer"},
		"invalid format":   {[]string{"--list", "-o", "xml"}, exitUsage, "xml"},
	} {
		if _, errOut, exit := c.runs(home, append([]string{"connect"}, tt.args...)...); exit != tt.code || !strings.Contains(errOut, tt.want) {
			t.Errorf("%s: exit %d: %s", name, exit, errOut)
		}
	}
}
