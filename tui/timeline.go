package tui

import (
	"time"

	"skyserve/internal/telemetry"
)

// Limits of the history that the user can step back through.
const (
	timelineSpan = time.Hour
	// timelineBytes limits the memory of the snapshots, as estimated by snapshotSize: a small service
	// keeps every second of the hour, a large one has longer steps.
	timelineBytes = 64 << 20
)

// timeline holds the snapshots of the last hour, oldest first. When they exceed the limit, every
// second one of the older half is removed, which keeps recent steps short.
type timeline struct {
	frames []frame
	size   int
}

// frame is a snapshot and when it was received.
type frame struct {
	snapshot *telemetry.Snapshot
	at       time.Time
	size     int
}

// addSnapshot appends a snapshot.
func (p *timeline) addSnapshot(s *telemetry.Snapshot, at time.Time) {
	m := frame{s, at, snapshotSize(s)}
	p.frames = append(p.frames, m)
	p.size += m.size
	old := 0
	for old < len(p.frames)-1 && at.Sub(p.frames[old].at) > timelineSpan {
		p.size -= p.frames[old].size
		old++
	}
	p.frames = append(p.frames[:0], p.frames[old:]...)
	for p.size > timelineBytes && len(p.frames) > 3 {
		p.thin()
	}
}

// thin removes every second snapshot of the older half.
func (p *timeline) thin() {
	kept := p.frames[:0]
	half := max(len(p.frames)/2, 2)
	for i, m := range p.frames {
		if i < half && i%2 == 1 {
			p.size -= m.size
			continue
		}
		kept = append(kept, m)
	}
	clear(p.frames[len(kept):])
	p.frames = kept
}

// frameBefore returns the newest frame that is at least d older than t; else the oldest frame
// that is older than t. ok is false if none is.
func (p *timeline) frameBefore(t time.Time, d time.Duration) (m frame, ok bool) {
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

// snapshotSize estimates the size of a snapshot in bytes: the usual size of each list's elements with their texts.
func snapshotSize(s *telemetry.Snapshot) int {
	const (
		fixed, perRegion, perBalancer, perReplica, perGPU, perModel, perKey = 2 << 10, 512, 240, 480, 64, 352, 288
		perEvent, perAlert, perBatch, perTarget, perPrice, perDonation      = 350, 280, 280, 170, 56, 200
		perForecast, perStep, perChange                                     = 320, 8, 300
	)
	size := fixed + perEvent*len(s.Events) + perAlert*len(s.Alerts) + perBatch*len(s.Batches) +
		perTarget*len(s.Targets) + perPrice*len(s.Prices) + perDonation*len(s.Donations)
	if s.Plan != nil {
		size += perChange * len(s.Plan.Changes)
	}
	for i := range s.Forecast {
		f := &s.Forecast[i]
		size += perForecast + perStep*(len(f.MeanTPS)+len(f.Lo90TPS)+len(f.Hi90TPS)+2*len(f.EarlierTPS))
	}
	for i := range s.Regions {
		r := &s.Regions[i]
		size += perRegion + perBalancer*len(r.Balancers) + perReplica*len(r.Replicas) + perModel*len(r.Models) + perKey*len(r.Keys)
		for k := range r.Replicas {
			size += perGPU * len(r.Replicas[k].GPUs)
		}
	}
	return size
}

// stepTime steps n snapshots through the history, back if n is negative, and by at least d of the snapshots' time:
// that of the recording in a replay, whatever its speed. Beyond the newest snapshot the screen is live again.
func (m *Model) stepTime(n int, d time.Duration) {
	s := &m.screen
	frames := m.timeline.frames
	if len(frames) == 0 {
		return
	}
	at := len(frames) - 1
	for at > 0 && s.pastFrame != nil && frames[at].at.After(s.pastFrame.at) {
		at--
	}
	from := frames[at].snapshot.At
	at += n
	for n != 0 && at > 0 && at < len(frames)-1 && frames[at].snapshot.At.Sub(from).Abs() < d {
		at += sign(n)
	}
	at = max(at, 0)
	if at >= len(frames)-1 {
		m.goLive()
		return
	}
	m.showFrame(at)
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

// showFrame shows the i-th frame of the history.
func (m *Model) showFrame(i int) {
	s := &m.screen
	f := m.timeline.frames[i]
	s.pastFrame = &f
	m.drawFrame(i)
}

// rateWindow is the time over which rates of counters are computed.
const rateWindow = 10 * time.Second

// drawFrame makes the i-th frame the one that is drawn.
func (m *Model) drawFrame(i int) {
	s := &m.screen
	f := m.timeline.frames[i]
	s.snapshot, s.previous = f.snapshot, nil
	if i > 0 {
		s.previous = m.timeline.frames[i-1].snapshot
	}
	s.rateBase, _ = m.timeline.frameBefore(f.at, rateWindow)
	s.history.drawUntil(f.snapshot.At)
	s.prices = pricesOf(s.snapshot)
	s.table.previous, s.table.base = s.previous, s.rateBase.snapshot
}

// goLive returns from the history to the newest snapshot.
func (m *Model) goLive() {
	m.screen.pastFrame = nil
	if n := len(m.timeline.frames); n > 0 {
		m.drawFrame(n - 1)
	}
}
