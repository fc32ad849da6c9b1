package probe

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// groupSize is the number of replicas that are probed at the same moment. A wake-up of a process
// costs more than a probe: probing hundreds of replicas one by one needs 1.5 times the processor
// time. Groups of twice this size save little more, and a group of this size uses one core for only
// one or two milliseconds.
const groupSize = 64

// group is a set of replicas that are probed at the same moment. Its Prober's lock guards it.
type group struct {
	prober  *Prober
	watches []*watch
	stop    context.CancelFunc
	jitter  *rand.Rand // used by runGroup, once it has started
}

// joinGroup adds a watch to the first group with capacity; p.mu must be held.
func (p *Prober) joinGroup(w *watch) {
	i := slices.IndexFunc(p.groups, func(g *group) bool { return len(g.watches) < groupSize })
	if i < 0 {
		i = len(p.groups)
		g := &group{prober: p, jitter: rand.New(rand.NewPCG(p.opts.Seed, uint64(i)))}
		var ctx context.Context
		ctx, g.stop = context.WithCancel(p.ctx)
		first := firstTick(i, jittered(p.opts.Interval, g.jitter))
		p.wg.Go(func() { g.runGroup(ctx, first) })
		p.groups = append(p.groups, g)
	}
	w.group = p.groups[i]
	w.group.watches = append(w.group.watches, w)
}

// firstTick spreads the groups over the interval: multiples of the golden ratio stay apart for any
// number of groups.
func firstTick(group int, interval time.Duration) time.Duration {
	_, phase := math.Modf(float64(group) / math.Phi)
	return time.Duration((1 - phase) * float64(interval))
}

// leaveGroup removes a watch from its group; p.mu must be held.
func (p *Prober) leaveGroup(w *watch) {
	g := w.group
	g.watches = slices.DeleteFunc(g.watches, func(o *watch) bool { return o == w })
	if len(g.watches) == 0 {
		g.stop()
		p.groups = slices.DeleteFunc(p.groups, func(o *group) bool { return o == g })
	}
}

// runGroup ticks the watches at each interval until ctx ends.
func (g *group) runGroup(ctx context.Context, first time.Duration) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(jittered(g.prober.opts.Interval, g.jitter))
		g.tickAll()
	}
}

// tickAll sends a tick to all watches. A watch that already has one pending skips this one.
func (g *group) tickAll() {
	g.prober.mu.Lock()
	defer g.prober.mu.Unlock()
	for _, w := range g.watches {
		select {
		case w.tick <- struct{}{}:
		default:
		}
	}
}

// jittered returns an interval changed randomly by up to a tenth.
func jittered(interval time.Duration, by *rand.Rand) time.Duration {
	return interval + time.Duration((2*by.Float64()-1)*jitterShare*float64(interval))
}
