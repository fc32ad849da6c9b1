package dns

import (
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53"

	"skyserve/provision"
)

var _ provision.RecordUpdater = (*Route53)(nil)

// UpdateRecords implements provision.RecordUpdater. It changes the address of a record before the address of its health
// check. In between, Route 53 treats the record as failed, because the health check still has the old address: the
// old address is never served on account of a healthy new one.
func (z *Route53) UpdateRecords(ctx context.Context, zoneID string, n provision.PublicName) error {
	at := zone{id: zoneID, name: n.Zone, private: n.Private}
	have, err := z.readSets(ctx, at, n.Name)
	if err != nil {
		return err
	}
	if err := checkOwner(n, at, have); err != nil {
		return err
	}
	checks := map[string]string{}
	for _, t := range have.targets {
		checks[aws.ToString(t.SetIdentifier)] = aws.ToString(t.HealthCheckId)
	}
	moved, err := withMovedRecords(nameOf(n.Zone, n.Name, have), n.Records)
	if err != nil {
		return err
	}
	want, err := recordSetsOf(moved, zoneID, checks)
	if err != nil {
		return err
	}
	if changes := changeBatch(have, want); len(changes) > 0 {
		if _, err := z.submitChanges(ctx, n, at, changes); err != nil {
			return err
		}
	}
	for _, r := range n.Records {
		if checks[r.ID] == "" {
			continue
		}
		address := r.Address.Unmap().String()
		_, err := z.api.UpdateHealthCheck(ctx, &route53.UpdateHealthCheckInput{HealthCheckId: aws.String(checks[r.ID]), IPAddress: aws.String(address)})
		if err != nil {
			return wrapError(err, "UpdateHealthCheck", "changing the address of the health check of %s to %s", r.ID, address)
		}
	}
	return nil
}

// withMovedRecords returns an existing name with the addresses and health check URLs of records.
func withMovedRecords(n provision.PublicName, records []provision.DNSRecord) (provision.PublicName, error) {
	n.Records = slices.Clone(n.Records)
	for _, r := range records {
		i := slices.IndexFunc(n.Records, func(have provision.DNSRecord) bool {
			return have.ID == r.ID && typeOf(have.Address) == typeOf(r.Address)
		})
		if i < 0 {
			return n, fmt.Errorf("moving the record of %s to %s: %s has no %s record of %s", r.ID, r.Address, n.Name, typeOf(r.Address), r.ID)
		}
		n.Records[i].Address, n.Records[i].Check = r.Address, r.Check
	}
	return n, nil
}

// HealthChecks returns the ids of the health checks of a name's records, sorted; none for a name that does not exist or
// belongs to another service or owner.
func (z *Route53) HealthChecks(ctx context.Context, n provision.PublicName) ([]string, error) {
	zones, err := z.findZones(ctx, n.Zone, &n.Private)
	if err != nil {
		return nil, err
	}
	have, err := z.readSets(ctx, zones[0], n.Name)
	if err != nil || !isOwn(n, have) {
		return nil, err
	}
	ids := checkIDs(have)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
