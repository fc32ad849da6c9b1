package proxy

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// points counts the requests of this balancer's own clients per minute.
type points struct {
	balancer   string
	region     service.Region
	maxMinutes int64 // number of minutes in done and current

	mu      sync.Mutex
	models  []string           // declared models: a minute without their requests is a zero, not a gap
	done    []telemetry.Point  // of complete minutes, oldest first
	minute  int64              // the current one, as in minuteOf
	current []telemetry.Point  // of the current minute, sorted by model and tier
	owed    map[pointKey]tally // amounts to add in later minutes; see addTally
}

// pointKey identifies the points of a model and tier.
type pointKey struct {
	model string
	tier  service.Tier
}

func newPoints(self service.BalancerConfig, keep int) *points {
	return &points{balancer: self.ID, region: self.Region, maxMinutes: int64(keep), minute: minuteOf(time.Now()), owed: map[pointKey]tally{}}
}

// minuteOf returns the number of minutes since the Unix epoch.
func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// tally is an amount to add to a point. prompt is negative if an estimate was too high.
type tally struct{ requests, prompt, cached, output int64 }

// addTally counts in the current minute. Prompts are counted with their estimate when they arrive; the difference
// from the engine's count, the cached part and the output are counted when they are known, which may be minutes
// later. A minute never has fewer than 0 prompt tokens, or more cached than prompt tokens: the rest is added to later
// minutes.
func (p *points) addTally(model string, tier service.Tier, t tally) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance(minuteOf(time.Now()))
	pt, key := p.pointFor(model, tier), pointKey{model, tier}
	owed := p.owed[key]
	pt.Requests += t.requests
	pt.PromptTokens += t.prompt + owed.prompt
	pt.CachedTokens += t.cached + owed.cached
	pt.OutputTokens += t.output
	owed.prompt = min(pt.PromptTokens, 0)
	pt.PromptTokens -= owed.prompt
	owed.cached = max(pt.CachedTokens-pt.PromptTokens, 0)
	pt.CachedTokens -= owed.cached
	if owed == (tally{}) {
		delete(p.owed, key)
	} else {
		p.owed[key] = owed
	}
}

// setModels sets the models that this balancer serves.
func (p *points) setModels(models []service.BalancerModel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance(minuteOf(time.Now()))
	p.models = p.models[:0]
	for _, m := range models {
		p.models = append(p.models, m.Name)
	}
}

// advance ends the current minute when another one has begun. After a clock was set back, counting
// continues in the old minute.
func (p *points) advance(minute int64) {
	if minute <= p.minute {
		return
	}
	p.endMinute()
	for p.minute = max(p.minute+1, minute-p.maxMinutes); p.minute < minute; p.minute++ {
		p.endMinute()
	}
	old := 0
	for old < len(p.done) && p.done[old].Minute <= minute-p.maxMinutes {
		old++
	}
	p.done = p.done[old:]
}

// endMinute completes the current minute. A declared model without requests has a zero point, so that it
// differs from a minute in which no balancer ran.
func (p *points) endMinute() {
	for _, model := range p.models {
		requested := slices.ContainsFunc(p.current, func(pt telemetry.Point) bool { return pt.Model == model })
		if !requested {
			p.pointFor(model, service.TierFast)
		}
	}
	p.done = append(p.done, p.current...)
	p.current = nil
}

func (p *points) pointFor(model string, tier service.Tier) *telemetry.Point {
	i, found := slices.BinarySearchFunc(p.current, telemetry.Point{Model: model, Tier: tier}, comparePoints)
	if !found {
		p.current = slices.Insert(p.current, i, telemetry.Point{
			Minute: p.minute, Balancer: p.balancer, Region: p.region, Model: model, Tier: tier,
		})
	}
	return &p.current[i]
}

func comparePoints(a, b telemetry.Point) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tier, b.Tier))
}

// History returns this balancer's own points from a minute (since the Unix epoch) on, including the
// current minute, sorted by minute, model and tier. The history is kept in memory for
// Limits.HistoryMinutes.
func (r *Runtime) History(sinceMinute int64) []telemetry.Point {
	p := r.points
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance(minuteOf(time.Now()))
	from, _ := slices.BinarySearchFunc(p.done, sinceMinute, func(pt telemetry.Point, m int64) int { return cmp.Compare(pt.Minute, m) })
	list := append([]telemetry.Point{}, p.done[from:]...)
	if p.minute >= sinceMinute {
		list = append(list, p.current...)
	}
	return list
}
