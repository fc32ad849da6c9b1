package provision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// LaunchBounds limits launches; a zero field is no limit.
type LaunchBounds struct {
	LaunchesPerHour int     // launches within an hour
	BudgetPerHour   float64 // cost of all running machines, in USD per hour
}

// HoldKind is what holds a launch.
type HoldKind string

// The kinds.
const (
	HeldByLaunches HoldKind = "launches" // autoscale.max_launches_per_hour
	HeldByBudget   HoldKind = "budget"   // autoscale.budget
	HeldByPrice    HoldKind = "price"    // an unknown price, with autoscale.budget
	HeldByBackoff  HoldKind = "backoff"  // earlier failures
	HeldByQuota    HoldKind = "quota"    // the cloud refused it: a quota is exhausted
	HeldByCapacity HoldKind = "capacity" // the cloud refused it: no offering has capacity
)

// NextStepUnknownPrice is the next step for a launch that is held by HeldByPrice.
const NextStepUnknownPrice = "set models[].gpus[].price (on demand), select another GPU or capacity type, or remove autoscale.budget"

// HeldError reports an object that may not be launched now. Nothing was created.
type HeldError struct {
	ID     string
	Region service.Region
	Kind   HoldKind
	Reason string
}

// Error names the object and what holds it.
func (e *HeldError) Error() string {
	return fmt.Sprintf("launching %s in %s: held: %s", e.ID, e.Region, e.Reason)
}

// LaunchGate admits launches within bounds. All launches of a controller pass it, except those in place of
// an object that was terminated for them. It is safe for concurrent use.
type LaunchGate struct {
	// Balancers bounds the launches of balancers too; otherwise only those of replicas. It is set before use.
	Balancers bool

	mu         sync.Mutex
	bounds     LaunchBounds
	record     *LaunchRecord
	now        func() time.Time
	hourlyCost float64                   // cost of the running machines and of admitted launches, in USD per hour
	isFree     func(service.Region) bool // reports whether machines of a region cost nothing
	// planned is the cost in USD per hour of the planned launches, by ID: those that RemoveHeld kept and Admit has not
	// admitted yet. Admit may be called for them in any order.
	planned map[string]float64
}

// NewLaunchGate returns a gate over a record; free reports whether machines of a region cost nothing.
func NewLaunchGate(record *LaunchRecord, now func() time.Time, free func(service.Region) bool) *LaunchGate {
	return &LaunchGate{record: record, now: now, isFree: free}
}

// Observe sets the bounds and the existing objects from which the cost is computed. It forgets the planned launches.
func (g *LaunchGate) Observe(bounds LaunchBounds, have []Object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.record.Prune(now)
	g.bounds, g.hourlyCost, g.planned = bounds, g.record.CostPerHour(have, now), nil
}

// Update calls f with the record.
func (g *LaunchGate) Update(f func(*LaunchRecord)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.record)
}

// Admit admits the launch of an object on its first offering: it counts the launch and its cost. Where the object may not be
// launched it returns a *HeldError. After the attempt, the caller calls Launched.
func (g *LaunchGate) Admit(w Desired) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.IsBounded(w) {
		return nil
	}
	if held := g.holdNow(w); held != nil {
		return held
	}
	delete(g.planned, w.ID)
	g.hourlyCost += w.CostPerHour
	g.record.Launches = append(g.record.Launches, RecordedLaunch{At: g.now(), ID: w.ID, CostPerHour: w.CostPerHour})
	return nil
}

// Fits reports whether the launch of an object on its first offering would be admitted now.
func (g *LaunchGate) Fits(w Desired) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.IsBounded(w) || g.holdNow(w) == nil
}

// holdNow returns why an object may not be launched in addition to the planned launches of other objects; nil if it may.
func (g *LaunchGate) holdNow(w Desired) *HeldError {
	planned, cost := 0, g.hourlyCost
	for _, id := range slices.Sorted(maps.Keys(g.planned)) {
		if id != w.ID {
			planned, cost = planned+1, cost+g.planned[id]
		}
	}
	return g.hold(w, planned, cost)
}

// Launched records the result of an admitted launch. A launch without capacity is not counted; after any
// other error the machine may exist.
func (g *LaunchGate) Launched(w Desired, o Object, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.IsBounded(w) {
		return
	}
	at := len(g.record.Launches) - 1 // the latest of the object
	for at >= 0 && (g.record.Launches[at].ID != w.ID || g.record.Launches[at].Handle != "") {
		at--
	}
	var none *CapacityError
	var throttled *ThrottledError
	switch {
	case at < 0:
	case err == nil:
		g.record.Launches[at].Handle = o.Handle
	case errors.As(err, &none):
		g.hourlyCost -= g.record.Launches[at].CostPerHour
		g.record.Launches = slices.Delete(g.record.Launches, at, at+1)
	}
	if errors.As(err, &throttled) {
		g.record.AddFailure(Backoff{BackoffKey: BackoffKey{Region: w.Region}, Last: g.now(), ID: w.ID, Reason: throttled.Error()}, ThrottleBackoff)
	}
}

