package deploy

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
)

// unitOnPort is unitOf for an engine that does not share its loopback address; it also returns the port.
func unitOnPort(m *service.Model, gpus int, host string) (agent.Unit, int) {
	e := &m.Engine
	switch e.Kind {
	case service.EngineSim:
		port := cmp.Or(e.Port, portVLLM)
		at := provision.MachineEndpoints{Engine: net.JoinHostPort(host, strconv.Itoa(port)), CacheEvents: net.JoinHostPort(host, strconv.Itoa(portCacheEvents))}
		return agent.Unit{Args: append([]string{program}, provision.SimEngineArgs(m, at)...)}, port
	case service.EngineSGLang:
		port := cmp.Or(e.Port, portSGLang)
		return containerOf(e, gpus, port, sglangArgs(m, gpus, port)), port
	case service.EngineVLLM:
		port := cmp.Or(e.Port, portVLLM)
		return containerOf(e, gpus, port, vllmArgs(m, gpus, port)), port
	case service.EngineOpenAI:
	}
	port := cmp.Or(e.Port, portVLLM)
	return containerOf(e, gpus, port, nil), port
}

// containerOf returns the container of an engine with its arguments, followed by those of service.yaml.
func containerOf(e *service.Engine, gpus, port int, args []string) agent.Unit {
	u := agent.Unit{Image: imageOf(e), Args: append(args, e.Args...), Port: port, GPUs: gpus > 0, CacheDir: cacheHub}
	for i, a := range e.LoRA {
		if a.Source != "" {
			u.Adapters = append(u.Adapters, agent.Adapter{Name: a.Name, Source: adapterSource(a), MountPath: adapterPath(i)})
		}
	}
	u.CompileCaches = compileCaches[e.Kind]
	if e.PublishesCacheEvents() {
		for rank := range max(1, e.DataParallel) {
			u.MorePorts = append(u.MorePorts, portCacheEvents+rank, portCacheReplays+rank)
		}
	}
	if e.Kind == service.EngineVLLM && len(u.Adapters) > 0 && !hasFlag(e.Args, flagMaxRank) {
		u.LoRARankFlag = flagMaxRank // SGLang infers the rank from the adapters
	}
	return u
}

// compileCaches are the directories in which engines and their libraries keep compiled code, in the
// containers of their images, which run as root: vLLM (VLLM_CACHE_ROOT in vllm/envs.py), SGLang
// (docs/references/torch_compile_cache.md), FlashInfer (FLASHINFER_WORKSPACE_BASE in
// flashinfer/jit/env.py), Triton (triton/runtime/cache.py) and TorchInductor (its default for root); 2026.
var compileCaches = map[service.EngineKind][]string{
	service.EngineVLLM:   {"/root/.cache/vllm", "/root/.cache/flashinfer", "/root/.triton/cache", "/tmp/torchinductor_root"},
	service.EngineSGLang: {"/root/.cache/sglang", "/root/.cache/flashinfer", "/root/.triton/cache", "/tmp/torchinductor_root"},
}

const (
	// flagMaxRank is vLLM's flag for the highest rank of its adapters, 16 by default.
	flagMaxRank = "--max-lora-rank"
	// portCacheEvents is the port of the cache events of the first rank, portCacheReplays the one where the
	// engine sends earlier ones again; rank n uses the ports n above.
	portCacheEvents  = 5557
	portCacheReplays = portCacheEvents + cacheReplaysOffset
	// cacheReplaysOffset is the distance between the two, as in simulated engines.
	cacheReplaysOffset = 100
	// cacheEventsEndpoint is part of the configuration of cache events. vLLM and SGLang share its format
	// and add the rank to both ports (vllm/config/kv_events.py, sglang/srt/disaggregation/kv_events.py, 2026).
	cacheEventsEndpoint = `"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv-events"`
)

// cacheEventsAt returns the addresses on a replica's machine at which the first rank of its engine publishes
// cache events, and sends earlier ones again; empty if it does not.
func cacheEventsAt(e *service.Engine, at provision.MachineEndpoints) (events, replays string) {
	if !e.PublishesCacheEvents() {
		return "", ""
	}
	events = cmp.Or(at.CacheEvents, net.JoinHostPort(at.Loopback, strconv.Itoa(portCacheEvents)))
	return events, portAbove(events, cacheReplaysOffset)
}

