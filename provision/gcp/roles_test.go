package gcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// The role and the service account of balancers, as created by the commands of `doctor`.
const (
	roleOfBalancers    = "projects/p/roles/skyserveBalancer"
	accountOfBalancers = "skyserve-chat-lb@p.iam.gserviceaccount.com"
)

// permissionsOfRole returns the permissions of the role that `doctor` prints.
func permissionsOfRole(t *testing.T) []string {
	t.Helper()
	for line := range strings.Lines(accountSetup()) {
		words := testcloud.SplitShellWords(line)
		if i := slices.Index(words, "--permissions"); i >= 0 {
			return strings.Split(words[i+1], ",")
		}
	}
	t.Fatalf("doctor prints no command for the role:\n%s", accountSetup())
	return nil
}

// docs/clouds.md contains the commands that `doctor` prints for a service with a bucket.
func TestDocsShowAccountCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/clouds.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(replicaAccountSetup(t)) {
		if words := testcloud.SplitShellWords(line); len(words) == 0 || words[0] != "gcloud" {
			continue
		}
		line = strings.NewReplacer("--project p ", "--project PROJECT ", "--project p\n", "--project PROJECT\n", "projects/p/", "projects/PROJECT/", "binding p ", "binding PROJECT ", "@p.iam", "@PROJECT.iam").Replace(strings.TrimRight(line, "\n") + "\n")
		if line = strings.TrimSpace(line); !strings.Contains(string(text), line) {
			t.Errorf("docs/clouds.md lacks\n%s", line)
		}
	}
}

// docs/clouds.md contains the commands that let machines at AWS act as the service account of balancers.
func TestDocsShowFederationCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/clouds.md")
	if err != nil {
		t.Fatal(err)
	}
	f, err := provider(newGCE(nil)).FederationFor(t.Context(), "chat", "AWS_ACCOUNT")
	if err != nil {
		t.Fatal(err)
	}
	commands := f.Commands("p", "skyserve-chat-balancer")
	number := strings.Split(f.Pool, "/")[1]
	for line := range strings.Lines(strings.NewReplacer(number, "NUMBER", "--project p ", "--project PROJECT ", "@p.iam", "@PROJECT.iam").Replace(commands)) {
		if line = strings.TrimSpace(line); !strings.Contains(string(text), line) {
			t.Errorf("docs/clouds.md lacks\n%s", line)
		}
	}
}

// control makes all calls of a controller in its cloud.
func control(p *gcp.Provider) error {
	ctx := context.Background()
	if _, err := p.Offerings(ctx, here); err != nil {
		return err
	}
	if _, err := p.Quotas(ctx, here); err != nil {
		return err
	}
	if _, err := p.Reservations(ctx, here, []string{"mine"}); err != nil {
		return err
	}
	w := replica("us-central1-0", service.CapacitySpot)
	w.Offerings[0].Zone = ""
	o, err := p.Launch(ctx, w)
	if err != nil {
		return err
	}
	if _, err := p.Fingerprint(ctx, o); err != nil {
		return err
	}
	if _, err := p.List(ctx, "chat"); err != nil {
		return err
	}
	return p.Terminate(ctx, o)
}

// operate makes all calls of up and down.
func operate(p *gcp.Provider) error {
	rule := provision.FirewallRule{Port: 8300, From: provision.FromBalancers}
	for _, w := range append(chat(), firewall(provision.KindReplica, rule, provision.FirewallRule{Port: 22, From: provision.FromWorld}), firewall(provision.KindReplica, rule)) {
		if _, err := p.Launch(context.Background(), w); err != nil {
			return err
		}
	}
	have, err := p.List(context.Background(), "chat")
	for _, o := range have {
		if err == nil {
			err = p.Terminate(context.Background(), o)
		}
	}
	if err == nil {
		err = control(p)
	}
	return err
}

// asMachine returns the provider of a machine of the service, which authenticates with its service account.
func asMachine(t *testing.T, g *testcloud.GCE, name string) *gcp.Provider {
	t.Helper()
	_, text := g.MachineCredentials(name)
	cfg := config(g)
	cfg.MachinesOnly = true
	return withToken(cfg, token{value: text})
}

