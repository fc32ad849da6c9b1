package dns

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"

	"skyserve/provision"
)

// The settings of Route 53's health checks. Clients of a failed region must be served by another region
// within a minute. A check fails after half a minute (three checks at ten seconds); the other half is the
// TTL.
const (
	checkInterval  = 10
	checkThreshold = 3
)

// day is the unit of the day number in references, in seconds.
const day = 24 * 60 * 60

// The call that creates a health check cannot tag it. So the caller reference of this call identifies the
// owner:
//
//   skyserve-NAME-CHECK-DAY-N
//
// NAME is a hash of the name, its service and its owner. CHECK is a hash of the check's target. A repeated
// call with the same reference creates nothing twice. A reference cannot be used again after its check was
// deleted; then N increases. DAY keeps N small.

// referencePrefix returns the reference prefix of all health checks of a name.
func referencePrefix(n provision.PublicName) string {
	return notePrefix + "-" + digest(n.Zone, fmt.Sprint(n.Private), n.Name, n.Service, n.Owner) + "-"
}

// digest returns 64 bits of a hash of words.
func digest(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// isCheckable reports whether Route 53 can check a record. Route 53 can check public addresses only.
func isCheckable(r provision.DNSRecord) bool {
	a := r.Address.Unmap()
	return r.Check != "" && a.IsGlobalUnicast() && !a.IsPrivate() && !sharedSpace.Contains(a)
}

// sharedSpace is the address space of carrier-grade NAT (RFC 6598).
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// checkConfig returns the health check of a record.
func checkConfig(n provision.PublicName, r provision.DNSRecord) (*types.HealthCheckConfig, error) {
	u, err := url.Parse(r.Check)
	if err != nil {
		return nil, fmt.Errorf("parsing the health check URL of %s: %w", r.ID, err)
	}
	c := &types.HealthCheckConfig{
		Type: types.HealthCheckTypeHttp, IPAddress: aws.String(r.Address.Unmap().String()), Port: aws.Int32(80),
		ResourcePath: aws.String(cmp.Or(u.EscapedPath(), "/")), FullyQualifiedDomainName: aws.String(n.Name),
		RequestInterval: aws.Int32(checkInterval), FailureThreshold: aws.Int32(checkThreshold),
		Inverted: aws.Bool(false), Disabled: aws.Bool(false), EnableSNI: aws.Bool(false),
	}
	if u.Scheme == "https" {
		c.Type, c.Port, c.EnableSNI = types.HealthCheckTypeHttps, aws.Int32(443), aws.Bool(true)
	}
	if u.Port() != "" {
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return nil, fmt.Errorf("parsing the health check URL of %s: port: %w", r.ID, err)
		}
		c.Port = aws.Int32(int32(port))
	}
	return c, nil
}

// sameCheck reports whether two health checks have the same target and settings.
func sameCheck(a, b *types.HealthCheckConfig) bool {
	text := func(c *types.HealthCheckConfig) string {
		return fmt.Sprintln(c.Type, aws.ToString(c.IPAddress), aws.ToInt32(c.Port), aws.ToString(c.ResourcePath), aws.ToString(c.FullyQualifiedDomainName),
			aws.ToInt32(c.RequestInterval), aws.ToInt32(c.FailureThreshold), aws.ToBool(c.Inverted), aws.ToBool(c.Disabled), aws.ToBool(c.EnableSNI))
	}
	return text(a) == text(b)
}

