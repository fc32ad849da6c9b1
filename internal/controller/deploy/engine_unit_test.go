package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
)

// argsOf returns the command line of an engine on a machine with a number of GPUs.
func argsOf(e service.Engine, gpus int) (agent.Unit, string) {
	u, _ := unitOf(&service.Model{Name: "org/m", Engine: e}, gpus, provision.MachineEndpoints{Loopback: "127.0.0.1"})
	return u, strings.Join(u.Args, " ")
}

// The ranks of an engine share the GPUs of its machine.
func TestRanksShareTheGPUs(t *testing.T) {
	attention := []string{"--enable-dp-attention"}
	for _, tt := range []struct {
		kind        service.EngineKind
		args        []string
		gpus, ranks int
		want        string // all flags of sizes
	}{
		{service.EngineVLLM, nil, 0, 0, ""},
		{service.EngineVLLM, nil, 1, 0, ""},
		{service.EngineVLLM, nil, 8, 0, "--tensor-parallel-size 8"},
		{service.EngineVLLM, nil, 8, 1, "--tensor-parallel-size 8"},
		{service.EngineVLLM, nil, 8, 2, "--tensor-parallel-size 4 --data-parallel-size 2"},
		{service.EngineVLLM, nil, 8, 8, "--data-parallel-size 8"},
		{service.EngineVLLM, nil, 4, 2, "--tensor-parallel-size 2 --data-parallel-size 2"},
		{service.EngineSGLang, nil, 1, 0, ""},
		{service.EngineSGLang, nil, 8, 0, "--tp-size 8"},
		{service.EngineSGLang, nil, 8, 2, "--tp-size 4 --dp-size 2"},
		{service.EngineSGLang, nil, 8, 8, "--dp-size 8"},
		{service.EngineSGLang, attention, 8, 2, "--tp-size 8 --dp-size 2"},
		{service.EngineSGLang, attention, 8, 8, "--tp-size 8 --dp-size 8"},
		{service.EngineOpenAI, nil, 8, 2, ""},
	} {
		u, _ := argsOf(service.Engine{Kind: tt.kind, Args: tt.args, DataParallel: tt.ranks}, tt.gpus)
		var sizes []string
		for i, a := range u.Args {
			if strings.HasSuffix(a, "-size") {
				sizes = append(sizes, a, u.Args[i+1])
			}
		}
		if got := strings.Join(sizes, " "); got != tt.want || u.GPUs != (tt.gpus > 0) {
			t.Errorf("%s with %d GPUs and %d ranks %v: %q, want %q", tt.kind, tt.gpus, tt.ranks, tt.args, got, tt.want)
		}
	}
}

// Adapters with a source are downloaded and loaded from their paths; the others as service.yaml names them.
func TestAdaptersOfEngines(t *testing.T) {
	lora := []service.Adapter{{Name: "sql=/image/sql"}, {Name: "law", Source: "org/law"}, {Name: "med", Source: "s3://loras/med"}}
	want := []agent.Adapter{{Name: "law", Source: "hf://org/law", MountPath: "/adapters/1"}, {Name: "med", Source: "s3://loras/med", MountPath: "/adapters/2"}}
	for _, tt := range []struct {
		kind        service.EngineKind
		args        []string
		flags, rank string
	}{
		{service.EngineVLLM, nil, "--enable-lora --lora-modules sql=/image/sql law=/adapters/1 med=/adapters/2", "--max-lora-rank"},
		{service.EngineVLLM, []string{"--max-lora-rank=64"}, "} --max-lora-rank=64", ""},
		{service.EngineVLLM, []string{"--max-lora-rank", "64"}, "} --max-lora-rank 64", ""},
		{service.EngineSGLang, nil, "--lora-paths sql=/image/sql law=/adapters/1 med=/adapters/2", ""},
	} {
		u, args := argsOf(service.Engine{Kind: tt.kind, Args: tt.args, LoRA: lora}, 1)
		if !strings.Contains(args, tt.flags) || u.LoRARankFlag != tt.rank || !slices.Equal(u.Adapters, want) {
			t.Errorf("%s %v: %s with %+v, rank by %q", tt.kind, tt.args, args, u.Adapters, u.LoRARankFlag)
		}
	}
	if u, _ := argsOf(service.Engine{Kind: service.EngineVLLM, LoRA: lora[:1]}, 1); u.LoRARankFlag != "" || len(u.Adapters) > 0 {
		t.Errorf("an adapter in the image: %+v, rank by %q", u.Adapters, u.LoRARankFlag)
	}
}

// Cache events of each rank have two ports of the machine's loopback address.
func TestEnginesPublishCacheEvents(t *testing.T) {
	for kind, config := range map[service.EngineKind]string{
		service.EngineVLLM:   `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv-events"}`,
		service.EngineSGLang: `{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv-events"}`,
	} {
		on := true
		u, args := argsOf(service.Engine{Kind: kind, CacheEvents: &on, DataParallel: 2}, 2)
		if !strings.HasSuffix(args, "--kv-events-config "+config) || fmt.Sprint(u.MorePorts) != "[5557 5657 5558 5658]" {
			t.Errorf("%s: %s, ports %v", kind, args, u.MorePorts)
		}
	}
	off := false
	for name, tt := range map[string]struct {
		engine service.Engine
		events bool
	}{
		"vllm":                        {service.Engine{Kind: service.EngineVLLM}, true},
		"off":                         {service.Engine{Kind: service.EngineVLLM, CacheEvents: &off}, false},
		"an image of unknown flags":   {service.Engine{Kind: service.EngineVLLM, Image: "mine/vllm:1"}, false},
		"own configuration":           {service.Engine{Kind: service.EngineVLLM, Args: []string{"--kv-events-config={}"}}, false},
		"no prefix cache":             {service.Engine{Kind: service.EngineVLLM, Args: []string{"--no-enable-prefix-caching"}}, false},
		"own events with underscores": {service.Engine{Kind: service.EngineVLLM, Args: []string{"--kv_events_config={}"}}, false},
		"an event for each token":     {service.Engine{Kind: service.EngineSGLang}, false},
		"a server of unknown program": {service.Engine{Kind: service.EngineOpenAI}, false},
	} {
		u, args := argsOf(tt.engine, 2)
		if got := strings.Contains(args, "--kv-events-config {"); got != tt.events || (len(u.MorePorts) > 0) != tt.events {
			t.Errorf("%s: %s, ports %v", name, args, u.MorePorts)
		}
	}
}

// What an engine and its libraries compile outlives its container, outside the cache of the hub.
func TestEnginesKeepCompiledCode(t *testing.T) {
	for kind, want := range map[service.EngineKind]string{
		service.EngineVLLM:   "[/root/.cache/vllm /root/.cache/flashinfer /root/.triton/cache /tmp/torchinductor_root]",
		service.EngineSGLang: "[/root/.cache/sglang /root/.cache/flashinfer /root/.triton/cache /tmp/torchinductor_root]",
		service.EngineOpenAI: "[]",
	} {
		if u, _ := argsOf(service.Engine{Kind: kind}, 1); fmt.Sprint(u.CompileCaches) != want {
			t.Errorf("%s: %v, want %s", kind, u.CompileCaches, want)
		}
	}
}
