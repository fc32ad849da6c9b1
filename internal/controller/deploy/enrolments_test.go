package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// memoryNotes is a DocumentStore in memory.
type memoryNotes map[string]string

func (n memoryNotes) LoadValue(name string, v any) error {
	if n[name] == "" {
		return nil
	}
	return json.Unmarshal([]byte(n[name]), v)
}

func (n memoryNotes) StoreValue(name string, v any) error {
	text, err := json.Marshal(v)
	n[name] = string(text)
	return err
}

// enrolments returns the record of an operator whose program has just started.
func enrolments(t *testing.T, n memoryNotes) *deploy.Enrolments {
	t.Helper()
	e, err := deploy.ReadEnrolments(n)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// claimedMachine returns a machine whose tags contain a kind and an ID.
func claimedMachine(kind provision.ObjectKind, id, handle, word string) provision.Object {
	o := provision.Object{ID: id, Kind: kind, Handle: handle, Region: "aws/us-east-1"}
	if word != "" {
		o.Labels = map[string]string{"launch": word}
	}
	return o
}

// A machine with the tags of a balancer is one if an `up` launched it, even if `up` never received the
// response. Otherwise it needs a certificate, and no other machine may have the same ID.
func TestClassifyRecognisesBalancers(t *testing.T) {
	const b, r = provision.KindBalancer, provision.KindReplica
	const noted = `[{"id":"lb-a-0","word":"w0","handle":"i-0"},{"id":"lb-a-1","word":"w1"}]`
	removed := claimedMachine(b, "lb-a-7", "i-7", "")
	removed.TerminatedReason = "terminated"
	for _, tt := range []struct {
		name      string
		notes     string
		have      []provision.Object
		certified string // handles of the machines with a certificate
		strangers string
		known     string
	}{
		{"launched here", noted, []provision.Object{claimedMachine(b, "lb-a-0", "i-0", "w0")}, "", "", ""},
		{"replicas are not looked at", noted, []provision.Object{claimedMachine(r, "a-0", "i-5", "")}, "", "", ""},
		{"a removed machine is ignored", noted, []provision.Object{removed}, "", "", ""},
		{"launched, and nothing was heard of it", noted, []provision.Object{claimedMachine(b, "lb-a-1", "i-1", "w1")}, "", "", "i-1"},
		{"two with one ID", noted, []provision.Object{claimedMachine(b, "lb-a-1", "i-1", "w1"), claimedMachine(b, "lb-a-1", "i-2", "w1")}, "", "i-1 i-2", ""},
		{"another word", noted, []provision.Object{claimedMachine(b, "lb-a-1", "i-1", "w9")}, "", "i-1", ""},
		{"the word of another", noted, []provision.Object{claimedMachine(b, "lb-a-1", "i-1", "w0")}, "", "i-1", ""},
		{"no word", noted, []provision.Object{claimedMachine(b, "lb-a-1", "i-1", "")}, "", "i-1", ""},
		{"in the place of one", noted, []provision.Object{claimedMachine(b, "lb-a-0", "i-9", "w0")}, "", "i-9", ""},
		{"beside one", noted, []provision.Object{claimedMachine(b, "lb-a-0", "i-0", "w0"), claimedMachine(b, "lb-a-0", "i-9", "w0")}, "", "i-9", ""},
		{"beside one, passing on to it", noted, []provision.Object{claimedMachine(b, "lb-a-0", "i-0", "w0"), claimedMachine(b, "lb-a-0", "i-9", "w0")}, "i-0 i-9", "i-9", ""},
		{"a replica by the name of a balancer", noted, []provision.Object{claimedMachine(r, "lb-a-0", "i-9", "w0")}, "i-9", "i-9", ""},
		{"without a record, with a certificate", "", []provision.Object{claimedMachine(b, "lb-a-0", "i-0", "w0")}, "i-0", "", "i-0"},
		{"without a record, two with it", "", []provision.Object{claimedMachine(b, "lb-a-0", "i-0", ""), claimedMachine(b, "lb-a-0", "i-9", "")}, "i-0 i-9", "i-0 i-9", ""},
		{"without either", "", []provision.Object{claimedMachine(b, "lb-a-0", "i-0", "w0")}, "", "i-0", ""},
	} {
		n := memoryNotes{"balancers.json": tt.notes}
		handles := func(all []provision.Object) string {
			var words []string
			for _, o := range all {
				words = append(words, o.Handle)
			}
			slices.Sort(words)
			return strings.Join(words, " ")
		}
		certified := func(o provision.Object) bool { return slices.Contains(strings.Fields(tt.certified), o.Handle) }
		strangers, known := enrolments(t, n).ClassifyMachines(tt.have, certified)
		if got, adopted := handles(strangers), handles(known); got != tt.strangers || adopted != tt.known {
			t.Errorf("%s: strangers are %q and %q is known, want %q and %q", tt.name, got, adopted, tt.strangers, tt.known)
			continue
		}
		e := enrolments(t, n)
		if err := e.RecordKnown(known); err != nil {
			t.Fatal(err)
		}
		if again, more := enrolments(t, n).ClassifyMachines(tt.have, func(provision.Object) bool { return false }); handles(again) != tt.strangers || len(more) > 0 {
			t.Errorf("%s: once it is recorded, %q are strangers and %q is known", tt.name, handles(again), handles(more))
		}
	}
}

// The number of recorded launches per ID is bounded, and the newest are kept.
func TestEnrolmentsAreBounded(t *testing.T) {
	n := memoryNotes{}
	for i := range 100 {
		if err := enrolments(t, n).RecordKnown([]provision.Object{claimedMachine(provision.KindBalancer, "lb-a-0", fmt.Sprint("i-", i), "")}); err != nil {
			t.Fatal(err)
		}
	}
	if got := enrolments(t, n).Handles()["lb-a-0"]; len(got) != 4 || got[3] != "i-99" {
		t.Errorf("recorded are %q", got)
	}
}

// constantKey is an attestor that returns the same key for every machine.
type constantKey string

func (f constantKey) Fingerprint(context.Context, provision.Object) (string, error) {
	return string(f), nil
}

// Only a balancer that an operator launched is enrolled, with the first key that it reported. A
// controller, which only launches replicas, enrols no balancers.
func TestOnlyLaunchedBalancersAreEnrolled(t *testing.T) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n := memoryNotes{"balancers.json": `[{"id":"lb-a-0","word":"w0","handle":"i-0"}]`}
	enrol := func(known *deploy.Enrolments, key string, o provision.Object) error {
		dl := &deploy.Delivery{Service: "chat", Authority: authority, Enrolments: known, Attestor: constantKey(key)}
		_, err := dl.Machine(o).Fingerprint(t.Context())
		return err
	}
	genuine, impostor := claimedMachine(provision.KindBalancer, "lb-a-0", "i-0", "w0"), claimedMachine(provision.KindBalancer, "lb-a-0", "i-9", "w0")
	var strangers *deploy.UnknownMachinesError
	for who, err := range map[string]error{
		"an impostor":                          enrol(enrolments(t, n), "k1", impostor),
		"an impostor among replicas":           enrol(enrolments(t, n), "k1", claimedMachine(provision.KindReplica, "lb-a-0", "i-9", "")),
		"a balancer, enrolled by a controller": enrol(nil, "k1", genuine),
	} {
		if !errors.As(err, &strangers) {
			t.Errorf("%s: got %v, want that it is a stranger", who, err)
		}
	}
	if err := enrol(enrolments(t, n), "", genuine); !errors.Is(err, agent.ErrNoFingerprint) {
		t.Errorf("while it boots: %v", err)
	}
	for _, key := range []string{"k1", "k1"} {
		if err := enrol(enrolments(t, n), key, genuine); err != nil {
			t.Errorf("with its key: %v", err)
		}
	}
	if err := enrol(enrolments(t, n), "k2", genuine); !errors.Is(err, identity.ErrPin) {
		t.Errorf("with another key: %v", err)
	}
	if err := enrol(nil, "k3", claimedMachine(provision.KindReplica, "a-0", "i-4", "")); err != nil {
		t.Errorf("a replica: %v", err)
	}
}

