package service

import (
	"fmt"
	"math"
	"strconv"
)

// NanoUSD is an amount of money in billionths of a US dollar. Costs are integers, so that their sums
// do not depend on the order of addition.
type NanoUSD int64

const nanosPerUSD = 1e9

// NanoUSDOf rounds an amount in US dollars to the nearest billionth.
func NanoUSDOf(usd float64) NanoUSD { return NanoUSD(math.Round(usd * nanosPerUSD)) }

// USD returns the amount in US dollars.
func (n NanoUSD) USD() float64 { return float64(n) / nanosPerUSD }

// String formats the amount in US dollars: with four decimals from one dollar, below that with six.
func (n NanoUSD) String() string {
	decimals := 4
	if n > -nanosPerUSD && n < nanosPerUSD {
		decimals = 6
	}
	return strconv.FormatFloat(n.USD(), 'f', decimals, 64)
}

// Price is the price of a model's tokens for clients, in USD per million tokens.
type Price struct {
	Input float64 `yaml:"input" json:"input"`
	// CachedInput is the price of prompt tokens that the engine had in its cache; nil = Input.
	CachedInput *float64 `yaml:"cached_input,omitempty" json:"cached_input,omitempty"`
	Output      float64  `yaml:"output" json:"output"`
}

// Check returns an error for a price that a service.yaml may not contain.
func (p *Price) Check() error {
	if p == nil {
		return nil
	}
	amounts := map[string]float64{"input": p.Input, "output": p.Output}
	if p.CachedInput != nil {
		amounts["cached_input"] = *p.CachedInput
	}
	for _, key := range sortedKeys(amounts) {
		if problem := rules["Price."+key].limit.problem(amounts[key], formatNumber); problem != "" {
			return fmt.Errorf("%s: %s, got %s", key, problem, formatNumber(amounts[key]))
		}
	}
	if p.CachedInput != nil && *p.CachedInput > p.Input {
		return fmt.Errorf("cached_input: must be at most input, which is %s, got %s", formatNumber(p.Input), formatNumber(*p.CachedInput))
	}
	return nil
}

// TokenPrice is a Price for calculations; nil is an unknown price.
type TokenPrice struct {
	// USD per 1e12 tokens, which are millionths of a Price's unit.
	input, cached, output int64
}

// PerToken returns the price for calculations, rounded to a millionth of a dollar per million tokens;
// unknown if p is nil.
func (p *Price) PerToken() *TokenPrice {
	if p == nil {
		return nil
	}
	t := &TokenPrice{input: perTrillion(p.Input), output: perTrillion(p.Output)}
	t.cached = t.input
	if p.CachedInput != nil {
		t.cached = perTrillion(*p.CachedInput)
	}
	return t
}

func perTrillion(perMillion float64) int64 { return int64(math.Round(perMillion * 1e6)) }

// maxPricedTokens limits the tokens of one request of each kind: it is more than any request has, and
// prevents an overflow at the maximum price.
const maxPricedTokens = 1e9

// Cost returns the cost of a request, rounded up to a billionth of a dollar. cached is the cached part
// of the prompt. It returns 0 if the price is unknown.
func (t *TokenPrice) Cost(prompt, cached, output int64) NanoUSD {
	if t == nil {
		return 0
	}
	cached = min(cached, prompt)
	pico := min(prompt-cached, maxPricedTokens)*t.input + min(cached, maxPricedTokens)*t.cached + min(output, maxPricedTokens)*t.output
	return NanoUSD((pico + 999) / 1000)
}
