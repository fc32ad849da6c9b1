package provision

import (
	"cmp"
	"slices"
	"time"
)

// launchWindow is the time over which launches are counted.
const launchWindow = time.Hour

// ListingDelay is how long after its launch a machine may be missing in its cloud's lists, which are
// eventually consistent. Until then its cost counts although it is not listed.
const ListingDelay = 10 * time.Minute

// LaunchRecord contains the launches of the last hour and the backoffs after failures. Controllers store it, so that
// it survives a restart. The zero value is empty. It is not safe for concurrent use.
type LaunchRecord struct {
	Launches []RecordedLaunch `json:"launches"`
	Backoffs []Backoff        `json:"backoffs"`
}

// RecordedLaunch is one launch.
type RecordedLaunch struct {
	At time.Time `json:"at"`
	ID string    `json:"id"`
	// Handle is the object's handle; empty while the launch is in progress, or where its result is unknown.
	Handle      string  `json:"handle,omitempty"`
	CostPerHour float64 `json:"cost_per_hour"`
}

// Prune removes launches that are older than the window.
func (r *LaunchRecord) Prune(now time.Time) {
	r.Launches = slices.DeleteFunc(r.Launches, func(l RecordedLaunch) bool { return now.Sub(l.At) >= launchWindow })
}

// LastHour returns the times of the launches within the last hour, the earliest first.
func (r *LaunchRecord) LastHour(now time.Time) (launched []time.Time) {
	for _, l := range r.Launches {
		if now.Sub(l.At) < launchWindow {
			launched = append(launched, l.At)
		}
	}
	slices.SortFunc(launched, time.Time.Compare)
	return launched
}

// AddObserved adds the launches of replicas that another controller made: their objects started within
// the last hour and are not recorded. It completes launches whose response was lost.
func (r *LaunchRecord) AddObserved(have []Object, now time.Time) {
	for _, o := range have {
		at := slices.IndexFunc(r.Launches, func(l RecordedLaunch) bool { return l.Handle == o.Handle || l.Handle == "" && l.ID == o.ID })
		if at >= 0 {
			r.Launches[at].Handle = o.Handle // its response was lost
		}
		if o.Kind == KindReplica && o.Handle != "" && at < 0 && !o.Started.IsZero() && now.Sub(o.Started) < launchWindow {
			r.Launches = append(r.Launches, RecordedLaunch{At: o.Started, ID: o.ID, Handle: o.Handle, CostPerHour: o.CostPerHour})
		}
	}
}

// CostPerHour returns the cost of the running objects in USD per hour, including machines that were
// launched so recently that their cloud may not list them yet.
func (r *LaunchRecord) CostPerHour(have []Object, now time.Time) (usd float64) {
	listed := map[string]bool{}
	for _, o := range have {
		listed[o.Handle] = true
		if o.TerminatedReason == "" {
			usd += o.CostPerHour
		}
	}
	for _, l := range r.Launches {
		if now.Sub(l.At) < ListingDelay && (l.Handle == "" || !listed[l.Handle]) {
			usd += l.CostPerHour
		}
	}
	return usd
}

// AddFailure records that an object failed; failure contains everything but Failures and Next. A model
// that fails on a second key, without a success in between, also waits as a whole: its configuration is then
// more likely the cause than one offering.
func (r *LaunchRecord) AddFailure(failure Backoff, policy BackoffPolicy) {
	others := slices.ContainsFunc(r.Backoffs, func(b Backoff) bool {
		return b.Model == failure.Model && b.BackoffKey != failure.BackoffKey && b.Config == failure.Config
	})
	r.extendBackoff(failure, policy)
	if whole := failure; others && failure.Model != "" {
		whole.BackoffKey = BackoffKey{Model: failure.Model}
		r.extendBackoff(whole, policy)
	}
	slices.SortFunc(r.Backoffs, func(a, b Backoff) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Capacity, b.Capacity))
	})
}

// extendBackoff updates a backoff after one more failure. Failures of another configuration do not count.
func (r *LaunchRecord) extendBackoff(failure Backoff, policy BackoffPolicy) {
	failure.Failures = 1
	at := slices.IndexFunc(r.Backoffs, func(b Backoff) bool { return b.BackoffKey == failure.BackoffKey })
	if at >= 0 {
		if old := r.Backoffs[at]; old.Config == failure.Config {
			failure.Failures = old.Failures + 1
		}
		r.Backoffs = slices.Delete(r.Backoffs, at, at+1)
	}
	failure.Next = failure.Last.Add(policy.Delay(failure.Failures, failure.BackoffKey.String()))
	r.Backoffs = append(r.Backoffs, failure)
}

// AddSuccess removes the backoffs that launches with a key had to wait for: the key's own, and those of
// the model and the region as a whole.
func (r *LaunchRecord) AddSuccess(key BackoffKey) {
	offering := Offering{Region: key.Region, Type: key.Type, Capacity: key.Capacity}
	r.Backoffs = slices.DeleteFunc(r.Backoffs, func(b Backoff) bool { return b.covers(key.Model, offering) })
}

// RemoveOutdatedBackoffs removes the backoffs of models whose configuration has changed or that no longer exist.
// configs contains the hash of each model's configuration.
func (r *LaunchRecord) RemoveOutdatedBackoffs(configs map[string]string) {
	r.Backoffs = slices.DeleteFunc(r.Backoffs, func(b Backoff) bool { return b.Model != "" && configs[b.Model] != b.Config })
}

// Covering returns the backoff that a launch of a model on an offering has to wait for, the latest of
// several; nil = none.
func (r *LaunchRecord) Covering(model string, o Offering, now time.Time) *Backoff {
	var latest *Backoff
	for i := range r.Backoffs {
		if b := &r.Backoffs[i]; b.covers(model, o) && now.Before(b.Next) && (latest == nil || b.Next.After(latest.Next)) {
			latest = b
		}
	}
	return latest
}
