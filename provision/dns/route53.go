package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
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
	// maxRounds is how often a name is read again because somebody changed it between reading and
	// writing: two concurrent writers conflict once, not five times.
	maxRounds = 5
	// defaultPoll is the polling interval until every name server has a change, which takes some 30 s.
	defaultPoll = 2 * time.Second
)

// Config configures the access to Route 53; the zero value uses the account and the endpoint of the
// environment, as AWS's own tools do.
type Config struct {
	// Endpoint is the API's base URL; empty = AWS's, or AWS_ENDPOINT_URL.
	Endpoint string
	// Transport sends the calls; nil = the SDK's own. At most provision.MaxCallsPerHost calls are in
	// flight.
	Transport http.RoundTripper
	// Poll is the polling interval for a change to propagate; 0 = 2 s.
	Poll time.Duration
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Route53 manages names in hosted zones of Amazon Route 53. It is a provision.Zone.
//
// A record has a health check (every 10 s, three failures) when it has a Check URL and a public
// address. Route 53 cannot reach a private address: such a record is served until it is withdrawn. The
// same rule applies to an address in a private zone.
//
// No alias records for AWS's own load balancers are created: a record is the address of a balancer of
// this service, and no load balancer is in front of it.
type Route53 struct {
	api  *route53.Client
	auth aws.CredentialsProvider
	poll time.Duration
	now  func() time.Time
}

// NewRoute53 loads the configuration of AWS's tools. It makes no calls yet.
func NewRoute53(ctx context.Context, c Config) (*Route53, error) {
	loaded, err := config.LoadDefaultConfig(ctx,
		config.WithDefaultRegion(homeRegion),
		config.WithLogger(logging.StandardLogger{Logger: log.Default()}), // the SDK's default logger writes to standard error
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = maxAttempts })
		}),
	)
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

// Get returns a name, of any service, with its records. A zone that the account does not have is an
// error.
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

// Check searches for the zone, reads the records of the name and lists health checks: everything that
// Set reads. Missing write permissions show only in Set.
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

// findZone returns the zone of a name, after checking that record sets can represent the name.
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

// Set changes a name to match n. All record sets change in one batch, and no record is served without
// its health check, so the name is consistent whenever the program ends. The next Set of the name
// removes leftovers of an interrupted one. In addition to the errors of provision.Zone: a region with
// an unknown location, a zone that the account does not have, and refusals of Route 53.
func (z *Route53) Set(ctx context.Context, n provision.PublicName) error {
	zone, err := z.findZone(ctx, n)
	if err != nil {
		return err
	}
	var refused error
	var had []string // health checks of earlier records, which lists may not show yet
	for range maxRounds {
		have, err := z.readSets(ctx, zone, n.Name)
		if err != nil {
			return err
		}
		if len(n.Records) == 0 && isOwn(n, have) {
			have = have.ownSets(n) // foreign record sets beside it stay
		}
		if err := checkOwner(n, zone, have); err != nil {
			if isOwn(n, have) {
				return err
			}
			// A health check that was created before the name belonged to somebody else is unused.
			return errors.Join(err, z.removeChecks(ctx, n, nil, nil))
		}
		had = append(had, checkIDs(have)...)
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
		if refused = err; refused == nil {
			return z.removeChecks(ctx, n, had, checks)
		}
		if !isConflict(err) {
			return err
		}
	}
	return refused
}

// isConflict reports whether a batch was rejected because of the zone's content, or because a
// health check was deleted: reading again may resolve it.
func isConflict(err error) bool {
	var batch *types.InvalidChangeBatch
	var check *types.NoSuchHealthCheck
	return errors.As(err, &batch) || errors.As(err, &check)
}

// readSets returns all record sets of a name, and others at the same names.
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

// listSets calls see for the record sets of a zone, in their order from a name on, until see returns false.
func (z *Route53) listSets(ctx context.Context, zone zone, from string, see func(types.ResourceRecordSet) bool) error {
	in := &route53.ListResourceRecordSetsInput{HostedZoneId: aws.String(zone.id), StartRecordName: fqdn(from)}
	for {
		out, err := z.api.ListResourceRecordSets(ctx, in)
		if err != nil {
			return wrapError(err, "ListResourceRecordSets", "listing the records of %s", zone.name)
		}
		for _, r := range out.ResourceRecordSets {
			if !see(r) {
				return nil
			}
		}
		if !out.IsTruncated {
			return nil
		}
		in.StartRecordName, in.StartRecordType, in.StartRecordIdentifier = out.NextRecordName, out.NextRecordType, out.NextRecordIdentifier
	}
}

// checkOwner rejects a name that belongs to another owner or service, or that was created by hand, wholly
// or in part.
func checkOwner(n provision.PublicName, zone zone, have recordSets) error {
	taken := func(owner string) error {
		return &provision.OwnedError{Resource: "record " + n.Name, Where: "zone " + zone.String(), Owner: owner}
	}
	if have.note != nil && !isOwn(n, have) {
		who := nameOf(n.Zone, n.Name, have)
		if who.Service == "" {
			return taken("not created by skyserve: " + formatSet(*have.note))
		}
		return taken(fmt.Sprintf("service %s of owner %q", who.Service, who.Owner))
	}
	ours := have.ownSets(n)
	if have.note == nil {
		ours = recordSets{}
	}
	foreign, _ := diffSets(slices.Concat(have.aliases, have.targets), slices.Concat(ours.aliases, ours.targets))
	if len(foreign) > 0 {
		return taken("not created by skyserve: " + formatSet(foreign[0]))
	}
	return nil
}

// ownSets returns the record sets of a name that have the form of those that Set creates.
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
	who := nameOf(n.Zone, n.Name, have)
	return have.note != nil && who.Service == n.Service && who.Owner == n.Owner
}

// formatSet formats a record set for people.
func formatSet(s types.ResourceRecordSet) string {
	values := strings.Join(valuesOf(s), " ")
	if s.AliasTarget != nil {
		values = "alias of " + aws.ToString(s.AliasTarget.DNSName)
	}
	return fmt.Sprintf("%s %s %s", strings.TrimSuffix(aws.ToString(s.Name), "."), s.Type, values)
}

// applyChanges applies a batch and waits until every name server of the zone has it.
func (z *Route53) applyChanges(ctx context.Context, n provision.PublicName, zone zone, changes []types.Change) error {
	if len(changes) == 0 {
		return nil
	}
	doing := "publishing"
	if len(n.Records) == 0 {
		doing = "removing"
	}
	out, err := z.api.ChangeResourceRecordSets(ctx, &route53.ChangeResourceRecordSetsInput{
		HostedZoneId: aws.String(zone.id),
		ChangeBatch:  &types.ChangeBatch{Changes: changes, Comment: aws.String("skyserve: " + doing + " " + n.Name)},
	})
	if err != nil {
		return wrapError(err, "ChangeResourceRecordSets", "%s %s in %s", doing, n.Name, zone)
	}
	for info := out.ChangeInfo; info.Status != types.ChangeStatusInsync; {
		if err := pause(ctx, z.poll); err != nil {
			return err
		}
		state, err := z.api.GetChange(ctx, &route53.GetChangeInput{Id: info.Id})
		if err != nil {
			return wrapError(err, "GetChange", "waiting for %s", n.Name)
		}
		info = state.ChangeInfo
	}
	return nil
}

// pause blocks for d, or until ctx ends, which is an error.
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
