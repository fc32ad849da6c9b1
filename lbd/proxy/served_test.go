package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/policy"
)

// adapterBody is a request for the adapter sql.
const adapterBody = `{"model":"sql","messages":[{"role":"user","content":"hi"}]}`

// noSuchModel is vLLM's response to a request for an adapter that is not loaded.
const noSuchModel = `{"error":{"message":"The model ` + "`sql`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`

// listed are the served models of a vLLM engine with these adapters.
func listed(maxModelLen int, adapters ...string) ServedModels {
	return ServedModels{Names: append([]string{testModel}, adapters...), Adapters: adapters, MaxModelLen: maxModelLen}
}

// startWithAdapters starts a balancer with three replicas, of which the last rejects requests for the
// adapter. It counts those.
func startWithAdapters(t *testing.T, recheck func(string)) (b *balancer, rejected *atomic.Int64) {
	t.Helper()
	o := roundRobin(t)
	o.Self.Models[0].LoRA = []string{"sql"}
	o.Recheck = recheck
	b, rejected = start(t, o), &atomic.Int64{}
	serve, refused := speak("fine"), refuse(http.StatusNotFound, noSuchModel, rejected)
	for i := range 2 {
		b.attach(fmt.Sprint("us-", i), engine(t, serve))
	}
	b.attach("us-2", engine(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		req.Body = http.NoBody
		if strings.Contains(string(body), `"sql"`) {
			refused(w, req)
			return
		}
		serve(w, req)
	}))
	return b, rejected
}

// A replica whose list lacks an adapter receives none of its requests.
func TestListedAdapterDecidesPlacement(t *testing.T) {
	b, rejected := startWithAdapters(t, nil)
	b.SetServedModels("us-0", listed(0, "sql"))
	b.SetServedModels("us-1", listed(0, "sql"))
	b.SetServedModels("us-2", listed(0))
	for range 30 {
		expect(t, b.post(chatPath, adapterBody), http.StatusOK, "")
	}
	if n := rejected.Load(); n != 0 {
		t.Errorf("%d requests to the replica without the adapter", n)
	}
	lawful(t, b.settled())
}

// A WebSocket for an adapter reaches only replicas that serve it.
func TestListedAdapterDecidesPlacementOfWebSocket(t *testing.T) {
	o := roundRobin(t)
	o.Self.Models[0].LoRA = []string{"sql"}
	b := start(t, o)
	h, accepted := realtimeEngine(t)
	for i, adapters := range [][]string{{"sql"}, nil, nil} {
		id := fmt.Sprint("us-", i)
		b.attach(id, engine(t, h))
		b.SetServedModels(id, listed(0, adapters...))
	}
	for range 6 {
		conn, resp, err := b.dial(realtime+"?model=sql", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get(headerReplica); got != "us-0" {
			t.Errorf("it reaches %s", got)
		}
		u := <-accepted
		_ = conn.CloseNow()
		close(u.done)
	}
	b.settled()
}

// A replica that rejects an adapter as unknown receives no further request for it, even without a list. It
// is no failure of the replica: it still serves its model.
func TestRejectedAdapterIsNoLongerListed(t *testing.T) {
	var mu sync.Mutex
	var rechecked []string
	b, rejected := startWithAdapters(t, func(id string) {
		mu.Lock()
		defer mu.Unlock()
		rechecked = append(rechecked, id)
	})
	for range 30 {
		expect(t, b.post(chatPath, adapterBody), http.StatusOK, "")
	}
	mu.Lock()
	if n := rejected.Load(); n != 1 || !slices.Equal(rechecked, []string{"us-2"}) {
		t.Errorf("%d requests were rejected, read again the lists of %q", n, rechecked)
	}
	mu.Unlock()
	served := false
	for range 30 {
		resp := b.post(chatPath, plainBody)
		expect(t, resp, http.StatusOK, "")
		served = served || resp.Header.Get(headerReplica) == "us-2"
	}
	if !served {
		t.Error("the replica serves its model no more")
	}
	b.SetServedModels("us-2", ServedModels{})
	for range 30 {
		expect(t, b.post(chatPath, adapterBody), http.StatusOK, "")
	}
	if n := rejected.Load(); n != 2 {
		t.Errorf("%d requests were rejected after the next list, want one more", n)
	}
	lawful(t, b.settled())
}

// If no replica serves an adapter, the client receives 404 at once.
func TestUnservedAdapterIsNotFound(t *testing.T) {
	b, rejected := startWithAdapters(t, nil)
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		b.SetServedModels(id, listed(0))
	}
	body := expect(t, b.post(chatPath, adapterBody), http.StatusNotFound, "model_not_found")
	if !strings.Contains(body, "sql") || rejected.Load() != 0 {
		t.Errorf("got %s after %d attempts", body, rejected.Load())
	}
	lawful(t, b.settled())
}