// ensureChecks creates the health checks of a name, and returns their ids by record.
func (z *Route53) ensureChecks(ctx context.Context, n provision.PublicName) (map[string]string, error) {
	ids := map[string]string{}
	if !slices.ContainsFunc(n.Records, isCheckable) {
		return ids, nil
	}
	have, err := z.listChecks(ctx, n)
	if err != nil {
		return nil, err
	}
	for _, r := range n.Records {
		if !isCheckable(r) {
			continue
		}
		if ids[r.ID], err = z.ensureCheck(ctx, n, r, have); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// ensureCheck finds the health check of a record among those of its name, or creates it. Then it repairs and
// tags the check. Lists are eventually consistent: a listed check may already have been deleted.
func (z *Route53) ensureCheck(ctx context.Context, n provision.PublicName, r provision.DNSRecord, have []types.HealthCheck) (string, error) {
	config, err := checkConfig(n, r)
	if err != nil {
		return "", err
	}
	ref := referencePrefix(n) + digest(r.ID, string(config.Type), *config.IPAddress, fmt.Sprint(*config.Port), *config.ResourcePath) + "-"
	for _, h := range have {
		if !strings.HasPrefix(aws.ToString(h.CallerReference), ref) {
			continue
		}
		id := aws.ToString(h.Id)
		err := z.repairCheck(ctx, n, r, id, h.HealthCheckConfig, config)
		if deleted := (*types.NoSuchHealthCheck)(nil); !errors.As(err, &deleted) {
			return id, err
		}
	}
	created, err := z.createCheck(ctx, ref, config)
	if err != nil {
		return "", wrapError(err, "CreateHealthCheck", "creating the health check of %s", r.ID)
	}
	return aws.ToString(created.Id), z.repairCheck(ctx, n, r, aws.ToString(created.Id), created.HealthCheckConfig, config)
}

// createCheck creates a health check with the first unused reference of today.
func (z *Route53) createCheck(ctx context.Context, ref string, config *types.HealthCheckConfig) (*types.HealthCheck, error) {
	today := z.now().Unix() / day
	for n := 0; ; n++ {
		out, err := z.api.CreateHealthCheck(ctx, &route53.CreateHealthCheckInput{
			CallerReference: aws.String(fmt.Sprintf("%s%d-%d", ref, today, n)), HealthCheckConfig: config,
		})
		if used := (*types.HealthCheckAlreadyExists)(nil); errors.As(err, &used) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return out.HealthCheck, nil
	}
}

// repairCheck restores the settings of a health check that was changed by hand, and tags it.
func (z *Route53) repairCheck(ctx context.Context, n provision.PublicName, r provision.DNSRecord, id string, have, want *types.HealthCheckConfig) error {
	if !sameCheck(have, want) {
		_, err := z.api.UpdateHealthCheck(ctx, &route53.UpdateHealthCheckInput{
			HealthCheckId: aws.String(id), IPAddress: want.IPAddress, Port: want.Port, ResourcePath: want.ResourcePath,
			FullyQualifiedDomainName: want.FullyQualifiedDomainName, FailureThreshold: want.FailureThreshold,
			Inverted: want.Inverted, Disabled: want.Disabled, EnableSNI: want.EnableSNI,
		})
		if err != nil {
			return wrapError(err, "UpdateHealthCheck", "updating the health check of %s", r.ID)
		}
	}
	tagged, err := z.api.ListTagsForResource(ctx, &route53.ListTagsForResourceInput{
		ResourceType: types.TagResourceTypeHealthcheck, ResourceId: aws.String(id),
	})
	if err != nil {
		return wrapError(err, "ListTagsForResource", "reading the tags of the health check of %s", r.ID)
	}
	var missing []types.Tag
	for _, t := range tagsOf(n, r) {
		if !slices.ContainsFunc(tagged.ResourceTagSet.Tags, func(o types.Tag) bool { return *o.Key == *t.Key && *o.Value == *t.Value }) {
			missing = append(missing, t)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, err = z.api.ChangeTagsForResource(ctx, &route53.ChangeTagsForResourceInput{
		ResourceType: types.TagResourceTypeHealthcheck, ResourceId: aws.String(id), AddTags: missing,
	})
	if err != nil {
		return wrapError(err, "ChangeTagsForResource", "tagging the health check of %s", r.ID)
	}
	return nil
}

// tagsOf returns the tags of a record's health check; the console displays Name.
func tagsOf(n provision.PublicName, r provision.DNSRecord) []types.Tag {
	var tags []types.Tag
	for _, t := range [][2]string{
		{"Name", n.Name + " " + r.ID},
		{"skyserve:service", n.Service},
		{"skyserve:owner", n.Owner},
		{"skyserve:id", r.ID},
		{"skyserve:dns", n.Name},
	} {
		tags = append(tags, types.Tag{Key: aws.String(t[0]), Value: aws.String(t[1])})
	}
	return tags
}

// listChecks lists the health checks of a name, sorted by id.
func (z *Route53) listChecks(ctx context.Context, n provision.PublicName) ([]types.HealthCheck, error) {
	var found []types.HealthCheck
	pages := route53.NewListHealthChecksPaginator(z.api, &route53.ListHealthChecksInput{})
	for pages.HasMorePages() {
		out, err := pages.NextPage(ctx)
		if err != nil {
			return nil, wrapError(err, "ListHealthChecks", "listing the health checks of %s", n.Name)
		}
		for _, h := range out.HealthChecks {
			if strings.HasPrefix(aws.ToString(h.CallerReference), referencePrefix(n)) {
				found = append(found, h)
			}
		}
	}
	slices.SortFunc(found, func(a, b types.HealthCheck) int { return cmp.Compare(*a.Id, *b.Id) })
	return found, nil
}

// checkIDs returns the ids of the health checks of a name's records.
func checkIDs(s recordSets) []string {
	var ids []string
	for _, t := range s.targets {
		if id := aws.ToString(t.HealthCheckId); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// removeChecks deletes the health checks of a name, and the checks with the ids in earlier, except the ids
// in used (by record id).
func (z *Route53) removeChecks(ctx context.Context, n provision.PublicName, earlier []string, used map[string]string) error {
	listed, err := z.listChecks(ctx, n)
	if err != nil {
		return err
	}
	for _, h := range listed {
		earlier = append(earlier, *h.Id)
	}
	slices.Sort(earlier)
	keep := slices.Collect(maps.Values(used))
	for _, id := range slices.Compact(earlier) {
		if slices.Contains(keep, id) {
			continue
		}
		_, err := z.api.DeleteHealthCheck(ctx, &route53.DeleteHealthCheckInput{HealthCheckId: aws.String(id)})
		if deleted := (*types.NoSuchHealthCheck)(nil); err != nil && !errors.As(err, &deleted) {
			return wrapError(err, "DeleteHealthCheck", "deleting a health check of %s", n.Name)
		}
	}
	return nil
}
