package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/quota"
)

// ProviderAccess is an external API with its key.
type ProviderAccess struct {
	service.Provider
	Key service.Secret
}

// provider is an external API with its usage at this balancer, which survives changes of its
// configuration.
type provider struct {
	name    string
	account *quota.Account

	mu       sync.Mutex
	perDay   float64 // USD; 0 = no limit
	day      int64   // of spent, in days since the Unix epoch
	spent    float64 // USD
	reserved float64 // USD that requests in flight may cost
}

// external is a model of a provider. For core it is a replica of a model that no client can name. It is
// never probed: nothing is sent to a provider except requests that fall back to it.
type external struct {
	*provider
	model service.ProviderModel
}

// SetProviders sets the external APIs for fallbacks. Requests in flight at a removed one continue. It
// returns an error, and changes nothing, if a URL is invalid.
func (r *Runtime) SetProviders(list []ProviderAccess) error {
	var wanted []*replica
	var names []string // of their providers
	for i := range list {
		p := &list[i]
		base, err := baseURL(p.URL)
		if err != nil {
			return fmt.Errorf("adding provider %q: %w", p.Name, err)
		}
		for _, m := range p.Models {
			cfg := service.ReplicaConfig{ID: p.Target(m.Name), URL: p.URL, Model: p.Target(m.Name), Kind: service.EngineOpenAI, Region: r.self.Region, APIKey: p.APIKey, Key: p.Key}
			rep := &replica{cfg: cfg, base: base, transport: r.transport, external: &external{model: m}}
			if p.Key != "" {
				rep.authorization = []string{cfg.Authorization()}
			}
			wanted, names = append(wanted, rep), append(names, p.Name)
		}
	}
	_, _ = r.changeTargets(func() (bool, error) {
		r.openProviders(list)
		ids := map[string]bool{}
		for i, rep := range wanted {
			ids[rep.cfg.ID] = true
			rep.external.provider = r.providers[names[i]]
			r.storeExternal(rep)
		}
		for _, rep := range r.sortedReplicas() {
			if rep.external != nil && !ids[rep.cfg.ID] {
				r.removeRanks(rep)
			}
		}
		return true, nil
	})
	return nil
}

// openProviders applies the limits of providers; the lock must be held.
func (r *Runtime) openProviders(list []ProviderAccess) {
	if r.providers == nil {
		r.providers = map[string]*provider{}
	}
	for i := range list {
		c := &list[i]
		p := r.providers[c.Name]
		if p == nil {
			p = &provider{name: c.Name}
			r.providers[c.Name] = p
		}
		p.account = r.providerLedger.OpenProvider(c.Name, service.KeyLimits{
			Concurrent: c.Concurrent, RequestsPerMinute: c.RequestsPerMinute, TokensPerMinute: c.TokensPerMinute,
		}, r.Elapsed())
		p.mu.Lock()
		p.perDay = c.USDPerDay
		p.mu.Unlock()
	}
}

// storeExternal adds or replaces a provider's model; the lock must be held.
func (r *Runtime) storeExternal(rep *replica) {
	rep.count = r.newReplicaCount(rep.cfg.Ranks())
	if old := r.replicas[rep.cfg.ID]; old != nil {
		if old.cfg.URL == rep.cfg.URL {
			rep.count = old.count
		} else {
			r.removeRanks(old)
		}
	}
	r.addRanks(rep, false)
	r.reportExternal(rep)
}

// reportExternal reports a provider's model as always ready: its failures show only in responses, which core's
// circuit breaker counts. It reports no pending request, because only the limits of the provider bound its
// requests. The lock must be held.
func (r *Runtime) reportExternal(rep *replica) {
	rep.count.silentTicks = 0
	r.stepCore(core.Event{Kind: core.EventReplicaReport, Target: rep.cfg.ID, Report: &core.ProbeReport{Ready: true, Pending: policy.Known(0)}})
}

