package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"skyserve/provision"
)

// locateFirst and locateEvery are how soon clouds are asked again, at first and at most, for what they
// have not got ready: an address takes a machine up to some seconds.
const (
	locateFirst = 250 * time.Millisecond
	locateEvery = 2 * time.Second
)

// Located is what there is of a service once every machine that p wants, or launched where
// Only bounds it, is listed with its addresses, and none that p removed: lists of clouds
// lag behind. The error, when ctx ends first, names one that is not as it should be.
func (f *Fleet) Located(ctx context.Context, p *Plan) ([]provision.Object, error) {
	for wait := locateFirst; ; wait = min(locateEvery, 2*wait) {
		have, err := f.list(ctx)
		if err != nil {
			return nil, err
		}
		id := f.unlocated(p, have)
		if id == "" {
			return have, nil
		}
		if !pause(ctx, wait) {
			return nil, fmt.Errorf("waiting for %s: %w", id, context.Cause(ctx))
		}
	}
}

// unlocated is the id of a machine that is not listed as it should be; empty = all are.
func (f *Fleet) unlocated(p *Plan, have []provision.Object) string {
	for _, o := range have {
		if o.Offering == nil || o.Gone != "" {
			continue
		}
		removed := slices.ContainsFunc(p.Changes, func(c provision.Change) bool {
			return (c.Action == provision.ActionReplace || c.Action == provision.ActionTerminate) && c.Have.Handle == o.Handle
		})
		if removed || !o.PrivateIP.IsValid() || o.Kind == provision.KindBalancer && !o.PublicIP.IsValid() {
			return o.ID
		}
	}
	for _, w := range p.Wants {
		launched := slices.ContainsFunc(p.Changes, func(c provision.Change) bool { return c.Want.ID == w.ID })
		listed := slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == w.ID && o.Gone == "" })
		if w.Machine != nil && !listed && (f.Only == nil || launched) {
			return w.ID
		}
	}
	return ""
}
