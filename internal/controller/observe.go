package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand"
	"skyserve/plan"
)

// Observed is the state of a running service as its balancers report it.
type Observed struct {
	Spec   *service.Spec
	Counts []plan.ReplicaCount
	// Points is the history: the traffic by minute, balancer, model and tier.
	Points []telemetry.Point
	// Notes describe balancers without usable data and gaps in the history.
	Notes []string
	// RTT is the measured round trip between the balancers' regions.
	RTT map[plan.RegionPair]time.Duration
	// Snapshot contains every replica once, from the balancer with its newest report. A region has
	// one entry with its balancers and models, and one entry per replica.
	Snapshot *telemetry.Snapshot
	// Backlog are the batches that have not ended.
	Backlog []plan.Backlog
	// lacksUnstored is true if Points lack what some balancer has not stored yet.
	lacksUnstored bool
	// Failed is the number of balancers without a snapshot: no response, an error or an invalid
	// service.yaml.
	Failed int
}

// ErrNoBalancerResponds means that no request to a balancer of a service received a response: each
// connection was refused, timed out or failed.
var ErrNoBalancerResponds = errors.New("no balancer responds")

// Observe reads a service's service.yaml, its replicas and, if history is true, its history from
// sinceMinute on, through its balancers' admin APIs. sinceMinute is in minutes since the Unix
// epoch. Observe reads the replicas from all balancers, because each has the newest reports of its
// own region, and takes the first valid service.yaml of them. The history is that of ReadHistory. Observe returns ErrNoBalancerResponds
// when no balancer responds, and another error when those that respond return errors or an invalid service.yaml.
func Observe(ctx context.Context, admins []*telemetry.Client, sinceMinute int64, history bool) (*Observed, error) {
	if len(admins) == 0 {
		return nil, errors.New("observing the service: it has no balancers")
	}
	responses := queryBalancers(ctx, admins)
	o := &Observed{}
	var snapshots []*telemetry.Snapshot
	var live []*telemetry.Client
	var failures []error
	for i, r := range responses {
		if o.Spec == nil {
			o.Spec = r.spec
		}
		if r.err != nil {
			failures = append(failures, r.err)
			continue
		}
		snapshots, live = append(snapshots, r.snapshot), append(live, admins[i])
	}
	if len(live) == 0 {
		err := errors.Join(failures...)
		if !slices.ContainsFunc(failures, func(err error) bool { return !isUnreachable(err) }) {
			err = fmt.Errorf("%w: %w", ErrNoBalancerResponds, err)
		}
		return nil, fmt.Errorf("observing the service: %w", err)
	}
	if len(failures) > 0 {
		o.Notes = append(o.Notes, fmt.Sprintf("%d of %d balancers do not respond, or return errors: their replicas are counted from the last reports that other balancers have", len(failures), len(admins)))
	}
	o.Snapshot, o.Failed = mergeSnapshots(snapshots), len(failures)
	if silent := silentBalancers(o.Snapshot); len(failures) == 0 && len(silent) > 0 { // not among admins: their processes on this computer have ended
		o.lacksUnstored = true
		o.Notes = append(o.Notes, fmt.Sprintf("no response from %s: replicas that no other balancer has do not count as running, and the latest load there is unknown; 'skyserve status' shows the state", strings.Join(silent, ", ")))
	}
	o.Counts = withoutOverprovision(o.Spec, CountReplicas(o.Snapshot))
	o.RTT, o.Backlog = roundTrips(snapshots), backlogOf(snapshots)
	if history {
		o.addHistory(ctx, live, sinceMinute)
		o.lacksUnstored = o.lacksUnstored || o.Failed > 0
	}
	return o, nil
}

// silentBalancers returns the IDs of the balancers that did not respond to those that reported the snapshot.
func silentBalancers(s *telemetry.Snapshot) (ids []string) {
	for _, r := range s.Regions {
		for _, b := range r.Balancers {
			if b.State == service.StateUnreachable {
				ids = append(ids, b.ID)
			}
		}
	}
	return ids
}

// isUnreachable reports whether a request received no response.
func isUnreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}

// balancerResponse is the response of one balancer.
type balancerResponse struct {
	text     []byte        // of its service.yaml
	spec     *service.Spec // nil where it is unknown
	snapshot *telemetry.Snapshot
	err      error
}

