package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
)

// streamMixture separates the draw of a scenario from the random numbers of its run.
const streamMixture = 0x6d697874757265

// mixtureRegions are the regions of a drawn scenario; the first has the heavy load.
var mixtureRegions = []string{"us", "eu", "asia", "sa", "af", "au"}

// Mixture draws a scenario that no policy was tuned for: the workload and its lengths, 1 to 6 regions
// with 1 to 64 replicas, engines of 0.3 to 3 times the speed and 0.3 to 2 times the memory of a
// built-in profile, round-trip times up to 3 times the common ones, probes every 50 ms to 1 s, even or
// 10:1 loads of regions, and a closed or open loop with 0.5 to 1.3 times the estimated capacity. A run takes
// at least a minute and ten times as long as a request at a full replica, but at most an hour. An open loop has no
// warm-up: all policies receive the same requests, and one that serves more of them during a warm-up would have
// fewer left to serve after it, and a lower throughput. The same seed yields the same scenario.
func Mixture(seed uint64) Scenario {
	m := mixture{rand.New(rand.NewPCG(seed, streamMixture)), common}
	s := &m.Scenario
	s.Name = fmt.Sprintf("mixture-%d", seed)
	s.Workload = workload.Kinds()[m.IntN(len(workload.Kinds()))]
	s.Interval = time.Duration(m.between(50, 1000)) * time.Millisecond
	s.MaxWait = []time.Duration{15 * time.Second, time.Minute, time.Minute, 5 * time.Minute}[m.IntN(4)]
	if m.IntN(2) == 0 {
		s.Sigma, s.Lengths = m.between(0.5, 2), m.between(0.5, 2)
	}
	m.drawEngines()
	m.drawRegions()
	m.drawLoad(seed)
	s.Home = s.Regions[0].Name
	s.Title = m.describe()
	return *s
}

// mixture is a scenario being drawn.
type mixture struct {
	*rand.Rand
	Scenario
}

// between draws a number whose logarithm is uniform.
func (m *mixture) between(low, high float64) float64 {
	return low * math.Pow(high/low, m.Float64())
}

// Limits of a drawn run. It is long enough that most of it is no start from empty caches and batches: a full service
// could serve mixtureResidences times the requests that it runs at once. It is not much longer, because of its cost.
const (
	mixtureSeconds      = 90 // of the nominal engine
	mixtureMinDuration  = 60 * time.Second
	mixtureLongDuration = 300 * time.Second // suffices for most
	mixtureResidences   = 10
	mixtureMaxDuration  = time.Hour
)

// drawEngines draws the scenario's profile: half of them L4, most of the others H100.
func (m *mixture) drawEngines() {
	built := engine.Profiles()
	base := built[0]
	if m.IntN(2) == 0 {
		base = built[m.IntN(len(built))]
	}
	speed, memory := m.between(0.3, 3), m.between(0.3, 2)
	p := base.Scaled(1 / speed)
	p.Name = "drawn"
	p.Description = fmt.Sprintf("%s with %.2f times the speed and %.2f times the memory", base.Name, speed, memory)
	p.KVTokens = int(memory * float64(base.KVTokens))
	m.Profile, m.Engines = p, []engine.Profile{p}
	m.MaxContext = min(workload.DefaultMaxContext, max(workload.MinContext, p.KVTokens*3/4))
	m.Duration = time.Duration(mixtureSeconds * 20 * float64(p.StepTime(8, 8*500)))
	m.Duration = min(max(m.Duration, mixtureMinDuration), mixtureLongDuration).Truncate(time.Second)
}

// drawRegions draws the regions, their replicas and links, and the shares of their clients.
func (m *mixture) drawRegions() {
	names := mixtureRegions[:1+m.IntN(len(mixtureRegions))]
	replicas := int(m.between(1, 64.99))
	even, scale := m.IntN(2) == 0, m.between(1./3, 3)
	m.Links = nil
	for i, name := range names {
		clients := 10
		if i > 0 && !even {
			clients = 1
		}
		m.Regions = append(m.Regions, Region{Name: name, Clients: clients})
		for _, other := range names[:i] {
			rtt := time.Duration(scale*(60+180*m.Float64())) * time.Millisecond
			m.Links = append(m.Links, Link{other, name, rtt})
		}
	}
	for i := range replicas { // some regions may remain without one
		at := i
		if i >= len(names) || m.IntN(10) == 0 {
			at = m.IntN(len(names))
		}
		m.Regions[at].Replicas++
	}
	if m.IntN(5) == 0 { // one slower machine in each region
		slow := m.Profile.Scaled(m.between(1.2, 3))
		slow.Name = "drawn-slow"
		m.Engines = append(m.Engines, slow)
		for i := range m.Regions {
			r := &m.Regions[i]
			for k := range r.Replicas {
				p := m.Profile
				if k == 0 {
					p = slow
				}
				r.Profiles = append(r.Profiles, p)
			}
		}
	}
}

