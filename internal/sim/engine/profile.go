package engine

import (
	"fmt"
	"strings"
	"time"
)

// Profile is what one replica can do: how long its steps take and how much it
// holds. A prefill step takes PrefillBase plus PrefillPerToken for every
// uncached prompt token in it; a decode step takes DecodeBase plus
// DecodePerRequest for every request in it plus DecodePerKVToken for every
// token of context that those requests attend to. Where a curve was measured it
// stands for the base and the first slope: Prefill over the uncached tokens of
// the step, Decode over its requests.
type Profile struct {
	Name        string
	Description string // what hardware and model it stands for

	PrefillBase      time.Duration
	PrefillPerToken  time.Duration // for each uncached prompt token
	DecodeBase       time.Duration
	DecodePerRequest time.Duration // for each request in the step
	DecodePerKVToken time.Duration // for each context token of the requests in the step

	Prefill Curve // instead of PrefillBase and PrefillPerToken; empty = those
	Decode  Curve // instead of DecodeBase and DecodePerRequest; empty = those

	ChunkTokens int // most uncached prompt tokens that one prefill step takes
	KVTokens    int // tokens that the KV memory holds, shared prefixes counted once
	MaxRunning  int // most requests running at once (max_num_seqs)

	// ReservePerMille is the share of the tokens still to be generated, in
	// thousandths, that admission keeps room for.
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
//     bf16 a step, are what a decode step costs at least (L4: 54 ms; 4.8 ms), and
//     most of what a prefill step costs beside its tokens (45 ms; 4.0 ms); a
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

// Profiles lists the built-in profiles in a fixed order; the first one is the
// default.
func Profiles() []Profile {
	large := l4Llama
	large.Name = "l4-llama3.1-8b-38k"
	large.Description = "one NVIDIA L4 (24 GB), Llama-3.1-8B, 38,000 KV tokens"
	large.KVTokens = 38_000
	return append([]Profile{l4Llama, large, h100Llama}, measuredProfiles()...)
}

// ProfileNamed finds a built-in profile. An unknown name is an error that lists
// the known ones.
func ProfileNamed(name string) (Profile, error) {
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("unknown engine profile %q: want one of %s", name, strings.Join(names, ", "))
}

// Validate says what makes a profile unusable, or nil.
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
		{"KVTokens", int64(p.KVTokens), 2},
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

// Scaled is the profile of a machine on which every step takes factor times as
// long, more than 0; no curve's time becomes less than a nanosecond.
func (p Profile) Scaled(factor float64) Profile {
	for _, d := range []*time.Duration{&p.PrefillBase, &p.PrefillPerToken, &p.DecodeBase, &p.DecodePerRequest, &p.DecodePerKVToken} {
		*d = scale(*d, factor)
	}
	p.Prefill, p.Decode = p.Prefill.scaled(factor), p.Decode.scaled(factor)
	return p
}

// prefillTime is how long a prefill step of that many uncached tokens takes.
func (p *Profile) prefillTime(tokens int) time.Duration {
	if len(p.Prefill) > 0 {
		return p.Prefill.at(tokens)
	}
	return p.PrefillBase + time.Duration(tokens)*p.PrefillPerToken
}

// decodeTime is how long k decode steps in a row take for n requests whose
// contexts hold kv tokens before the first of them. Every step adds one token
// to each context, so the sum is an arithmetic series and exact.
func (p *Profile) decodeTime(k, n, kv int) time.Duration {
	step := p.DecodeBase + time.Duration(n)*p.DecodePerRequest
	if len(p.Decode) > 0 {
		step = p.Decode.at(n)
	}
	step += time.Duration(kv) * p.DecodePerKVToken
	growth := time.Duration(n) * p.DecodePerKVToken
	return time.Duration(k)*step + growth*time.Duration(k*(k-1)/2)
}
