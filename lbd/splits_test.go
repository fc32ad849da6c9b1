package lbd

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// A reload changes the weights of a split: a drained model receives no new requests.
func TestReloadChangesSplits(t *testing.T) {
	old, next := newEngine(t, "llama", ""), newEngine(t, "llama-ft", "")
	cfg := config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: old.URL, Model: "llama"}, service.ReplicaConfig{ID: "us-1", URL: next.URL, Model: "llama-ft"})
	cfg.Models = []service.BalancerModel{{Name: "llama"}, {Name: "llama-ft"}}
	cfg.Splits = []service.Split{{Name: "chat", Weights: map[string]int{"llama": 1, "llama-ft": 0}}}
	f := startFiled(t, cfg, Options{})
	hc := client(t)
	for _, id := range []string{"us-0", "us-1"} {
		testkit.Eventually(t, id+" is ready", func() bool { return f.worker(t, id).State == service.StateReady })
	}
	serves := func(model string) {
		t.Helper()
		for i := range 10 {
			if got := ask(t, hc, f.public, "chat", "X-Session-ID", fmt.Sprint(i)); got.status != http.StatusOK || got.header.Get("X-Skyserve-Model") != model {
				t.Errorf("session %d: %d from %s, want %s", i, got.status, got.header.Get("X-Skyserve-Model"), model)
			}
		}
	}
	serves("llama")
	f.change(func(c *service.BalancerConfig) {
		c.Splits = []service.Split{{Name: "chat", Weights: map[string]int{"llama": 0, "llama-ft": 5}}}
	})
	if done := f.reload(); fmt.Sprint(done.Changed) != "[splits]" {
		t.Errorf("changed %q", done.Changed)
	}
	serves("llama-ft")
}

// A reload that adds a model with its replica and moves a split to it rejects no request: at no moment does the split
// choose a model without a replica.
func TestSplitMovesToNewModelWithoutErrors(t *testing.T) {
	cfg := config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: newEngine(t, "llama", "").URL, Model: "llama"})
	cfg.Models = []service.BalancerModel{{Name: "llama"}}
	cfg.Splits = []service.Split{{Name: "chat", Weights: map[string]int{"llama": 1}}}
	f := startFiled(t, cfg, Options{})
	hc := client(t)
	ready(t, f.node)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if got := ask(t, hc, f.public, "chat"); got.status != http.StatusOK {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	for i := range 30 {
		model := fmt.Sprint("llama-", i)
		e := newEngine(t, model, "")
		f.change(func(c *service.BalancerConfig) {
			c.Models = append(c.Models, service.BalancerModel{Name: model})
			c.Replicas = append(c.Replicas, service.ReplicaConfig{ID: model, URL: e.URL, Model: model})
			c.Splits = []service.Split{{Name: "chat", Weights: map[string]int{model: 1}}}
		})
		f.reload()
	}
	stop()
	clients.Wait()
}

func TestInvalidSplitsAreErrors(t *testing.T) {
	for want, s := range map[string]service.Split{
		`splits[0].name: must be a name that no model, alias, adapter or other split has, got "small"`:        {Name: "small", Weights: map[string]int{"llama": 1}},
		`splits[0].name: must be a name that no model, alias, adapter or other split has, got ""`:             {Weights: map[string]int{"llama": 1}},
		"splits[0].weights.small: must be a model or adapter of models; its weight must be at least 0, got 1": {Name: "chat", Weights: map[string]int{"llama": 1, "small": 1}},
		"splits[0].weights.ft: must be a model or adapter of models; its weight must be at least 0, got -1":   {Name: "chat", Weights: map[string]int{"llama": 1, "ft": -1}},
		"splits[0].weights: must contain a weight above 0":                                                    {Name: "chat", Weights: map[string]int{"llama": 0}},
	} {
		cfg := config("lb", "local/us")
		cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
		cfg.Models, cfg.Splits = []service.BalancerModel{{Name: "llama", Aliases: []string{"small"}, LoRA: []string{"ft"}}}, []service.Split{s}
		if err := CheckConfig(cfg, Options{}); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
