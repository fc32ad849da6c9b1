package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"
	"github.com/aws/smithy-go/logging"

	"skyserve/provision"
)

const (
	// homeRegion is the region of Route 53's API, which is global.
	homeRegion = "us-east-1"
	// maxAttempts is the maximum number of attempts of a call that is throttled or fails inside AWS.
	maxAttempts = 8
	// maxRounds is the maximum number of attempts to read and write a name that another process changes at
	// the same time. Two concurrent writers normally conflict once.
	maxRounds = 5
	// defaultPoll is the polling interval until every name server has a change, which takes about 30 s.
	defaultPoll = 2 * time.Second
)

// Config configures the access to Route 53. The zero value uses the credentials and the endpoint of the
// environment, as AWS's own tools do.
type Config struct {
	// Endpoint is the API's base URL; empty = AWS's, or AWS_ENDPOINT_URL.
	Endpoint string
	// Credentials authenticate the calls; nil = those of the environment.
	Credentials aws.CredentialsProvider
	// Transport sends the calls; nil = the SDK's own. At most provision.MaxCallsPerHost calls are in
	// flight.
	Transport http.RoundTripper
	// Poll is the polling interval for a change to propagate; 0 = 2 s.
	Poll time.Duration
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Route53 manages names in hosted zones of Amazon Route 53. It implements provision.DNSZone.
//
// A record has a health check (every 10 s, three failures) when it has a Check URL and a public address.
// Route 53 cannot reach a private address: such a record is served until it is withdrawn. This also applies
// to private hosted zones.
//
// Records contain the addresses of balancers. Alias records for AWS's load balancers are not used.
type Route53 struct {
	api  *route53.Client
	auth aws.CredentialsProvider
	poll time.Duration
	now  func() time.Time
}

// NewRoute53 loads the configuration of AWS's tools. It makes no calls yet.
func NewRoute53(ctx context.Context, c Config) (*Route53, error) {
	options := []func(*config.LoadOptions) error{
		config.WithDefaultRegion(homeRegion),
		config.WithLogger(logging.Nop{}), // the SDK's default logger writes to standard error; its errors are returned
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = maxAttempts })
		}),
	}
	if c.Credentials != nil {
		options = append(options, config.WithCredentialsProvider(c.Credentials))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("loading the AWS configuration: %w", err)
	}
	next := c.Transport
	if own, ok := loaded.HTTPClient.(*awshttp.BuildableClient); next == nil && ok {
		next = own.GetTransport() // it trusts AWS_CA_BUNDLE
	} else if next == nil {
		next = http.DefaultTransport
	}
	api := route53.NewFromConfig(loaded, func(o *route53.Options) {
		o.HTTPClient = &http.Client{Transport: provision.LimitCallsPerHost(next)}
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
		}
	})
	now := c.Now
	if now == nil {
		now = time.Now
	}
	return &Route53{api: api, auth: loaded.Credentials, poll: cmp.Or(c.Poll, defaultPoll), now: now}, nil
}

// Get returns a name, of any service, with its records. A hosted zone that does not exist in the AWS account
// is an error.
func (z *Route53) Get(ctx context.Context, zone, name string) (provision.PublicName, error) {
	zones, err := z.findZones(ctx, zone, nil)
	if err != nil {
		return provision.PublicName{}, err
	}
	n := provision.PublicName{Name: name, Zone: zone, Private: zones[0].private}
	for _, h := range zones {
		have, err := z.readSets(ctx, h, name)
		if err != nil {
			return provision.PublicName{}, err
		}
		if have.note != nil {
			n = nameOf(zone, name, have)
			n.Private = h.private
			break
		}
	}
	return n, nil
}

// Check makes all read calls of Set: it finds the hosted zone, reads the records of the name and lists health
// checks. It does not detect missing write permissions.
func (z *Route53) Check(ctx context.Context, n provision.PublicName) error {
	zone, err := z.findZone(ctx, n)
	if err != nil {
		return err
	}
	have, err := z.readSets(ctx, zone, n.Name)
	if err != nil {
		return err
	}
	if err := checkOwner(n, zone, have); err != nil {
		return err
	}
	_, err = z.listChecks(ctx, n)
	return err
}

