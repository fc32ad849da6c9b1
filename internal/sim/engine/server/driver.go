package server

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"skyserve/internal/sim/engine"
)

// driver owns the engine: one goroutine advances it in scaled real time and delivers its events to the
// streams of the requests. Other goroutines send it commands. Clients cannot block it.
type driver struct {
	engine   *engine.Parallel
	clock    modelClock
	speed    float64 // normal speed of time
	streams  map[uint64]*stream
	nextID   uint64
	nextRank int // next rank for requests without one

	cacheChanged func(rank int, changes []engine.CacheChange) // nil = changes of caches are not reported

	commands chan func()
	quit     chan struct{}
	done     chan struct{}

	mu     sync.Mutex
	latest []engine.Load // by rank
}

// modelClock maps wall time to the engine's time. With rate 0, time stops.
type modelClock struct {
	model time.Duration // the engine's time at wall
	wall  time.Time
	rate  float64
}

func (c *modelClock) now() time.Duration {
	return c.model + time.Duration(float64(time.Since(c.wall))*c.rate)
}

func (c *modelClock) setRate(rate float64) {
	c.model, c.wall, c.rate = c.now(), time.Now(), rate
}

// until returns the wall time left until a time of the engine, rounded up.
func (c *modelClock) until(at time.Duration) time.Duration {
	remaining := math.Ceil(float64(at-c.now()) / c.rate)
	return time.Duration(max(remaining, 1))
}

// commandBacklog is the capacity of the command queue. It only saves goroutine switches; a full queue
// blocks handlers, not the clients of other requests.
const commandBacklog = 64

// newDriver starts a driver; stop ends it.
func newDriver(p engine.Profile, ranks int, speed float64, cacheChanged func(rank int, changes []engine.CacheChange)) (*driver, error) {
	e, err := engine.NewParallel(p, ranks, engine.ReportTokens)
	if err != nil {
		return nil, err
	}
	d := &driver{
		engine: e, speed: speed, clock: modelClock{wall: time.Now(), rate: speed},
		streams:  make(map[uint64]*stream),
		commands: make(chan func(), commandBacklog),
		quit:     make(chan struct{}), done: make(chan struct{}),
		latest: make([]engine.Load, ranks), cacheChanged: cacheChanged,
	}
	if cacheChanged != nil {
		// A new seed in every process: hashes of blocks have a meaning only within one.
		e.ReportCache(cacheBlockTokens, rand.Uint64())
	}
	d.publish()
	go d.runDriver()
	return d, nil
}

// stop stops the driver and waits for it. It closes done for goroutines waiting for a stream.
func (d *driver) stop() {
	close(d.quit)
	<-d.done
}

func (d *driver) runDriver() {
	defer close(d.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		d.deliver(d.engine.Advance(d.clock.now()))
		d.publish()
		d.publishCache()
		d.arm(timer)
		select {
		case f := <-d.commands:
			f()
			d.drain()
		case <-timer.C:
		case <-d.quit:
			return
		}
	}
}

// drain runs the queued commands, so that simultaneous requests enter the engine together.
func (d *driver) drain() {
	for range commandBacklog {
		select {
		case f := <-d.commands:
			f()
		default:
			return
		}
	}
}

// arm sets the timer to the engine's next event.
func (d *driver) arm(timer *time.Timer) {
	timer.Stop()
	if at, ok := d.engine.NextAt(); ok && d.clock.rate > 0 {
		timer.Reset(d.clock.until(at))
	}
}

// deliver sends events to their streams.
func (d *driver) deliver(events []engine.Event) {
	for _, ev := range events {
		s := d.streams[ev.ID]
		if s == nil {
			continue // cancelled between the event and now
		}
		switch ev.Kind {
		case engine.TokenEmitted:
			s.pushEvent(ev)
		case engine.Rejected:
			s.pushEvent(ev)
			delete(d.streams, ev.ID)
		case engine.Finished: // the last token carried the reason
			delete(d.streams, ev.ID)
		}
	}
}

// publishCache reports the changes of the ranks' caches.
func (d *driver) publishCache() {
	if d.cacheChanged == nil {
		return
	}
	for rank := range d.engine.Ranks() {
		if changes := d.engine.CacheChanges(rank); len(changes) > 0 {
			d.cacheChanged(rank, changes)
		}
	}
}

// publish updates the result of loads.
func (d *driver) publish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for rank := range d.latest {
		d.latest[rank] = d.engine.Load(rank)
	}
}

// loads returns the load of every rank after the last event. It never waits for the driver.
func (d *driver) loads() []engine.Load {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.latest)
}

// do queues f for the driver's goroutine, unless the driver has stopped.
func (d *driver) do(f func()) {
	select {
	case d.commands <- f:
	case <-d.done:
	}
}

// submit submits a request to a rank of the engine and returns the stream of its response. texts are
// the texts of the tokens of a given Output. The driver assigns the request's ID and, for anyRank, a
// rank in round-robin order.
func (d *driver) submit(rank int, q engine.Request, texts []string) *stream {
	s := newStream(texts)
	d.do(func() {
		d.nextID++
		if rank == anyRank {
			rank = d.nextRank
			d.nextRank = (d.nextRank + 1) % d.engine.Ranks()
		}
		q.ID, s.id = d.nextID, d.nextID
		d.streams[q.ID] = s
		d.engine.Submit(d.clock.now(), rank, q)
	})
	return s
}

// cancel cancels the request of a disconnected client.
func (d *driver) cancel(s *stream) {
	d.do(func() {
		d.engine.Cancel(d.clock.now(), s.id)
		delete(d.streams, s.id)
	})
}

// setPace slows time by a factor, or stops it.
func (d *driver) setPace(slow float64, frozen bool) {
	d.do(func() {
		// Events due at the old rate happen before the new rate applies.
		d.deliver(d.engine.Advance(d.clock.now()))
		rate := d.speed / slow
		if frozen {
			rate = 0
		}
		d.clock.setRate(rate)
	})
}
