package sim

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"skyserve/internal/sim/workload"
)

// streamArrivals keeps the arrivals of sessions apart from other draws of a seed.
const streamArrivals = 0x6172726976616c

// arrivals is the Poisson process by which sessions begin in a region.
type arrivals struct {
	random *rand.Rand
	rate   float64 // sessions a second, but for surges
	surges []Surge
	begun  int
}

// addLoad starts whoever asks: the rows of a trace, an open loop or a closed one.
func (w *world) addLoad(phase func(time.Duration) time.Duration) error {
	switch {
	case w.scenario.Trace != nil:
		var err error
		if w.rows, err = w.scenario.Trace.Open(); err != nil {
			return err
		}
		w.awaitRow()
		return nil
	case w.scenario.Rate > 0:
		w.addArrivals()
		return nil
	}
	return w.addClients(phase)
}

// awaitRow schedules the next row of the trace, if there is one.
func (w *world) awaitRow() {
	row, err := w.rows.Next()
	switch {
	case errors.Is(err, io.EOF):
	case err != nil:
		w.fails(err)
	case row.At < w.now:
		w.broke("row %d of %s: comes at %v, after one of %v", row.Number, w.scenario.Trace.Name, row.At, w.now)
	default:
		w.row = row
		w.queue.push(event{at: row.At, kind: evRow})
	}
}

// replay lets a row of the trace ask.
func (w *world) replay() {
	region := w.scenario.region(w.row.Region)
	if region < 0 {
		w.broke("row %d of %s: no region is called %q", w.row.Number, w.scenario.Trace.Name, w.row.Region)
		return
	}
	w.taken++
	ask := w.row.Lengths("")
	if !w.light() {
		ask = w.row.Request(w.setup.Seed, "")
	}
	w.issue(w.rowFlight(region, ask))
	w.awaitRow()
}

// oneRow is the workload of a row: nothing comes after it.
type oneRow struct{}

func (oneRow) Next() []workload.Request                         { return nil }
func (oneRow) Done(workload.Request, string) []workload.Request { return nil }
func (oneRow) Failed(workload.Request) []workload.Request       { return nil }

// addArrivals starts the process of each region that has clients.
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
		w.awaitSession(i)
	}
}

// awaitSession schedules the next session of a region, if one comes in the run.
func (w *world) awaitSession(region int) {
	if at := w.arrivals[region].next(w.now, w.scenario.Duration); at < w.scenario.Duration {
		w.queue.push(event{at: at, kind: evSession, index: int32(region)})
	}
}

// beginSession lets a session ask its first.
func (w *world) beginSession(region int) {
	a := w.arrivals[region]
	c, err := w.newClient(region, a.begun, true)
	if err != nil {
		w.broke("region %s: beginning a session: %v", w.scenario.Regions[region].Name, err)
		return
	}
	a.begun++
	w.issueAll(w.flightsOf(c, nil, c.workload.Next()))
	w.awaitSession(region)
}

// next is when the next session begins after now, end or later when none does
// before end. A gap is an exponential draw of sessions that the rate, as it
// changes, has to bring.
func (a *arrivals) next(now, end time.Duration) time.Duration {
	left := a.random.ExpFloat64()
	for now < end {
		rate, until := a.rateAt(now, end)
		if brings := rate * (until - now).Seconds(); brings < left {
			left -= brings
			now = until
			continue
		}
		return now + time.Duration(math.Ceil(left/rate*float64(time.Second)))
	}
	return end
}

// rateAt is the rate at an instant and until when it holds, end at the latest.
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