// findZone returns the hosted zone of a name. It first checks that record sets can represent the name.
func (z *Route53) findZone(ctx context.Context, n provision.PublicName) (zone, error) {
	if err := checkName(n); err != nil {
		return zone{}, err
	}
	zones, err := z.findZones(ctx, n.Zone, &n.Private)
	if err != nil {
		return zone{}, err
	}
	return zones[0], nil
}

// Set changes a name to match n. All record sets change in one batch, and no record is served without its
// health check. So the name is consistent even if the process ends at any time. The next Set removes the
// remaining health checks of an interrupted one. In addition to the errors of provision.DNSZone, Set returns
// errors for a region with an unknown location, a hosted zone that does not exist in the AWS account, and
// requests that Route 53 rejected.
func (z *Route53) Set(ctx context.Context, n provision.PublicName) error {
	zone, err := z.findZone(ctx, n)
	if err != nil {
		return err
	}
	var conflict error
	var earlier []string // ids of health checks of earlier records, which lists may not contain yet
	for range maxRounds {
		have, err := z.readSets(ctx, zone, n.Name)
		if err != nil {
			return err
		}
		if len(n.Records) == 0 && isOwn(n, have) {
			have = have.ownSets(n) // record sets of others at the same name stay
		}
		if err := checkOwner(n, zone, have); err != nil {
			if isOwn(n, have) {
				return err
			}
			// Health checks that were created before another owner created the name are unused.
			return errors.Join(err, z.removeChecks(ctx, n, nil, nil))
		}
		earlier = append(earlier, checkIDs(have)...)
		checks, err := z.ensureChecks(ctx, n)
		if err != nil {
			return err
		}
		want, err := recordSetsOf(n, zone.id, checks)
		if err != nil {
			return err
		}
		if len(n.Records) == 0 && have.note != nil {
			if err := z.removeChallenge(ctx, n, zone); err != nil {
				return err
			}
		}
		err = z.applyChanges(ctx, n, zone, changeBatch(have, want))
		if conflict = err; conflict == nil {
			return z.removeChecks(ctx, n, earlier, checks)
		}
		if !isConflict(err) {
			return err
		}
	}
	return conflict
}

// isConflict reports whether a batch was rejected because of the hosted zone's content, or because a health
// check was deleted. Then reading again may resolve the conflict.
func isConflict(err error) bool {
	var batch *types.InvalidChangeBatch
	var check *types.NoSuchHealthCheck
	return errors.As(err, &batch) || errors.As(err, &check)
}

// readSets returns all record sets of a name, including those that skyserve did not create.
func (z *Route53) readSets(ctx context.Context, zone zone, name string) (recordSets, error) {
	var s recordSets
	err := z.listSets(ctx, zone, name, func(r types.ResourceRecordSet) bool {
		if aws.ToString(r.Name) != *fqdn(name) {
			return false
		}
		if r.Type == types.RRTypeA || r.Type == types.RRTypeAaaa || r.Type == types.RRTypeCname {
			s.aliases = append(s.aliases, r)
		}
		return true
	})
	if err != nil {
		return recordSets{}, err
	}
	note := *fqdn(noteLabel + name)
	err = z.listSets(ctx, zone, noteLabel+name, func(r types.ResourceRecordSet) bool {
		switch at := aws.ToString(r.Name); {
		case at == note && r.Type == types.RRTypeTxt:
			s.note = &r
		case at == note || strings.HasSuffix(at, "."+note):
			s.targets = append(s.targets, r)
		default:
			return false
		}
		return true
	})
	return s, err
}

// listSets calls visit for the record sets of a hosted zone in their order, starting at a name, until visit
// returns false.
func (z *Route53) listSets(ctx context.Context, zone zone, from string, visit func(types.ResourceRecordSet) bool) error {
	in := &route53.ListResourceRecordSetsInput{HostedZoneId: aws.String(zone.id), StartRecordName: fqdn(from)}
	for {
		out, err := z.api.ListResourceRecordSets(ctx, in)
		if err != nil {
			return wrapError(err, "ListResourceRecordSets", "listing the DNS records of hosted zone %s", zone.name)
		}
		for _, r := range out.ResourceRecordSets {
			if !visit(r) {
				return nil
			}
		}
		if !out.IsTruncated {
			return nil
		}
		in.StartRecordName, in.StartRecordType, in.StartRecordIdentifier = out.NextRecordName, out.NextRecordType, out.NextRecordIdentifier
	}
}

