package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// SageFleet returns the setup of SageServe's evaluation (section 7.1) without its demand: three
// regions, four models, 20 VMs for each in each region, at least two replicas per endpoint. The models
// use measured profiles:
//
//   - bloom-176b: eight H100, as in engine.Profiles;
//   - llama2-70b: four H100 (as the paper's section 2.1 has it), fitted to
//     Splitwise's measurements at tensor parallel 4; its KV memory holds all 64 heads,
//     as Splitwise's simulator counts: (4 x 72 - 138 - 1.6) GB at 80 x 64 x 128 x 2 x 2
//     bytes a token;
//   - llama3.1-8b and llama3.2-3b: two A100, fitted to the measurements in the authors'
//     repository; 32 and 28 layers of eight KV heads.
//
// Most prompts are longer than a thousand tokens and most responses shorter (figure 10).
func SageFleet() FleetScenario {
	defaults := core.DefaultConfig(policy.NewSageServe())
	return FleetScenario{
		SevereAfter: defaults.SevereAfter, UrgentBefore: defaults.UrgentBefore,
		Models: sageModels(), Regions: []string{"eastus", "centralus", "westus"}, RTT: 50 * time.Millisecond,
		VMs: 20, Min: 2, Max: 40, Order: core.OrderFCFS, Deadlines: core.DefaultDeadlines(), Starts: SageStarts(),
		Period: 5 * time.Second, SignalPeriod: time.Second, Duration: 24 * time.Hour, SampleInterval: 15 * time.Minute,
	}
}

func sageModels() []FleetModel {
	lengths := Lengths{Prompt: LogNormal{Median: 1800, Sigma: 0.9, Max: 8_000}, Output: LogNormal{Median: 250, Sigma: 0.9, Max: 2_000}}
	bloom, _ := engine.FindProfile("h100-bloom-176b")
	return []FleetModel{
		{Name: "llama2-70b", GPUs: 4, Lengths: lengths, Profile: fleetProfile("h100x4-llama2-70b", 56_600, 52*time.Nanosecond,
			"128=49086us,256=50977us,512=59873us,1024=104612us,2048=197961us",
			"1=29315us,2=29861us,8=31198us,16=32366us,32=35932us,64=50450us")},
		{Name: "bloom-176b", GPUs: 8, Lengths: lengths, Profile: bloom},
		{Name: "llama3.1-8b", GPUs: 2, Lengths: lengths, Profile: fleetProfile("a100x2-llama3.1-8b", 970_000, 239*time.Nanosecond,
			"128=23385us,512=28637us,1024=54394us,2048=130531us", "1=8850us,4=8850us,8=9185us,16=10135us,32=11767us")},
		{Name: "llama3.2-3b", GPUs: 2, Lengths: lengths, Profile: fleetProfile("a100x2-llama3.2-3b", 1_193_000, 274*time.Nanosecond,
			"128=20665us,512=20713us,1024=36913us,2048=89518us", "1=5728us,4=5728us,8=5885us,16=6079us,32=6162us")},
	}
}

// Scout returns the paper's fifth model (section 7.2.5) with 109 billion weights, 17 billion of them
// active per token. It was not measured: its step times are those of llama2-70b on eight H100 times the
// share of active weights, its KV memory what its weights leave free.
func Scout() FleetModel {
	llama, _ := engine.FindProfile("h100-llama2-70b")
	p := llama.Scaled(17.0 / 69)
	p.Name, p.Description, p.KVTokens = "h100x8-llama4-scout", "estimated from llama2-70b on eight H100", 1_800_000
	return FleetModel{Name: "llama4-scout", GPUs: 8, Lengths: sageModels()[0].Lengths, Profile: p}
}

// fleetProfile returns a profile with fitted curves.
func fleetProfile(name string, kv int, perKV time.Duration, prefill, decode string) engine.Profile {
	o := engine.DefaultFitOptions()
	p := engine.Profile{
		Name: name, KVTokens: kv, DecodePerKVToken: perKV,
		ChunkTokens: o.ChunkTokens, MaxRunning: o.MaxRunning, ReservePerMille: o.ReservePerMille,
	}
	p.Prefill, _ = engine.ParseCurve(prefill)
	p.Decode, _ = engine.ParseCurve(decode)
	return p
}

// The shapes of SageServe's week (figures 3 to 5): interactive load follows the working day and nearly
// vanishes at the weekend, deferred load is constant.
var (
	// hourShape is a working day's interactive load by hour (UTC), with peak 1.
	hourShape = [24]float64{
		.52, .45, .38, .35, .34, .36, .37, .42, .44, .42, .36, .38,
		.44, .58, .84, .92, .96, 1, .98, .99, .93, .84, .74, .62,
	}
	// dayShape is by day, Monday first.
	dayShape = [7]float64{.88, .94, 1, 1.04, .98, .24, .21}
	// regionShape is each region's share of the load, by model: model A has most load in the East, B in
	// the Centre (section 3).
	regionShape = [][3]float64{{.52, .21, .27}, {.30, .45, .25}, {.40, .35, .25}, {.45, .30, .25}, {.40, .30, .30}}
	// peakShape is a model's interactive prompt tokens per second over all regions at a Wednesday's
	// peak: the capacity of about 20 replicas of the two large models, and of two replicas per region of
	// the small ones. The paper does not publish it. It is set to match the instance-hours of the paper's
	// peak day approximately, so absolute hours are no evidence; differences between strategies are.
	peakShape = []float64{28_000, 26_000, 9_000, 9_000, 12_000}
	// tierShape is the shares of IW-F and IW-N in interactive load, and NIW relative to its mean: 72 %
	// of all requests are interactive.
	tierShape = [tiers]float64{.62, .38, .28 / .72}
)