// nameOf returns Compute Engine's name of the machine of an id.
func nameOf(t *testing.T, g *testcloud.GCE, id string) string {
	t.Helper()
	all := g.Instances()
	i := slices.IndexFunc(all, func(i testcloud.GCEInstance) bool { return i.Labels["skyserve-id"] == id })
	if i < 0 {
		t.Fatalf("no machine is called %s", id)
	}
	return all[i].Name
}

// The roles of balancers and of operators contain exactly the required permissions.
func TestRolesAreMinimal(t *testing.T) {
	account := permissionsOfRole(t)
	person := slices.Concat(account, []string{
		"compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get", "compute.firewalls.list", "compute.firewalls.update",
		"compute.globalOperations.get", "compute.instances.setServiceAccount", "compute.networks.updatePolicy", "iam.serviceAccounts.actAs",
	})
	for _, tt := range []struct {
		name string
		role []string
		do   func(role []string) error
	}{
		{"balancer", account, func(role []string) error {
			g := newGCE(nil)
			launched(t, provider(g), balancer("lb-us-central1-0"))
			g.SetRole(roleOfBalancers, role...)
			return control(asMachine(t, g, nameOf(t, g, "lb-us-central1-0")))
		}},
		{"operator", person, func(role []string) error {
			g := newGCE(nil)
			g.SetOperatorPermissions(role...)
			return operate(provider(g))
		}},
	} {
		if err := tt.do(tt.role); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		for i, permission := range tt.role {
			if err := tt.do(slices.Delete(slices.Clone(tt.role), i, i+1)); err == nil {
				t.Errorf("%s: %s is not needed", tt.name, permission)
			}
		}
	}
}

// A controller's machine launches and terminates balancers only if the commands were printed for a service whose
// controllers replace balancers, and then still no machine of another service. doctor reports the missing condition.
func TestAccountReplacesBalancers(t *testing.T) {
	replaces := func(g *testcloud.GCE) *gcp.Provider {
		cfg := config(g)
		cfg.ReplaceBalancers = true
		return gcp.New(cfg)
	}
	commands := func(g *testcloud.GCE) string {
		t.Helper()
		for _, f := range replaces(g).Doctor(t.Context()) {
			if !f.OK && strings.Contains(f.Message, "does not permit launching balancers") {
				return f.Hint
			}
		}
		return ""
	}
	calls := func(g *testcloud.GCE) error {
		p := asMachine(t, g, nameOf(t, g, "lb-us-central1-0"))
		o, err := p.Launch(t.Context(), balancer("lb-us-central1-7"))
		if err == nil {
			_, err = p.Fingerprint(t.Context(), o)
		}
		if err == nil {
			err = p.Terminate(t.Context(), o)
		}
		return errors.Join(err, control(p))
	}
	g := newGCE(nil)
	launched(t, provider(g), balancer("lb-us-central1-0"))
	g.SetRole(roleOfBalancers, append(permissionsOfRole(t), "compute.instances.setServiceAccount")...)
	var denied *provision.CredentialsError
	if err := calls(g); !errors.As(err, &denied) {
		t.Errorf("without the condition: got %v, want that it is denied", err)
	}
	setup := commands(g)
	if setup == "" {
		t.Fatal("doctor does not report that the account cannot launch balancers")
	}
	g = testcloud.NewGCE("p", nil)
	if err := g.RunGcloud(setup); err != nil {
		t.Fatal(err)
	}
	launched(t, provider(g), balancer("lb-us-central1-0"))
	if err := calls(g); err != nil {
		t.Errorf("with it: %v", err)
	}
	if again := commands(g); again != "" {
		t.Errorf("doctor still reports it:\n%s", again)
	}
	other := balancer("lb-us-central1-0")
	other.Service = "other"
	if _, err := asMachine(t, g, nameOf(t, g, "lb-us-central1-0")).Launch(t.Context(), other); !errors.As(err, &denied) {
		t.Errorf("a balancer of another service: got %v, want that it is denied", err)
	}
}

