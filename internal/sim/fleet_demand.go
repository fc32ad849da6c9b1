package sim

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Demand is the prompt tokens a second that are asked by the minute. It is not
// changed by a run.
type Demand struct {
	// PromptTPS is by model, region and tier (IW-F, IW-N, NIW); minutes beyond its
	// end ask nothing.
	PromptTPS [][][tiers][]float64
}

// NewDemand makes room for so many minutes, all without load.
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

// Minutes is how long the demand is known for.
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

// Scale multiplies all of it in a span of minutes; to is not part of it.
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

// Interactive is the prompt tokens that a region's clients ask a model with in a
// minute, IW-F and IW-N together.
func (d *Demand) Interactive(model, region, minute int) float64 {
	return d.tokens(model, region, 0, minute) + d.tokens(model, region, 1, minute)
}

// Deferred is the same of NIW.
func (d *Demand) Deferred(model, region, minute int) float64 {
	return d.tokens(model, region, deferredTier, minute)
}

// tokens is the prompt tokens of a tier in a minute.
func (d *Demand) tokens(model, region, tier, minute int) float64 {
	if series := d.PromptTPS[model][region][tier]; minute < len(series) {
		return 60 * series[minute]
	}
	return 0
}

func (d *Demand) check(models, regions int, until time.Duration) error {
	if len(d.PromptTPS) != models {
		return fmt.Errorf("demand: want that of %d models, got %d", models, len(d.PromptTPS))
	}
	for m := range d.PromptTPS {
		if len(d.PromptTPS[m]) != regions {
			return fmt.Errorf("demand: model %d: want that of %d regions, got %d", m, regions, len(d.PromptTPS[m]))
		}
		for r := range d.PromptTPS[m] {
			for t, series := range d.PromptTPS[m][r] {
				for i, v := range series {
					if !(v >= 0 && v <= 1e9) {
						return fmt.Errorf("demand: model %d: region %d: %s: minute %d: want 0 to 1e9 tokens a second, got %g", m, r, tierOrder[t], i, v)
					}
				}
			}
		}
	}
	if have := time.Duration(d.Minutes()) * time.Minute; have < until {
		return fmt.Errorf("demand: ends at %s, want at least %s", have, until)
	}
	return nil
}

// Lengths is how many tokens prompts and answers have: log-normal, cut to 1 and a
// most.
type Lengths struct {
	Prompt, Output Spread
}

// Spread is a log-normal number from 1 to Most.
type Spread struct {
	Median, Sigma float64
	Most          int
}

func (s Spread) check(what string) error {
	if !(s.Median >= 1) || !(s.Sigma >= 0 && s.Sigma < 5) || s.Most < 1 || s.Most > 1<<24 {
		return fmt.Errorf("%s: want a median of 1 or more, sigma 0 to 5 and a most of 1 to %d, got %g, %g and %d", what, 1<<24, s.Median, s.Sigma, s.Most)
	}
	return nil
}

func (l Lengths) check(kv int) error {
	if err := l.Prompt.check("prompt"); err != nil {
		return err
	}
	if err := l.Output.check("output"); err != nil {
		return err
	}
	if l.Prompt.Most+1 > kv {
		return fmt.Errorf("prompt: most: want less than the KV memory of %d tokens, got %d", kv, l.Prompt.Most)
	}
	return nil
}

func (s Spread) draw(r *rand.Rand) int { return s.at(r.NormFloat64()) }

// at is the number so many standard deviations from the median.
func (s Spread) at(z float64) int {
	return min(max(int(s.Median*math.Exp(s.Sigma*z)+0.5), 1), s.Most)
}

// Mean is the mean of the numbers, by 2,000 quantiles.
func (s Spread) Mean() float64 {
	const n = 2000
	sum := 0.0
	for i := range n {
		sum += float64(s.at(math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/n-1)))
	}
	return sum / n
}

// streamDemand keeps the arrivals of each model, region and tier apart from each
// other and from other draws of a seed.
const streamDemand = 0x64656d616e64

// ask is a request that comes.
type ask struct {
	at             time.Duration
	model          int32
	region         int16
	tier           int8
	prompt, output int32
}

// asker draws the requests of a demand, minute by minute: a Poisson number each,
// spread evenly. What it draws depends on the seed alone.
type asker struct {
	s       *FleetScenario
	streams []*rand.Rand // by model, region, tier
	means   []float64    // prompt tokens, by model
	minute  int          // of the run, to be drawn next
	due     []ask
	head    int
}

func newAsker(s *FleetScenario, seed uint64) *asker {
	a := &asker{s: s}
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

// next is the next request before a time, nil when there is none.
func (a *asker) next(end time.Duration) *ask {
	for a.head == len(a.due) {
		if time.Duration(a.minute)*time.Minute >= end {
			return nil
		}
		a.draw()
	}
	if q := &a.due[a.head]; q.at < end {
		return q
	}
	return nil
}

// draw makes the requests of the next minute.
func (a *asker) draw() {
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
	slices.SortStableFunc(a.due, func(x, y ask) int { return cmp.Compare(x.at, y.at) })
	a.minute++
}

func (a *asker) drawStream(m, r, t int, begins time.Duration, mean float64) {
	random := a.streams[(m*len(a.s.Regions)+r)*tiers+t]
	l := &a.s.Models[m].Lengths
	for range poisson(random, mean) {
		a.due = append(a.due, ask{
			at: begins + time.Duration(random.Int64N(int64(time.Minute))), model: int32(m), region: int16(r), tier: int8(t),
			prompt: int32(l.Prompt.draw(random)), output: int32(l.Output.draw(random)),
		})
	}
}

// poisson draws a number of events of a mean, the sum of exponential waits.
func poisson(r *rand.Rand, mean float64) int {
	n := 0
	for left := mean - r.ExpFloat64(); left > 0; left -= r.ExpFloat64() {
		n++
	}
	return n
}