// noiseShape describes the variation between the minutes of a region's load.
type noiseShape struct {
	sigma, correlation   float64 // standard deviation of the factor's logarithm, and its correlation with the next minute
	chance               float64 // probability of a burst per minute
	minFactor, maxFactor float64 // minimum and maximum factor of a burst
	minutes              int     // maximum duration of a burst
}

// The noise is fitted to the week of November 2024 that SageServe's authors published by the minute
// (their model A; Tuesday to Friday; logarithm of a minute over the mean of the two hours around it).
// Its regions are summed, and are assumed to be independent. Without noiseScale, the sum of
// SageWeek's first model has:
//
//	                                              published               here
//	standard deviation by 1, 5, 10, 20 minutes    0.27 0.17 0.13 0.10     0.27 0.18 0.14 0.10
//	correlation of neighbouring minutes           0.26                    0.37
//	1st and 99th percentile of minutes            -0.59 0.98              -0.57 0.88
//	correlation with the day before               0.58                    0.52
//
// For deferred load the standard deviation is 0.54 (published) and 0.51 (here) by the minute, and 0.37
// for both by ten minutes. SageWeek models the week of July 2025, which has five times the requests
// (section 3): the variation of independent clients is smaller by the square root of five. One region's
// interactive load has a correlation with the day before of about 0.7, the lower end of the paper's
// periodicity in July (0.7 to 0.95).
var (
	interactiveNoise = noiseShape{sigma: 0.33 * noiseScale, correlation: 0.3, chance: 1.0 / 100, minFactor: 1 + 1*noiseScale, maxFactor: 1 + 5*noiseScale, minutes: 3}
	deferredNoise    = noiseShape{sigma: 0.8 * noiseScale, correlation: 0.8}
)

// noiseScale is the square root of one fifth.
const noiseScale = 0.447

// streamWeek separates the noise of a week from other random draws of a seed.
const streamWeek = 0x7765656b

// weekMinutes is the number of minutes in a week.
const weekMinutes = 7 * 24 * 60

// SageWeek returns a week of demand with the published shapes for up to five models, Monday first, in
// three regions: working days, quiet weekends, noise between minutes, and occasional bursts of a few
// minutes. The interactive tiers of a region are correlated. factor multiplies all of it, deferred
// additionally the deferred part.
func SageWeek(seed uint64, models int, factor, deferred float64) *Demand {
	d := NewDemand(models, 3, weekMinutes)
	mean := meanShape()
	for m := range d.PromptTPS {
		for r := range d.PromptTPS[m] {
			region := &d.PromptTPS[m][r]
			stream := uint64(m*3+r) * 2
			interactive, later := newNoise(interactiveNoise, seed, stream), newNoise(deferredNoise, seed, stream+1)
			base := factor * peakShape[m] * regionShape[m][r]
			for i := range weekMinutes {
				now := base * shapeAt(i) * interactive.nextValue()
				region[0][i], region[1][i] = tierShape[0]*now, tierShape[1]*now
				region[deferredTier][i] = base * tierShape[deferredTier] * mean * deferred * later.nextValue()
			}
		}
	}
	return d
}

// shapeAt returns the interactive load of a minute of the week: the hourly shape, interpolated linearly
// between the middles of hours.
func shapeAt(minute int) float64 {
	day := minute / (24 * 60)
	at := float64(minute%(24*60))/60 - 0.5
	low := int(math.Floor(at))
	share := at - float64(low)
	h := hourShape[(low+24)%24]*(1-share) + hourShape[(low+1)%24]*share
	if day >= 5 {
		h = 0.9 + 0.1*h // weekends are nearly flat
	}
	return h * dayShape[day]
}

func meanShape() float64 {
	sum := 0.0
	for i := range weekMinutes {
		sum += shapeAt(i)
	}
	return sum / weekMinutes
}

// noise is the factor of a minute: log-normal with autocorrelation, and bursts.
type noise struct {
	noiseShape
	random    *rand.Rand
	log       float64
	burst     float64
	remaining int
}

func newNoise(shape noiseShape, seed, stream uint64) *noise {
	return &noise{noiseShape: shape, random: rand.New(rand.NewPCG(seed, streamWeek+stream))}
}

func (n *noise) nextValue() float64 {
	n.log = n.correlation*n.log + n.sigma*math.Sqrt(1-n.correlation*n.correlation)*n.random.NormFloat64()
	factor := math.Exp(n.log - n.sigma*n.sigma/2)
	if n.remaining == 0 && n.random.Float64() < n.chance {
		n.remaining = 1 + n.random.IntN(n.minutes)
		n.burst = n.minFactor + (n.maxFactor-n.minFactor)*n.random.Float64()
	}
	if n.remaining > 0 {
		n.remaining--
		return factor * n.burst
	}
	return factor
}

// RegionShares returns the distribution of the first model's load over SageFleet's regions.
func RegionShares() []float64 {
	shares := regionShape[0]
	return shares[:]
}
