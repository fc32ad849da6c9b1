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

// How Route 53 looks at a balancer: in failing within half a minute (three checks
// of ten seconds) lies half of the minute after which clients of a dead region are
// served elsewhere; the other half is the TTL.
const (
	checkInterval  = 10
	checkThreshold = 3
)

// day is what the numbering of references counts in.
const day = 24 * 60 * 60

// A health check cannot be tagged by the call that makes it, so what it belongs to
// stands in the reference that this call must give:
//
//	skyserve-NAME-CHECK-DAY-N
//
// NAME is a hash of the name, its service and its owner, CHECK of what is checked.
// Asking again with the same reference makes nothing twice. A reference is never
// usable again once its check was deleted: then N goes up. DAY keeps that short.

// refOf begins the references of all health checks of a name.
func refOf(n provision.Name) string {
	return noteMark + "-" + digest(n.Zone, fmt.Sprint(n.Private), n.Name, n.Service, n.Owner) + "-"
}

// digest is 64 bits of a hash of words.
func digest(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// checkable says whether Route 53 can look at a record: it reaches the public
// internet only.
func checkable(r provision.Record) bool {
	a := r.Address.Unmap()
	return r.Check != "" && a.IsGlobalUnicast() && !a.IsPrivate() && !sharedSpace.Contains(a)
}

// sharedSpace is what providers share behind their address translation (RFC 6598).
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// configOf is the health check of a record.
func configOf(n provision.Name, r provision.Record) (*types.HealthCheckConfig, error) {
	u, err := url.Parse(r.Check)
	if err != nil {
		return nil, fmt.Errorf("reading the check of %s: %w", r.ID, err)
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
			return nil, fmt.Errorf("reading the check of %s: port: %w", r.ID, err)
		}
		c.Port = aws.Int32(int32(port))
	}
	return c, nil
}

// sameCheck says whether a health check looks where and how another does.
func sameCheck(a, b *types.HealthCheckConfig) bool {
	facts := func(c *types.HealthCheckConfig) string {
		return fmt.Sprintln(c.Type, aws.ToString(c.IPAddress), aws.ToInt32(c.Port), aws.ToString(c.ResourcePath), aws.ToString(c.FullyQualifiedDomainName),
			aws.ToInt32(c.RequestInterval), aws.ToInt32(c.FailureThreshold), aws.ToBool(c.Inverted), aws.ToBool(c.Disabled), aws.ToBool(c.EnableSNI))
	}
	return facts(a) == facts(b)
}

