package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// quotaTimeout bounds asking for quotas: `up` goes on without those that are not known.
const quotaTimeout = 20 * time.Second

// allotted is a provider that can be asked what an account may have.
type allotted interface {
	Quotas(ctx context.Context, region service.Region) ([]provision.Quota, error)
}

// quotasOf asks regions at once for their quotas, and says by region why some are not known.
func quotasOf(ctx context.Context, places provision.Places, regions []service.Region) (quotas []provision.Quota, unknown map[service.Region]error) {
	ctx, cancel := context.WithTimeoutCause(ctx, quotaTimeout, fmt.Errorf("no answer within %s", quotaTimeout))
	defer cancel()
	found, errs := make([][]provision.Quota, len(regions)), make([]error, len(regions))
	var wg sync.WaitGroup
	for i, r := range regions {
		provider, ok := places[r.Cloud()].(allotted)
		if !ok {
			errs[i] = fmt.Errorf("%s does not tell quotas", r.Cloud())
			continue
		}
		wg.Go(func() { found[i], errs[i] = provider.Quotas(ctx, r) })
	}
	wg.Wait()
	unknown = map[service.Region]error{}
	for i, r := range regions {
		for _, q := range found[i] {
			if !slices.Contains(quotas, q) { // one that holds everywhere comes with each region
				quotas = append(quotas, q)
			}
		}
		if errs[i] != nil {
			unknown[r] = errs[i]
		}
	}
	return quotas, unknown
}

// quotaView is what a plan needs of quotas.
type quotaView struct {
	needs   []cloud.QuotaNeed
	unknown map[service.Region]error
	// fits says whether the plan can be carried out within them, if need be otherwise
	// than it would be tried first.
	fits bool
}

// viewQuotas asks for the quotas that a plan's machines count against. Nothing is asked
// for where it launches none.
func viewQuotas(ctx context.Context, f *fleet.Fleet, places provision.Places, p *fleet.Plan) (v quotaView, err error) {
	needs := cloud.QuotaNeedsOf(p.Changes)
	if len(needs) == 0 || !cloud.Rents(f.Spec) {
		return quotaView{fits: true}, nil
	}
	quotas, unknown := quotasOf(ctx, places, cloud.Rented(f.Spec))
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	v = quotaView{needs: cloud.Against(needs, quotas), unknown: unknown}
	v.fits, err = f.Fits(p, quotas)
	return v, err
}

// exceeded are the needs that are known to be more than there is.
func (v quotaView) exceeded() []cloud.QuotaNeed {
	return slices.DeleteFunc(slices.Clone(v.needs), func(n cloud.QuotaNeed) bool { return !n.Exceeded() })
}

// print shows what is needed of each quota beside what is left of it, and how to ask
// for what is missing.
func (v quotaView) print(w io.Writer) {
	if len(v.needs) == 0 {
		return
	}
	t := printable.NewTable(w)
	t.Rowf("  QUOTA\tREGION\tNEEDS\tLEFT\tLIMIT")
	for _, n := range v.needs {
		t.Row(quotaRow(n)...)
	}
	_ = t.Flush() // into a buffer or onto a screen: there is nowhere else to say it
	for _, r := range slices.Sorted(maps.Keys(v.unknown)) {
		fmt.Fprintf(w, "  quotas of %s are not known: %s\n", r, oneLine(v.unknown[r]))
	}
	for _, n := range v.exceeded() {
		fmt.Fprintf(w, "  to have more of %s: %s\n", n.Code, n.Request())
	}
	switch {
	case !v.fits:
		fmt.Fprintln(w, "  some machines cannot be had: the service has no others, and no other regions, to turn to")
	case len(v.exceeded()) > 0:
		fmt.Fprintln(w, "  what is over quota is tried on other machines, or in other regions, of the service")
	}
}

// quotaRow is the cells of one need.
func quotaRow(n cloud.QuotaNeed) []string {
	name, needs := n.Code, fmt.Sprintf("%g %s", n.Needs, n.Unit)
	if n.Limit == nil {
		return []string{"  " + name, string(n.Region), needs, "unknown", "unknown"}
	}
	left := fmt.Sprintf("%g", *n.Limit-*n.Used)
	if n.Exceeded() {
		left += ", too little"
	}
	return []string{fmt.Sprintf("  %s (%s)", n.Name, n.Code), string(n.Region), needs, left, fmt.Sprintf("%g", *n.Limit)}
}

// oneLine is an error on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// errOverQuota is a plan that its account may not carry out.
var errOverQuota = errors.New("the plan needs more machines than the account's quotas leave")

// admit refuses a plan that cannot be carried out within the quotas, unless a person can
// be asked.
func (v quotaView) admit(in io.Reader, yes bool) error {
	if v.fits || !yes && canAsk(in) {
		return nil
	}
	return failed(errOverQuota, "ask the cloud for more as said above, or ask for less in regions[].replicas; 'skyserve up' without --yes asks whether to try all the same")
}