// hold returns why an object may not be launched in addition to a number of planned launches; nil if it may. othersCost is
// the cost of all other machines in USD per hour, including those of the planned launches.
func (g *LaunchGate) hold(w Desired, planned int, othersCost float64) *HeldError {
	held := func(kind HoldKind, format string, args ...any) *HeldError {
		return &HeldError{ID: w.ID, Region: w.Region, Kind: kind, Reason: fmt.Sprintf(format, args...)}
	}
	now := g.now()
	offer := Offering{Region: w.Region}
	if len(w.Offerings) > 0 {
		offer = w.Offerings[0]
	}
	if b := g.record.Covering(w.Labels[labelModel], offer, now); b != nil {
		return held(HeldByBackoff, "%s", b.Describe())
	}
	launched := g.record.LastHour(now)
	if limit := g.bounds.LaunchesPerHour; limit > 0 && len(launched)+planned >= limit {
		next := now // the planned launches are the last ones of the hour
		if leaves := len(launched) + planned - limit; leaves < len(launched) {
			next = launched[leaves]
		}
		return held(HeldByLaunches, "%s, the maximum (autoscale.max_launches_per_hour); next launch at %s UTC", describeLaunches(len(launched), planned), next.Add(launchWindow).UTC().Format(time.TimeOnly))
	}
	if g.bounds.BudgetPerHour == 0 || g.isFree(w.Region) {
		return nil
	}
	switch {
	case w.CostPerHour == 0 && offer.Capacity != service.CapacityReserved:
		return held(HeldByPrice, "the price of %s is unknown, so it cannot be compared with autoscale.budget", offer)
	case exceeds(othersCost+w.CostPerHour, g.bounds.BudgetPerHour):
		return held(HeldByBudget, "its machine costs $%.2f/h, the others $%.2f/h, and the budget is $%.2f/h (autoscale.budget)", w.CostPerHour, othersCost, g.bounds.BudgetPerHour)
	}
	return nil
}

// describeLaunches describes the launches that count towards LaunchesPerHour.
func describeLaunches(launched, planned int) string {
	switch {
	case planned == 0:
		return printable.Count(launched, "machine") + " launched in the last hour"
	case launched == 0:
		return printable.Count(planned, "machine") + " about to be launched"
	}
	return fmt.Sprintf("%s launched in the last hour and %d about to be launched", printable.Count(launched, "machine"), planned)
}

// exceeds compares amounts in USD per hour; the tolerance is far below a cent and far above rounding.
func exceeds(usd, limit float64) bool { return usd > limit+1e-6 }

// RemoveHeld removes from changes the launches that the bounds do not admit. Launches are admitted in the order of
// changes, those that isUrgent selects first. A launch is kept if any of its offerings is admitted. It is then a planned launch
// with the cost of that offering, until Admit is called with the offering that has capacity, or until the next Observe.
func (g *LaunchGate) RemoveHeld(changes Changes, isUrgent func(Change) bool) (kept Changes, held []*HeldError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	planned, othersCost, refused := 0, g.hourlyCost, map[int]bool{}
	g.planned = map[string]float64{}
	for _, urgent := range []bool{true, false} {
		for i, c := range changes {
			if c.Action != ActionLaunch || !g.IsBounded(c.Desired) || isUrgent(c) != urgent {
				continue
			}
			cost, why := g.firstAdmitted(c.Desired, planned, othersCost)
			if why != nil {
				refused[i], held = true, append(held, why)
				continue
			}
			planned, othersCost = planned+1, othersCost+cost
			g.planned[c.ID()] = cost
		}
	}
	for i, c := range changes {
		if !refused[i] {
			kept = append(kept, c)
		}
	}
	return kept, held
}

// firstAdmitted returns the cost of the first offering that is admitted, else why the first one is not.
func (g *LaunchGate) firstAdmitted(w Desired, planned int, othersCost float64) (cost float64, why *HeldError) {
	if len(w.Offerings) == 0 {
		return w.CostPerHour, g.hold(w, planned, othersCost)
	}
	for i := range w.Offerings {
		one := w
		one.Offerings, one.CostPerHour = w.Offerings[i:i+1], w.Offerings[i].PricePerHour
		held := g.hold(one, planned, othersCost)
		if held == nil {
			return one.CostPerHour, nil
		}
		if why == nil {
			why = held
		}
	}
	return 0, why
}

// IsBounded reports whether the launch of an object is bounded.
func (g *LaunchGate) IsBounded(w Desired) bool {
	return w.Kind == KindReplica || g.Balancers && w.Kind == KindBalancer
}

// labelModel is the label with a replica's model.
const labelModel = "model"

// Describe returns the backoff in one line.
func (b *Backoff) Describe() string {
	times := fmt.Sprintf("%d times", b.Failures)
	if b.Failures == 1 {
		times = "once"
	}
	failed := b.BackoffKey.String()
	if b.Model == "" { // "any model" alone could mean that one model failed
		failed = "launches of " + failed
	}
	return fmt.Sprintf("%s failed %s; next try at %s UTC; last failure: %s", failed, times, b.Next.UTC().Format(time.DateTime), b.Reason)
}
