package sim

import (
	"math/rand/v2"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
)

// Parameters of ReplicaTPS.
const (
	capacityRequests = 1500
	capacitySteps    = 12
	// capacityTail is the share of requests whose first token may be late.
	capacityTail = 0.05
	streamBench  = 0x62656e6368
)

// ReplicaTPS measures the capacity of one replica of a model, in prompt tokens per second: the highest
// load with a mean KV utilisation of at most utilisation (0..1) and 95 % of first tokens within the
// target of tier IW-F (SageServe section 2.1: input tokens per second at a target latency). Arrivals
// are a Poisson process.
func (s *FleetScenario) ReplicaTPS(m *FleetModel, utilisation float64, seed uint64) (float64, error) {
	target := s.Deadlines.For(service.TierFast)
	low, high := 0.0, 64.0 // requests per second
	for range capacitySteps {
		rate := (low + high) / 2
		used, late, err := m.bench(rate, target, seed)
		if err != nil {
			return 0, err
		}
		if used <= utilisation && late <= capacityTail {
			low = rate
		} else {
			high = rate
		}
	}
	return low * m.Lengths.Prompt.Mean(), nil
}

// bench runs one replica at a rate. It returns the mean share of KV memory in use, and the share of
// first tokens later than target. The first tenth of the requests is warm-up.
func (m *FleetModel) bench(rate float64, target time.Duration, seed uint64) (used, late float64, err error) {
	e, err := engine.NewLight(m.Profile)
	if err != nil {
		return 0, 0, err
	}
	random := rand.New(rand.NewPCG(seed, streamBench))
	asked := make([]time.Duration, capacityRequests)
	var now, from time.Duration
	var area float64
	missed := 0
	listen := func(until time.Duration) {
		for {
			at, more := e.NextAt()
			if !more || at > until {
				break
			}
			area += float64(e.Load().KVActive) * float64(at-now)
			now = at
			for _, ev := range e.Advance(at) {
				if i := int(ev.ID); ev.Kind == engine.TokenEmitted && i >= capacityRequests/10 && ev.At-asked[i] > target {
					missed++
				}
			}
		}
		area += float64(e.Load().KVActive) * float64(until-now)
		now = until
	}
	for i := range asked {
		asked[i] = now + time.Duration(random.ExpFloat64()/rate*float64(time.Second))
		prompt, output := m.Lengths.Prompt.draw(random), m.Lengths.Output.draw(random)
		listen(asked[i])
		if i == capacityRequests/10 {
			from, area = now, 0
		}
		e.Submit(now, engine.Request{ID: uint64(i), PromptTokens: prompt, OutputLen: output})
	}
	used = area / float64(now-from) / float64(m.Profile.KVTokens)
	return used, float64(missed) / (capacityRequests * 0.9), nil
}
