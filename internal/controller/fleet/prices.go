package fleet

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

var _ controller.Market = (*Reconciler)(nil)

// priceTimeout bounds asking for prices: the longest list has some ten pages of
// megabytes, and whoever asks goes on with list prices.
const priceTimeout = 30 * time.Second

// Prices are what clouds say of their prices.
type Prices struct {
	ByRegion map[service.Region][]provision.Price
	// Unknown says by region why some are not known, or none.
	Unknown map[service.Region]error
}

// AskPrices asks regions at once for their prices, for so long as is worth it. What is
// not told stops nobody: it is in Unknown.
func AskPrices(ctx context.Context, p provision.Provider, regions []service.Region) Prices {
	all := Prices{ByRegion: map[service.Region][]provision.Price{}, Unknown: map[service.Region]error{}}
	pricer, tells := p.(provision.Pricer)
	if !tells {
		return all
	}
	ctx, cancel := context.WithTimeoutCause(ctx, priceTimeout, fmt.Errorf("no answer within %s", priceTimeout))
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

// Offers asks regions at once what they have for renting, at the prices that their clouds
// tell: what Plan goes by. unknown says by region why one did not answer.
func Offers(ctx context.Context, p provision.Provider, regions []service.Region) (offers map[service.Region]provision.Offerings, prices Prices, unknown map[service.Region]error) {
	f := Fleet{Provider: p}
	unknown = f.askAll(ctx, regions)
	return priced(f.offers, f.prices), f.prices, unknown
}

// askAll asks regions what they offer and for its prices, and returns why some did not say
// what they offer.
func (f *Fleet) askAll(ctx context.Context, regions []service.Region) (unknown map[service.Region]error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { f.prices = AskPrices(ctx, f.Provider, regions) })
	f.offers = map[service.Region]provision.Offerings{}
	unknown = f.ask(ctx, regions)
	if len(f.offers) == 0 {
		cancel() // there is nothing to price
	}
	wg.Wait()
	return unknown
}

// lookAtPrices asks every rented region what it offers, and for its prices.
func (f *Fleet) lookAtPrices(ctx context.Context) error {
	return f.joined(f.askAll(ctx, cloud.Regions(f.Spec)))
}

// priced is what regions offer at the prices that are known.
func priced(offers map[service.Region]provision.Offerings, prices Prices) map[service.Region]provision.Offerings {
	all := map[service.Region]provision.Offerings{}
	for r, os := range offers {
		all[r] = os.Priced(prices.ByRegion[r])
	}
	return all
}

// askPrices takes up the prices that were told, and asks anew where they are old. Nobody
// waits for the answer: a replica that is missing is not to wait for a price.
func (k *Reconciler) askPrices(ctx context.Context, o *opened) {
	select {
	case prices := <-o.answer:
		k.takePrices(ctx, o, prices)
	default:
	}
	hold := pricesHold
	if len(o.fleet.prices.Unknown) > 0 {
		hold = pricesAgain
	}
	if ctx.Err() != nil || !o.asked.IsZero() && time.Since(o.asked) < hold {
		return
	}
	o.asked = time.Now()
	provider, regions, answer := askedNow(o.fleet.Provider), cloud.Regions(o.content.Spec), o.answer
	k.asking.Go(func() {
		prices := AskPrices(ctx, provider, regions)
		if ctx.Err() != nil {
			prices = Prices{} // of somebody who left while they asked
		}
		select {
		case answer <- prices:
		default: // the one before was not taken up yet
		}
	})
}

// askedNow is a provider that asks those machines in other clouds that can be asked now:
// which these are is the reconciler's to know while it works.
func askedNow(p provision.Provider) provision.Provider {
	places, several := p.(provision.Places)
	if !several {
		return p
	}
	still := provision.Places{}
	for name, place := range places {
		still[name] = place
		if c, away := place.(*remote.Client); away {
			ways := c.Ways()
			still[name] = &remote.Client{Cloud: c.Cloud, Ways: func() []remote.Ask { return ways }}
		}
	}
	return still
}

// takePrices takes up an answer. A region that told nothing keeps the prices it had.
func (k *Reconciler) takePrices(ctx context.Context, o *opened, prices Prices) {
	if prices.ByRegion == nil {
		o.asked = time.Time{}
		return
	}
	for r := range prices.Unknown {
		if len(prices.ByRegion[r]) == 0 {
			prices.ByRegion[r] = o.fleet.prices.ByRegion[r]
		}
	}
	o.fleet.prices = prices
	k.tellUnpriced(ctx, o)
}

// tellUnpriced logs why prices are not known, once for as long as it stays the same.
func (k *Reconciler) tellUnpriced(ctx context.Context, o *opened) {
	var all []error
	for _, r := range cloud.Regions(o.content.Spec) {
		if err := o.fleet.prices.Unknown[r]; err != nil {
			all = append(all, fmt.Errorf("%s: %w", r, err))
		}
	}
	text := ""
	if err := errors.Join(all...); err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != o.unpriced {
		k.log().Warn("prices are not known, list prices stand in", "err", text)
	}
	o.unpriced = text
}

// Offers implements controller.Market: what regions had for renting at the reconciler's last
// look, those that answered once; nothing before the first.
func (k *Reconciler) Offers() map[service.Region]provision.Offerings {
	v, err := k.seenLast()
	if err != nil {
		return nil
	}
	return v.offers
}
