package dns

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"

	"skyserve/provision"
)

// Names returns all names of services in the hosted zones of a name, public and private, with their
// owners and without their records, sorted. Errors include *provision.CredentialsError, and
// *provision.SpecError if there is no such hosted zone.
func (z *Route53) Names(ctx context.Context, zone string) ([]provision.PublicName, error) {
	zones, err := z.findZones(ctx, zone, nil)
	if err != nil {
		return nil, err
	}
	var names []provision.PublicName
	for _, h := range zones {
		err := z.listSets(ctx, h, h.name, func(r types.ResourceRecordSet) bool {
			name, noted := strings.CutPrefix(strings.TrimSuffix(aws.ToString(r.Name), "."), noteLabel)
			if r.Type != types.RRTypeTxt || !noted {
				return true
			}
			if n := nameOf(zone, name, recordSets{note: &r}); n.Service != "" {
				names = append(names, provision.PublicName{Name: name, Zone: zone, Private: h.private, Service: n.Service, Owner: n.Owner, Routing: n.Routing})
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(names, func(a, b provision.PublicName) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Owner, b.Owner))
	})
	return names, nil
}
