package proxy

import (
	"errors"
	"testing"

	"skyserve/internal/service"
)

func replicaAt(id, url string) service.ReplicaConfig {
	return service.ReplicaConfig{ID: id, URL: url, Model: testModel}
}

func TestAddReplica(t *testing.T) {
	rt, err := New(testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	at := func(url string, epoch uint64) service.ReplicaConfig {
		c := replicaAt("us-0", url)
		c.Epoch = epoch
		return c
	}
	steps := []struct {
		name  string
		cfg   service.ReplicaConfig
		added bool
		err   error
	}{
		{"new", at("http://a:1", 5), true, nil},
		{"again", at("http://a:1", 5), false, nil},
		{"older", at("http://a:1", 4), false, ErrOlderEpoch},
		{"without epoch", at("http://a:1", 0), false, ErrOlderEpoch},
		{"newer at another URL", at("http://b:1", 6), false, nil},
	}
	for _, s := range steps {
		added, err := rt.AddReplica(s.cfg)
		if added != s.added || !errors.Is(err, s.err) {
			t.Errorf("%s: added %v, error %v; want %v, %v", s.name, added, err, s.added, s.err)
		}
	}
	if list := rt.Replicas(); len(list) != 1 || list[0].URL != "http://b:1" || list[0].Region != "local/us" {
		t.Errorf("replicas %+v, want one at http://b:1", list)
	}
	if _, err := rt.RemoveReplica("us-0", 5); !errors.Is(err, ErrOlderEpoch) {
		t.Errorf("removing by an older epoch: %v", err)
	}
	if removed, err := rt.RemoveReplica("us-0", 7); !removed || err != nil {
		t.Errorf("removing: %v, %v", removed, err)
	}
	if removed, err := rt.RemoveReplica("us-0", 7); removed || err != nil {
		t.Errorf("removing twice: %v, %v", removed, err)
	}
	if _, err := rt.AddReplica(at("http://b:1", 6)); !errors.Is(err, ErrOlderEpoch) {
		t.Errorf("an assignment from before the removal: %v", err)
	}
	if added, err := rt.AddReplica(at("http://b:1", 8)); !added || err != nil {
		t.Errorf("a newer assignment: %v, %v", added, err)
	}
}

func TestAddReplicaRefuses(t *testing.T) {
	rt, err := New(testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []service.ReplicaConfig{
		{ID: "a", URL: "127.0.0.1:1", Model: "m"},
		{ID: "a", URL: "ftp://x", Model: "m"},
		{ID: "a", URL: "http://", Model: "m"},
		{ID: "a", URL: "http://x\x00", Model: "m"},
		{ID: "a", URL: "http://x:1"},
	} {
		if added, err := rt.AddReplica(cfg); added || err == nil {
			t.Errorf("AddReplica(%+v) = %v, %v; want an error", cfg, added, err)
		}
	}
	if added, err := rt.AddReplica(service.ReplicaConfig{URL: "http://x:1", Model: "m"}); !added || err != nil {
		t.Errorf("without an id: %v, %v", added, err)
	}
	if list := rt.Replicas(); len(list) != 1 || list[0].ID != "x:1" {
		t.Errorf("replicas %+v, want one called x:1", list)
	}
}

func TestRemovedEpochsAreLimited(t *testing.T) {
	rt, err := New(testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(maxRemoved + 10) {
		rt.rememberEpoch(string(rune('a'+i%26))+string(rune(i)), i+1)
	}
	if len(rt.removedEpochs) > maxRemoved {
		t.Errorf("%d epochs of removed replicas are kept, want at most %d", len(rt.removedEpochs), maxRemoved)
	}
}

func TestModels(t *testing.T) {
	b := start(t, testOptions(t))
	names := func() []string { return b.models.Load().names }
	want := func(list ...string) {
		t.Helper()
		if got := names(); !equal(got, list) {
			t.Errorf("models %q, want %q", got, list)
		}
	}
	want("chat-small", testModel)
	if _, err := b.AddReplica(service.ReplicaConfig{ID: "x", URL: "http://127.0.0.1:1", Model: "other"}); err != nil {
		t.Fatal(err)
	}
	want("chat-small", testModel, "other")
	b.SetModels([]service.BalancerModel{{Name: "m", Aliases: []string{"other", "alias"}}}, nil)
	want("alias", "m", "other")
	if resolved, _ := b.models.Load().resolve([]byte("other")); resolved.Model != "other" {
		t.Errorf("an alias hides the real model: %+v", resolved)
	}
	if _, err := b.RemoveReplica("x", 0); err != nil {
		t.Fatal(err)
	}
	if resolved, _ := b.models.Load().resolve([]byte("other")); resolved.Model != "m" {
		t.Errorf("other is %+v, want m", resolved)
	}
	if code, body := b.get("/v1/models"); code != 200 || !contains(body, `"id":"alias"`, `"root":"m"`, `"object":"list"`) {
		t.Errorf("/v1/models returns %d %s", code, body)
	}
	if code, body := b.get("/v1/models/alias"); code != 200 || !contains(body, `{"id":"alias"`, `"root":"m"`) {
		t.Errorf("/v1/models/alias returns %d %s", code, body)
	}
	if code, body := b.get("/v1/models/org/none"); code != 404 || !contains(body, "model_not_found", "org/none") {
		t.Errorf("an unknown model returns %d %s", code, body)
	}
}
