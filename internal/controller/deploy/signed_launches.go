package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// purposeLaunches is the purpose for which controllers sign their record of launched balancers.
const purposeLaunches = "launches of balancers"

// signedDocuments is the DocumentStore of a controller's Enrolments: its one document is a record in the store, signed with
// the controller's certificate. Whoever can write to the store, such as a balancer, cannot insert a machine. It is
// used in one iteration.
type signedDocuments struct {
	ctx     context.Context
	party   identity.Party
	records controller.Records
}

// LoadValue implements DocumentStore. A record that no controller of the service signed is an error.
func (n signedDocuments) LoadValue(_ string, v any) error {
	var s identity.Signed
	found, err := n.records.Load(n.ctx, telemetry.BalancerLaunchesRecord, &s)
	if err != nil || !found || len(s.Text) == 0 {
		return err
	}
	text, err := n.party.OpenSigned(s, purposeLaunches, identity.Controller)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", controller.ErrDamagedRecord, err)
	}
	return nil
}

// StoreValue implements DocumentStore.
func (n signedDocuments) StoreValue(_ string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s, err := n.party.Sign(purposeLaunches, text)
	if err != nil {
		return err
	}
	return n.records.Store(n.ctx, telemetry.BalancerLaunchesRecord, s)
}

// AcceptSigned adds the launches that controllers recorded, as balancers report them. by verifies the signatures;
// a record that is not valid is ignored, since a balancer may be forged or outdated.
func (e *Enrolments) AcceptSigned(reported []*telemetry.BalancerLaunches, by identity.Party) {
	for _, r := range reported {
		if r == nil {
			continue
		}
		var launches []balancerLaunch
		if text, err := by.OpenSigned(identity.Signed(*r), purposeLaunches, identity.Controller); err == nil && json.Unmarshal(text, &launches) == nil {
			e.accept(launches)
		}
	}
}

// Store stores the launches of AcceptSigned that are not stored yet.
func (e *Enrolments) Store() error {
	e.mu.Lock()
	unsaved := e.unsaved
	e.mu.Unlock()
	if !unsaved {
		return nil
	}
	return e.rewrite()
}

// rewrite stores the record again.
func (e *Enrolments) rewrite() error {
	return e.update(func(all []balancerLaunch) []balancerLaunch { return all })
}

// ReadBalancerLaunches reads the launches that controllers recorded from all balancers that respond.
func (dl *Delivery) ReadBalancerLaunches(ctx context.Context) []*telemetry.BalancerLaunches {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var wg sync.WaitGroup
	all := make([]*telemetry.BalancerLaunches, len(dl.Machines))
	for i, o := range dl.Machines {
		if o.Kind != provision.KindBalancer || o.TerminatedReason != "" || !Reachable(o) {
			continue
		}
		wg.Go(func() {
			if s, err := dl.Snapshot(ctx, o); err == nil {
				all[i] = s.BalancerLaunches
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(all, func(l *telemetry.BalancerLaunches) bool { return l == nil })
}

// relaunchBackoff is the time between two attempts of a launch whose result is unknown, or that was refused. A
// minute is enough for the lists of clouds to contain a machine whose launch was not confirmed.
var relaunchBackoff = provision.BackoffPolicy{First: unlistedAfterLaunch, Max: 30 * time.Minute}

// recentLaunches is the time over which replacements of one balancer count: one that is lost again and again has a
// cause that an operator must find.
const recentLaunches = 4 * time.Hour

// nextLaunch returns when this process may next launch a machine of an ID. listed is true where its cloud lists the
// last one as ended: a machine may be missing in lists for a while after its launch.
func (e *Enrolments) nextLaunch(id string, listed bool) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	var last balancerLaunch
	recent := 0
	for _, l := range e.launches {
		if l.ID == id && !l.At.IsZero() {
			last = l
		}
	}
	if last.At.IsZero() {
		return time.Time{}
	}
	if last.Handle == "" {
		return last.At.Add(relaunchBackoff.Delay(last.Tries, id))
	}
	for _, l := range e.launches {
		if l.ID == id && last.At.Sub(l.At) < recentLaunches {
			recent++
		}
	}
	next := last.At.Add(provision.FailureBackoff.Delay(recent, id))
	if earliest := last.At.Add(provision.ListingDelay); !listed && next.Before(earliest) {
		next = earliest
	}
	return next
}

// useEnrolments prepares, for one iteration, the record of the balancers that controllers launched. In services in
// which controllers launch no balancers, there is none.
func (rc *Reconciler) useEnrolments(ctx context.Context, bs *bundleState) error {
	if !cloud.ReplacesBalancers(bs.content.Spec) {
		rc.enrolments, bs.content.Launched = nil, nil
		bs.deployer.Enrolments, bs.delivery.Enrolments = nil, nil
		return nil
	}
	revoked, err := rc.revoked(bs.delivery.Party.Root)
	if err != nil {
		return err
	}
	party := bs.delivery.Party
	party.Revoked, party.Now = revoked.Has, rc.Now
	documents := signedDocuments{ctx, party, rc.storeRecords}
	if rc.enrolments == nil {
		e := &Enrolments{documents: documents}
		if err := rc.loadEnrolments(e); err != nil {
			return err
		}
		rc.enrolments = e
	}
	e := rc.enrolments
	e.documents, e.LabelKey, e.enrolled = documents, bs.content.PeerToken, bs.content.Enrolled
	bs.deployer.Enrolments, bs.delivery.Enrolments = e, e
	bs.content.Launched = e.Handles()
	return nil
}

// loadEnrolments loads the record. One that is not valid, such as one of a revoked controller, is replaced: the next
// `up` recognises its machines by their certificates.
func (rc *Reconciler) loadEnrolments(e *Enrolments) error {
	err := e.documents.LoadValue(documentEnrolments, &e.launches)
	if errors.Is(err, controller.ErrDamagedRecord) {
		rc.log().Warn("the record of launched balancers is not valid; it starts empty", "err", err)
		e.launches, err = nil, nil
	}
	return err
}

// recordLaunched records the machines of launches whose result this controller, or an earlier one, did not receive.
func (rc *Reconciler) recordLaunched(bs *bundleState, have []provision.Object) error {
	if rc.enrolments == nil {
		return nil
	}
	_, known := rc.enrolments.ClassifyMachines(have, func(provision.Object) bool { return false })
	if len(known) == 0 {
		return nil
	}
	err := rc.enrolments.RecordKnown(known)
	bs.content.Launched = rc.enrolments.Handles()
	return err
}