// drawLoad draws the loop and its load, relative to the estimated capacity.
func (m *mixture) drawLoad(seed uint64) {
	load, demand := m.between(0.5, 1.3), m.demandOf(seed)
	concurrent, perSecond := 0.0, 0.0
	for i := range m.Regions {
		r := &m.Regions[i]
		for k := range r.Replicas {
			n, rate := demand.capacity(m.profile(r, k))
			concurrent, perSecond = concurrent+n, perSecond+rate
		}
	}
	m.lengthen(concurrent / perSecond)
	shares := 0
	for _, r := range m.Regions {
		shares += r.Clients
	}
	clients := min(load*concurrent/demand.parallel, maxMixtureClients)
	for i := range m.Regions {
		r := &m.Regions[i]
		r.Clients = max(1, int(math.Round(clients*float64(r.Clients)/float64(shares))))
	}
	if m.IntN(2) == 0 {
		m.Rate = math.Round(1e4*load*perSecond/demand.requests) / 1e4
		m.Warmup = 0
	}
}

// lengthen makes a run long enough, if a request stays this many seconds at a full replica, on average.
func (m *mixture) lengthen(residence float64) {
	enough := time.Duration(mixtureResidences * residence * float64(time.Second))
	m.Duration = max(m.Duration, min(enough, mixtureMaxDuration).Truncate(time.Second))
}

// maxMixtureClients limits the clients of a drawn scenario, and so the cost of a run.
const maxMixtureClients = 3000

// demand is the mean demand of a workload's requests.
type demand struct {
	requests float64 // per session
	parallel float64 // requests that a client has in flight
	prompt   float64 // tokens
	fresh    float64 // tokens of the prompt that no earlier request of the session had
	output   float64 // tokens
}

// demandOf measures the demand of some sessions of the scenario's workload.
func (m *mixture) demandOf(seed uint64) demand {
	var d demand
	sessions, requests, rounds := 40, 0, 0
	for i := range sessions {
		c, err := workload.NewClient(m.Workload, workload.Options{
			Seed: seed, Region: m.Regions[0].Name, Client: i, MaxContext: m.MaxContext, Lengths: m.Lengths, Sigma: m.Sigma, Once: true,
		})
		if err != nil {
			panic("sim: " + err.Error()) // a known kind, and factors within their limits
		}
		seen := 0 // the longest prompt so far
		for open := c.Next(); len(open) > 0; rounds++ {
			var next []workload.Request
			longest := seen
			for _, r := range open {
				requests++
				d.prompt, d.output = d.prompt+float64(r.InputTokens), d.output+float64(r.OutputTokens)
				d.fresh += float64(max(r.InputTokens-seen, min(r.InputTokens, 16)))
				longest = max(longest, r.InputTokens)
				next = append(next, c.Done(r, workload.Text(r.OutputTokens, 1))...)
			}
			seen, open = longest, next
		}
	}
	n := float64(requests)
	return demand{n / float64(sessions), n / float64(max(rounds, 1)), d.prompt / n, d.fresh / n, d.output / n}
}

// capacity estimates how many requests a replica runs at once, and how many it serves per second: its
// memory or its slots limit the batch, and prompts and responses share its time.
func (d *demand) capacity(p *engine.Profile) (concurrent, perSecond float64) {
	context := d.prompt + d.output/2
	slots := min(max(1, float64(p.KVTokens)/context), float64(p.MaxRunning))
	step := p.StepTime(int(slots), int(slots*context)).Seconds()
	each := p.PromptTime(int(d.fresh)).Seconds() + d.output*step/slots
	perSecond = 1 / each
	// Prompts that fill the machine's time leave no time for a full batch of responses.
	return min(slots, 1+perSecond*(p.PromptTime(int(d.fresh)).Seconds()+d.output*step)), perSecond
}

// describe returns the drawn parameters that matter most.
func (m *mixture) describe() string {
	replicas, clients := 0, 0
	for _, r := range m.Regions {
		replicas, clients = replicas+r.Replicas, clients+r.Clients
	}
	loop := fmt.Sprintf("%d clients", clients)
	if m.Rate > 0 {
		loop = fmt.Sprintf("%.3g sessions/s", m.Rate)
	}
	mixed := ""
	if slices.ContainsFunc(m.Regions, func(r Region) bool { return len(r.Profiles) > 0 }) {
		mixed = ", some slower"
	}
	return fmt.Sprintf("%s, %s, %d regions, %d replicas (%s%s), probes every %s", m.Workload, loop, len(m.Regions), replicas, m.Profile.Description, mixed, m.Interval)
}
