package engine

import (
	"fmt"
	"strings"
	"time"
)

// Profile is the performance and capacity of one replica. A prefill step takes PrefillBase plus
// PrefillPerToken per uncached prompt token in it; a decode step takes DecodeBase plus DecodePerRequest
// per request in it plus DecodePerKVToken per token of their context. A measured curve replaces the
// base and the first slope: Prefill over the uncached tokens of the step, Decode over its requests.
// A step of an engine with MixedSteps takes the time of its prefill, plus that of its decode without the base.
type Profile struct {
	Name        string
	Description string // its hardware and model

	PrefillBase      time.Duration
	PrefillPerToken  time.Duration // per uncached prompt token
	DecodeBase       time.Duration
	DecodePerRequest time.Duration // per request in the step
	DecodePerKVToken time.Duration // per context token of the requests in the step

	Prefill Curve // replaces PrefillBase and PrefillPerToken unless empty
	Decode  Curve // replaces DecodeBase and DecodePerRequest unless empty

	ChunkTokens int // maximum uncached prompt tokens in a prefill step; with MixedSteps the generated ones count too
	KVTokens    int // size of the KV memory in tokens, shared prefixes counted once
	MaxRunning  int // maximum running requests (max_num_seqs)

	// MixedSteps: a prefill step also generates a token of each running request, as in vLLM (chunked prefill).
	// Otherwise running requests wait for prefill steps, as in SGLang by default.
	MixedSteps bool

	// ReservePerMille is the share, in thousandths, of the tokens still to be generated that admission
	// reserves memory for.
	ReservePerMille int
}

// l4Llama is one L4 (24 GB) serving Llama-3.1-8B with memory fraction 0.8:
// prefill 45 ms + 2000 tokens/s in chunks of 2048, decode 54 ms + 0.44 us a
// context token + 0.25 ms a request, KV memory of 21,000 tokens, admission
// with a new-token ratio of 0.2.
var l4Llama = Profile{
	Name:             "l4-llama3.1-8b",
	Description:      "one NVIDIA L4 (24 GB), Llama-3.1-8B, 21,000 KV tokens",
	PrefillBase:      45 * time.Millisecond,
	PrefillPerToken:  500 * time.Microsecond,
	DecodeBase:       54 * time.Millisecond,
	DecodePerRequest: 250 * time.Microsecond,
	DecodePerKVToken: 440 * time.Nanosecond,
	ChunkTokens:      2048,
	KVTokens:         21_000,
	MaxRunning:       256,
	ReservePerMille:  200,
}

// h100Llama is one H100 SXM (80 GB) serving Llama-3.1-8B with memory fraction
// 0.8, scaled from the L4's constants by what bounds each of them:
//   - reads of memory, 3350 against 300 GB/s (11.17x): the weights, 16 GB of
//     bf16 a step, are the minimum cost of a decode step (L4: 54 ms; 4.8 ms), and
//     most of the fixed cost of a prefill step (45 ms; 4.0 ms); a
//     context token is 128 KiB of KV memory (0.44 us; 39 ns);
//   - arithmetic, about 8x the bf16 operations that an L4 sustains: a prompt token
//     (500 us; 62.5 us) and a request's own token in a decode step (250 us; 31 us);
//   - memory: 0.8 of 80 GB less 16.06 GB of weights and the 0.39 GB that an L4 with
//     its 21,000 tokens spends on other things, in tokens of 128 KiB;
//   - chunks of 8192, SGLang's default for cards of this size, as 2048 is for an L4.
var h100Llama = Profile{
	Name:             "h100-llama3.1-8b",
	Description:      "one NVIDIA H100 SXM (80 GB), Llama-3.1-8B, 362,000 KV tokens",
	PrefillBase:      4030 * time.Microsecond,
	PrefillPerToken:  62500 * time.Nanosecond,
	DecodeBase:       4836 * time.Microsecond,
	DecodePerRequest: 31250 * time.Nanosecond,
	DecodePerKVToken: 39 * time.Nanosecond,
	ChunkTokens:      8192,
	KVTokens:         362_000,
	MaxRunning:       256,
	ReservePerMille:  200,
}

// Profiles returns the built-in profiles in a fixed order; the first is the default.
func Profiles() []Profile {
	large := l4Llama
	large.Name = "l4-llama3.1-8b-38k"
	large.Description = "one NVIDIA L4 (24 GB), Llama-3.1-8B, 38,000 KV tokens"
	large.KVTokens = 38_000
	return append([]Profile{l4Llama, large, h100Llama}, measuredProfiles()...)
}