// queryBalancers queries all balancers concurrently for their own replicas. If one fails, it queries the others a second
// time, for the last reports that they have of other balancers' replicas. Each time has its own observeTimeout, because a
// balancer that does not respond uses up the first one.
func queryBalancers(ctx context.Context, admins []*telemetry.Client) []balancerResponse {
	responses := make([]balancerResponse, len(admins))
	forEach := func(f func(ctx context.Context, admin *telemetry.Client, r *balancerResponse)) {
		ctx, cancel := context.WithTimeout(ctx, observeTimeout)
		defer cancel()
		var wg sync.WaitGroup
		for i, admin := range admins {
			wg.Go(func() { f(ctx, admin, &responses[i]) })
		}
		wg.Wait()
	}
	forEach(func(ctx context.Context, admin *telemetry.Client, r *balancerResponse) {
		if r.text, r.err = admin.Service(ctx); r.err == nil {
			r.snapshot, r.err = admin.OwnSnapshot(ctx)
		}
	})
	parsed := map[string]*service.Spec{} // by text, because normally all balancers have the same service.yaml
	for i := range responses {
		r := &responses[i]
		if r.spec = parsed[string(r.text)]; r.spec != nil || r.text == nil {
			continue
		}
		spec, err := service.ParseDeployed("service.yaml of "+admins[i].Base(), r.text)
		if err != nil {
			r.err = err
			continue
		}
		r.spec, parsed[string(r.text)] = spec, spec
	}
	if slices.ContainsFunc(responses, func(r balancerResponse) bool { return r.err != nil }) {
		forEach(func(ctx context.Context, admin *telemetry.Client, r *balancerResponse) {
			if r.err == nil {
				r.snapshot, r.err = admin.Snapshot(ctx)
			}
		})
	}
	return responses
}

// mergeSnapshots merges snapshots into one that contains every replica once, from the balancer with its
// newest report.
func mergeSnapshots(snapshots []*telemetry.Snapshot) *telemetry.Snapshot {
	type report struct {
		region  service.Region
		replica telemetry.ReplicaSnapshot
	}
	best := map[string]report{}
	for _, s := range snapshots {
		for _, region := range s.Regions {
			for _, r := range region.Replicas {
				if old, seen := best[r.ID]; !seen || isPreferredReport(&r, &old.replica) {
					best[r.ID] = report{region.Name, r}
				}
			}
		}
	}
	out := &telemetry.Snapshot{Regions: mergeModels(snapshots)}
	for _, id := range slices.Sorted(maps.Keys(best)) {
		out.Regions = append(out.Regions, telemetry.RegionSnapshot{Name: best[id].region, Replicas: []telemetry.ReplicaSnapshot{best[id].replica}})
	}
	return out
}

// mergeModels returns the per-model counts of each region, sorted, from the snapshot with the newest
// reports of the region's balancers.
func mergeModels(snapshots []*telemetry.Snapshot) []telemetry.RegionSnapshot {
	best := map[service.Region]telemetry.RegionSnapshot{}
	for _, s := range snapshots {
		for _, r := range s.Regions {
			if old, seen := best[r.Name]; !seen || balancerReportAge(r) < balancerReportAge(old) {
				best[r.Name] = telemetry.RegionSnapshot{Name: r.Name, Balancers: r.Balancers, Models: r.Models}
			}
		}
	}
	var out []telemetry.RegionSnapshot
	for _, name := range slices.Sorted(maps.Keys(best)) {
		out = append(out, best[name])
	}
	return out
}

// balancerReportAge returns the age of the oldest report of a region's reachable balancers; the
// maximum where none is reachable.
func balancerReportAge(r telemetry.RegionSnapshot) time.Duration {
	oldest := time.Duration(-1)
	for _, b := range r.Balancers {
		if b.Responds() {
			oldest = max(oldest, time.Duration(b.AgeMillis)*time.Millisecond)
		}
	}
	if oldest < 0 {
		return math.MaxInt64
	}
	return oldest
}

// isPreferredReport reports whether a replica's report is to be used instead of another: the newer one. Balancers also
// list replicas that no balancer has, because the controller publishes them (telemetry.ReplicaSnapshot.IsAttached). The
// report of a balancer that has the replica takes precedence over such an entry.
func isPreferredReport(r, old *telemetry.ReplicaSnapshot) bool {
	if r.IsAttached() != old.IsAttached() {
		return r.IsAttached()
	}
	return replicaReportAge(*r) < replicaReportAge(*old)
}

// replicaReportAge returns the age of a replica's report; the maximum where there is none.
func replicaReportAge(r telemetry.ReplicaSnapshot) int64 {
	if r.AgeMillis == nil {
		return math.MaxInt64
	}
	return *r.AgeMillis
}