// When the only replica with an adapter rejects it, the client receives the engine's own response.
func TestLastRejectionIsForwarded(t *testing.T) {
	b, _ := startWithAdapters(t, nil)
	b.SetServedModels("us-0", listed(0))
	b.SetServedModels("us-1", listed(0))
	resp := b.post(chatPath, adapterBody)
	if got := read(t, resp); resp.StatusCode != http.StatusNotFound || got != noSuchModel {
		t.Errorf("got %d %s", resp.StatusCode, got)
	}
	expect(t, b.post(chatPath, adapterBody), http.StatusNotFound, "model_not_found")
}

// entry is what /v1/models shows of one name.
type entry struct {
	Root        string
	Parent      *string
	MaxModelLen *int `json:"max_model_len"`
}

// models returns the entries of /v1/models by name.
func (b *balancer) modelList() map[string]entry {
	b.t.Helper()
	_, text := b.get("/v1/models")
	var list struct {
		Data []struct {
			ID string
			entry
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		b.t.Fatal(err)
	}
	all := map[string]entry{}
	for _, m := range list.Data {
		all[m.ID] = m.entry
	}
	return all
}

// An adapter that an engine lists is usable without a declaration, until no engine lists it. A declared name
// has precedence.
func TestListedAdaptersAreUsable(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, speak("fine")))
	expect(t, b.post(chatPath, adapterBody), http.StatusNotFound, "model_not_found")
	b.SetServedModels("us-0", listed(0, "sql", "chat-small"))
	expect(t, b.post(chatPath, adapterBody), http.StatusOK, "")
	all := b.modelList()
	if got := all["sql"]; got.Root != "sql" || got.Parent == nil || *got.Parent != testModel {
		t.Errorf("the adapter is listed as %+v", got)
	}
	if got := all["chat-small"]; got.Root != testModel || got.Parent != nil {
		t.Errorf("the alias is listed as %+v", got)
	}
	b.SetServedModels("us-0", listed(0))
	expect(t, b.post(chatPath, adapterBody), http.StatusNotFound, "model_not_found")
	b.SetServedModels("us-0", listed(0, "sql"))
	if _, err := b.RemoveReplica("us-0", 0); err != nil || len(b.modelList()) != 2 {
		t.Errorf("without the replica: %v, %v", b.modelList(), err)
	}
}

// The maximum length of a request is the smallest one of the model's ready replicas.
func TestMaxModelLen(t *testing.T) {
	b := start(t, testOptions(t))
	if got := b.modelList()[testModel]; got.MaxModelLen != nil {
		t.Errorf("without a replica: %d", *got.MaxModelLen)
	}
	for id, n := range map[string]int{"us-0": 8192, "us-1": 4096, "us-2": 0, "us-3": 1024} {
		b.attach(id, engine(t, speak("fine")))
		b.SetServedModels(id, listed(n, "sql"))
	}
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: "us-3", Report: &core.ProbeReport{Reason: "down"}})
	for _, name := range []string{testModel, "chat-small", "sql"} {
		if got := b.modelList()[name]; got.MaxModelLen == nil || *got.MaxModelLen != 4096 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, text := b.get("/v1/models/" + testModel); !strings.Contains(text, `"max_model_len":4096`) {
		t.Errorf("one model: %s", text)
	}
}

