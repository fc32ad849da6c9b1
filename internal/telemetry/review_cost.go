package telemetry

import (
	"fmt"
	"time"
)

// PromptTokenUSD returns the price of an uncached prompt token of a model at the planned throughput: the price of
// its planned replicas by the tokens per second that plans expect of them, which include the time for the output. It is unknown without a current plan, and if a price is.
func (r *Review) PromptTokenUSD(model string, now time.Time) (usd float64, known bool) {
	if !r.Current(now) {
		return 0, false
	}
	perHour, perSecond := 0.0, 0.0
	for i := range r.Targets {
		t := &r.Targets[i]
		if t.Model != model {
			continue
		}
		perSecond += float64(t.Count) * t.ReplicaTPS
		for _, c := range t.Replicas {
			price, known := r.priceOf(t, c)
			if !known && c.Count > 0 {
				return 0, false
			}
			perHour += float64(c.Count) * price
		}
	}
	if perHour <= 0 || perSecond <= 0 {
		return 0, false
	}
	return perHour / 3600 / perSecond, true
}

// priceOf returns the price of a planned replica in USD per hour.
func (r *Review) priceOf(t *PlannedCapacity, c TargetReplicas) (usd float64, known bool) {
	name := c.GPU
	if c.GPUs > 1 {
		name = fmt.Sprintf("%dx%s", c.GPUs, c.GPU)
	}
	for _, p := range r.Prices {
		if p.Region == t.Region && p.GPU == name {
			return p.USDPerHour, true
		}
	}
	return 0, false
}
