package server

import (
	"math"
	"slices"
	"sync"
	"time"

	"skyserve/internal/sim/engine"
)

// driver owns the engine: one goroutine that lets it advance in scaled real
// time and hands what it says to the streams of the requests. Everybody else
// asks through commands. Nothing that a client does can block it.
type driver struct {
	engine  *engine.Parallel
	clock   modelClock
	speed   float64 // of time when nothing slows it
	streams map[uint64]*stream
	nextID  uint64
	turn    int // whose turn it is among the ranks

	commands chan func()
	quit     chan struct{}
	done     chan struct{}

	mu     sync.Mutex
	latest []engine.Load // by rank
}

// modelClock maps wall time to the engine's time. A rate of zero stands still.
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

// until is how much wall time is left until a time of the engine, rounded up.
func (c *modelClock) until(at time.Duration) time.Duration {
	left := math.Ceil(float64(at-c.now()) / c.rate)
	return time.Duration(max(left, 1))
}

// commandBacklog is how many commands may wait for the driver. It only saves
// switches between goroutines; a full backlog makes handlers wait, not clients
// of other requests.
const commandBacklog = 64

// newDriver starts a driver; stop ends it.
func newDriver(p engine.Profile, ranks int, speed float64) (*driver, error) {
	e, err := engine.NewParallel(p, ranks, engine.ReportTokens)
	if err != nil {
		return nil, err
	}
	d := &driver{
		engine: e, speed: speed, clock: modelClock{wall: time.Now(), rate: speed},
		streams:  make(map[uint64]*stream),
		commands: make(chan func(), commandBacklog),
		quit:     make(chan struct{}), done: make(chan struct{}),
		latest: make([]engine.Load, ranks),
	}
	d.publish()
	go d.run()
	return d, nil
}

// stop ends the driver and waits for it. Whoever still waits for a stream sees
// done closed.
func (d *driver) stop() {
	close(d.quit)
	<-d.done
}

func (d *driver) run() {
	defer close(d.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		d.deliver(d.engine.Advance(d.clock.now()))
		d.publish()
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

// drain runs the commands that wait, so that requests that come together enter
// the engine together.
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

// arm sets the timer to when the engine next has something to say.
func (d *driver) arm(timer *time.Timer) {
	timer.Stop()
	if at, ok := d.engine.NextAt(); ok && d.clock.rate > 0 {
		timer.Reset(d.clock.until(at))
	}
}

// deliver hands events to the streams they belong to.
func (d *driver) deliver(events []engine.Event) {
	for _, ev := range events {
		s := d.streams[ev.ID]
		if s == nil {
			continue // cancelled between the event and now
		}
		switch ev.Kind {
		case engine.TokenEmitted:
			s.push(ev)
		case engine.Rejected:
			s.push(ev)
			delete(d.streams, ev.ID)
		case engine.Finished: // the last token said so already
			delete(d.streams, ev.ID)
		}
	}
}

// publish makes the present load of every rank known to loads.
func (d *driver) publish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for rank := range d.latest {
		d.latest[rank] = d.engine.Load(rank)
	}
}

// loads is the load of every rank after the last thing that happened. It never
// waits for the driver.
func (d *driver) loads() []engine.Load {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.latest)
}

// do runs f on the driver's goroutine, soon, unless the driver has ended.
func (d *driver) do(f func()) {
	select {
	case d.commands <- f:
	case <-d.done:
	}
}

// submit hands a request to a rank of the engine and returns the stream of its
// answer. texts is what the tokens of a given Output say. The driver chooses the request's ID and, where rank is anyRank, the
// rank: each in its turn.
func (d *driver) submit(rank int, q engine.Request, texts []string) *stream {
	s := newStream(texts)
	d.do(func() {
		d.nextID++
		if rank == anyRank {
			rank = d.turn
			d.turn = (d.turn + 1) % d.engine.Ranks()
		}
		q.ID, s.id = d.nextID, d.nextID
		d.streams[q.ID] = s
		d.engine.Submit(d.clock.now(), rank, q)
	})
	return s
}

// cancel takes a request out of the engine, whose client is gone.
func (d *driver) cancel(s *stream) {
	d.do(func() {
		d.engine.Cancel(d.clock.now(), s.id)
		delete(d.streams, s.id)
	})
}

// setPace makes time run slower by a factor, or stand still.
func (d *driver) setPace(slow float64, frozen bool) {
	d.do(func() {
		// What is due at the old rate happens before the new one holds.
		d.deliver(d.engine.Advance(d.clock.now()))
		rate := d.speed / slow
		if frozen {
			rate = 0
		}
		d.clock.setRate(rate)
	})
}