// With gcp.spare_account, the commands that doctor prints let balancers launch spares and balancers, and spares neither.
// doctor reports an account of all balancers that permits it.
func TestAccountOfSpares(t *testing.T) {
	const account = "spare@p.iam.gserviceaccount.com"
	open := func(g *testcloud.GCE, replaces bool) *gcp.Provider {
		cfg := config(g)
		if cfg.ReplaceBalancers = replaces; replaces {
			cfg.Accounts = map[provision.Role]string{provision.RoleSpare: account}
		}
		return gcp.New(cfg)
	}
	spare := func(id string) provision.Desired {
		w := balancer(id)
		w.Machine.Account = account
		return w
	}
	failed := func(p *gcp.Provider) (all []provision.CheckResult) {
		for _, f := range p.Doctor(t.Context()) {
			if !f.OK && strings.Contains(f.Message, "service account") {
				all = append(all, f)
			}
		}
		return all
	}
	g := testcloud.NewGCE("p", nil)
	before := failed(open(g, true))
	if len(before) == 0 || before[0].Hint == "" {
		t.Fatalf("doctor reports %+v", before)
	}
	if err := g.RunGcloud(before[0].Hint); err != nil {
		t.Fatal(err)
	}
	if after := failed(open(g, true)); len(after) > 0 {
		t.Errorf("after its commands doctor reports %+v", after)
	}
	launched(t, open(g, true), balancer("lb-us-central1-0"))
	launched(t, open(g, true), spare("lb-us-central1-1"))
	for _, w := range []provision.Desired{balancer("lb-us-central1-7"), spare("lb-us-central1-8")} {
		if _, err := asMachine(t, g, nameOf(t, g, "lb-us-central1-0")).Launch(t.Context(), w); err != nil {
			t.Errorf("a balancer launches %s: %v", w.ID, err)
		}
	}
	intruder := asMachine(t, g, nameOf(t, g, "lb-us-central1-1"))
	var denied *provision.CredentialsError
	for _, w := range []provision.Desired{balancer("lb-us-central1-9"), spare("lb-us-central1-9")} {
		if _, err := intruder.Launch(t.Context(), w); !errors.As(err, &denied) {
			t.Errorf("a spare launches a balancer: %v", err)
		}
	}
	if err := control(intruder); err != nil {
		t.Errorf("a spare manages replicas: %v", err)
	}
	if all := failed(open(g, false)); len(all) != 1 || !strings.Contains(all[0].Message, "permits launching balancers") || !strings.Contains(all[0].Hint, "remove-iam-policy-binding") {
		t.Errorf("with one account for all, doctor reports %+v", all)
	}
}

// compromised is a service with an intruder who has root on the second balancer.
type compromised struct {
	t          *testing.T
	g          *testcloud.GCE
	token      string
	controller testcloud.GCEInstance
	replica    testcloud.GCEInstance
}

func takeOver(t *testing.T) *compromised {
	g := newGCE(nil)
	p := provider(g)
	for _, w := range append(chat(), balancer("lb-us-central1-1")) {
		launched(t, p, w)
	}
	a := &compromised{t: t, g: g}
	_, a.token = g.MachineCredentials(nameOf(t, g, "lb-us-central1-1"))
	for _, i := range g.Instances() {
		switch i.Labels["skyserve-id"] {
		case "lb-us-central1-0":
			a.controller = i
		case "us-central1-0":
			a.replica = i
		}
	}
	return a
}

