package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// runs runs the command with its own state directory.
func (c *testCloud) runs(home string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	cmd := exec.Command(c.program, args...)
	cmd.Env = append(os.Environ(), "SKYSERVE_HOME="+home)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// balancing runs a balancer with an identity until the test ends, and returns its admin URL.
func (c *testCloud) balancing() string {
	c.t.Helper()
	dir := c.t.TempDir()
	key, err := identity.NewKey()
	if err != nil {
		c.t.Fatal(err)
	}
	chain, err := c.Authority.Certify(key.Public(), identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}, time.Now(), time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	secret, err := identity.EncodeKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	admin := testkit.FreeAddr()
	config, err := json.Marshal(service.BalancerConfig{
		Service: "chat", ID: "lb-us-0", Region: "aws/us-east-1", Listen: "127.0.0.1:0", Admin: admin, Identity: &service.Identity{Cert: "c", Key: "k", CA: "a"},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	for name, text := range map[string][]byte{"c": identity.EncodeChain(chain), "k": secret, "a": identity.EncodeChain(chain[len(chain)-1:]), "lb.json": config} {
		if err := identity.WriteFile(filepath.Join(dir, name), text); err != nil {
			c.t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, c.program, "lb", "--config", "lb.json")
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was signalled to end
	})
	url := "https://" + admin
	within(c.t, "the balancer responds", func() error {
		resp, err := secure(c.t, c.Party).Get(url + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	return url
}

// invite runs `connect --invite`. code waits for the printed code, and end for the exit.
func (c *testCloud) invite(home, url string) (code func() string, end func() (string, int)) {
	c.t.Helper()
	cmd := exec.Command(c.program, "connect", url, "--invite")
	cmd.Env = append(os.Environ(), "SKYSERVE_HOME="+home)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	code = func() string {
		c.t.Helper()
		line, err := io.ReadAll(io.LimitReader(out, int64(len("skyserve connect "+url+" --code ")+77)))
		m := regexp.MustCompile(`--code ([a-z2-7]{77})$`).FindSubmatch(line)
		if err != nil || m == nil {
			c.t.Fatalf("printed %q (%v)", line, err)
		}
		return string(m[1])
	}
	end = func() (string, int) {
		_ = cmd.Wait() // its exit code is what counts
		return errOut.String(), cmd.ProcessState.ExitCode()
	}
	return code, end
}

func TestConnect(t *testing.T) {
	testkit.Slow(t)
	c := newCloud(t)
	first, second := t.TempDir(), t.TempDir()
	dir := filepath.Join(first, "services", "chat", dirIdentity)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.home.Dir, dir); err != nil {
		t.Fatal(err)
	}
	url := c.balancing()

	if _, errOut, exit := c.runs(first, "connect", "https://127.0.0.1:1", "--invite"); exit != exitFailed || !strings.Contains(errOut, "connection refused\nhint: the URL must be the admin address of a balancer that runs: 'skyserve status chat' shows which ones do") {
		t.Errorf("exit %d: %s", exit, errOut)
	}
	code, end := c.invite(first, url)
	text := code()
	out, errOut, exit := c.runs(second, "connect", url, "--code", text, "--as", "bob@laptop")
	if exit != exitOK || !strings.HasPrefix(out, "bob@laptop is an operator of chat; the certificate expires ") {
		t.Fatalf("exit %d: %s%s", exit, out, errOut)
	}
	if errOut, exit := end(); exit != exitOK || !strings.Contains(errOut, "bob@laptop is an operator of chat; the certificate expires ") {
		t.Errorf("exit %d: %s", exit, errOut)
	}
	// The second machine now needs no URL.
	if out, errOut, exit := c.runs(second, "top", "--once", "-o", "json"); exit != exitOK || !strings.Contains(out, `"admin":"`+url+`"`) {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	// Without the service's file its machines cannot be found: the service is neither shown as down nor deleted.
	for _, command := range []string{"status", "replica list", "replica drain us-0", "logs", "down --yes"} {
		if out, errOut, exit := c.runs(second, strings.Fields(command)...); exit != exitUsage || !strings.Contains(errOut, "chat was deployed from another machine, and its service.yaml is not on this one") {
			t.Errorf("%s: exit %d: %s%s", command, exit, out, errOut)
		}
	}
	file := filepath.Join(second, "here.yaml")
	if err := os.WriteFile(file, []byte("name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Without cloud regions, the file does not help either.
	if _, errOut, _ := c.runs(second, "replica", "drain", "us-0"); !strings.Contains(errOut, "for one without cloud regions, run the command on the machine from which it was deployed") {
		t.Errorf("no next step for a local service: %s", errOut)
	}
	if out, errOut, exit := c.runs(second, "down", "--yes", file); exit != exitUsage || !strings.Contains(errOut, "chat runs on the machine from which it was deployed") {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	// A code works once.
	if _, errOut, exit := c.runs(t.TempDir(), "connect", url, "--code", text); exit != exitFailed || !strings.Contains(errOut, "the invitation was already used") {
		t.Errorf("exit %d: %s", exit, errOut)
	}
	// An invited operator cannot invite: the authority is on another machine.
	if _, errOut, exit := c.runs(second, "connect", url, "--invite"); exit != exitCredentials || !strings.Contains(errOut, "its certificate authority is not on this machine") {
		t.Errorf("exit %d: %s", exit, errOut)
	}
	// It can forget the service, which is not down then.
	const forgot = "the state of chat on this machine, with its certificate, is deleted; the service is unchanged\n"
	if out, errOut, exit := c.runs(second, "down", "chat", "--purge"); exit != exitOK || out != forgot {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
}

// A code of another service's authority is rejected, and so is one that no balancer has open.
func TestConnectRejectsInvalidInput(t *testing.T) {
	testkit.Slow(t)
	c := newCloud(t)
	url := c.balancing()
	other := identity.NewInvite(newCloud(t).Authority).Text()
	unknown := identity.NewInvite(c.Authority).Text()
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"another service": {[]string{url, "--code", other}, exitFailed, "not trusted by this service"},
		"unknown code":    {[]string{url, "--code", unknown}, exitFailed, "the invitation is not open"},
		"no code":         {[]string{url}, exitUsage, "requires either --invite or --code"},
		"truncated code":  {[]string{url, "--code", unknown[:40]}, exitUsage, "the code must be 77 letters and digits, got 40"},
		"http URL":        {[]string{strings.Replace(url, "https://", "http://", 1), "--code", unknown}, exitFailed, "the invitation is not open"},
		"no URL":          {[]string{"balancer:1", "--code", unknown}, exitUsage, "must be the URL of a balancer's admin address"},
		"no service":      {[]string{url, "--invite"}, exitFailed, "no service"},
		"name of inviter": {[]string{url, "--invite", "--as", "bob"}, exitUsage, "--as: valid only with --code"},
	} {
		_, errOut, exit := c.runs(t.TempDir(), append([]string{"connect"}, tt.args...)...)
		if exit != tt.code || !strings.Contains(errOut, tt.want) {
			t.Errorf("%s: exit %d: %s", name, exit, errOut)
		}
	}
}

// An invitation warns of a URL that only the inviting machine reaches.
func TestInviteURLOnLoopback(t *testing.T) {
	for url, want := range map[string]bool{
		"https://127.0.0.1:18101": true, "https://[::1]:18101": true, "https://localhost:18101": true, "https://10.0.0.7:18101": false, "https://lb.example.com:18101": false,
	} {
		if host, got := loopbackHost(url); got != want || "https://"+host != url {
			t.Errorf("%s: got %s, %t, want %t", url, host, got, want)
		}
	}
}
