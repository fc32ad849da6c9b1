package lbd

import (
	"log/slog"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
)

// unreachable is the URL of a replica that never responds: its probes change nothing.
const unreachable = "http://127.0.0.1:1"

// testFleet returns a fleet without a balancer.
func testFleet(t *testing.T) *fleet {
	t.Helper()
	p, err := policy.New("cost")
	if err != nil {
		t.Fatal(err)
	}
	self := service.BalancerConfig{ID: "lb", Region: "local/us"}
	rt, err := proxy.New(proxy.Options{Self: self, Core: core.DefaultConfig(p)})
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(self, rt, slog.New(slog.DiscardHandler), 1, nil, nil)
	t.Cleanup(f.close)
	return f
}

// add attaches a replica as the admin API does.
func (f *fleet) add(t *testing.T, cfg service.ReplicaConfig) {
	t.Helper()
	if _, err := f.Add(cfg); err != nil {
		t.Fatal(err)
	}
}

// stateOfReplica returns the state of an attached replica; empty if there is none.
func (f *fleet) stateOfReplica(id string) service.ReplicaState {
	for _, r := range f.List() {
		if r.ID == id {
			return r.State
		}
	}
	return ""
}

// An engine that restarts is identified again. Its replica stays drained, and one that is being removed
// receives no new requests.
func TestIdentifiedReplicaStaysDrained(t *testing.T) {
	f := testFleet(t)
	for _, id := range []string{"drained", "removed"} {
		f.add(t, service.ReplicaConfig{ID: id, URL: unreachable, Model: "llama"})
	}
	f.Drain("drained", "")
	f.runtime.DrainReplica("removed")
	f.removing["removed"] = true // as long as it has requests
	for _, id := range []string{"drained", "removed"} {
		f.applyFound(service.ReplicaConfig{ID: id, URL: unreachable, Model: "llama", Kind: "vllm"})
		if got := f.stateOfReplica(id); got != service.StateDraining || f.runtimeConfig(id).Kind != "vllm" {
			t.Errorf("the %s replica is %s with the kind %q", id, got, f.runtimeConfig(id).Kind)
		}
	}
}

// A new API key does not end the drain of a replica.
func TestNewKeyKeepsDrain(t *testing.T) {
	f := testFleet(t)
	source := service.EngineKey{APIKey: "file:key", URL: unreachable}
	keys := func(key service.Secret) engineKeys {
		return engineKeys{map[string]service.Secret{source.APIKey: key}, map[service.EngineKey]bool{source: true}}
	}
	f.setKeys(keys("sk-one"))
	f.add(t, service.ReplicaConfig{ID: "us-0", URL: unreachable, Model: "llama", APIKey: source.APIKey})
	f.Drain("us-0", "")
	if changed := f.setKeys(keys("sk-two")); len(changed) != 1 || f.runtimeConfig("us-0").Key != "sk-two" {
		t.Errorf("changed %v", changed)
	}
	if got := f.stateOfReplica("us-0"); got != service.StateDraining {
		t.Errorf("the replica is %s", got)
	}
}

// A replica whose model is not known yet can be drained. It does not serve once the model is known.
func TestDrainBeforeModelIsKnown(t *testing.T) {
	f := testFleet(t)
	f.add(t, service.ReplicaConfig{ID: "us-0", URL: unreachable})
	if !f.Drain("us-0", "up") || f.stateOfReplica("us-0") != service.StateDraining {
		t.Errorf("the replica without a model is %s", f.stateOfReplica("us-0"))
	}
	f.applyFound(service.ReplicaConfig{ID: "us-0", URL: unreachable, Model: "llama"})
	if got := f.List()[0]; got.Model != "llama" || got.State != service.StateDraining || got.DrainedBy != "up" {
		t.Errorf("with a model it is %+v", got)
	}
	f.add(t, service.ReplicaConfig{ID: "us-0", URL: unreachable})
	if got := f.stateOfReplica("us-0"); got != service.StateStarting {
		t.Errorf("attached again it is %s", got)
	}
	if f.Drain("us-1", "") {
		t.Error("an unknown replica was drained")
	}
}

// The listed object of a replica contains the model and the kind that it reported. Attaching it again ends the
// drain and changes nothing else: the engine may report another model, and the source that lists it sees no change.
func TestAttachingListedObjectPinsNothing(t *testing.T) {
	f := testFleet(t)
	const file = "file engines.txt"
	byURL, listed := service.ReplicaConfig{ID: "us-0", URL: unreachable}, service.ReplicaConfig{ID: "us-1", URL: unreachable}
	f.add(t, byURL)
	f.setDiscovered(file, []service.ReplicaConfig{listed})
	for _, cfg := range []service.ReplicaConfig{byURL, listed} {
		cfg.Model, cfg.Kind = "llama", "vllm"
		f.applyFound(cfg)
		f.Drain(cfg.ID, "")
	}
	for _, r := range f.List() {
		f.add(t, r.ReplicaConfig)
		if got := f.attached[r.ID]; got.Model != "" || got.Kind != "" || f.isDraining(r.ID) || f.runtimeConfig(r.ID).Model != "llama" {
			t.Errorf("attached again: %+v", got)
		}
	}
	f.Drain("us-1", "")
	f.setDiscovered(file, []service.ReplicaConfig{listed, {ID: "us-2", URL: unreachable}})
	if got := f.stateOfReplica("us-1"); got != service.StateDraining {
		t.Errorf("a change of the file made it %s", got)
	}
	pinned := service.ReplicaConfig{ID: "us-0", URL: unreachable, Model: "qwen", Kind: "vllm"}
	if f.add(t, pinned); f.attached["us-0"].Model != "qwen" {
		t.Errorf("a model that it did not report: %+v", f.attached["us-0"])
	}
}

// A replica that the configuration and two sources list belongs to the source that is left when the others have
// dropped it.
func TestReplicaOfThreeOriginsStaysAttached(t *testing.T) {
	f := testFleet(t)
	cfg := service.ReplicaConfig{ID: "us-0", URL: unreachable, Model: "llama"}
	if _, err := f.attach(cfg, originConfig); err != nil {
		t.Fatal(err)
	}
	for _, origin := range []string{"file engines.txt", "dns engines"} {
		f.setDiscovered(origin, []service.ReplicaConfig{cfg})
	}
	if got := f.conflictMessages(); len(got) != 2 {
		t.Errorf("conflicts %v", got)
	}
	f.removeWhenIdle("us-0", originConfig)
	f.retryConflicts()
	f.setDiscovered("dns engines", []service.ReplicaConfig{})
	f.retryConflicts()
	if got := f.originOf("us-0"); got != "file engines.txt" || f.isDraining("us-0") || len(f.conflictMessages()) != 0 {
		t.Errorf("it belongs to %q, conflicts %v", got, f.conflictMessages())
	}
}