// FindProfile returns a built-in profile. The error for an unknown name lists the known ones.
func FindProfile(name string) (Profile, error) {
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("unknown engine profile %q: must be one of %s", name, strings.Join(names, ", "))
}

// MinKVTokens is the minimum of Profile.KVTokens: a prompt of one token and its response.
const MinKVTokens = 2

// Validate returns an error for an invalid profile.
func (p Profile) Validate() error {
	leastDecode := int64(1)
	if len(p.Decode) > 0 {
		leastDecode = 0
	}
	for _, c := range []struct {
		name string
		got  int64
		min  int64
	}{
		{"PrefillBase", int64(p.PrefillBase), 0},
		{"PrefillPerToken", int64(p.PrefillPerToken), 0},
		{"DecodeBase", int64(p.DecodeBase), leastDecode},
		{"DecodePerRequest", int64(p.DecodePerRequest), 0},
		{"DecodePerKVToken", int64(p.DecodePerKVToken), 0},
		{"ChunkTokens", int64(p.ChunkTokens), 1},
		{"KVTokens", int64(p.KVTokens), MinKVTokens},
		{"MaxRunning", int64(p.MaxRunning), 1},
		{"ReservePerMille", int64(p.ReservePerMille), 0},
	} {
		if c.got < c.min {
			return fmt.Errorf("checking engine profile %q: %s must be at least %d, got %d", p.Name, c.name, c.min, c.got)
		}
	}
	if p.ReservePerMille > 1000 {
		return fmt.Errorf("checking engine profile %q: ReservePerMille must be at most 1000, got %d", p.Name, p.ReservePerMille)
	}
	if err := p.Prefill.Validate(); err != nil {
		return fmt.Errorf("checking engine profile %q: Prefill: %w", p.Name, err)
	}
	if err := p.Decode.Validate(); err != nil {
		return fmt.Errorf("checking engine profile %q: Decode: %w", p.Name, err)
	}
	return nil
}

// Scaled returns the profile of a machine that is slower by factor, which must be positive; curve times
// are at least a nanosecond.
func (p Profile) Scaled(factor float64) Profile {
	for _, d := range []*time.Duration{&p.PrefillBase, &p.PrefillPerToken, &p.DecodeBase, &p.DecodePerRequest, &p.DecodePerKVToken} {
		*d = scale(*d, factor)
	}
	p.Prefill, p.Decode = p.Prefill.scaled(factor), p.Decode.scaled(factor)
	return p
}

// StepTime returns the time of a decode step for n requests with a total context in tokens.
func (p *Profile) StepTime(n, context int) time.Duration { return p.decodeTime(1, n, context) }

// PromptTime returns the time in which the engine computes the uncached tokens of one prompt, in chunks and
// without other requests.
func (p *Profile) PromptTime(tokens int) time.Duration {
	whole, rest := tokens/p.ChunkTokens, tokens%p.ChunkTokens
	t := time.Duration(whole) * p.prefillTime(p.ChunkTokens)
	if rest > 0 {
		t += p.prefillTime(rest)
	}
	return t
}

// prefillTime returns the time of a prefill step with that many uncached tokens.
func (p *Profile) prefillTime(tokens int) time.Duration {
	if len(p.Prefill) > 0 {
		return p.Prefill.at(tokens)
	}
	return p.PrefillBase + time.Duration(tokens)*p.PrefillPerToken
}

// mixedTime returns the time of a step that computes prompt tokens and one token for each of n requests.
func (p *Profile) mixedTime(tokens, n, kv int) time.Duration {
	return p.prefillTime(tokens) + p.decodeTime(1, n, kv) - p.decodeTime(1, 0, 0)
}

// decodeTime returns the time of k consecutive decode steps for n requests whose contexts have kv
// tokens before the first step. Every step adds one token to each context, so the sum is an exact
// arithmetic series.
func (p *Profile) decodeTime(k, n, kv int) time.Duration {
	step := p.DecodeBase + time.Duration(n)*p.DecodePerRequest
	if len(p.Decode) > 0 {
		step = p.Decode.at(n)
	}
	step += time.Duration(kv) * p.DecodePerKVToken
	growth := time.Duration(n) * p.DecodePerKVToken
	return time.Duration(k)*step + growth*time.Duration(k*(k-1)/2)
}
