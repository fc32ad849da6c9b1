package service

import (
	"fmt"
	"slices"
	"strings"
)

// adapterName returns the path of an adapter's name, which may be all that the file says about it.
func (c *checker) adapterName(p path) path {
	if c.at[p.key("name")] != nil {
		return p.key("name")
	}
	return p
}

// checkAdapters checks that the machines of a model can download its adapters.
func (c *checker) checkAdapters(m *Model, p path) {
	for j, a := range m.Engine.LoRA {
		at := p.key("lora").index(j)
		if a.Source == "" || !c.valid(p, p.key("kind"), at, at.key("source")) {
			continue
		}
		switch {
		case !m.Engine.ownedFlags():
			c.reportProblem(at.key("source"), "is only valid for kinds vllm and sglang, but the kind is %s", m.Engine.Kind)
		case strings.Contains(a.Name, "="):
			c.reportProblem(c.adapterName(at), "must be a name without a path, because the adapter has a source")
		case a.InBucket():
			c.checkBucket(m, p.parent(), a.Source, at.key("source"))
		}
	}
}

// ownedFlags reports whether skyserve composes the engine's command line and knows its flags.
func (e *Engine) ownedFlags() bool { return e.Kind == EngineVLLM || e.Kind == EngineSGLang }

// PublishesCacheEvents reports whether a launched engine publishes the changes of its KV cache. By default only
// vLLM of the default image does, whose flags are known: with SGLang's default page of one token, an event is
// published for every token. Own flags about cache events or prefix caching turn the default off.
func (e *Engine) PublishesCacheEvents() bool {
	if e.CacheEvents != nil {
		return *e.CacheEvents
	}
	return e.Kind == EngineVLLM && e.Image == "" && !slices.ContainsFunc(e.Args, func(a string) bool {
		flag := EngineFlag(a)
		return strings.HasPrefix(flag, "--kv-events-config") || strings.HasPrefix(flag, "--no-enable-prefix-caching")
	})
}

// checkLaunchedEngine checks the keys from which the command line of an engine is composed: its ranks must
// divide the GPUs of every configuration, and only engines of known kinds publish cache events.
func (c *checker) checkLaunchedEngine(m *Model, p path) {
	e, at := &m.Engine, p.key("engine")
	if !c.valid(at, at.key("kind")) {
		return
	}
	switch events := at.key("cache_events"); {
	case e.CacheEvents == nil || !*e.CacheEvents || e.ownedFlags():
	case e.Kind != EngineSim:
		c.reportProblem(events, "is only valid for kinds vllm, sglang and sim, but the kind is %s", e.Kind)
	case e.DataParallel > 1:
		c.reportProblem(events, "is not supported for kind sim with data_parallel above 1")
	}
	ranks := at.key("data_parallel")
	if e.DataParallel <= 1 || !e.ownedFlags() || !c.valid(ranks, p.key("gpus")) {
		return
	}
	i := slices.IndexFunc(m.GPUs, func(g GPU) bool { return g.Count%e.DataParallel != 0 })
	if i < 0 || !c.valid(p.key("gpus").index(i), p.key("gpus").index(i).key("count")) {
		return
	}
	g := m.GPUs[i]
	c.reportAtPath(ranks, Error{
		Problem: fmt.Sprintf("must divide the number of GPUs of a replica, which is %d in %s", g.Count, p.key("gpus").index(i)),
		Found:   c.describePath(ranks), Suggestion: "each rank uses the same number of GPUs: change data_parallel or gpus[].count",
	})
}
