package service

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// The cost of a request is that of exact arithmetic, rounded up to a billionth of a dollar.
func TestCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micro := rapid.Int64Range(0, maxTokenPrice*1e6)
		in, cached, out := micro.Draw(t, "input"), micro.Draw(t, "cached"), micro.Draw(t, "output")
		tokens := rapid.Int64Range(0, maxPricedTokens)
		p, o := tokens.Draw(t, "prompt"), tokens.Draw(t, "completion")
		c := rapid.Int64Range(0, p).Draw(t, "cached tokens")
		cachedUSD := float64(cached) / 1e6
		price := (&Price{Input: float64(in) / 1e6, CachedInput: &cachedUSD, Output: float64(out) / 1e6}).PerToken()
		pico := new(big.Int)
		for _, part := range [][2]int64{{p - c, in}, {c, cached}, {o, out}} {
			pico.Add(pico, new(big.Int).Mul(big.NewInt(part[0]), big.NewInt(part[1])))
		}
		nano, rest := new(big.Int).DivMod(pico, big.NewInt(1000), new(big.Int))
		if rest.Sign() > 0 {
			nano.Add(nano, big.NewInt(1))
		}
		if got := price.Cost(p, c, o); price == nil || big.NewInt(int64(got)).Cmp(nano) != 0 {
			t.Fatalf("%d nano-USD, want %s", got, nano)
		}
		if price.Cost(p, 0, o) < price.Cost(p, c, o) && cached <= in {
			t.Fatal("the reservation without cached tokens is below the cost")
		}
	})
}

func TestCost(t *testing.T) {
	cached := 0.05
	for _, c := range []struct {
		price                  *Price
		prompt, cached, output int64
		want                   NanoUSD
		text                   string
	}{
		{&Price{Input: 0.2, CachedInput: &cached, Output: 0.6}, 1_000_000, 0, 0, 200_000_000, "0.200000"},
		{&Price{Input: 0.2, CachedInput: &cached, Output: 0.6}, 1_000_000, 1_000_000, 1_000_000, 650_000_000, "0.650000"},
		{&Price{Input: 0.2, Output: 0.6}, 100, 100, 0, 20_000, "0.000020"},
		{&Price{Input: 0.0375}, 1, 0, 5, 38, "0.000000"},
		{&Price{Input: 0.2, Output: 1000}, 1, 5, 1 << 62, 1_000_000_000_000_200, "1000000.0000"},
		{nil, 1_000_000, 0, 1_000_000, 0, "0.000000"},
	} {
		price := c.price.PerToken()
		if got := price.Cost(c.prompt, c.cached, c.output); got != c.want || got.String() != c.text || (price == nil) != (c.price == nil) {
			t.Errorf("%+v: got %d, %s", c, got, got)
		}
	}
	if NanoUSDOf(0.1+0.2) != 300_000_000 {
		t.Error("amounts are not rounded")
	}
}
