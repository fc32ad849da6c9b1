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

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// quotaTimeout bounds the requests for quotas: `up` continues without those that are unknown.
const quotaTimeout = 20 * time.Second

// quotaProvider is a provider that returns an account's quotas.
type quotaProvider interface {
	Quotas(ctx context.Context, region service.Region) ([]provision.Quota, error)
}

// quotasOf fetches the quotas of regions concurrently. unknown has the errors, by region.
func quotasOf(ctx context.Context, places provision.MultiCloud, regions []service.Region) (quotas []provision.Quota, unknown map[service.Region]error) {
	ctx, cancel := context.WithTimeoutCause(ctx, quotaTimeout, fmt.Errorf("no response within %s", quotaTimeout))
	defer cancel()
	found, errs := make([][]provision.Quota, len(regions)), make([]error, len(regions))
	var wg sync.WaitGroup
	for i, r := range regions {
		provider, ok := places[r.Cloud()].(quotaProvider)
		if !ok {
			errs[i] = fmt.Errorf("%s does not report quotas", r.Cloud())
			continue
		}
		wg.Go(func() { found[i], errs[i] = provider.Quotas(ctx, r) })
	}
	wg.Wait()
	unknown = map[service.Region]error{}
	for i, r := range regions {
		for _, q := range found[i] {
			if !slices.Contains(quotas, q) { // global quotas are returned with each region
				quotas = append(quotas, q)
			}
		}
		if errs[i] != nil {
			unknown[r] = errs[i]
		}
	}
	return quotas, unknown
}

// quotaView compares a plan's needs with the account's quotas.
type quotaView struct {
	needs   []cloud.QuotaNeed
	unknown map[service.Region]error
	// fits is set if the plan can be applied within the quotas, with fallbacks if necessary.
	fits bool
	// reservations are the checks of the reservations that the service names by id.
	reservations []provision.CheckResult
}

// checkQuotas fetches the quotas that a plan's launches count against. A plan without launches
// needs no request.
func checkQuotas(ctx context.Context, f *deploy.Deployer, places provision.MultiCloud, p *deploy.MachinePlan) (v quotaView, err error) {
	needs := cloud.QuotaNeedsOfChanges(p.Changes)
	if len(needs) == 0 || !cloud.UsesClouds(f.Spec) {
		return quotaView{fits: true}, nil
	}
	quotas, unknown := quotasOf(ctx, places, cloud.Regions(f.Spec))
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	v = quotaView{needs: cloud.CompareQuotas(needs, quotas), unknown: unknown, reservations: f.CheckReservations(p.Observed)}
	v.fits, err = f.FitsQuotas(p, quotas)
	return v, err
}

// exceeded returns the needs that exceed their quota.
func (v quotaView) exceeded() []cloud.QuotaNeed {
	return slices.DeleteFunc(slices.Clone(v.needs), func(n cloud.QuotaNeed) bool { return !n.Exceeded() })
}

// printQuotas prints each quota with the needed and the available amount, and how to request increases.
func (v quotaView) printQuotas(w io.Writer) {
	v.printReservations(w)
	if len(v.needs) == 0 {
		return
	}
	t := printable.NewTable(w)
	t.Rowf("  QUOTA\tREGION\tNEEDED\tAVAILABLE\tLIMIT")
	for _, n := range v.needs {
		t.Row(quotaRow(n)...)
	}
	_ = t.Flush() // w is a buffer or the screen: an error could not be reported
	for _, r := range slices.Sorted(maps.Keys(v.unknown)) {
		fmt.Fprintf(w, "  quotas of %s are unknown: %s\n", r, oneLine(v.unknown[r]))
	}
	for _, n := range v.exceeded() {
		fmt.Fprintf(w, "  to increase %s: %s\n", n.Code, n.IncreaseRequest())
	}
	switch {
	case !v.fits:
		fmt.Fprintln(w, "  some VMs exceed the quotas, and the service has no other GPU, capacity type or region to fall back to")
	case len(v.exceeded()) > 0:
		fmt.Fprintln(w, "  VMs over quota fall back to the service's other GPUs, capacity types or regions")
	}
}

// quotaRow returns the cells of one need.
func quotaRow(n cloud.QuotaNeed) []string {
	name, needs := n.Code, fmt.Sprintf("%g %s", n.Needs, n.Unit)
	if n.Limit == nil {
		return []string{"  " + name, string(n.Region), needs, "unknown", "unknown"}
	}
	available := fmt.Sprintf("%g", *n.Limit-*n.Used)
	if n.Exceeded() {
		available += ", too low"
	}
	return []string{fmt.Sprintf("  %s (%s)", n.Name, n.Code), string(n.Region), needs, available, fmt.Sprintf("%g", *n.Limit)}
}

// oneLine returns an error's message on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// errOverQuota is returned for a plan that the account's quotas do not allow.
var errOverQuota = errors.New("the plan needs more VMs than the account's quotas allow")

// checkFits returns an error for a plan that exceeds the quotas, or whose reservations cannot be used, unless the user can be prompted.
func (v quotaView) checkFits(in io.Reader, yes bool) error {
	if len(v.unusable()) > 0 && (yes || !canPrompt(in)) {
		return failed(errUnusableReservations, "correct or remove the entries in regions[].reserved; to use other capacity instead, run the command without --yes and confirm")
	}
	if v.fits || !yes && canPrompt(in) {
		return nil
	}
	return failed(errOverQuota, "request an increase as shown above, or reduce regions[].replicas; to try anyway, run the command without --yes and confirm")
}
