package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Config configures a provider.
type Config struct {
	// Regions are the regions of the provider, in AWS's notation: us-east-1.
	Regions []string
	// IdentitiesOnly is set for a service without machines at AWS, whose machines at Google use an identity here by
	// gcp.federation; then Regions is empty. The API of IAM is that of AWS_REGION, or of the default partition.
	IdentitiesOnly bool
	// Endpoint is the base URL of all AWS APIs, for another cloud with the same APIs; empty =
	// AWS_ENDPOINT_URL, or AWS's own endpoints.
	Endpoint string
	// Transport sends the calls; nil = the SDK's own. At most provision.MaxCallsPerHost calls to a host
	// are in flight.
	Transport http.RoundTripper
	// Credentials authenticate the calls; nil = those of the environment, of the shared configuration
	// files or of the machine's IAM role, in this order.
	Credentials aws.CredentialsProvider
	// Poll is the interval of polling for a slow change; 0 = 2 s, negative = no interval, for tests.
	Poll time.Duration
	// MachinesOnly excludes firewalls and identities from changes and lists. It is for a machine of the
	// service, because provision.GrantOperate does not include permissions for them.
	MachinesOnly bool
	// Binaries includes the binaries in buckets (provision.KindBinary) in lists, which requires permissions
	// in S3.
	Binaries bool
	// OneRegion states that the service has balancers in this region only. Replicas then admit only
	// balancers of their own region, which connect through the region's network.
	OneRegion bool
	// Networks are the networks of machines, by region, for regions that do not use the default
	// network. A network has at least one subnet.
	Networks map[string]provision.Network
	// Now is the clock to compare with the cloud's clock; nil = time.Now.
	Now func() time.Time
}

const (
	defaultPoll = 2 * time.Second
	// callTimeout is the maximum duration of one call, so that a dead connection is detected.
	callTimeout = time.Minute
	// maxCallAttempts is the maximum number of attempts of a call that was throttled or failed inside
	// AWS. The backoff doubles up to maxBackoff, about a minute in total.
	maxCallAttempts = 8
	maxBackoff      = 20 * time.Second
)

// Provider creates and removes objects of AWS. It implements provision.Provider, provision.KeyAttestor and
// provision.Pricer.
type Provider struct {
	cfg     Config
	poll    time.Duration
	iam     *iam.Client
	sts     *sts.Client
	s3      *s3.Client
	uploads *http.Client // for large requests
	// endpoint is the overridden base URL of all APIs; empty = AWS's.
	endpoint string
	clock    *clockTransport
	regions  map[string]*region
	names    []string                                // of regions, sorted
	home     string                                  // the region of the global APIs
	prices   provision.CloudCache[[]provision.Price] // by region

	accountMu sync.Mutex // guards account
	account   string     // the number of the AWS account; empty until it is read
}

var (
	_ provision.Provider    = (*Provider)(nil)
	_ provision.KeyAttestor = (*Provider)(nil)
	_ provision.Pricer      = (*Provider)(nil)
)

