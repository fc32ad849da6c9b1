package tui

import (
	"time"

	"skyserve/internal/telemetry"
)

// Limits of the history that the user can step back through.
const (
	pastSpan = time.Hour
	// pastBytes limits the memory of the snapshots, as estimated by pastCost: a small service
	// keeps every second of the hour, a large one has longer steps.
	pastBytes = 64 << 20
)

// past holds the snapshots of the last hour, oldest first. When they exceed the limit, every
// second one of the older half is removed, which keeps recent steps short.
type past struct {
	frames []moment
	cost   int
}

// moment is a snapshot and when it was received.
type moment struct {
	snapshot *telemetry.Snapshot
	at       time.Time
	cost     int
}

// add appends a snapshot.
func (p *past) add(s *telemetry.Snapshot, at time.Time) {
	m := moment{s, at, pastCost(s)}
	p.frames = append(p.frames, m)
	p.cost += m.cost
	old := 0
	for old < len(p.frames)-1 && at.Sub(p.frames[old].at) > pastSpan {
		p.cost -= p.frames[old].cost
		old++
	}
	p.frames = append(p.frames[:0], p.frames[old:]...)
	for p.cost > pastBytes && len(p.frames) > 3 {
		p.thin()
	}
}

// thin removes every second snapshot of the older half.
func (p *past) thin() {
	kept := p.frames[:0]
	half := max(len(p.frames)/2, 2)
	for i, m := range p.frames {
		if i < half && i%2 == 1 {
			p.cost -= m.cost
			continue
		}
		kept = append(kept, m)
	}
	clear(p.frames[len(kept):])
	p.frames = kept
}

// before returns the newest frame that is at least d older than t; else the oldest frame
// that is older than t. ok is false if none is.
func (p *past) before(t time.Time, d time.Duration) (m moment, ok bool) {
	for i := len(p.frames) - 1; i >= 0; i-- {
		f := p.frames[i]
		if !f.at.Before(t) {
			continue
		}
		m, ok = f, true
		if t.Sub(f.at) >= d {
			break
		}
	}
	return m, ok
}

// pastCost estimates the size of a snapshot in bytes.
func pastCost(s *telemetry.Snapshot) int {
	const fixed, perRegion, perReplica, perEvent, perForecast = 2 << 10, 1 << 10, 480, 300, 2 << 10
	cost := fixed + perRegion*len(s.Regions) + perEvent*len(s.Events) + perForecast*len(s.Forecast)
	for i := range s.Regions {
		cost += perReplica * len(s.Regions[i].Replicas)
	}
	return cost
}

// travel steps n snapshots through the history, back if n is negative, and by at least d.
// Beyond the newest snapshot the screen is live again.
func (m *Model) travel(n int, d time.Duration) {
	s := &m.screen
	frames := m.past.frames
	if len(frames) == 0 {
		return
	}
	at := len(frames) - 1
	for at > 0 && s.then != nil && frames[at].at.After(s.then.at) {
		at--
	}
	from := frames[at].at
	at += n
	for n != 0 && at > 0 && at < len(frames)-1 && frames[at].at.Sub(from).Abs() < d {
		at += sign(n)
	}
	if at >= len(frames)-1 {
		m.live()
		return
	}
	m.goTo(max(at, 0))
}

// sign returns -1, 0 or 1.
func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

// goTo shows the i-th frame of the history.
func (m *Model) goTo(i int) {
	s := &m.screen
	f := m.past.frames[i]
	s.then = &f
	m.put(i)
}

// rateSpan is the time over which rates of counters are computed.
const rateSpan = 10 * time.Second

// put makes the i-th frame the one that is drawn.
func (m *Model) put(i int) {
	s := &m.screen
	f := m.past.frames[i]
	s.snapshot, s.previous = f.snapshot, nil
	if i > 0 {
		s.previous = m.past.frames[i-1].snapshot
	}
	s.earlier, _ = m.past.before(f.at, rateSpan)
	s.history.at(f.at)
	s.prices = pricesOf(s.snapshot)
	s.table.previous = s.previous
}

// live returns from the history to the newest snapshot.
func (m *Model) live() {
	m.screen.then = nil
	if n := len(m.past.frames); n > 0 {
		m.put(n - 1)
	}
}
