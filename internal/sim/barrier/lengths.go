package barrier

import (
	"math"
	"math/rand/v2"
)

// Lengths draws the prompt and output lengths, in tokens, of the next request.
type Lengths func(rng *rand.Rand) (prompt, output int64)

// SyntheticLengths replaces the trace of the paper's section 6.1 (BurstGPT): prompts 3/4 LogN(300, 1.2)
// and 1/4 LogN(900, 0.8) within 4..16000, outputs 1/4 LogN(20, 0.8) and 3/4 LogN(250, 0.75) within
// 1..4096, each with its median and the standard deviation of its logarithm.
func SyntheticLengths(rng *rand.Rand) (prompt, output int64) {
	if rng.Float64() < 0.75 {
		prompt = logNormal(rng, 300, 1.2, 4, 16000)
	} else {
		prompt = logNormal(rng, 900, 0.8, 4, 16000)
	}
	if rng.Float64() < 0.25 {
		return prompt, logNormal(rng, 20, 0.8, 1, 4096)
	}
	return prompt, logNormal(rng, 250, 0.75, 1, 4096)
}

func logNormal(rng *rand.Rand, median, sigma, minimum, maximum float64) int64 {
	x := median * math.Exp(sigma*rng.NormFloat64())
	return int64(math.Round(min(max(x, minimum), maximum)))
}
