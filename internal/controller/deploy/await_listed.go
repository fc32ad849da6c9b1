package deploy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"skyserve/provision"
)

// minLocateInterval and maxLocateInterval are the initial and maximum polling intervals for objects that are
// not ready yet: a machine gets its address within a few seconds.
const (
	minLocateInterval = 250 * time.Millisecond
	maxLocateInterval = 2 * time.Second
)

// AwaitListed returns the objects of a service once the cloud lists every desired machine of p (or,
// with Only, every launched one) with its addresses, and no machine that p removed: lists of clouds
// are eventually consistent. When ctx ends first, the error contains one machine that is not listed
// as expected.
func (f *Deployer) AwaitListed(ctx context.Context, p *Plan) ([]provision.Object, error) {
	for wait := minLocateInterval; ; wait = min(maxLocateInterval, 2*wait) {
		have, err := f.listObjects(ctx)
		if err != nil {
			return nil, err
		}
		id := f.unlocated(p, have)
		if id == "" {
			return have, nil
		}
		if !sleep(ctx, wait) {
			return nil, fmt.Errorf("waiting for the cloud to list the current state of %s: %w", id, context.Cause(ctx))
		}
	}
}

// unlocated returns the ID of a machine that is not listed as expected; empty = all are.
func (f *Deployer) unlocated(p *Plan, have []provision.Object) string {
	for _, o := range have {
		if o.Offering == nil || o.TerminatedReason != "" {
			continue
		}
		removed := slices.ContainsFunc(p.Changes, func(c provision.Change) bool {
			return (c.Action == provision.ActionReplace || c.Action == provision.ActionTerminate) && c.Observed.Handle == o.Handle
		})
		if removed || !o.PrivateIP.IsValid() || o.Kind == provision.KindBalancer && !o.PublicIP.IsValid() {
			return o.ID
		}
	}
	for _, w := range p.Wants {
		launched := slices.ContainsFunc(p.Changes, func(c provision.Change) bool { return c.Desired.ID == w.ID })
		listed := slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == w.ID && o.TerminatedReason == "" })
		if w.Machine != nil && !listed && (f.Only == nil || launched) {
			return w.ID
		}
	}
	return ""
}
