package sim

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"skyserve/internal/sim/workload"
)

// streamArrivals separates the arrivals of sessions from other random draws of a seed.
const streamArrivals = 0x6172726976616c

// arrivals is the Poisson process of session starts in a region.
type arrivals struct {
	random *rand.Rand
	rate   float64 // sessions per second, without surges
	surges []Surge
	begun  int
}

// addLoad starts the source of requests: a trace, an open loop or a closed loop.
func (w *world) addLoad(phase func(time.Duration) time.Duration) error {
	switch {
	case w.scenario.Trace != nil:
		var err error
		if w.rows, err = w.scenario.Trace.Open(); err != nil {
			return err
		}
		w.scheduleRow()
		return nil
	case w.scenario.Rate > 0:
		w.addArrivals()
		return nil
	}
	return w.addClients(phase)
}

// scheduleRow schedules the next row of the trace, if any.
func (w *world) scheduleRow() {
	row, err := w.rows.Next()
	switch {
	case errors.Is(err, io.EOF):
	case err != nil:
		w.failRun(err)
	case row.At < w.now:
		w.violate("row %d of %s: time %v is before the previous row's %v", row.Number, w.scenario.Trace.Name, row.At, w.now)
	default:
		w.row = row
		w.queue.pushEvent(event{at: row.At, kind: evRow})
	}
}

// replay issues the current row of the trace.
func (w *world) replay() {
	region := w.scenario.region(w.row.Region)
	if region < 0 {
		w.violate("row %d of %s: unknown region %q", w.row.Number, w.scenario.Trace.Name, w.row.Region)
		return
	}
	w.taken++
	ask := w.row.Lengths("")
	if !w.light() {
		ask = w.row.Request(w.setup.Seed, "")
	}
	w.issue(w.newRowRequest(region, ask))
	w.scheduleRow()
}

// oneRow is the workload of a row: a single request.
type oneRow struct{}

func (oneRow) Next() []workload.Request                         { return nil }
func (oneRow) Done(workload.Request, string) []workload.Request { return nil }
func (oneRow) Failed(workload.Request) []workload.Request       { return nil }

// addArrivals starts the arrival process of each region that has clients.
func (w *world) addArrivals() {
	total := 0
	for _, r := range w.scenario.Regions {
		total += r.Clients
	}
	for i, r := range w.scenario.Regions {
		a := &arrivals{
			random: rand.New(rand.NewPCG(w.setup.Seed, streamArrivals+uint64(i))),
			rate:   w.scenario.Rate * float64(r.Clients) / float64(total),
		}
		for _, u := range w.scenario.Surges {
			if u.Region == r.Name {
				a.surges = append(a.surges, u)
			}
		}
		w.arrivals = append(w.arrivals, a)
		w.scheduleSession(i)
	}
}

// scheduleSession schedules the next session of a region, if it starts before the end of the run.
func (w *world) scheduleSession(region int) {
	if at := w.arrivals[region].nextArrival(w.now, w.scenario.Duration); at < w.scenario.Duration {
		w.queue.pushEvent(event{at: at, kind: evSession, index: int32(region)})
	}
}

// beginSession issues a session's first requests.
func (w *world) beginSession(region int) {
	a := w.arrivals[region]
	c, err := w.newClient(region, a.begun, true)
	if err != nil {
		w.violate("region %s: starting a session: %v", w.scenario.Regions[region].Name, err)
		return
	}
	a.begun++
	w.issueAll(w.newRequests(c, nil, c.workload.Next()))
	w.scheduleSession(region)
}

// nextArrival returns the start of the next session after now; end or later if there is none before end. It
// draws an exponential number of expected sessions, and returns when the time-varying rate has
// accumulated it.
func (a *arrivals) nextArrival(now, end time.Duration) time.Duration {
	remaining := a.random.ExpFloat64()
	for now < end {
		rate, until := a.rateAt(now, end)
		if brings := rate * (until - now).Seconds(); brings < remaining {
			remaining -= brings
			now = until
			continue
		}
		return now + time.Duration(math.Ceil(remaining/rate*float64(time.Second)))
	}
	return end
}

// rateAt returns the rate at now and the time until which it applies, at most end.
func (a *arrivals) rateAt(now, end time.Duration) (rate float64, until time.Duration) {
	rate, until = a.rate, end
	for _, u := range a.surges {
		switch {
		case now < u.From:
			until = min(until, u.From)
		case now < u.To:
			rate *= u.Factor
			until = min(until, u.To)
		}
	}
	return rate, until
}