// An existing machine is not mistaken for the launched one.
func TestLaunchRejectsExistingMachine(t *testing.T) {
	spec := parse(t, twoClouds)
	m, n := newCloud(spec), memoryNotes{}
	if _, err := up(spec, m); err != nil { // without recording the launches
		t.Fatal(err)
	}
	for _, o := range m.Objects() {
		if o.Kind == provision.KindReplica {
			if err := m.Terminate(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	dp := newDeployer(spec, m)
	dp.Enrolments = enrolments(t, n)
	dp.ListObserved = func(context.Context) ([]provision.Object, error) { return nil, nil } // it was not listed yet
	p, err := dp.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var strangers *deploy.UnknownMachinesError
	if _, err := dp.Up(t.Context(), p, nil); !errors.As(err, &strangers) {
		t.Errorf("got %v, want that it is a stranger", err)
	}
	if got := enrolments(t, n).Handles(); len(got) != 0 {
		t.Errorf("recorded are %v", got)
	}
}

// Machines that no operator launched get no deployment, and are neither peers nor replicas of others.
func TestUnknownMachinesGetNoDeployment(t *testing.T) {
	have := testMachines()
	c := withBundle(t)
	c.Enrolled = map[string][]string{}
	for i, o := range have {
		have[i].Handle = "h-" + o.ID
		if o.Kind == provision.KindBalancer {
			c.Enrolled[o.ID] = []string{"h-" + o.ID}
		}
	}
	want := deployments(t, c, have)
	second := machineAt("lb-us-east-1-0", provision.KindBalancer, "aws/us-east-1", "", "66", 0)
	third := machineAt("lb-us-east-1-7", provision.KindBalancer, "aws/us-east-1", "", "67", 0)
	among := machineAt("lb-us-east-1-0", provision.KindReplica, "aws/us-east-1", "org/llama", "68", 4)
	for _, stranger := range []provision.Object{second, third, among} {
		stranger.Handle = "h-stranger"
		for _, all := range [][]provision.Object{append(slices.Clone(have), stranger), append([]provision.Object{stranger}, have...)} {
			got := deployments(t, c, all)
			if len(got) != len(want) {
				t.Errorf("%s %s: %d deployments, want %d", stranger.Kind, stranger.ID, len(got), len(want))
			}
			for id := range want {
				if got[id].Revision != want[id].Revision {
					t.Errorf("%s %s changes the deployment of %s", stranger.Kind, stranger.ID, id)
				}
			}
		}
	}
}

// A stranger with a balancer's ID does not replace the balancer: the controller does not wait for the
// stranger, and does not treat the balancer as unresponsive.
func TestReconcilerIgnoresUnknownMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		enrolled := map[string][]string{}
		for _, o := range u.Objects() {
			if o.Kind == provision.KindBalancer {
				enrolled[o.ID] = []string{o.Handle}
			}
		}
		path := filepath.Join(u.dir, "content.json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var held map[string]any
		if err := json.Unmarshal(text, &held); err != nil {
			t.Fatal(err)
		}
		held["enrolled"] = enrolled
		if text, err = json.Marshal(held); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		stranger := machineAt("lb-us-east-1-0", provision.KindBalancer, "aws/us-east-1", "", "66", 0)
		stranger.Service, stranger.Owner, stranger.Handle = "chat", u.owner, "i-stranger"
		among := stranger
		among.Kind, among.Handle = provision.KindReplica, "i-among"
		rc := u.reconciler()
		rc.Open = withExtraMachines(rc.Open, stranger, among)
		contacted := map[string]bool{}
		rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
			for _, o := range have {
				contacted[o.Handle] = true
			}
			return nil
		})
		u.reconcileFor(t, rc, time.Minute, always)
		if contacted["i-stranger"] || contacted["i-among"] || !contacted[enrolled["lb-us-east-1-0"][0]] {
			t.Errorf("it contacts %v, want the launched balancers and no stranger", contacted)
		}
	})
}

// withExtraMachines adds machines to the list of us-east-1.
func withExtraMachines(open func(context.Context, json.RawMessage, *service.Spec, string) (deploy.CloudAccess, error), more ...provision.Object) func(context.Context, json.RawMessage, *service.Spec, string) (deploy.CloudAccess, error) {
	return func(ctx context.Context, means json.RawMessage, spec *service.Spec, owner string) (deploy.CloudAccess, error) {
		r, err := open(ctx, means, spec, owner)
		if err == nil {
			r.Listers["aws/us-east-1"] = extendedLister{r.Listers["aws/us-east-1"], more}
		}
		return r, err
	}
}

// extendedLister is a region with additional machines.
type extendedLister struct {
	deploy.Lister
	more []provision.Object
}

func (c extendedLister) List(ctx context.Context, name string) ([]provision.Object, error) {
	have, err := c.Lister.List(ctx, name)
	return append(have, c.more...), err
}