// An adapter that only a peer's replicas serve is usable, and its requests are forwarded.
func TestAdapterOfPeer(t *testing.T) {
	us, eu := pair(t, "secret")
	us.attach("us-0", engine(t, speak("us")))
	eu.attach("eu-0", engine(t, speak("eu")))
	us.SetServedModels("us-0", listed(0))
	eu.SetServedModels("eu-0", listed(0, "sql"))
	us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{Models: eu.ModelLoads()}})
	resp := us.post(chatPath, adapterBody)
	expect(t, resp, http.StatusOK, "")
	if got := resp.Header.Get(headerReplica); got != "eu-0" {
		t.Errorf("served by %q", got)
	}
	us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{
		Models: []core.ModelLoad{{Model: testModel, Replicas: 1, Available: 1, Adapters: policy.Known([]string{})}},
	}})
	expect(t, us.post(chatPath, adapterBody), http.StatusNotFound, "model_not_found")
	us.RemovePeer("lb-eu-0")
	if _, known := us.modelList()["sql"]; known {
		t.Error("the adapter of a removed peer is listed")
	}
}

// A peer whose engines do not list their adapters may serve one that is declared here. If the peer does not accept
// the name, the request ends at once, and is not sent there again until it has waited for too long.
func TestAdapterThatPeerDoesNotAccept(t *testing.T) {
	us, eu := pair(t, "secret")
	eu.attach("eu-0", engine(t, speak("eu")))
	us.SetModels([]service.BalancerModel{{Name: testModel, LoRA: []string{"sql"}}}, nil)
	us.receiveReport("lb-eu-0")
	expect(t, us.post(chatPath, adapterBody), http.StatusNotFound, "model_not_found")
	us.receiveReport("lb-eu-0")
	us.attach("us-0", engine(t, speak("us")))
	us.SetServedModels("us-0", listed(0, "sql"))
	expect(t, us.post(chatPath, adapterBody), http.StatusOK, "")
	lawful(t, us.settled())
}

// modelsOf returns an engine that records the models of its requests.
func modelsOf(t *testing.T) (url string, models func() []string) {
	var mu sync.Mutex
	var all []string
	serve := speak("fine")
	return engine(t, func(w http.ResponseWriter, req *http.Request) {
		var body struct{ Model string }
		text, _ := io.ReadAll(req.Body)
		_ = json.Unmarshal(text, &body)
		req.Body = http.NoBody
		mu.Lock()
		all = append(all, body.Model)
		mu.Unlock()
		serve(w, req)
	}), func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
}

// A further name that an engine lists for its model is an alias, here and at peers: requests have the model's name
// when they are sent, so that engines without the name can serve them too.
func TestListedAliasesAreUsable(t *testing.T) {
	us, eu := pair(t, "secret")
	url, models := modelsOf(t)
	eu.attach("eu-0", url)
	body := `{"model":"gpt","messages":[{"role":"user","content":"hi"}]}`
	expect(t, eu.post(chatPath, body), http.StatusNotFound, "model_not_found")
	eu.SetServedModels("eu-0", ServedModels{Names: []string{testModel, "gpt", "other", "sql"}, Adapters: []string{"sql"}, Aliases: []string{"gpt"}})
	us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{Models: eu.ModelLoads()}})
	for region, b := range map[string]*balancer{"eu": eu, "us": us} {
		expect(t, b.post(chatPath, body), http.StatusOK, "")
		all := b.modelList()
		if got := all["gpt"]; got.Root != testModel || got.Parent != nil {
			t.Errorf("%s lists the alias as %+v", region, got)
		}
		if got := all["sql"]; got.Root != "sql" || got.Parent == nil || *got.Parent != testModel {
			t.Errorf("%s lists the adapter as %+v", region, got)
		}
		if _, known := all["other"]; known {
			t.Errorf("%s lists another model of the engine", region)
		}
	}
	if got := models(); !slices.Equal(got, []string{testModel, testModel}) {
		t.Errorf("the engine got requests for %q", got)
	}
	eu.SetServedModels("eu-0", listed(0))
	us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{Models: eu.ModelLoads()}})
	for _, b := range []*balancer{us, eu} {
		expect(t, b.post(chatPath, body), http.StatusNotFound, "model_not_found")
	}
}