// New returns a provider. It makes no calls: invalid credentials fail the first call of a method, with a
// *provision.CredentialsError.
func New(ctx context.Context, c Config) (*Provider, error) {
	if len(c.Regions) == 0 && !c.IdentitiesOnly {
		return nil, fmt.Errorf("creating the AWS provider: no region is configured")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Provider{cfg: c, poll: max(0, cmp.Or(c.Poll, defaultPoll)), regions: map[string]*region{}}
	sdk, err := p.loadSDK(ctx)
	if err != nil {
		return nil, err
	}
	p.names = slices.Compact(slices.Sorted(slices.Values(c.Regions)))
	for _, name := range p.names {
		regional := sdk.Copy()
		regional.Region = name
		p.regions[name] = &region{
			p: p, name: name, ec2: ec2.NewFromConfig(regional), quotas: servicequotas.NewFromConfig(regional), pricing: pricingClient(sdk, name),
			configured: c.Networks[name], netSem: make(chan struct{}, 1), groups: map[string]string{},
		}
	}
	p.home = sdk.Region
	if len(p.names) > 0 {
		p.home = p.names[0]
	}
	global := sdk.Copy()
	global.Region = p.home
	p.iam, p.sts = iam.NewFromConfig(global), sts.NewFromConfig(global)
	p.endpoint = aws.ToString(sdk.BaseEndpoint)
	p.s3 = s3.NewFromConfig(global, func(o *s3.Options) {
		o.UsePathStyle, o.DisableLogOutputChecksumValidationSkipped = p.endpoint != "", true
	})
	return p, nil
}

// pricingClient returns the client of the price list that covers a region; nil where there is none.
func pricingClient(sdk aws.Config, region string) *pricing.Client {
	apiRegion := pricingRegion(region)
	if apiRegion == "" {
		return nil
	}
	regional := sdk.Copy()
	regional.Region = apiRegion
	return pricing.NewFromConfig(regional)
}

// logSDK logs a message of the SDK. It omits the messages about the metadata server, which only machines in AWS
// have: if no credentials are found, the returned error reports this.
func logSDK(level logging.Classification, format string, args ...any) {
	if !strings.Contains(format, "IMDSv1") {
		log.Printf("%s "+format, append([]any{level}, args...)...)
	}
}

// loadSDK loads the configuration of the SDK.
func (p *Provider) loadSDK(ctx context.Context) (aws.Config, error) {
	options := []func(*config.LoadOptions) error{
		config.WithRetryer(p.retryer), config.WithDefaultRegion(homeRegion),
		config.WithLogger(logging.LoggerFunc(logSDK)), // the SDK's default logger writes to standard error
	}
	if len(p.cfg.Regions) > 0 {
		options = append(options, config.WithRegion(p.cfg.Regions[0]))
	}
	if p.cfg.Credentials != nil {
		options = append(options, config.WithCredentialsProvider(p.cfg.Credentials))
	}
	sdk, err := config.LoadDefaultConfig(ctx, options...)
	var profile config.SharedConfigProfileNotExistError
	switch {
	case errors.As(err, &profile):
		return sdk, &provision.CredentialsError{Cloud: service.CloudAWS, Err: err, Hint: "set AWS_PROFILE to a profile of ~/.aws/config"}
	case err != nil:
		return sdk, fmt.Errorf("loading the AWS configuration: %w", err)
	}
	if p.cfg.Endpoint != "" {
		sdk.BaseEndpoint = aws.String(p.cfg.Endpoint)
	}
	sdk.Credentials = markedCredentials{sdk.Credentials}
	p.clock = &clockTransport{next: p.baseTransport(sdk), now: p.cfg.Now}
	transport := provision.LimitCallsPerHost(p.clock)
	sdk.HTTPClient, p.uploads = &http.Client{Transport: transport, Timeout: callTimeout}, &http.Client{Transport: transport, Timeout: uploadTimeout}
	return sdk, nil
}

// baseTransport returns the transport of the calls: the SDK's own, which supports AWS_CA_BUNDLE, unless
// another is configured.
func (p *Provider) baseTransport(sdk aws.Config) http.RoundTripper {
	if p.cfg.Transport != nil {
		return p.cfg.Transport
	}
	if own, ok := sdk.HTTPClient.(*awshttp.BuildableClient); ok {
		return own.GetTransport()
	}
	return http.DefaultTransport
}

// retryer retries calls that were throttled, failed inside AWS, or lost their connection. That is safe,
// because every call of this package is idempotent. It does not retry a lack of capacity, although AWS
// reports that as a server error.
func (p *Provider) retryer() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff = maxCallAttempts, maxBackoff
		o.RateLimiter = ratelimit.None // MaxAttempts limits each call
		o.Retryables = append([]retry.IsErrorRetryable{retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			if _, ok := capacityScopes[codeOf(err)]; ok {
				return aws.FalseTernary
			}
			if codeOf(err) == codeRace {
				return aws.TrueTernary
			}
			return aws.UnknownTernary
		})}, o.Retryables...)
		if p.poll == 0 {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		}
	})
}

