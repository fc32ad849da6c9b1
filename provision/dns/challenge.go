package dns

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"

	"skyserve/provision"
)

// underChallenge is the first label of the record of a dns-01 challenge (RFC 8555, section 8.4).
const underChallenge = "_acme-challenge."

// ZoneID returns Route 53's id of the hosted zone of a name. Errors include *provision.CredentialsError, and
// *provision.SpecError if the AWS account has no such hosted zone, or several.
func (z *Route53) ZoneID(ctx context.Context, name string, private bool) (string, error) {
	zones, err := z.findZones(ctx, name, &private)
	if err != nil {
		return "", err
	}
	return zones[0].id, nil
}

// Challenges writes dns-01 challenge records into one hosted zone. If the zone's id is configured, it
// requires one permission, route53:ChangeResourceRecordSets. Otherwise it searches for the zone.
type Challenges struct {
	api     *Route53
	name    string
	private bool

	mu sync.Mutex
	id string // empty until the hosted zone is found
}

// Challenges returns a writer of records in the hosted zone of a name; id is Route 53's id of the hosted
// zone, empty = search for it.
func (z *Route53) Challenges(name, id string, private bool) *Challenges {
	return &Challenges{api: z, name: name, private: private, id: id}
}

// zoneID returns the zone's id.
func (c *Challenges) zoneID(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id != "" {
		return c.id, nil
	}
	var err error
	c.id, err = c.api.ZoneID(ctx, c.name, c.private)
	return c.id, err
}

// SetTXT sets the single value of a name and replaces earlier ones. Errors include
// *provision.CredentialsError.
func (c *Challenges) SetTXT(ctx context.Context, name, value string, ttl time.Duration) error {
	return c.change(ctx, types.ChangeActionUpsert, name, value, ttl)
}

// RemoveTXT removes a record of SetTXT; a missing record, or another value, is not an error.
func (c *Challenges) RemoveTXT(ctx context.Context, name, value string, ttl time.Duration) error {
	err := c.change(ctx, types.ChangeActionDelete, name, value, ttl)
	var absent *types.InvalidChangeBatch
	if errors.As(err, &absent) {
		return nil
	}
	return err
}

func (c *Challenges) change(ctx context.Context, action types.ChangeAction, name, value string, ttl time.Duration) error {
	id, err := c.zoneID(ctx)
	if err != nil {
		return err
	}
	set := types.ResourceRecordSet{
		Name: fqdn(strings.ToLower(name)), Type: types.RRTypeTxt, TTL: aws.Int64(int64(ttl / time.Second)),
		ResourceRecords: []types.ResourceRecord{{Value: aws.String(`"` + value + `"`)}},
	}
	_, err = c.api.api.ChangeResourceRecordSets(ctx, &route53.ChangeResourceRecordSetsInput{
		HostedZoneId: aws.String(id),
		ChangeBatch:  &types.ChangeBatch{Changes: []types.Change{{Action: action, ResourceRecordSet: &set}}, Comment: aws.String("skyserve: dns-01 challenge for " + name)},
	})
	if err != nil {
		return wrapError(err, "ChangeResourceRecordSets", "writing the DNS record %s in hosted zone %s (%s)", name, c.name, id)
	}
	return nil
}

// removeChallenge removes the remaining challenge record of a terminated balancer below a name.
func (z *Route53) removeChallenge(ctx context.Context, n provision.PublicName, zone zone) error {
	at := *fqdn(underChallenge + n.Name)
	var remaining *types.ResourceRecordSet
	err := z.listSets(ctx, zone, underChallenge+n.Name, func(r types.ResourceRecordSet) bool {
		if aws.ToString(r.Name) == at && r.Type == types.RRTypeTxt {
			remaining = &r
		}
		return aws.ToString(r.Name) == at
	})
	if err != nil || remaining == nil {
		return err
	}
	err = z.applyChanges(ctx, n, zone, []types.Change{{Action: types.ChangeActionDelete, ResourceRecordSet: remaining}})
	if isConflict(err) {
		return nil // the balancer itself has removed the record
	}
	return err
}
