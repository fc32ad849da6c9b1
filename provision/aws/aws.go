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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Config is what a provider is made of.
type Config struct {
	// Regions are the regions it works in, as AWS calls them: us-east-1.
	Regions []string
	// Endpoint is the base URL of every service, for a cloud that speaks as AWS does;
	// empty = AWS's own, or what AWS_ENDPOINT_URL says.
	Endpoint string
	// Transport carries the calls; nil = the SDK's own. At most
	// provision.CallsPerHost of them are in flight to a host.
	Transport http.RoundTripper
	// Credentials are whom it acts as; nil = whom the environment, the shared files or
	// the machine's own identity name, in this order.
	Credentials aws.CredentialsProvider
	// Poll is how often something is looked at that takes its time; 0 = 2 s, negative =
	// without a pause, as tests want it.
	Poll time.Duration
	// MachinesOnly leaves firewalls and identities alone, and out of lists: it is for a
	// machine of the service, which may not see them (provision.GrantOperate).
	MachinesOnly bool
	// OneRegion says that the service has balancers in no other region and no other cloud:
	// replicas then let their own region's in and nobody else, and are reached inside of
	// the network.
	OneRegion bool
	// Networks are where machines stand, by region, where that is not the default network;
	// a network there has at least one subnet.
	Networks map[string]provision.Network
	// Now is the clock that the cloud's is compared with; nil = time.Now.
	Now func() time.Time
}

const (
	defaultPoll = 2 * time.Second
	// callTimeout bounds one call, so that a connection that is dead is noticed.
	callTimeout = time.Minute
	// maxTries bounds how often a call is sent that was throttled or failed inside AWS:
	// with pauses that double up to maxBackoff, for about a minute.
	maxTries   = 8
	maxBackoff = 20 * time.Second
)

// Provider makes and removes objects of AWS. It implements provision.Provider,
// provision.Witness and provision.Pricer.
type Provider struct {
	cfg     Config
	poll    time.Duration
	iam     *iam.Client
	sts     *sts.Client
	clock   *dates
	regions map[string]*region
	names   []string                          // of regions, in order
	prices  provision.Held[[]provision.Price] // by region
}

var (
	_ provision.Provider = (*Provider)(nil)
	_ provision.Witness  = (*Provider)(nil)
	_ provision.Pricer   = (*Provider)(nil)
)

// New makes a provider. It asks nobody anything yet: wrong credentials show in the
// first call, as a *provision.CredentialsError.
func New(ctx context.Context, c Config) (*Provider, error) {
	if len(c.Regions) == 0 {
		return nil, fmt.Errorf("reaching AWS: no region is named")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Provider{cfg: c, poll: max(0, cmp.Or(c.Poll, defaultPoll)), regions: map[string]*region{}}
	sdk, err := p.load(ctx)
	if err != nil {
		return nil, err
	}
	p.names = slices.Compact(slices.Sorted(slices.Values(c.Regions)))
	for _, name := range p.names {
		in := sdk.Copy()
		in.Region = name
		p.regions[name] = &region{
			p: p, name: name, ec2: ec2.NewFromConfig(in), quotas: servicequotas.NewFromConfig(in), pricing: pricesOf(sdk, name),
			wanted: c.Networks[name], asking: make(chan struct{}, 1), groups: map[string]string{},
		}
	}
	home := sdk.Copy()
	home.Region = p.names[0]
	p.iam, p.sts = iam.NewFromConfig(home), sts.NewFromConfig(home)
	return p, nil
}

// pricesOf is the client of the price list that tells of a region; nil where there is none.
func pricesOf(sdk aws.Config, region string) *pricing.Client {
	home := priceHome(region)
	if home == "" {
		return nil
	}
	there := sdk.Copy()
	there.Region = home
	return pricing.NewFromConfig(there)
}

// load makes the settings of the SDK.
func (p *Provider) load(ctx context.Context) (aws.Config, error) {
	options := []func(*config.LoadOptions) error{
		config.WithRetryer(p.retryer), config.WithRegion(p.cfg.Regions[0]),
		config.WithLogger(logging.StandardLogger{Logger: log.Default()}), // by itself it writes to standard error
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
		return sdk, fmt.Errorf("reading the settings of AWS: %w", err)
	}
	if p.cfg.Endpoint != "" {
		sdk.BaseEndpoint = aws.String(p.cfg.Endpoint)
	}
	sdk.Credentials = asking{sdk.Credentials}
	p.clock = &dates{next: p.carrier(sdk), now: p.cfg.Now}
	sdk.HTTPClient = &http.Client{Transport: provision.Bounded(p.clock), Timeout: callTimeout}
	return sdk, nil
}

// carrier is what carries the calls: the SDK's own transport, which knows AWS_CA_BUNDLE,
// unless another is set.
func (p *Provider) carrier(sdk aws.Config) http.RoundTripper {
	if p.cfg.Transport != nil {
		return p.cfg.Transport
	}
	if own, ok := sdk.HTTPClient.(*awshttp.BuildableClient); ok {
		return own.GetTransport()
	}
	return http.DefaultTransport
}

// retryer sends calls again that were throttled, or failed inside AWS, or whose
// connection broke: every call of this package is safe to repeat. What there is no
// capacity for is not asked again, although AWS answers it as a failure of its own.
func (p *Provider) retryer() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff = maxTries, maxBackoff
		o.RateLimiter = ratelimit.None // tries are bounded for each call
		o.Retryables = append([]retry.IsErrorRetryable{retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			if _, ok := capacityScopes[codeOf(err)]; ok {
				return aws.FalseTernary
			}
			if codeOf(err) == "ConcurrentModification" { // of one thing of IAM's, by two at once
				return aws.TrueTernary
			}
			return aws.UnknownTernary
		})}, o.Retryables...)
		if p.poll == 0 {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		}
	})
}