// checkOwner rejects a name that belongs to another owner or service, or that has records that were created
// by hand.
func checkOwner(n provision.PublicName, zone zone, have recordSets) error {
	ownedBy := func(owner string) error {
		return &provision.OwnedError{Resource: "DNS name " + n.Name, Where: "hosted zone " + zone.String(), Owner: owner}
	}
	if have.note != nil && !isOwn(n, have) {
		existing := nameOf(n.Zone, n.Name, have)
		if existing.Service == "" {
			return ownedBy("not created by skyserve: " + formatSet(*have.note))
		}
		return ownedBy(fmt.Sprintf("service %s of owner %q", existing.Service, existing.Owner))
	}
	own := have.ownSets(n)
	if have.note == nil {
		own = recordSets{}
	}
	foreign, _ := diffSets(slices.Concat(have.aliases, have.targets), slices.Concat(own.aliases, own.targets))
	if len(foreign) > 0 {
		return ownedBy("not created by skyserve: " + formatSet(foreign[0]))
	}
	return nil
}

// ownSets returns the record sets of a name with the form that Set creates.
func (s recordSets) ownSets(n provision.PublicName) recordSets {
	below := "." + *fqdn(noteLabel + n.Name)
	s.aliases = slices.DeleteFunc(slices.Clone(s.aliases), func(r types.ResourceRecordSet) bool {
		return r.AliasTarget == nil || !strings.HasSuffix(aws.ToString(r.AliasTarget.DNSName), below)
	})
	s.targets = slices.DeleteFunc(slices.Clone(s.targets), func(r types.ResourceRecordSet) bool {
		return r.Type != types.RRTypeA && r.Type != types.RRTypeAaaa
	})
	return s
}

// isOwn reports whether the note of a name has n's service and owner.
func isOwn(n provision.PublicName, have recordSets) bool {
	existing := nameOf(n.Zone, n.Name, have)
	return have.note != nil && existing.Service == n.Service && existing.Owner == n.Owner
}

// formatSet formats a record set for people.
func formatSet(s types.ResourceRecordSet) string {
	values := strings.Join(valuesOf(s), " ")
	if s.AliasTarget != nil {
		values = "alias of " + aws.ToString(s.AliasTarget.DNSName)
	}
	return fmt.Sprintf("%s %s %s", strings.TrimSuffix(aws.ToString(s.Name), "."), s.Type, values)
}

// applyChanges applies a batch and waits until every name server of the hosted zone has it.
func (z *Route53) applyChanges(ctx context.Context, n provision.PublicName, zone zone, changes []types.Change) error {
	if len(changes) == 0 {
		return nil
	}
	info, err := z.submitChanges(ctx, n, zone, changes)
	if err != nil {
		return err
	}
	for info.Status != types.ChangeStatusInsync {
		if err := pause(ctx, z.poll); err != nil {
			return err
		}
		state, err := z.api.GetChange(ctx, &route53.GetChangeInput{Id: info.Id})
		if err != nil {
			return wrapError(err, "GetChange", "waiting for the DNS change of %s", n.Name)
		}
		info = state.ChangeInfo
	}
	return nil
}

// submitChanges applies a batch without waiting for the name servers.
func (z *Route53) submitChanges(ctx context.Context, n provision.PublicName, zone zone, changes []types.Change) (*types.ChangeInfo, error) {
	doing := "publishing"
	if len(n.Records) == 0 {
		doing = "removing"
	}
	out, err := z.api.ChangeResourceRecordSets(ctx, &route53.ChangeResourceRecordSetsInput{
		HostedZoneId: aws.String(zone.id),
		ChangeBatch:  &types.ChangeBatch{Changes: changes, Comment: aws.String("skyserve: " + doing + " " + n.Name)},
	})
	if err != nil {
		return nil, wrapError(err, "ChangeResourceRecordSets", "%s %s in %s", doing, n.Name, zone)
	}
	return out.ChangeInfo, nil
}

// pause blocks for d. It returns an error if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
