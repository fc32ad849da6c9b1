package server

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
)

// Flavor selects the engine whose metrics the server exposes.
type Flavor string

// The values of Flavor.
const (
	FlavorVLLM   Flavor = "vllm"
	FlavorSGLang Flavor = "sglang"
	FlavorNone   Flavor = "none" // an engine without metrics: GET /metrics is 404
)

// ParseFlavor parses a flavor. The error for an unknown one lists the known ones.
func ParseFlavor(s string) (Flavor, error) {
	for _, f := range []Flavor{FlavorVLLM, FlavorSGLang, FlavorNone} {
		if s == string(f) {
			return f, nil
		}
	}
	return "", fmt.Errorf("unknown flavor %q: must be vllm, sglang or none", s)
}

// Default values.
const (
	// DefaultSpeed is real time.
	DefaultSpeed = 1.0
	// DefaultMaxBodyBytes allows a conversation with a few images.
	DefaultMaxBodyBytes = 32 << 20
	// DefaultGrace is the time for requests to finish after shutdown starts.
	DefaultGrace = 2 * time.Second
	// DefaultModel is the served name by default.
	DefaultModel = "meta-llama/Llama-3.1-8B-Instruct"
)

// maxSpeed limits the speed: beyond it a decode step is shorter than the resolution of timers.
const maxSpeed = 1e6

// Options configures a server. The zero value of a field selects its default.
type Options struct {
	Profile engine.Profile // default: the first of engine.Profiles
	Model   string         // served name, and label of metrics
	Aliases []string       // additional names of the model
	LoRA    []string       // names of adapters with separate responses and cache entries

	// Speed is model time divided by wall time: 10 = ten times faster than the profile.
	Speed float64
	// Seed determines responses and faults. Replicas with the same seed return the same response to the
	// same prompt.
	Seed uint64

	// DataParallel is the number of data-parallel ranks, each with the profile's memory and batch;
	// default 1. They synchronise at every step.
	DataParallel int

	// APIKey is required from clients, as vLLM and SGLang do: all paths but those of health and metrics
	// need it. Empty = none.
	APIKey string

	Flavor Flavor // default vllm
	// LegacyMetrics adds vLLM's former metric for KV utilisation, vllm:gpu_cache_usage_perc.
	LegacyMetrics bool

	// StreamInterval is the number of tokens per stream event, except for the first event, which has one
	// token, and the last; default 1. vLLM and SGLang have an option with that name.
	StreamInterval int
	// NoContinuousUsage ignores stream_options.continuous_usage_stats, like engines that do not support
	// it.
	NoContinuousUsage bool

	// CacheEvents are the listeners at which the ranks publish the changes of their caches, one element
	// for each rank (see ListenCacheEvents); empty = they do not. The server closes them.
	CacheEvents []CacheListeners

	MaxBodyBytes int64         // larger request bodies get status 413
	Grace        time.Duration // wall time for requests to finish after shutdown starts
	Faults       Faults
}

// withDefaults sets defaults and validates the options.
func (o Options) withDefaults() (Options, error) {
	if o.Profile.Name == "" {
		o.Profile = engine.Profiles()[0]
	}
	if o.Model == "" {
		o.Model = DefaultModel
	}
	if o.Speed == 0 {
		o.Speed = DefaultSpeed
	}
	if o.DataParallel == 0 {
		o.DataParallel = 1
	}
	if o.StreamInterval == 0 {
		o.StreamInterval = 1
	}
	if o.Flavor == "" {
		o.Flavor = FlavorVLLM
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	return o, o.validate()
}

func (o Options) validate() error {
	if !(o.Speed > 0 && o.Speed <= maxSpeed) {
		return fmt.Errorf("checking the engine's options: speed must be greater than 0 and at most %.0f, got %g", maxSpeed, o.Speed)
	}
	if o.DataParallel < 1 || o.DataParallel > service.MaxDataParallel {
		return fmt.Errorf("checking the engine's options: data-parallel ranks must be from 1 to %d, got %d", service.MaxDataParallel, o.DataParallel)
	}
	if n := len(o.CacheEvents); n != 0 && n != o.DataParallel {
		return fmt.Errorf("checking the engine's options: cache events need listeners for each of %d ranks, got %d", o.DataParallel, n)
	}
	if o.StreamInterval < 1 {
		return fmt.Errorf("checking the engine's options: the stream interval must be at least 1 token, got %d", o.StreamInterval)
	}
	if o.MaxBodyBytes < 0 {
		return fmt.Errorf("checking the engine's options: the body limit must be at least 1 byte, got %d", o.MaxBodyBytes)
	}
	if o.Grace < 0 {
		return fmt.Errorf("checking the engine's options: the grace must not be negative, got %v", o.Grace)
	}
	if _, err := ParseFlavor(string(o.Flavor)); err != nil {
		return fmt.Errorf("checking the engine's options: %w", err)
	}
	names := o.names()
	for i, name := range names {
		if name == "" {
			return fmt.Errorf("checking the engine's options: a model name is empty")
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("checking the engine's options: duplicate model name %q", name)
		}
	}
	return nil
}

// names returns all served names, the main one first.
func (o Options) names() []string {
	return slices.Concat([]string{o.Model}, o.Aliases, o.LoRA)
}