// region finds the clients of a region.
func (p *Provider) region(name service.Region) (*region, error) {
	r := p.regions[name.Place()]
	if r == nil || name.Cloud() != service.CloudAWS {
		return nil, fmt.Errorf("finding the region %q: this provider knows %s", name, strings.Join(p.names, ", "))
	}
	return r, nil
}

// place is the region as the house calls it.
func (r *region) place() service.Region { return service.Region(service.CloudAWS + "/" + r.name) }

// Launch makes what is wanted. A machine needs the firewall of its role in its
// region, and the identity of its role, to be there: it waits for them for a while, as AWS itself
// takes some seconds to know them everywhere.
func (p *Provider) Launch(ctx context.Context, w provision.Want) (provision.Object, error) {
	o, err := p.launch(ctx, w)
	if err != nil {
		return provision.Object{}, explain(fmt.Sprintf("launching %s in %s", w.ID, w.Region), err)
	}
	return o, nil
}

func (p *Provider) launch(ctx context.Context, w provision.Want) (provision.Object, error) {
	if w.Kind == provision.KindIdentity {
		return p.launchIdentity(ctx, w)
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

// Terminate removes an object and returns when it is certain to be gone. A machine
// is, as soon as it shuts down: nothing brings it back, and it costs nothing. A
// firewall goes when the last machine behind it has let go of it, which takes a minute
// or two.
func (p *Provider) Terminate(ctx context.Context, o provision.Object) error {
	return explain(fmt.Sprintf("removing %s (%s) in %s", o.ID, o.Handle, o.Region), p.terminate(ctx, o))
}

func (p *Provider) terminate(ctx context.Context, o provision.Object) error {
	if o.Kind == provision.KindIdentity {
		return p.deleteIdentity(ctx, o)
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

// appears is until for what was made a moment ago: mostly it shows at once, so that the first
// pauses are short.
func (p *Provider) appears(ctx context.Context, look func() (done bool, err error)) (bool, error) {
	return p.repeat(ctx, triesToAppear, p.poll/16, look)
}

// until calls look until it says that it is done, with pauses; tries bounds the calls.
// false means that it never was.
func (p *Provider) until(ctx context.Context, tries int, look func() (done bool, err error)) (bool, error) {
	return p.repeat(ctx, tries, p.poll, look)
}

// repeat is until with a first pause; each is twice as long as the one before, up to the interval.
func (p *Provider) repeat(ctx context.Context, tries int, wait time.Duration, look func() (done bool, err error)) (bool, error) {
	for try := range tries {
		if try > 0 {
			if err := pause(ctx, wait); err != nil {
				return false, err
			}
			wait = min(p.poll, 2*wait)
		}
		if done, err := look(); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// settled calls step again while it fails with a code that says no more than that AWS
// does not know everywhere yet what was done a moment ago.
func (p *Provider) settled(ctx context.Context, code string, step func() error) error {
	var last error
	_, err := p.appears(ctx, func() (bool, error) {
		last = step()
		return codeOf(last) != code, nil
	})
	return cmp.Or(err, last)
}

// pause waits.
func pause(ctx context.Context, wait time.Duration) error {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