// call sends a request as the balancer's service account, and returns the status and the error's reason.
func (a *compromised) call(method, path string, body any) (status int, text string) {
	a.t.Helper()
	var content io.Reader
	if body != nil {
		document, err := json.Marshal(body)
		if err != nil {
			a.t.Fatal(err)
		}
		content = bytes.NewReader(document)
	}
	r, err := http.NewRequest(method, "http://gce/compute/v1/projects/p/zones/us-central1-a/"+path, content)
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	answer, err := testcloud.HandlerTransport{Handler: a.g}.RoundTrip(r)
	if err != nil {
		a.t.Fatal(err)
	}
	reply, err := io.ReadAll(answer.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer.StatusCode, string(reply)
}

// insert creates a machine like another one, with another name, modified by change.
func (a *compromised) insert(like testcloud.GCEInstance, name string, change func(*testcloud.GCEInstance)) (int, string) {
	i := testcloud.GCEInstance{
		Name: name, MachineType: "zones/us-central1-a/machineTypes/e2-standard-2", Labels: like.Labels, Metadata: like.Metadata, Tags: like.Tags,
		Disks: like.Disks, NetworkInterfaces: []testcloud.GCEInterface{{Network: "global/networks/default"}},
		Scheduling: testcloud.GCEScheduling{ProvisioningModel: "STANDARD", OnHostMaintenance: "MIGRATE"},
	}
	if change != nil {
		change(&i)
	}
	return a.call(http.MethodPost, "instances", i)
}

// An intruder with root on a balancer can launch and terminate replicas of the service. They cannot replace a
// balancer or the controller by a machine of their own.
func TestRootOnBalancerCannotBecomeController(t *testing.T) {
	for what, do := range map[string]func(a *compromised) (int, string){
		"ends the controller's machine": func(a *compromised) (int, string) {
			return a.call(http.MethodDelete, "instances/"+a.controller.Name, nil)
		},
		"reads its key": func(a *compromised) (int, string) {
			return a.call(http.MethodGet, "instances/"+a.controller.Name+"/getGuestAttributes?queryPath=skyserve/fingerprint", nil)
		},
		"has it run another program as root": func(a *compromised) (int, string) {
			return a.call(http.MethodPost, "instances/"+a.controller.Name+"/setMetadata", testcloud.GCEMetadata{Items: []testcloud.GCEMetadataItem{{Key: "startup-script", Value: "#!/bin/sh"}}})
		},
		"launches a balancer": func(a *compromised) (int, string) {
			return a.insert(a.controller, strings.Replace(a.controller.Name, "lb-us-central1-0", "lb-us-central1-7", 1), nil)
		},
		"launches a machine of another service": func(a *compromised) (int, string) {
			return a.insert(a.replica, "skyserve-replica-chat-eu--us-central1-0-000000000000", nil)
		},
		"ends a machine of somebody else": func(a *compromised) (int, string) {
			byHand(a.t, a.g, "zones/us-central1-a/instances", `{"name":"database","machineType":"zones/us-central1-a/machineTypes/e2-standard-2","disks":[{"boot":true,"initializeParams":{"sourceImage":"x"}}],"networkInterfaces":[{"network":"global/networks/default"}]}`)
			return a.call(http.MethodDelete, "instances/database", nil)
		},
		"launches one that runs as balancers do": func(a *compromised) (int, string) {
			return a.insert(a.replica, a.replica.Name+"0", func(i *testcloud.GCEInstance) {
				i.ServiceAccounts = []testcloud.GCEServiceAccount{{Email: accountOfBalancers, Scopes: []string{"https://www.googleapis.com/auth/cloud-platform"}}}
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			a := takeOver(t)
			status, text := do(a)
			if status != http.StatusForbidden {
				t.Errorf("got %d %s, want that it is denied", status, text)
			}
		})
	}
	a := takeOver(t)
	if err := control(asMachine(t, a.g, nameOf(t, a.g, "lb-us-central1-1"))); err != nil {
		t.Errorf("keeping replicas, as a controller does: %v", err)
	}
}

// Services may have similar names: the service account of one cannot change machines of another.
func TestAccountCannotReachSimilarlyNamedService(t *testing.T) {
	for own, other := range map[string]string{
		"chat": "chat--eu", "models": "models---eu", "a-service-of-s-xy": "a-service-of-s-xy-in-europe-west4", "a-service-of-s-x": "a-service-of-s-x-in-europe-west4",
	} {
		g := newGCE(nil)
		mine, theirs := balancer("lb-us-central1-0"), replica("us-central1-0", service.CapacityOnDemand)
		mine.Service, theirs.Service = own, other
		if err := g.RunGcloud(accountSetupFor(own)); err != nil {
			t.Fatal(err)
		}
		launched(t, provider(g), mine)
		launched(t, provider(g), theirs)
		a := &compromised{t: t, g: g}
		_, a.token = g.MachineCredentials(nameOf(t, g, mine.ID))
		if status, text := a.call(http.MethodDelete, "instances/"+nameOf(t, g, theirs.ID), nil); status != http.StatusForbidden {
			t.Errorf("a balancer of %s terminates a replica of %s: got %d %s, want that it is denied", own, other, status, text)
		}
		have, err := provider(g).List(t.Context(), other)
		if err != nil || len(have) != 1 || have[0].Kind != provision.KindReplica {
			t.Errorf("%s has %v and %v, want its replica", other, have, err)
		}
	}
}

// Machines of earlier versions are listed without a kind, so that they can be removed. A machine that a
// balancer's service account creates is never listed as one of them.
func TestMachinesOfEarlierVersionsAreListed(t *testing.T) {
	for _, tt := range []struct {
		service, name string
		listed        bool
	}{
		{"chat", "skyserve-chat-us-central1-7-0123456789ab", true},
		{"replica", "skyserve-replica-us-central1-7-0123456789ab", true},
		{"replica", "skyserve-replica-chat--x-0123456789ab", false},
		{"other", "skyserve-chat-us-central1-7-0123456789ab", false},
	} {
		g := newGCE(nil)
		note := `{"id":"us-central1-7","kind":"replica","service":"` + tt.service + `","owner":"Ab:12","region":"gcp/us-central1","spec":"s1","fixed":"f1","role":"replica"}`
		body, err := json.Marshal(testcloud.GCEInstance{
			Name: tt.name, MachineType: "zones/us-central1-a/machineTypes/e2-standard-2", Labels: map[string]string{"skyserve-service": tt.service},
			Disks:             []testcloud.GCEDisk{{Boot: true, InitializeParams: testcloud.GCEDiskParams{SourceImage: "x"}}},
			NetworkInterfaces: []testcloud.GCEInterface{{Network: "global/networks/default"}},
			Metadata:          testcloud.GCEMetadata{Items: []testcloud.GCEMetadataItem{{Key: "skyserve", Value: note}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		byHand(t, g, "zones/us-central1-a/instances", string(body))
		have, err := provider(g).List(t.Context(), tt.service)
		if err != nil || (len(have) == 1) != tt.listed {
			t.Fatalf("%s of %s: got %v, %v, want listed: %v", tt.name, tt.service, have, err, tt.listed)
		}
		for _, o := range have {
			if o.Kind != "" || o.SpecHash != "" {
				t.Errorf("%s: got kind %q and spec %q, want neither", tt.name, o.Kind, o.SpecHash)
			}
		}
	}
}

// A machine that the balancers' service account creates is a replica of its own service, whatever its note
// contains.
func TestNoteCannotChangeKind(t *testing.T) {
	for _, tt := range []struct {
		service, kind string
		listed        provision.ObjectKind // empty = not listed
	}{{"chat", "balancer", provision.KindReplica}, {"chat", "replica", provision.KindReplica}, {"other", "balancer", ""}, {"other", "replica", ""}} {
		a := takeOver(t)
		status, text := a.insert(a.replica, "skyserve-replica-chat--x-000000000000", func(i *testcloud.GCEInstance) {
			i.Labels = map[string]string{"skyserve-service": tt.service}
			i.Metadata = testcloud.GCEMetadata{Items: []testcloud.GCEMetadataItem{{
				Key: "skyserve", Value: `{"id":"lb-us-central1-7","kind":"` + tt.kind + `","service":"` + tt.service + `","owner":"Ab:12","region":"gcp/us-central1","spec":"s2","role":"` + tt.kind + `"}`,
			}}}
		})
		if status != http.StatusOK {
			t.Fatalf("launching: %d %s", status, text)
		}
		have, err := provider(a.g).List(t.Context(), tt.service)
		if err != nil {
			t.Fatal(err)
		}
		var listed provision.ObjectKind
		for _, o := range have {
			if o.ID == "lb-us-central1-7" {
				listed = o.Kind
			}
		}
		if listed != tt.listed {
			t.Errorf("a %s of %s: it is listed as %q, want %q", tt.kind, tt.service, listed, tt.listed)
		}
	}
}
