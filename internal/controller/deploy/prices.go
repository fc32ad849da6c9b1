package deploy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/remote"
)

var _ controller.OfferingSource = (*Reconciler)(nil)

// priceTimeout is the timeout for reading prices: the longest list has about ten pages of several
// megabytes, and callers continue with built-in list prices.
const priceTimeout = 30 * time.Second

// Prices are the prices that clouds report.
type Prices struct {
	ByRegion map[service.Region][]provision.Price
	// Unknown contains, by region, why some or all prices are unknown.
	Unknown map[service.Region]error
}

// ReadPrices reads the prices of regions concurrently, within priceTimeout. Failures are not fatal:
// they are in Unknown.
func ReadPrices(ctx context.Context, p provision.Provider, regions []service.Region) Prices {
	all := Prices{ByRegion: map[service.Region][]provision.Price{}, Unknown: map[service.Region]error{}}
	pricer, ok := p.(provision.Pricer)
	if !ok {
		return all
	}
	ctx, cancel := context.WithTimeoutCause(ctx, priceTimeout, fmt.Errorf("no response within %s", priceTimeout))
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, r := range regions {
		wg.Go(func() {
			prices, err := pricer.Prices(ctx, r)
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			all.ByRegion[r] = prices
			if err != nil {
				all.Unknown[r] = err
			}
		})
	}
	wg.Wait()
	return all
}

// PricedOfferings reads the offerings of regions concurrently, at the prices that their clouds report, as
// Plan does. unknown contains the errors by region.
func PricedOfferings(ctx context.Context, p provision.Provider, regions []service.Region) (offers map[service.Region]provision.Offerings, prices Prices, unknown map[service.Region]error) {
	f := Deployer{Provider: p}
	unknown = f.queryOfferingsAndPrices(ctx, regions)
	return withKnownPrices(f.offers, f.prices), f.prices, unknown
}

// queryOfferingsAndPrices reads the offerings and prices of regions, and returns the errors of reading offerings.
func (dp *Deployer) queryOfferingsAndPrices(ctx context.Context, regions []service.Region) (unknown map[service.Region]error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { dp.prices = ReadPrices(ctx, dp.Provider, regions) })
	dp.offers = map[service.Region]provision.Offerings{}
	unknown = dp.queryOfferings(ctx, regions)
	if len(dp.offers) == 0 {
		cancel() // there is nothing to price
	}
	wg.Wait()
	return unknown
}

// readPrices reads the offerings and prices of every cloud region.
func (dp *Deployer) readPrices(ctx context.Context) error {
	return dp.joinErrors(dp.queryOfferingsAndPrices(ctx, cloud.ManagedRegions(dp.Spec)))
}

// withKnownPrices returns the offerings of regions at the known prices.
func withKnownPrices(offers map[service.Region]provision.Offerings, prices Prices) map[service.Region]provision.Offerings {
	all := map[service.Region]provision.Offerings{}
	for r, os := range offers {
		all[r] = os.WithPrices(prices.ByRegion[r])
	}
	return all
}

// refreshPrices applies prices that have arrived, and requests new ones where they are old. It does not
// wait for them, so that missing replicas are launched without delay.
func (rc *Reconciler) refreshPrices(ctx context.Context, bs *bundleState) {
	select {
	case prices := <-bs.newPrices:
		rc.applyPrices(ctx, bs, prices)
	default:
	}
	ttl := pricesTTL
	if len(bs.deployer.prices.Unknown) > 0 {
		ttl = pricesRetry
	}
	if ctx.Err() != nil || !bs.pricesRequestedAt.IsZero() && time.Since(bs.pricesRequestedAt) < ttl {
		return
	}
	bs.pricesRequestedAt = time.Now()
	provider, regions, results := withCurrentRelays(bs.deployer.Provider), cloud.ManagedRegions(bs.content.Spec), bs.newPrices
	rc.priceRequests.Go(func() {
		prices := ReadPrices(ctx, provider, regions)
		if ctx.Err() != nil {
			prices = Prices{} // the request was cancelled
		}
		select {
		case results <- prices:
		default: // the previous result was not read yet
		}
	})
}

// withCurrentRelays returns a provider that uses the machines in other clouds that are reachable now: the
// reconciler may only determine them while it is running an iteration.
func withCurrentRelays(p provision.Provider) provision.Provider {
	providers, several := p.(provision.MultiCloud)
	if !several {
		return p
	}
	fixed := provision.MultiCloud{}
	for name, provider := range providers {
		fixed[name] = provider
		if c, isRemote := provider.(*remote.Client); isRemote {
			relays := c.Machines()
			fixed[name] = &remote.Client{Cloud: c.Cloud, Machines: func() []remote.CallFunc { return relays }}
		}
	}
	return fixed
}

// applyPrices applies new prices. A region without any keeps its previous ones.
func (rc *Reconciler) applyPrices(ctx context.Context, bs *bundleState, prices Prices) {
	if prices.ByRegion == nil {
		bs.pricesRequestedAt = time.Time{}
		return
	}
	for r := range prices.Unknown {
		if len(prices.ByRegion[r]) == 0 {
			prices.ByRegion[r] = bs.deployer.prices.ByRegion[r]
		}
	}
	bs.deployer.prices = prices
	rc.logUnpriced(ctx, bs)
}

// logUnpriced logs the errors of reading prices, once until they change.
func (rc *Reconciler) logUnpriced(ctx context.Context, bs *bundleState) {
	var all []error
	for _, r := range cloud.ManagedRegions(bs.content.Spec) {
		if err := bs.deployer.prices.Unknown[r]; err != nil {
			all = append(all, fmt.Errorf("%s: %w", r, err))
		}
	}
	text := ""
	if err := errors.Join(all...); err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != bs.unpriced {
		rc.log().Warn("reading prices failed; using built-in list prices", "err", text)
	}
	bs.unpriced = text
}

// Offerings implements controller.OfferingSource: the offerings of regions at the reconciler's last
// observation; nothing before the first.
func (rc *Reconciler) Offerings() map[service.Region]provision.Offerings {
	v, err := rc.lastView()
	if err != nil {
		return nil
	}
	return v.offers
}

// Reservations implements controller.OfferingSource: the reservations at the reconciler's last observation;
// nothing before the first.
func (rc *Reconciler) Reservations() map[service.Region][]provision.Reservation {
	v, err := rc.lastView()
	if err != nil {
		return nil
	}
	return v.reservations
}