// region returns the clients of a region.
func (p *Provider) region(name service.Region) (*region, error) {
	r := p.regions[name.ShortName()]
	if r == nil || name.Cloud() != service.CloudAWS {
		return nil, fmt.Errorf("finding region %q: this provider is configured for %s", name, strings.Join(p.names, ", "))
	}
	return r, nil
}

// regionID returns the region as a service.Region.
func (r *region) regionID() service.Region { return service.Region(service.CloudAWS + "/" + r.name) }

// Launch creates a desired object. A machine requires the firewall of its role in its region, and the
// identity of its role. Launch waits up to a minute for them, because AWS propagates new ones within some
// seconds.
func (p *Provider) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	o, err := p.launch(ctx, w)
	if err != nil {
		return provision.Object{}, p.withAlternative(wrapError(fmt.Sprintf("launching %s in %s", w.ID, w.Region), err))
	}
	return o, nil
}

func (p *Provider) launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if w.Kind == provision.KindIdentity {
		return p.launchIdentity(ctx, w)
	}
	if w.Kind == provision.KindBinary {
		return p.launchBinary(ctx, w)
	}
	r, err := p.region(w.Region)
	if err != nil {
		return provision.Object{}, err
	}
	if w.Kind == provision.KindFirewall {
		return r.launchFirewall(ctx, w)
	}
	return r.launchMachine(ctx, w)
}

// Terminate removes an object and returns when the removal is certain. A machine counts as removed when
// it is shutting down: that is irreversible, and the machine is not billed from then on. A firewall can
// be deleted only when the last machine behind it has released it, which takes a minute or two.
func (p *Provider) Terminate(ctx context.Context, o provision.Object) error {
	return wrapError(fmt.Sprintf("removing %s (%s) in %s", o.ID, o.Handle, o.Region), p.terminate(ctx, o))
}

func (p *Provider) terminate(ctx context.Context, o provision.Object) error {
	if o.Kind == provision.KindIdentity {
		return p.deleteIdentity(ctx, o)
	}
	if o.Kind == provision.KindBinary {
		return p.deleteBinary(ctx, o)
	}
	r, err := p.region(o.Region)
	if err != nil {
		return err
	}
	if o.Kind == provision.KindFirewall {
		return r.deleteFirewall(ctx, o)
	}
	return r.terminateMachine(ctx, o)
}

// waitVisible is pollUntil for an object that was just created. Such an object is usually visible at
// once, so the first intervals are short.
func (p *Provider) waitVisible(ctx context.Context, check func() (done bool, err error)) (bool, error) {
	return p.pollWithBackoff(ctx, maxVisibilityPolls, p.poll/16, check)
}

// pollUntil calls check until it reports done, once per poll interval, at most maxPolls times. It returns
// false when check never reported done.
func (p *Provider) pollUntil(ctx context.Context, maxPolls int, check func() (done bool, err error)) (bool, error) {
	return p.pollWithBackoff(ctx, maxPolls, p.poll, check)
}

// pollWithBackoff is pollUntil with its own first interval, which doubles after each call up to the poll
// interval.
func (p *Provider) pollWithBackoff(ctx context.Context, maxPolls int, wait time.Duration, check func() (done bool, err error)) (bool, error) {
	for poll := range maxPolls {
		if poll > 0 {
			if err := sleep(ctx, wait); err != nil {
				return false, err
			}
			wait = min(p.poll, 2*wait)
		}
		if done, err := check(); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// retryOnCode repeats step while it fails with a code that AWS returns until a recent change is
// propagated.
func (p *Provider) retryOnCode(ctx context.Context, code string, step func() error) error {
	var last error
	_, err := p.waitVisible(ctx, func() (bool, error) {
		last = step()
		return codeOf(last) != code, nil
	})
	return cmp.Or(err, last)
}

// sleep blocks for a duration, or until the context ends.
func sleep(ctx context.Context, wait time.Duration) error {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
