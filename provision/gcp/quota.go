package gcp

import (
	"context"
	"slices"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/provision"
)

// metric is a quota that launches count against.
type metric struct{ code, name, unit string }

// metrics returns the quotas that launches of the catalogue's machines count against. It omits the
// on-demand GPU quotas by GPU family, which Compute Engine does not report.
func metrics() []metric {
	var all []metric
	for _, g := range catalogue.GPUs() {
		if g.Quota != "" {
			all = append(all, metric{g.Quota, g.Name + " on demand", "gpus"})
		}
		if g.SpotQuota != "" {
			all = append(all, metric{g.SpotQuota, g.Name + " spot", "gpus"})
		}
	}
	return append(all, otherMetrics...)
}

// readProject reads the project.
func (p *Provider) readProject(ctx context.Context) (*computepb.Project, error) {
	client, project, err := newClient(ctx, p, compute.NewProjectsRESTClient)
	if err != nil {
		return nil, wrapError(err, "reading the project")
	}
	found, err := client.Get(ctx, &computepb.GetProjectRequest{Project: project})
	if err != nil {
		return nil, wrapError(err, "reading project %s", project)
	}
	return found, nil
}

// Quotas returns the project's quotas that replicas and balancers count against, in a region and in all
// regions together. It omits quotas that the project does not have.
func (p *Provider) Quotas(ctx context.Context, region service.Region) ([]provision.Quota, error) {
	here, err := p.readRegion(ctx, region.ShortName())
	if err != nil {
		return nil, err
	}
	project, err := p.readProject(ctx)
	if err != nil {
		return nil, err
	}
	return append(quotasOf(region, here.GetQuotas()), quotasOf(regionID(""), project.GetQuotas())...), nil
}

// effectiveQuotas replaces the quotas for spot GPUs, and for local SSDs of spot machines, whose limit is 0 by the
// on-demand quotas. A project without such a quota has a limit of 0, and its spot machines count against the
// on-demand quota.
func effectiveQuotas(all []*computepb.Quota) []*computepb.Quota {
	at := func(code string) int {
		return slices.IndexFunc(all, func(q *computepb.Quota) bool { return q.GetMetric() == code })
	}
	all = slices.Clone(all)
	for i, q := range all {
		onDemand, spot := strings.CutPrefix(q.GetMetric(), spotQuotaPrefix)
		if q.GetMetric() == spotLocalSSDQuota {
			onDemand = localSSDQuota
		}
		if j := at(onDemand); spot && q.GetLimit() == 0 && j >= 0 {
			all[i] = &computepb.Quota{Metric: q.Metric, Limit: all[j].Limit, Usage: all[j].Usage}
		}
	}
	return all
}

// quotasOf returns the quotas that launches count against.
func quotasOf(region service.Region, all []*computepb.Quota) []provision.Quota {
	var quotas []provision.Quota
	for _, m := range metrics() {
		for _, q := range effectiveQuotas(all) {
			if q.GetMetric() == m.code {
				quotas = append(quotas, provision.Quota{
					Region: region, Name: m.name, Code: m.code, Unit: m.unit, Limit: q.GetLimit(), Used: q.GetUsage(),
				})
			}
		}
	}
	return quotas
}
