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
	// homeRegion is where Route 53 is, which serves the whole world from one place.
	homeRegion = "us-east-1"
	// maxAttempts bounds the tries of one call that is throttled or fails inside.
	maxAttempts = 8
	// maxRounds bounds how often a name is read again because somebody changed it
	// between reading and writing: two writers meet once, not five times.
	maxRounds = 5
	// defaultPoll is how often a change is looked at until every name server has it,
	// which takes some 30 s.
	defaultPoll = 2 * time.Second
)

// Config is how Route 53 is reached; the zero value uses the account and the
// endpoint of the environment, as AWS's own tools do.
type Config struct {
	// Endpoint is its base URL; empty = AWS's, or that of AWS_ENDPOINT_URL.
	Endpoint string
	// Transport carries the calls; nil = the usual one. It is bounded to
	// provision.CallsPerHost at once.
	Transport http.RoundTripper
	// Poll is how often a change is looked at until it is everywhere; 0 = 2 s.
	Poll time.Duration
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Route53 keeps names in hosted zones of Amazon Route 53. It is a provision.Zone.
//
// A record has a health check (every 10 s, three failures) when it states a Check
// and its address is public. Route 53 cannot reach a private address: such a record
// is given out until it is withdrawn. An address in a zone that is only known
// inside networks of AWS is checked by the same rule.
//
// Alias records that stand for AWS's own load balancers are not made: a record is
// the address of a balancer of this service, and nothing stands before it.
type Route53 struct {
	api  *route53.Client
	auth aws.CredentialsProvider
	poll time.Duration
	now  func() time.Time
}

// NewRoute53 reads the configuration of AWS's tools. It calls nothing yet.
func NewRoute53(ctx context.Context, c Config) (*Route53, error) {
	loaded, err := config.LoadDefaultConfig(ctx,
		config.WithDefaultRegion(homeRegion),
		config.WithLogger(logging.StandardLogger{Logger: log.Default()}), // by itself it writes to standard error
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = maxAttempts })
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of AWS: %w", err)
	}
	next := c.Transport
	if own, ok := loaded.HTTPClient.(*awshttp.BuildableClient); next == nil && ok {
		next = own.GetTransport() // which trusts AWS_CA_BUNDLE
	} else if next == nil {
		next = http.DefaultTransport
	}
	api := route53.NewFromConfig(loaded, func(o *route53.Options) {
		o.HTTPClient = &http.Client{Transport: provision.Bounded(next)}
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

// Get reads a name, of whatever service, with its records as they are. A zone that
// the account does not have is an error.
func (z *Route53) Get(ctx context.Context, zone, name string) (provision.Name, error) {
	zones, err := z.find(ctx, zone, nil)
	if err != nil {
		return provision.Name{}, err
	}
	n := provision.Name{Name: name, Zone: zone, Private: zones[0].private}
	for _, h := range zones {
		have, err := z.read(ctx, h, name)
		if err != nil {
			return provision.Name{}, err
		}
		if have.note != nil {
			n = nameOf(zone, name, have)
			n.Private = h.private
			break
		}
	}
	return n, nil
}

// Check looks for the zone, reads the records of the name and lists health checks: all
// that Set reads. Whether the account may write shows only when it does.
func (z *Route53) Check(ctx context.Context, n provision.Name) error {
	zone, err := z.zoneOf(ctx, n)
	if err != nil {
		return err
	}
	have, err := z.read(ctx, zone, n.Name)
	if err != nil {
		return err
	}
	if err := ownedBy(n, zone, have); err != nil {
		return err
	}
	_, err = z.checks(ctx, n)
	return err
}

// zoneOf finds the zone of a name that record sets can be made of.
func (z *Route53) zoneOf(ctx context.Context, n provision.Name) (zone, error) {
	if err := checkName(n); err != nil {
		return zone{}, err
	}
	zones, err := z.find(ctx, n.Zone, &n.Private)
	if err != nil {
		return zone{}, err
	}
	return zones[0], nil
}

// Set makes a name what n says. The record sets change all at once, and nothing is
// given out that has no health check yet, so the name is whole whenever the
// program ends. What such an end leaves is removed by the next Set of the name.
// Beside the errors of provision.Zone: a region that is nowhere, a zone that the
// account does not have, and what Route 53 refuses.
func (z *Route53) Set(ctx context.Context, n provision.Name) error {
	zone, err := z.zoneOf(ctx, n)
	if err != nil {
		return err
	}
	var refused error
	var had []string // health checks that records had, which lists may not show yet
	for range maxRounds {
		have, err := z.read(ctx, zone, n.Name)
		if err != nil {
			return err
		}
		if len(n.Records) == 0 && isOf(n, have) {
			have = have.ours(n) // what somebody put beside it may stay
		}
		if err := ownedBy(n, zone, have); err != nil {
			if isOf(n, have) {
				return err
			}
			// A health check made before the name was somebody else's serves nothing.
			return errors.Join(err, z.removeChecks(ctx, n, nil, nil))
		}
		had = append(had, checksIn(have)...)
		checks, err := z.ensureChecks(ctx, n)
		if err != nil {
			return err
		}
		want, err := setsOf(n, zone.id, checks)
		if err != nil {
			return err
		}
		if len(n.Records) == 0 && have.note != nil {
			if err := z.withoutChallenge(ctx, n, zone); err != nil {
				return err
			}
		}
		err = z.change(ctx, n, zone, batch(have, want))
		if refused = err; refused == nil {
			return z.removeChecks(ctx, n, had, checks)
		}
		if !changedMeanwhile(err) {
			return err
		}
	}
	return refused
}

// changedMeanwhile says whether a batch was refused for what the zone holds, or
// names a health check that has gone: reading again may show why.
func changedMeanwhile(err error) bool {
	var batch *types.InvalidChangeBatch
	var check *types.NoSuchHealthCheck
	return errors.As(err, &batch) || errors.As(err, &check)
}

// read reads all record sets that a name is made of, and those that stand in the way.
func (z *Route53) read(ctx context.Context, zone zone, name string) (sets, error) {
	var s sets
	err := z.list(ctx, zone, name, func(r types.ResourceRecordSet) bool {
		if aws.ToString(r.Name) != *absolute(name) {
			return false
		}
		if r.Type == types.RRTypeA || r.Type == types.RRTypeAaaa || r.Type == types.RRTypeCname {
			s.routes = append(s.routes, r)
		}
		return true
	})
	if err != nil {
		return sets{}, err
	}
	note := *absolute(underName + name)
	err = z.list(ctx, zone, underName+name, func(r types.ResourceRecordSet) bool {
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

// list shows the record sets of a zone to see, in their order from a name on, until
// it has seen enough.
func (z *Route53) list(ctx context.Context, zone zone, from string, see func(types.ResourceRecordSet) bool) error {
	in := &route53.ListResourceRecordSetsInput{HostedZoneId: aws.String(zone.id), StartRecordName: absolute(from)}
	for {
		out, err := z.api.ListResourceRecordSets(ctx, in)
		if err != nil {
			return explain(err, "ListResourceRecordSets", "listing the records of %s", zone.name)
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

// ownedBy refuses a name that another owner or service has, or that was made by
// hand, wholly or in part.
func ownedBy(n provision.Name, zone zone, have sets) error {
	taken := func(owner string) error {
		return &provision.OwnedError{What: "record " + n.Name, Where: "zone " + zone.String(), Owner: owner}
	}
	if have.note != nil && !isOf(n, have) {
		who := nameOf(n.Zone, n.Name, have)
		if who.Service == "" {
			return taken("made by hand: " + words(*have.note))
		}
		return taken(fmt.Sprintf("service %s of owner %q", who.Service, who.Owner))
	}
	ours := have.ours(n)
	if have.note == nil {
		ours = sets{}
	}
	foreign, _ := differ(slices.Concat(have.routes, have.targets), slices.Concat(ours.routes, ours.targets))
	if len(foreign) > 0 {
		return taken("made by hand: " + words(foreign[0]))
	}
	return nil
}

// ours is what of the record sets of a name has the form that Set gives them.
func (s sets) ours(n provision.Name) sets {
	below := "." + *absolute(underName + n.Name)
	s.routes = slices.DeleteFunc(slices.Clone(s.routes), func(r types.ResourceRecordSet) bool {
		return r.AliasTarget == nil || !strings.HasSuffix(aws.ToString(r.AliasTarget.DNSName), below)
	})
	s.targets = slices.DeleteFunc(slices.Clone(s.targets), func(r types.ResourceRecordSet) bool {
		return r.Type != types.RRTypeA && r.Type != types.RRTypeAaaa
	})
	return s
}

// isOf says whether the note of a name says that it is n's.
func isOf(n provision.Name, have sets) bool {
	who := nameOf(n.Zone, n.Name, have)
	return have.note != nil && who.Service == n.Service && who.Owner == n.Owner
}

// words shows a record set to people.
func words(s types.ResourceRecordSet) string {
	values := strings.Join(valuesOf(s), " ")
	if s.AliasTarget != nil {
		values = "alias of " + aws.ToString(s.AliasTarget.DNSName)
	}
	return fmt.Sprintf("%s %s %s", strings.TrimSuffix(aws.ToString(s.Name), "."), s.Type, values)
}

// change carries a batch out and waits until every name server of the zone has it.
func (z *Route53) change(ctx context.Context, n provision.Name, zone zone, changes []types.Change) error {
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
		return explain(err, "ChangeResourceRecordSets", "%s %s in %s", doing, n.Name, zone)
	}
	for info := out.ChangeInfo; info.Status != types.ChangeStatusInsync; {
		if err := pause(ctx, z.poll); err != nil {
			return err
		}
		state, err := z.api.GetChange(ctx, &route53.GetChangeInput{Id: info.Id})
		if err != nil {
			return explain(err, "GetChange", "waiting for %s", n.Name)
		}
		info = state.ChangeInfo
	}
	return nil
}

// pause waits for d, or for the end of ctx, which is an error.
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
