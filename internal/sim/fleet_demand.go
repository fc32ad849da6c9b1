package sim

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Demand is the load in prompt tokens per second, by the minute. A run does not change it.
type Demand struct {
	// PromptTPS is by model, region and tier (IW-F, IW-N, NIW); minutes after its end have no load.
	PromptTPS [][][tiers][]float64
}

// NewDemand returns a demand of the given size without load.
func NewDemand(models, regions, minutes int) *Demand {
	d := &Demand{PromptTPS: make([][][tiers][]float64, models)}
	for m := range d.PromptTPS {
		d.PromptTPS[m] = make([][tiers][]float64, regions)
		for r := range d.PromptTPS[m] {
			for t := range tiers {
				d.PromptTPS[m][r][t] = make([]float64, minutes)
			}
		}
	}
	return d
}

// Minutes returns the length of the demand.
func (d *Demand) Minutes() int {
	n := 0
	for _, model := range d.PromptTPS {
		for _, region := range model {
			for _, series := range region {
				n = max(n, len(series))
			}
		}
	}
	return n
}

// Scale multiplies the demand of the minutes from <= minute < to by factor.
func (d *Demand) Scale(from, to int, factor float64) {
	for _, model := range d.PromptTPS {
		for _, region := range model {
			for _, series := range region {
				for i := max(from, 0); i < min(to, len(series)); i++ {
					series[i] *= factor
				}
			}
		}
	}
}

// Interactive returns the prompt tokens that a region's clients request from a model in a minute, IW-F
// plus IW-N.
func (d *Demand) Interactive(model, region, minute int) float64 {
	return d.tokens(model, region, 0, minute) + d.tokens(model, region, 1, minute)
}

// Deferred is Interactive for NIW.
func (d *Demand) Deferred(model, region, minute int) float64 {
	return d.tokens(model, region, deferredTier, minute)
}

// tokens returns the prompt tokens of a tier in a minute.
func (d *Demand) tokens(model, region, tier, minute int) float64 {
	if series := d.PromptTPS[model][region][tier]; minute < len(series) {
		return 60 * series[minute]
	}
	return 0
}

func (d *Demand) checkDemand(models, regions int, until time.Duration) error {
	if len(d.PromptTPS) != models {
		return fmt.Errorf("demand: must have %d models, got %d", models, len(d.PromptTPS))
	}
	for m := range d.PromptTPS {
		if len(d.PromptTPS[m]) != regions {
			return fmt.Errorf("demand: model %d: must have %d regions, got %d", m, regions, len(d.PromptTPS[m]))
		}
		for r := range d.PromptTPS[m] {
			for t, series := range d.PromptTPS[m][r] {
				for i, v := range series {
					if !(v >= 0 && v <= 1e9) {
						return fmt.Errorf("demand: model %d: region %d: %s: minute %d: must be from 0 to 1e9 tokens per second, got %g", m, r, tierOrder[t], i, v)
					}
				}
			}
		}
	}
	if have := time.Duration(d.Minutes()) * time.Minute; have < until {
		return fmt.Errorf("demand: ends at %s, must cover %s", have, until)
	}
	return nil
}

// Lengths are the distributions of prompt and output tokens: log-normal, limited to 1 and a maximum.
type Lengths struct {
	Prompt, Output LogNormal
}

// LogNormal is a log-normal number from 1 to Max.
type LogNormal struct {
	Median, Sigma float64
	Max           int
}

func (s LogNormal) checkLogNormal(what string) error {
	if !(s.Median >= 1) || !(s.Sigma >= 0 && s.Sigma < 5) || s.Max < 1 || s.Max > 1<<24 {
		return fmt.Errorf("%s: must have a median of at least 1, sigma from 0 to 5 and a maximum from 1 to %d, got %g, %g and %d", what, 1<<24, s.Median, s.Sigma, s.Max)
	}
	return nil
}

func (l Lengths) checkLengths(kv int) error {
	if err := l.Prompt.checkLogNormal("prompt"); err != nil {
		return err
	}
	if err := l.Output.checkLogNormal("output"); err != nil {
		return err
	}
	if l.Prompt.Max+1 > kv {
		return fmt.Errorf("prompt: maximum: must be below the KV memory of %d tokens, got %d", kv, l.Prompt.Max)
	}
	return nil
}

