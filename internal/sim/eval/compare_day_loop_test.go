//go:build compare && linux

package eval

import (
	"flag"
	"time"

	"skyserve/internal/sim"
)

var (
	dayIteration = flag.Duration("day.iteration", 200*time.Millisecond, "how long an iteration of the simulated control loop takes")
	dayFormer    = flag.Bool("day.former", false, "simulate the former control loop, which did not wake at the end of a cooldown and delivered changes with its next iteration")
)

const (
	// dayBeat is how often the simulator asks the control loop.
	dayBeat = 50 * time.Millisecond
	// dayInterval is the time between two iterations of the control loop, dayShortest the shortest.
	dayInterval, dayShortest = 5 * time.Second, time.Second / 2
	// dayCooldown is the cooldown of the strategies reactive and lt-ua.
	dayCooldown = 15 * time.Second
)

// dayLoop calls a scaler at the times of the controller's control loop: an interval after the last iteration has
// ended, when a minute is settled, and when a cooldown ends.
type dayLoop struct {
	inner    sim.Scaler
	next     time.Duration // the time of the next iteration
	changed  time.Duration // the time of the last change; 0 = none yet
	donating []sim.FleetChange
	donateAt time.Duration // when balancers learn of them
}

// dayDelivery is the time until balancers learn of a change.
func dayDelivery() time.Duration {
	if *dayFormer {
		return dayInterval + *dayIteration
	}
	return *dayIteration
}

func (l *dayLoop) Step(now time.Duration, v *sim.FleetView) (out []sim.FleetChange, _ error) {
	if len(l.donating) > 0 && now >= l.donateAt {
		out, l.donating = l.donating, nil
	}
	if now < l.next {
		return out, nil
	}
	changes, err := l.inner.Step(now, v)
	for _, c := range changes {
		l.changed = now
		if c.Donate > 0 {
			l.donating, l.donateAt = append(l.donating, c), now+dayDelivery()
		} else {
			out = append(out, c)
		}
	}
	settled := (now - daySettled).Truncate(time.Minute) + time.Minute + daySettled
	if now < daySettled {
		settled = daySettled
	}
	wait := min(dayInterval, max(settled-now, dayShortest))
	if left := l.changed + dayCooldown - now; left > 0 && l.changed > 0 && !*dayFormer {
		wait = min(wait, max(left, dayShortest))
	}
	l.next = now + wait + *dayIteration
	return out, err
}