// Names of the configuration have precedence over those that only engines list, and a name that stands for something
// else here is not reported to peers.
func TestDeclaredNamesPrecedeListedOnes(t *testing.T) {
	b := start(t, testOptions(t))
	b.SetModels([]service.BalancerModel{{Name: testModel, LoRA: []string{"sql"}}, {Name: "big", Aliases: []string{"gpt"}}}, []service.Split{{Name: "chat", Weights: map[string]int{"big": 1}}})
	b.attach("us-0", engine(t, speak("fine")))
	b.SetServedModels("us-0", ServedModels{
		Names: []string{testModel, "gpt", "chat", "sql", "big", "own"}, Adapters: []string{"big", "own"}, Aliases: []string{"gpt", "chat", "sql"},
	})
	table := b.models.Load()
	for name, want := range map[string]openai.ResolvedModel{
		"gpt": {Model: "big"}, "big": {Model: "big"}, "sql": {Model: testModel, Adapter: "sql"}, "own": {Model: testModel, Adapter: "own"},
	} {
		if got := table.byName[name]; got != want {
			t.Errorf("%s resolves to %+v, want %+v", name, got, want)
		}
	}
	if table.splits["chat"] == nil || table.byName["chat"].Model != "" {
		t.Errorf("the split is replaced by %+v", table.byName["chat"])
	}
	loads := b.ModelLoads()
	if len(loads) != 1 || !slices.Equal(loads[0].Adapters.Value, []string{"own", "sql"}) || len(loads[0].Aliases) > 0 {
		t.Errorf("peers learn %+v", loads)
	}
}

func TestUnservedAdapters(t *testing.T) {
	base := service.BalancerModel{Name: testModel, LoRA: []string{"sql", "law"}}
	swapped := service.BalancerModel{Name: "sql", LoRA: []string{testModel}}
	for name, c := range map[string]struct {
		declared []service.BalancerModel
		lists    []ServedModels
		want     []UnservedAdapter
	}{
		"no replica":         {[]service.BalancerModel{base, swapped}, nil, nil},
		"all served":         {[]service.BalancerModel{base}, []ServedModels{listed(0, "sql"), listed(0, "law")}, nil},
		"an unknown list":    {[]service.BalancerModel{base}, []ServedModels{listed(0), {}}, nil},
		"one missing":        {[]service.BalancerModel{base}, []ServedModels{listed(0, "sql"), listed(0, "own")}, []UnservedAdapter{{Model: testModel, Adapter: "law", Listed: []string{testModel, "own", "sql"}}}},
		"swapped":            {[]service.BalancerModel{swapped}, []ServedModels{listed(0, "sql")}, []UnservedAdapter{{Model: "sql", Adapter: testModel, Listed: []string{testModel, "sql"}, Swapped: true}}},
		"of another service": {[]service.BalancerModel{{Name: "other", LoRA: []string{"x"}}}, []ServedModels{listed(0, "sql")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, testOptions(t))
			b.SetModels(c.declared, nil)
			for i, list := range c.lists {
				id := fmt.Sprint("us-", i)
				b.attach(id, engine(t, speak("fine")))
				b.SetServedModels(id, list)
			}
			if got := b.UnservedAdapters(); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
