package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// Observed is what a running service's balancers say of it.
type Observed struct {
	Spec   *service.Spec
	Counts []plan.Count
	// Points is the history, Notes what is wrong with it in words.
	Points []telemetry.Point
	Notes  []string
	// RTT is what the balancers measured between their regions.
	RTT map[plan.Pair]time.Duration
	// Snapshot has every replica once, as the balancer with the newest report of it
	// knows it; Silent is how many balancers did not answer.
	Snapshot *telemetry.Snapshot
	Silent   int
}

// ErrNoBalancerAnswers says that no balancer of a service can be reached: none listens, or
// the network is broken.
var ErrNoBalancerAnswers = errors.New("no balancer answers")

// Observe asks a service's balancers, by the base URLs of their admin APIs, for
// its service.yaml, its replicas and, unless history is false, its traffic since
// a minute. All are asked for replicas, for each knows its own region best. Of
// the rest the first that answers speaks for all, except that when the store is
// out of reach every one is asked for what it remembers. It fails with
// ErrNoBalancerAnswers when none can be reached, and when the service.yaml that they
// serve is not valid.
func Observe(ctx context.Context, admins []*telemetry.Client, sinceMinute int64, history bool) (*Observed, error) {
	if len(admins) == 0 {
		return nil, errors.New("observing the service: it has no balancer")
	}
	answers := askAll(ctx, admins)
	o := &Observed{}
	var snapshots []*telemetry.Snapshot
	var live []*telemetry.Client
	var failures []error
	for i, a := range answers {
		if o.Spec == nil {
			o.Spec = a.spec
		}
		if a.err != nil {
			failures = append(failures, a.err)
			continue
		}
		snapshots, live = append(snapshots, a.snapshot), append(live, admins[i])
	}
	if len(live) == 0 {
		err := errors.Join(failures...)
		if !slices.ContainsFunc(failures, func(err error) bool { return !isUnreachable(err) }) {
			err = fmt.Errorf("%w: %w", ErrNoBalancerAnswers, err)
		}
		return nil, fmt.Errorf("observing the service: %w", err)
	}
	if len(failures) > 0 {
		o.Notes = append(o.Notes, fmt.Sprintf("%d of %d balancers do not answer: their replicas are counted as the others last heard", len(failures), len(admins)))
	}
	o.Snapshot, o.Silent = freshest(snapshots), len(failures)
	o.Counts = CountReplicas(o.Snapshot)
	o.RTT = roundTrips(snapshots)
	if history {
		o.read(ctx, live, sinceMinute)
	}
	return o, nil
}

// isUnreachable says whether a request got no answer at all.
func isUnreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}

// answer is what one balancer says of its service.
type answer struct {
	spec     *service.Spec // nil where it did not say
	snapshot *telemetry.Snapshot
	err      error
}

// askAll asks all balancers at once, so that one that hangs holds up no other, and nobody for
// longer than observeTimeout.
func askAll(ctx context.Context, admins []*telemetry.Client) []answer {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	answers := make([]answer, len(admins))
	var wg sync.WaitGroup
	for i, admin := range admins {
		wg.Go(func() {
			a := &answers[i]
			if a.spec, a.err = askService(ctx, admin); a.err == nil {
				a.snapshot, a.err = admin.Snapshot(ctx)
			}
		})
	}
	wg.Wait()
	return answers
}

// askService is the service as a balancer was told of it.
func askService(ctx context.Context, c *telemetry.Client) (*service.Spec, error) {
	text, err := c.Service(ctx)
	if err != nil {
		return nil, err
	}
	return service.ParseDeployed("service.yaml of "+c.Base(), text)
}

// freshest joins snapshots into one that holds every replica once, as the
// balancer with the newest report of it knows it.
func freshest(snapshots []*telemetry.Snapshot) *telemetry.Snapshot {
	type sighting struct {
		region  service.Region
		replica telemetry.ReplicaSnapshot
	}
	best := map[string]sighting{}
	for _, s := range snapshots {
		for _, region := range s.Regions {
			for _, r := range region.Replicas {
				if old, seen := best[r.ID]; !seen || age(r) < age(old.replica) {
					best[r.ID] = sighting{region.Name, r}
				}
			}
		}
	}
	out := &telemetry.Snapshot{Regions: models(snapshots)}
	for _, id := range slices.Sorted(maps.Keys(best)) {
		out.Regions = append(out.Regions, telemetry.RegionSnapshot{Name: best[id].region, Replicas: []telemetry.ReplicaSnapshot{best[id].replica}})
	}
	return out
}

// models are what is counted by model in each region, sorted, as the snapshot knows it
// that heard of the region's balancers last.
func models(snapshots []*telemetry.Snapshot) []telemetry.RegionSnapshot {
	best := map[service.Region]telemetry.RegionSnapshot{}
	for _, s := range snapshots {
		for _, r := range s.Regions {
			if old, seen := best[r.Name]; !seen || heard(r) < heard(old) {
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

// heard is how old the oldest figures are of a region's balancers that can be
// reached; where there is none, there are none.
func heard(r telemetry.RegionSnapshot) time.Duration {
	oldest := time.Duration(-1)
	for _, b := range r.Balancers {
		if b.State != telemetry.BalancerUnreachable {
			oldest = max(oldest, time.Duration(b.AgeMillis)*time.Millisecond)
		}
	}
	if oldest < 0 {
		return math.MaxInt64
	}
	return oldest
}

// age is how old a replica's report is; one that never came is the oldest.
func age(r telemetry.ReplicaSnapshot) int64 {
	if r.AgeMillis == nil {
		return math.MaxInt64
	}
	return *r.AgeMillis
}

// read collects the history, and notes what may be missing of it.
func (o *Observed) read(ctx context.Context, admins []*telemetry.Client, sinceMinute int64) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	points, complete, failures := History(ctx, admins, sinceMinute)
	o.Points = points
	if complete {
		return
	}
	o.Notes = append(o.Notes, "the store is out of reach: the history is what the balancers remember")
	if silent := len(failures); silent > 0 {
		o.Notes = append(o.Notes, fmt.Sprintf("%d of %d balancers did not answer with their history", silent, len(admins)))
	}
}

// History collects what a service's balancers carried since a minute (since the Unix
// epoch): complete, of the store, through the first that reaches it, else of every
// balancer's memory. failures are of those that did not answer.
func History(ctx context.Context, admins []*telemetry.Client, sinceMinute int64) (points []telemetry.Point, complete bool, failures []error) {
	for _, admin := range admins {
		some, complete, err := admin.History(ctx, sinceMinute)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if complete {
			return some, true, failures
		}
		points = append(points, some...)
	}
	return points, false, failures
}
