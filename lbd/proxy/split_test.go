package proxy

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/openai"
)

// splitOf returns a split among models, each with an adapter called like it with -ft.
func splitOf(weights map[string]int) *split {
	models := map[string]openai.ResolvedModel{}
	for name := range weights {
		models[name] = openai.ResolvedModel{Model: strings.TrimSuffix(name, "-ft")}
		if base, adapter := strings.CutSuffix(name, "-ft"); adapter {
			models[name] = openai.ResolvedModel{Model: base, Adapter: name}
		}
	}
	return newSplit(service.Split{Name: "chat", Weights: weights}, models)
}

// The shares of many sessions are those of the weights, whatever the weights are, and a model with the
// weight 0 has none. The bound is five standard deviations.
func TestSplitSharesMatchWeights(t *testing.T) {
	const sessions = 20_000
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		weights, total := map[string]int{"drained": 0}, 0
		for i := range 2 + rnd.IntN(4) {
			w := 1 + rnd.IntN(100)
			weights[fmt.Sprint("model-", i)] = w
			total += w
		}
		s, counts := splitOf(weights), map[string]int{}
		for i := range sessions {
			counts[s.choose(fmt.Sprintf("%x", i)).Model]++
		}
		for name, w := range weights {
			share := float64(w) / float64(total)
			bound := 5 * math.Sqrt(share*(1-share)*sessions)
			if got := float64(counts[name]); math.Abs(got-share*sessions) > bound {
				t.Errorf("weights %v: %s has %g of %d sessions, want %.0f", weights, name, got, sessions, share*sessions)
			}
		}
	}
}

// A changed weight moves sessions only to the model whose weight grew, or from the one whose weight
// shrank, and a session is always with the same model.
func TestSplitMovesFewSessions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		weights := map[string]int{"a": 1 + rnd.IntN(100), "b": 1 + rnd.IntN(100), "c": 1 + rnd.IntN(100)}
		before := splitOf(weights)
		was := weights["b"]
		weights["b"] = rnd.IntN(200)
		after := splitOf(weights)
		for i := range 500 {
			session := fmt.Sprint(i)
			from, to := before.choose(session).Model, after.choose(session).Model
			grew := weights["b"] > was
			if from != before.choose(session).Model || from != to && (grew && to != "b" || !grew && from != "b") {
				t.Fatalf("b from %d to %d: session %s moved from %s to %s", was, weights["b"], session, from, to)
			}
		}
	}
}

// Two splits of the same models choose independently: a session is not always with the new models.
func TestSplitsAreIndependent(t *testing.T) {
	one, two := splitOf(map[string]int{"a": 1, "b": 1}), splitOf(map[string]int{"a": 1, "b": 1})
	two.name = "other"
	same := 0
	for i := range 1000 {
		if one.choose(fmt.Sprint(i)) == two.choose(fmt.Sprint(i)) {
			same++
		}
	}
	if same < 400 || same > 600 {
		t.Errorf("%d of 1000 sessions are with the same model in both", same)
	}
}

// The chosen model or adapter serves the request, and the client and explain see which one it is.
func TestSplitServesChosenModel(t *testing.T) {
	o := roundRobin(t)
	o.Self.Models = []service.BalancerModel{{Name: "a", LoRA: []string{"a-ft"}}, {Name: "b"}}
	o.Self.Splits = []service.Split{{Name: "chat", Weights: map[string]int{"a": 1, "a-ft": 1, "b": 1}}}
	b := start(t, o)
	engines := map[string]*recording{"a": {}, "b": {}}
	for name, seen := range engines {
		b.attachModel(name+"-0", name, engine(t, seen.with(pricedProvider)), 0)
	}
	if _, list := b.get("/v1/models"); !strings.Contains(list, `"chat"`) {
		t.Errorf("the split is not listed: %s", list)
	}
	if status, model := b.get("/v1/models/chat"); status != http.StatusOK || !strings.Contains(model, `"root":"chat"`) {
		t.Errorf("the split as a model: %d %s", status, model)
	}
	b.attachModel("c-0", "c", engine(t, speak("fine")), 0)
	for name, want := range map[string]int{"chat": 2, "a": 1, "a-ft": 1, "c": 1} {
		if got := b.ReadyReplicas(name); got != want {
			t.Errorf("%d replicas serve %s, want %d", got, name, want)
		}
	}
	sessions := map[string]string{} // chosen model by session
	names := map[string]bool{}
	for i := range 60 {
		session := fmt.Sprint(i % 20)
		resp := b.post(chatPath, `{"model":"chat","messages":[]}`, "X-Session-ID: "+session, fmt.Sprint("X-Request-ID: r", i))
		expect(t, resp, http.StatusOK, "")
		model := resp.Header.Get(headerModel)
		seen := engines[model].all()
		name := seen[len(seen)-1].model
		if was, known := sessions[session]; known && was != name {
			t.Errorf("session %s moved from %s to %s", session, was, name)
		}
		sessions[session], names[name] = name, true
		if d, _ := b.Decision(fmt.Sprint("r", i)); d.Split != "chat" || d.Model != model {
			t.Errorf("the record of r%d has model %s of split %q", i, d.Model, d.Split)
		}
	}
	if len(names) != 3 {
		t.Errorf("20 sessions are served by %v", names)
	}
	b.SetModels(o.Self.Models, []service.Split{{Name: "chat", Weights: map[string]int{"a": 0, "b": 5}}})
	for i := range 20 {
		resp := b.post(chatPath, `{"model":"chat","messages":[]}`, fmt.Sprint("X-Session-ID: ", i))
		_, _ = io.Copy(io.Discard, resp.Body)
		if got := resp.Header.Get(headerModel); got != "b" {
			t.Errorf("session %d: a drained model serves: %s", i, got)
		}
	}
	b.SetModels(o.Self.Models, nil)
	expect(t, b.post(chatPath, `{"model":"chat","messages":[]}`), http.StatusNotFound, "model_not_found")
}

// A model that is added together with a split to it never leaves all sessions to the other models.
func TestModelsAndSplitsChangeTogether(t *testing.T) {
	b := start(t, roundRobin(t))
	splits := []service.Split{{Name: "chat", Weights: map[string]int{"a": 1, "b": 1}}}
	done, partial := make(chan struct{}), make(chan int, 1)
	go func() {
		count := 0
		for {
			select {
			case <-done:
				partial <- count
				return
			default:
				if s := b.models.Load().splits["chat"]; s != nil && len(s.parts) != 2 {
					count++
				}
			}
		}
	}()
	for range 1000 {
		b.SetModels([]service.BalancerModel{{Name: "a"}, {Name: "b"}}, splits)
		b.SetModels([]service.BalancerModel{{Name: "a"}}, nil)
	}
	close(done)
	if n := <-partial; n > 0 {
		t.Errorf("the split had one model %d times", n)
	}
}