func (s LogNormal) draw(r *rand.Rand) int { return s.at(r.NormFloat64()) }

// at returns the number z standard deviations from the median.
func (s LogNormal) at(z float64) int {
	return min(max(int(s.Median*math.Exp(s.Sigma*z)+0.5), 1), s.Max)
}

// Mean returns the mean, from 2,000 quantiles.
func (s LogNormal) Mean() float64 {
	const n = 2000
	sum := 0.0
	for i := range n {
		sum += float64(s.at(math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/n-1)))
	}
	return sum / n
}

// streamDemand separates the arrivals of each model, region and tier from each other and from other
// random draws of a seed.
const streamDemand = 0x64656d616e64

// arrival is an arriving request.
type arrival struct {
	at             time.Duration
	model          int32
	region         int16
	tier           int8
	prompt, output int32
}

// arrivalSource draws the requests of a demand, minute by minute: a Poisson number per minute, uniformly
// distributed. The draws depend only on the seed.
type arrivalSource struct {
	s       *FleetScenario
	streams []*rand.Rand // by model, region, tier
	means   []float64    // prompt tokens, by model
	minute  int          // next minute of the run to draw
	due     []arrival
	head    int
}

func newArrivalSource(s *FleetScenario, seed uint64) *arrivalSource {
	a := &arrivalSource{s: s, due: givenArrivals(s)}
	for m := range s.Models {
		a.means = append(a.means, s.Models[m].Lengths.Prompt.Mean())
		for r := range s.Regions {
			for t := range tiers {
				a.streams = append(a.streams, rand.New(rand.NewPCG(seed, streamDemand+uint64((m*len(s.Regions)+r)*tiers+t))))
			}
		}
	}
	return a
}

// givenArrivals returns the requests of a scenario that has them.
func givenArrivals(s *FleetScenario) (due []arrival) {
	for _, q := range s.Requests {
		due = append(due, arrival{
			at: q.At, model: int32(q.Model), region: int16(q.Region), tier: int8(slices.Index(tierOrder[:], q.Tier)), prompt: int32(q.Prompt), output: int32(q.Output),
		})
	}
	return due
}

// nextArrival returns the next request before a time, nil if there is none.
func (a *arrivalSource) nextArrival(end time.Duration) *arrival {
	for a.head == len(a.due) {
		if a.s.Requests != nil || time.Duration(a.minute)*time.Minute >= end {
			return nil
		}
		a.draw()
	}
	if q := &a.due[a.head]; q.at < end {
		return q
	}
	return nil
}

// draw draws the requests of the next minute.
func (a *arrivalSource) draw() {
	a.due, a.head = a.due[:0], 0
	begins := time.Duration(a.minute) * time.Minute
	at := int(a.s.From/time.Minute) + a.minute
	for m := range a.s.Models {
		for r := range a.s.Regions {
			for t, series := range a.s.Demand.PromptTPS[m][r] {
				if at < len(series) {
					a.drawStream(m, r, t, begins, 60*series[at]/a.means[m])
				}
			}
		}
	}
	slices.SortStableFunc(a.due, func(x, y arrival) int { return cmp.Compare(x.at, y.at) })
	a.minute++
}

func (a *arrivalSource) drawStream(m, r, t int, begins time.Duration, mean float64) {
	random := a.streams[(m*len(a.s.Regions)+r)*tiers+t]
	l := &a.s.Models[m].Lengths
	for range poisson(random, mean) {
		a.due = append(a.due, arrival{
			at: begins + time.Duration(random.Int64N(int64(time.Minute))), model: int32(m), region: int16(r), tier: int8(t),
			prompt: int32(l.Prompt.draw(random)), output: int32(l.Output.draw(random)),
		})
	}
}

// poisson draws a Poisson number with a mean, as a sum of exponential waits.
func poisson(r *rand.Rand, mean float64) int {
	n := 0
	for remaining := mean - r.ExpFloat64(); remaining > 0; remaining -= r.ExpFloat64() {
		n++
	}
	return n
}