// History returns the points as the history that forecasts use. For a short time after the end of a minute, not all
// balancers have stored it. If one that has not does not respond, the minute's load would be too low: it and the running
// minute are then omitted. With one balancer no minute is omitted.
func (o *Observed) History(now time.Time) (*forecast.History, error) {
	settled := settledMinute(now)
	several := slices.ContainsFunc(o.Points, func(p telemetry.Point) bool { return p.Balancer != o.Points[0].Balancer })
	if !o.lacksUnstored || !several || settled == now.Unix()/60 {
		return demand.Traffic(o.Points)
	}
	stored := slices.DeleteFunc(slices.Clone(o.Points), func(p telemetry.Point) bool { return p.Minute >= settled })
	if len(stored) == 0 { // the service has just started
		stored = o.Points
	}
	return demand.Traffic(stored)
}

// addHistory reads the history, and adds notes about its gaps.
func (o *Observed) addHistory(ctx context.Context, admins []*telemetry.Client, sinceMinute int64) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	points, complete, failures := ReadHistory(ctx, admins, sinceMinute)
	o.Points, o.lacksUnstored = points, o.lacksUnstored || len(failures) > 0
	if complete {
		if failed := len(failures); failed > 0 {
			o.Notes = append(o.Notes, fmt.Sprintf("%d of %d balancers did not return their latest load: what they have not stored yet is missing", failed, len(admins)))
		}
		return
	}
	o.Notes = append(o.Notes, "the store does not respond: the history contains only the minutes that balancers have in memory")
	if failed := len(failures); failed > 0 {
		o.Notes = append(o.Notes, fmt.Sprintf("%d of %d balancers did not return their history", failed, len(admins)))
	}
}

// ReadHistory returns the points of a service from sinceMinute on, in minutes since the Unix epoch. They
// are complete if a balancer can read them from the store; otherwise they are collected from every
// balancer's memory. The points that balancers have not stored yet come from each of them. failures are the errors of
// the balancers whose own points may be missing.
func ReadHistory(ctx context.Context, admins []*telemetry.Client, sinceMinute int64) (points []telemetry.Point, complete bool, failures []error) {
	// First the unstored points: those that are stored after this are in the store when it is read.
	unstored, errs := readUnstored(ctx, admins, sinceMinute)
	for i, admin := range admins {
		some, fromStore, err := admin.History(ctx, sinceMinute)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		points = append(points, some...)
		if fromStore {
			complete = true
			errs[i] = nil // these points contain the balancer's own
			failures = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
			break
		}
	}
	return mergePoints(points, slices.Concat(unstored...)), complete, failures
}

// readUnstored reads from all balancers concurrently what they have not stored yet.
func readUnstored(ctx context.Context, admins []*telemetry.Client, sinceMinute int64) (points [][]telemetry.Point, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	points, errs = make([][]telemetry.Point, len(admins)), make([]error, len(admins))
	var wg sync.WaitGroup
	for i, admin := range admins {
		wg.Go(func() { points[i], errs[i] = admin.UnstoredPoints(ctx, sinceMinute) })
	}
	wg.Wait()
	return points, errs
}

// mergePoints returns points with newer ones, which replace those of the same balancer, minute, model and tier. Their order
// is not defined.
func mergePoints(points, newer []telemetry.Point) []telemetry.Point {
	type key struct {
		minute          int64
		balancer, model string
		tier            service.Tier
	}
	keyOf := func(p *telemetry.Point) key { return key{p.Minute, p.Balancer, p.Model, p.Tier} }
	latest := make(map[key]telemetry.Point, len(newer))
	for i := range newer {
		latest[keyOf(&newer[i])] = newer[i]
	}
	points = slices.DeleteFunc(points, func(p telemetry.Point) bool { _, replaced := latest[keyOf(&p)]; return replaced })
	return slices.AppendSeq(points, maps.Values(latest))
}

// backlogOf returns the backlog of the batches that have not ended. Every balancer reports all batches, except
// that a balancer reports none when it has just started.
func backlogOf(snapshots []*telemetry.Snapshot) []plan.Backlog {
	var all []plan.Backlog
	seen := map[string]bool{}
	for _, s := range snapshots {
		for i := range s.Batches {
			b := &s.Batches[i]
			for _, l := range b.Backlog {
				if !seen[b.ID] {
					all = append(all, plan.Backlog{Batch: b.ID, Model: l.Model, Tokens: l.InputTokens, Deadline: b.Deadline})
				}
			}
			seen[b.ID] = true
		}
	}
	return all
}