// cacheEventAddresses returns the addresses of the cache events of all ranks of an engine.
func cacheEventAddresses(e *service.Engine, at provision.MachineEndpoints) (all []string) {
	events, replays := cacheEventsAt(e, at)
	if events == "" {
		return nil
	}
	for rank := range max(1, e.DataParallel) {
		all = append(all, portAbove(events, rank), portAbove(replays, rank))
	}
	return all
}

// portAbove returns an address with its port plus n.
func portAbove(address string, n int) string {
	at := netip.MustParseAddrPort(address)
	return netip.AddrPortFrom(at.Addr(), at.Port()+uint16(n)).String()
}

// hasFlag reports whether arguments set a flag, as FLAG VALUE or FLAG=VALUE.
func hasFlag(args []string, flag string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return a == flag || strings.HasPrefix(a, flag+"=") })
}

// adapterArgs returns the adapters of an engine as its flags expect them: NAME, or NAME=PATH.
func adapterArgs(e *service.Engine) []string {
	var args []string
	for i, a := range e.LoRA {
		if a.Source != "" {
			args = append(args, a.Name+"="+adapterPath(i))
		} else {
			args = append(args, a.Name)
		}
	}
	return args
}

// adapterPath returns the path in containers of the adapter with an index.
func adapterPath(i int) string { return "/adapters/" + strconv.Itoa(i) }

// adapterSource returns the URL of an adapter's files for the agent.
func adapterSource(a service.Adapter) string {
	if a.InBucket() {
		return a.Source
	}
	return agent.HubScheme + a.Source
}

// vllmArgs returns the arguments of vLLM. Its tensor-parallel size is that of one rank: a replica uses
// as many GPUs as the product of both sizes (vLLM's docs/serving/data_parallel_deployment.md, 2026).
func vllmArgs(m *service.Model, gpus, port int) []string {
	e, args := &m.Engine, arguments{"--model", modelPath(m), "--port", strconv.Itoa(port)}
	args.add(e.Weights != "", "--served-model-name", m.Name)
	args.addSize("--tensor-parallel-size", gpusPerRank(e, gpus))
	args.addSize("--data-parallel-size", e.DataParallel)
	args.add(e.MaxNumSeqs > 0, "--max-num-seqs", strconv.Itoa(e.MaxNumSeqs))
	args.add(len(e.LoRA) > 0, append([]string{"--enable-lora", "--lora-modules"}, adapterArgs(e)...)...)
	args.add(e.PublishesCacheEvents(), "--kv-events-config", `{"enable_kv_cache_events":true,"publisher":"zmq",`+cacheEventsEndpoint+`}`)
	return args
}

// sglangArgs returns the arguments of SGLang. Without attention data parallelism its tensor-parallel
// size is that of one rank; with it, the ranks divide the GPUs of the tensor-parallel size
// (data_parallel_controller.py and server_args.py of SGLang, 2026).
func sglangArgs(m *service.Model, gpus, port int) []string {
	e, args := &m.Engine, arguments(slices.Concat(sglangServer, []string{"--model-path", modelPath(m), "--host", "0.0.0.0", "--port", strconv.Itoa(port), "--enable-metrics"}))
	args.add(e.Weights != "", "--served-model-name", m.Name)
	tensorParallel := gpusPerRank(e, gpus)
	if slices.Contains(e.Args, "--enable-dp-attention") {
		tensorParallel = gpus
	}
	args.addSize("--tp-size", tensorParallel)
	args.addSize("--dp-size", e.DataParallel)
	args.add(e.MaxNumSeqs > 0, "--max-running-requests", strconv.Itoa(e.MaxNumSeqs))
	args.add(len(e.LoRA) > 0, append([]string{"--lora-paths"}, adapterArgs(e)...)...)
	args.add(e.PublishesCacheEvents(), "--kv-events-config", `{"publisher":"zmq",`+cacheEventsEndpoint+`}`)
	return args
}

// modelPath returns what an engine loads: the directory of weights from a bucket, or the model's name.
func modelPath(m *service.Model) string {
	if m.Engine.Weights != "" {
		return weightsPath
	}
	return m.Name
}

// gpusPerRank returns the number of GPUs of one data-parallel rank; 0 where the number of GPUs is unknown.
func gpusPerRank(e *service.Engine, gpus int) int { return gpus / max(1, e.DataParallel) }

// arguments are command-line arguments.
type arguments []string

// add appends values if a condition holds.
func (a *arguments) add(isSet bool, values ...string) {
	if isSet {
		*a = append(*a, values...)
	}
}

// addSize appends a flag with a size above one, which is every engine's default.
func (a *arguments) addSize(flag string, n int) { a.add(n > 1, flag, strconv.Itoa(n)) }
