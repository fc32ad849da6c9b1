package dns

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53"
)

// zonesShown is the maximum number of hosted zones in an error.
const zonesShown = 10

// zone is a hosted zone.
type zone struct {
	id      string
	name    string
	private bool
}

// String formats a zone for people.
func (z zone) String() string {
	kind := "public"
	if z.private {
		kind = "private"
	}
	return fmt.Sprintf("%s (%s, %s)", z.name, kind, z.id)
}

// findZones returns the hosted zones with a name, public zones first. If private is set, it returns the
// single zone of that kind, and several matches are an error. If there is no match, the error lists the
// hosted zones of the AWS account.
func (z *Route53) findZones(ctx context.Context, name string, private *bool) ([]zone, error) {
	if _, err := z.auth.Retrieve(ctx); err != nil && ctx.Err() == nil {
		return nil, noCredentials(err)
	}
	all, err := z.listZones(ctx, name)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(all, func(h zone) bool {
		return h.name != name || private != nil && h.private != *private
	})
	slices.SortStableFunc(found, func(a, b zone) int { return cmp.Compare(fmt.Sprint(a.private), fmt.Sprint(b.private)) })
	switch {
	case len(found) == 0:
		return nil, z.noZoneError(ctx, name, private)
	case private != nil && len(found) > 1:
		return nil, specError("finding the hosted zone %s: name must be unique in this AWS account, got %s and %s", name, found[0], found[1])
	}
	return found, nil
}

// listZones lists hosted zones by name, starting at the name from; starting at the first zone if from is
// empty.
func (z *Route53) listZones(ctx context.Context, from string) ([]zone, error) {
	in := &route53.ListHostedZonesByNameInput{}
	if from != "" {
		in.DNSName = fqdn(from)
	}
	out, err := z.api.ListHostedZonesByName(ctx, in)
	if err != nil {
		return nil, wrapError(err, "ListHostedZonesByName", "listing the hosted zones")
	}
	var zones []zone
	for _, h := range out.HostedZones {
		found := zone{id: strings.TrimPrefix(aws.ToString(h.Id), "/hostedzone/"), name: strings.TrimSuffix(aws.ToString(h.Name), ".")}
		found.private = h.Config != nil && h.Config.PrivateZone
		zones = append(zones, found)
	}
	return zones, nil
}

// noZoneError returns the error for a missing hosted zone, with the existing hosted zones of the AWS account.
func (z *Route53) noZoneError(ctx context.Context, name string, private *bool) error {
	kind := ""
	if private != nil {
		kind = map[bool]string{true: "private ", false: "public "}[*private]
	}
	all, err := z.listZones(ctx, "")
	if err != nil {
		return err
	}
	existing := "none"
	if len(all) > 0 {
		var words []string
		for _, h := range all[:min(len(all), zonesShown)] {
			words = append(words, h.String())
		}
		existing = strings.Join(words, ", ")
		if len(all) > zonesShown {
			existing += ", ..."
		}
	}
	return specError("finding the hosted zone %s: no %shosted zone of that name in this AWS account; existing hosted zones: %s", name, kind, existing)
}
