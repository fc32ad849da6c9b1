package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// moveRetry is the time between two attempts to change records: Route 53 limits the calls of an AWS account to five a
// second.
const moveRetry = time.Minute

// errNoRecordUpdater means that no machine of the service has an identity that could change the records.
var errNoRecordUpdater = errors.New("no machine of the service has an identity at AWS that may change DNS records")

// movedRecords contains the changes that this leader made to the records of the public name.
type movedRecords struct {
	addresses map[string]netip.Addr // of the balancers whose records were moved, by ID
	failure   error                 // of the last attempt; nil = it succeeded, or there was none
	retryAt   time.Time
}

// contains reports whether the records contain the address of a balancer.
func (m movedRecords) contains(o provision.Object) bool {
	at, ok := m.addresses[o.ID]
	return ok && at == o.PublicIP
}

// reason returns why records were not moved, for an alert.
func (m movedRecords) reason() string {
	if m.failure == nil {
		return ""
	}
	return ": " + m.failure.Error()
}

// moveRecords gives the records of the public name the addresses of balancers that controllers replaced after the last
// `up`, once a term. Every other change of the name waits for `up`.
func (rc *Reconciler) moveRecords(ctx context.Context, bs *bundleState, checkLeadership func() error) error {
	if bs.content.Spec.DNS == nil {
		return nil
	}
	due := slices.DeleteFunc(slices.Clone(bs.delivery.Machines), func(o provision.Object) bool {
		return o.Kind != provision.KindBalancer || !bs.content.isReplaced(o) || !o.PublicIP.IsValid() || rc.moved.contains(o)
	})
	switch {
	case len(due) == 0:
		rc.moved.failure = nil
		return nil
	case bs.recordUpdater == nil || !cloud.UpdatesRecords(bs.content.Spec):
		rc.moved.failure = errNoRecordUpdater
		return nil
	case rc.now().Before(rc.moved.retryAt):
		return rc.moved.failure
	}
	if err := checkLeadership(); err != nil {
		return err
	}
	n := PublicName(bs.content.Spec, bs.deployer.Owner, due)
	err := bs.recordUpdater.UpdateRecords(ctx, bs.content.Zone.ID, n)
	if rc.moved.failure = err; err != nil {
		rc.moved.retryAt = rc.now().Add(moveRetry)
		rc.moved.failure = fmt.Errorf("moving records of %s: %w; 'skyserve up' moves them", n.Name, err)
		return rc.moved.failure
	}
	if rc.moved.addresses == nil {
		rc.moved.addresses = map[string]netip.Addr{}
	}
	for _, o := range due {
		rc.moved.addresses[o.ID] = o.PublicIP
		rc.log().Info("DNS record moved", "name", n.Name, "id", o.ID, "address", o.PublicIP)
	}
	return nil
}