// ensureChecks makes the health checks of a name, and says their ids by record.
func (z *Route53) ensureChecks(ctx context.Context, n provision.Name) (map[string]string, error) {
	ids := map[string]string{}
	if !slices.ContainsFunc(n.Records, checkable) {
		return ids, nil
	}
	have, err := z.checks(ctx, n)
	if err != nil {
		return nil, err
	}
	for _, r := range n.Records {
		if !checkable(r) {
			continue
		}
		if ids[r.ID], err = z.ensureCheck(ctx, n, r, have); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// ensureCheck finds the health check of a record among those of its name, or makes
// it; set right and tagged. Lists may be late: one that they show may have gone.
func (z *Route53) ensureCheck(ctx context.Context, n provision.Name, r provision.Record, have []types.HealthCheck) (string, error) {
	config, err := configOf(n, r)
	if err != nil {
		return "", err
	}
	ref := refOf(n) + digest(r.ID, string(config.Type), *config.IPAddress, fmt.Sprint(*config.Port), *config.ResourcePath) + "-"
	for _, h := range have {
		if !strings.HasPrefix(aws.ToString(h.CallerReference), ref) {
			continue
		}
		id := aws.ToString(h.Id)
		err := z.mend(ctx, n, r, id, h.HealthCheckConfig, config)
		if gone := (*types.NoSuchHealthCheck)(nil); !errors.As(err, &gone) {
			return id, err
		}
	}
	made, err := z.create(ctx, ref, config)
	if err != nil {
		return "", explain(err, "CreateHealthCheck", "making the health check of %s", r.ID)
	}
	return aws.ToString(made.Id), z.mend(ctx, n, r, aws.ToString(made.Id), made.HealthCheckConfig, config)
}

// create makes a health check by the first reference of today that was not used up.
func (z *Route53) create(ctx context.Context, ref string, config *types.HealthCheckConfig) (*types.HealthCheck, error) {
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

// mend sets a health check right that somebody changed, and tags it.
func (z *Route53) mend(ctx context.Context, n provision.Name, r provision.Record, id string, is, want *types.HealthCheckConfig) error {
	if !sameCheck(is, want) {
		_, err := z.api.UpdateHealthCheck(ctx, &route53.UpdateHealthCheckInput{
			HealthCheckId: aws.String(id), IPAddress: want.IPAddress, Port: want.Port, ResourcePath: want.ResourcePath,
			FullyQualifiedDomainName: want.FullyQualifiedDomainName, FailureThreshold: want.FailureThreshold,
			Inverted: want.Inverted, Disabled: want.Disabled, EnableSNI: want.EnableSNI,
		})
		if err != nil {
			return explain(err, "UpdateHealthCheck", "setting the health check of %s right", r.ID)
		}
	}
	tagged, err := z.api.ListTagsForResource(ctx, &route53.ListTagsForResourceInput{
		ResourceType: types.TagResourceTypeHealthcheck, ResourceId: aws.String(id),
	})
	if err != nil {
		return explain(err, "ListTagsForResource", "reading the tags of the health check of %s", r.ID)
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
		return explain(err, "ChangeTagsForResource", "tagging the health check of %s", r.ID)
	}
	return nil
}

// tagsOf are the tags of a record's health check; Name is what the console shows.
func tagsOf(n provision.Name, r provision.Record) []types.Tag {
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

// checks lists the health checks of a name, by id.
func (z *Route53) checks(ctx context.Context, n provision.Name) ([]types.HealthCheck, error) {
	var found []types.HealthCheck
	pages := route53.NewListHealthChecksPaginator(z.api, &route53.ListHealthChecksInput{})
	for pages.HasMorePages() {
		out, err := pages.NextPage(ctx)
		if err != nil {
			return nil, explain(err, "ListHealthChecks", "listing the health checks of %s", n.Name)
		}
		for _, h := range out.HealthChecks {
			if strings.HasPrefix(aws.ToString(h.CallerReference), refOf(n)) {
				found = append(found, h)
			}
		}
	}
	slices.SortFunc(found, func(a, b types.HealthCheck) int { return cmp.Compare(*a.Id, *b.Id) })
	return found, nil
}

// checksIn are the health checks of the records of a name, by id.
func checksIn(s sets) []string {
	var ids []string
	for _, t := range s.targets {
		if id := aws.ToString(t.HealthCheckId); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// removeChecks removes the health checks of a name, and those that its records had,
// but not the used ones, which are by record id.
func (z *Route53) removeChecks(ctx context.Context, n provision.Name, had []string, used map[string]string) error {
	listed, err := z.checks(ctx, n)
	if err != nil {
		return err
	}
	for _, h := range listed {
		had = append(had, *h.Id)
	}
	slices.Sort(had)
	keep := slices.Collect(maps.Values(used))
	for _, id := range slices.Compact(had) {
		if slices.Contains(keep, id) {
			continue
		}
		_, err := z.api.DeleteHealthCheck(ctx, &route53.DeleteHealthCheckInput{HealthCheckId: aws.String(id)})
		if gone := (*types.NoSuchHealthCheck)(nil); err != nil && !errors.As(err, &gone) {
			return explain(err, "DeleteHealthCheck", "removing a health check of %s", n.Name)
		}
	}
	return nil
}
