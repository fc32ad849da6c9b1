package server

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
)

// Flavor is whose metrics the server speaks.
type Flavor string

// The flavors.
const (
	FlavorVLLM   Flavor = "vllm"
	FlavorSGLang Flavor = "sglang"
	FlavorNone   Flavor = "none" // an engine without metrics: GET /metrics is 404
)

// ParseFlavor reads a flavor. An unknown word is an error that lists the known.
func ParseFlavor(s string) (Flavor, error) {
	for _, f := range []Flavor{FlavorVLLM, FlavorSGLang, FlavorNone} {
		if s == string(f) {
			return f, nil
		}
	}
	return "", fmt.Errorf("unknown flavor %q: want vllm, sglang or none", s)
}

// Defaults, each with its reason.
const (
	// DefaultSpeed runs time as it is.
	DefaultSpeed = 1.0
	// DefaultMaxBodyBytes lets through a conversation with a few images.
	DefaultMaxBodyBytes = 32 << 20
	// DefaultGrace is how long requests may finish after a request to stop.
	DefaultGrace = 2 * time.Second
	// DefaultModel is the name served when none is given.
	DefaultModel = "meta-llama/Llama-3.1-8B-Instruct"
)

// maxSpeed bounds the factor of time: beyond it a decode step is shorter than
// a timer can measure.
const maxSpeed = 1e6

// Options says what a server serves and how. The zero value of a field means
// its default.
type Options struct {
	Profile engine.Profile // default: the first of engine.Profiles
	Model   string         // the name it answers to, and under which metrics stand
	Aliases []string       // further names of the same model
	LoRA    []string       // adapters: further names, whose answers and cache entries are their own

	// Speed is model time over wall time: 10 runs ten times faster than the
	// profile says.
	Speed float64
	// Seed chooses among the possible answers and faults. Replicas with the
	// same seed give the same answer to the same prompt.
	Seed uint64

	// DataParallel is how many data-parallel ranks the engine has, each with the
	// profile's memory and batch; default 1. They wait for each other at every step.
	DataParallel int

	Flavor Flavor // default vllm
	// OldMetrics adds vLLM's former name of the KV utilisation,
	// vllm:gpu_cache_usage_perc.
	OldMetrics bool

	// StreamInterval is how many tokens an event of a stream holds, after the first,
	// which comes at once, and but for the last; default 1. vLLM and SGLang have an
	// option of that name.
	StreamInterval int
	// NoContinuousUsage ignores stream_options.continuous_usage_stats, as engines do that
	// do not know it.
	NoContinuousUsage bool

	MaxBodyBytes int64         // larger request bodies are refused with 413
	Grace        time.Duration // wall time that requests have to finish after a stop
	Faults       Faults
}

// withDefaults fills in what was left out and says what cannot be.
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
		return fmt.Errorf("checking the engine's options: speed must be above 0 and at most %g, got %g", maxSpeed, o.Speed)
	}
	if o.DataParallel < 1 || o.DataParallel > service.MaxDataParallel {
		return fmt.Errorf("checking the engine's options: data-parallel ranks must be from 1 to %d, got %d", service.MaxDataParallel, o.DataParallel)
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
			return fmt.Errorf("checking the engine's options: the model name %q is given twice", name)
		}
	}
	return nil
}

// names is every name the server answers to, the main one first.
func (o Options) names() []string {
	return slices.Concat([]string{o.Model}, o.Aliases, o.LoRA)
}