// externalModel returns a provider's model; nil if the name is that of a model of the service.
func (r *Runtime) externalModel(name string) *external {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep := r.replicas[name]; rep != nil {
		return rep.external
	}
	return nil
}

// externalUse is the reservation of one request at a provider. The zero value reserves nothing.
type externalUse struct {
	*external
	reservation quota.Reservation
	usd         float64 // reserved
}

// expectedAnswer is the expected number of tokens of an answer whose length the client does not bound.
const expectedAnswer = 512

// reserve reserves the limits of the provider for a request. The error names the limit.
func (e *external) reserve(prompt, bound, answers int, now time.Duration) (u externalUse, err error) {
	u.external = e
	var denied *quota.Denial
	if u.reservation, denied = e.account.Admit(now); denied == nil {
		denied = u.reservation.Reserve(prompt, bound, answers, now)
	}
	if denied == nil {
		u.usd = e.cost(int64(prompt), 0, int64(cmp.Or(bound, expectedAnswer))*int64(max(answers, 1)))
		err = e.reserveUSD(u.usd)
	} else {
		err = errors.New(denied.Message)
	}
	if err != nil {
		u.reservation.Release(now)
		return externalUse{}, err
	}
	return u, nil
}

// cost returns the cost of a request in USD; 0 if the price of the model is unknown.
func (e *external) cost(prompt, cached, output int64) float64 {
	return e.model.Price.PerToken().Cost(prompt, cached, output).USD()
}

// reserveUSD reserves a part of the day's budget.
func (p *provider) reserveUSD(usd float64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startDay()
	if p.perDay > 0 && p.spent+p.reserved+usd > p.perDay {
		return fmt.Errorf("the request may cost more than what remains of the budget of %g USD per day", p.perDay)
	}
	p.reserved += usd
	return nil
}

// startDay resets the cost at the start of a day; the lock must be held.
func (p *provider) startDay() {
	if day := time.Now().Unix() / (24 * 3600); day != p.day {
		p.day, p.spent = day, 0
	}
}

// end replaces the reservation by the actual usage, and returns its cost in USD.
func (u *externalUse) end(used telemetry.Usage, now time.Duration) (usd float64) {
	if u.external == nil {
		return 0
	}
	u.reservation.Settle(u.model.Name, used, now)
	u.reservation.Release(now)
	usd = u.cost(used.PromptTokens, used.CachedTokens, used.OutputTokens)
	p := u.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startDay()
	p.reserved = math.Max(0, p.reserved-u.usd)
	p.spent += usd
	*u = externalUse{}
	return usd
}

// outgoingExternal returns the request to send to a provider: the body, and none of the client's headers.
func (x *exchange) outgoingExternal(ctx context.Context) *http.Request {
	rep := x.servedBy.replica
	header := http.Header{"Content-Type": {"application/json"}, headerIdempotency: nil} // as in outgoing
	rep.authorize(header)
	x.usageSoFarRequested, x.answer.AskedForCounts = false, false
	body := x.body
	out := &http.Request{
		Method: x.req.Method, Header: header, Host: rep.base.Host,
		URL:  &url.URL{Scheme: rep.base.Scheme, Host: rep.base.Host, Path: strings.TrimSuffix(rep.base.Path, "/") + x.endpoint.Path},
		Body: body.open(false), ContentLength: body.size(false),
	}
	out.GetBody = func() (io.ReadCloser, error) { return body.open(false), nil }
	return out.WithContext(ctx)
}

// externalHeaders are the headers of a provider's response that the client receives. Others contain the
// account of the operator, its limits, and cookies.
var externalHeaders = []string{"Content-Type", "Content-Encoding", "Content-Length"}

// withoutAccount removes the operator's account from the header of a provider's response.
func withoutAccount(resp *http.Response) *http.Response {
	kept := http.Header{}
	for _, name := range externalHeaders {
		if values := resp.Header[name]; values != nil {
			kept[name] = values
		}
	}
	resp.Header = kept
	return resp
}
