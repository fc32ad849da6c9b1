package deploy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// replicatedFor is how long balancers must report a replicated store until it counts as replicated. Their reports may
// be outdated: for some seconds they still contain a leader that has stopped, and omit streams that lack a copy.
const replicatedFor = 10 * time.Second

// Reasons why the state of the store is unknown.
var (
	errNoSnapshot = errors.New("no balancer responds")
	errNoLeader   = errors.New("no controller leads")
)

// AwaitStore returns when the store of a service with several controllers is replicated: then the machine of any member may
// be replaced without loss of data. It returns at once for other services.
func (dl *Delivery) AwaitStore(ctx context.Context, controllers []string) error {
	if len(controllers) < 2 {
		return nil
	}
	var since time.Time // since when it is replicated
	for {
		state, err := dl.storeState(ctx)
		switch {
		case err == nil && state != nil && (state.External || state.Replicated):
			if since.IsZero() {
				since = time.Now()
			}
			if state.External || time.Since(since) >= replicatedFor {
				return nil
			}
		default:
			since = time.Time{}
		}
		if !sleep(ctx, shortPollInterval) {
			if err == nil {
				err = errors.New(state.Line())
			}
			return fmt.Errorf("waiting until the store is replicated: %w: %w", context.Cause(ctx), err)
		}
	}
}

// reportedStore returns the state of the store in a snapshot; nil = it contains none. It is unknown while no controller leads.
func reportedStore(s *telemetry.Snapshot) (*telemetry.StoreState, error) {
	if s.StoreOutdated() {
		return nil, errNoLeader
	}
	return s.Store, nil
}

// storeState returns the state of the store as the first balancer that responds reports it; nil = it reports none.
func (dl *Delivery) storeState(ctx context.Context) (*telemetry.StoreState, error) {
	failure := errNoSnapshot
	for _, o := range dl.Machines {
		if o.Kind != provision.KindBalancer || o.TerminatedReason != "" || !Reachable(o) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		s, err := dl.Snapshot(ctx, o)
		cancel()
		var state *telemetry.StoreState
		if err == nil {
			state, err = reportedStore(s)
		}
		if state != nil {
			return state, nil
		}
		if err != nil {
			failure = err
		}
	}
	return nil, failure
}
