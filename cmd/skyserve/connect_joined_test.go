package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/local"
)

const joinedYAML = `name: orders
models: [{name: org/m, engine: {kind: sim, speed: 20}, gpus: [{type: L4, tps: 800}]}]
regions:
  - {name: local/us, replicas: {min: 1, max: 3}}
  - {name: local/eu, replicas: {min: 1, max: 3}}
local: {port: %d}
`

// joinService gives this process the state directory of an operator who joined a service by `connect` with one admin URL.
func joinService(t *testing.T, authority *identity.Authority, name, adminURL string) {
	t.Helper()
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := home.Service(name)
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := authority.Certify(key.Public(), identity.Name{Service: name, Role: identity.Operator, ID: "bob@laptop"}, time.Now(), time.Hour)
	if err == nil {
		err = identityOf(svc).KeepOperator(chain, key)
	}
	if err == nil {
		err = storeAdminURLs(svc, adminURL)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An operator who joined a service through one of its balancers uses all of them; a plan says if one does not respond.
func TestJoinedOperatorUsesAllBalancers(t *testing.T) {
	testkit.Slow(t)
	deployer := t.TempDir()
	t.Setenv("SKYSERVE_HOME", deployer)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("service.yaml", fmt.Appendf(nil, joinedYAML, testkit.LocalPort()), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "up", "service.yaml")
	t.Cleanup(func() {
		t.Setenv("SKYSERVE_HOME", deployer)
		command(t, "down", "orders")
	})
	svc, balancers, err := runningBalancers("orders")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := identityOf(svc).Authority()
	if err != nil {
		t.Fatal(err)
	}
	at := map[service.Region]provision.Object{}
	for _, b := range balancers {
		at[b.Region] = b
	}
	endpoints, err := endpointsOf(svc, balancers)
	if err != nil {
		t.Fatal(err)
	}
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoints["eu"]+"/v1/completions", strings.NewReader(`{"model":"org/m","prompt":"hello","max_tokens":1}`))
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("X-Request-ID", "asked-eu")
	response, err := http.DefaultClient.Do(ask)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("the request: %v, %v", response, err)
	}
	response.Body.Close()

	joinService(t, authority, "orders", "https://"+strings.TrimPrefix(at["local/us"].Admin, "http://"))
	runs := func(wantCode int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), args, &out, &errOut); code != wantCode {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, code, wantCode, &out, &errOut)
		}
		return out.String(), errOut.String()
	}
	planned := func() (current map[string]int, assumed string) {
		t.Helper()
		var p plan.Proposal
		if out, _ := runs(exitOK, "plan", "-o", "json"); json.Unmarshal([]byte(out), &p) != nil {
			t.Fatalf("the plan: %s", out)
		}
		current = map[string]int{}
		for _, c := range p.Changes {
			current[c.Region] = c.Current
		}
		return current, strings.Join(p.Assumed, "\n")
	}
	if current, assumed := planned(); current["local/us"] != 1 || current["local/eu"] != 1 || strings.Contains(assumed, "do not respond") {
		t.Errorf("the plan has %v replicas, want 1 in both regions; %s", current, assumed)
	}
	if out, _ := runs(exitOK, "explain", "asked-eu"); !strings.Contains(out, "lb-eu-0") {
		t.Errorf("the explanation of a request of local/eu: %s", out)
	}
	for _, args := range [][]string{{"load", "--duration", "1s"}, {"batch", "list"}} {
		if _, errOut := runs(exitUsage, args...); !strings.Contains(errOut, "orders: it was deployed from another machine") || !strings.Contains(errOut, "--target") || strings.Contains(errOut, "skyserve up") {
			t.Errorf("%v: %s", args, errOut)
		}
	}

	pid, err := strconv.Atoi(at["local/eu"].Labels["pid"])
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGSTOP)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, assumed := planned()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	if !strings.Contains(assumed, "1 of 2 balancers do not respond") {
		t.Errorf("with a balancer that does not respond: %s", assumed)
	}
}
