package quota

import (
	"math"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Reservation is one request of an account, from its arrival to its end. The zero value belongs to
// no account and reserves nothing.
type Reservation struct {
	own    claim
	shared *claim // of the tenant; nil if the tenant has no limits
	price  *service.TokenPrice
}

// claim is the part of a reservation in one account.
type claim struct {
	account  *Account
	prompt   int64 // tokens of its prompt, as reserved
	answers  int   // requested answers
	reserved int64 // prompt and expected tokens of the answers, or the actual tokens if there are more
	cost     service.NanoUSD
	budget   bool // the account had a budget when the request was admitted
	settled  bool
	released bool
}

// Active reports whether the reservation belongs to an account.
func (v *Reservation) Active() bool { return v.own.account != nil }

// Admit admits a request, or returns a Denial, which is Dropped if another account must admit it. Release must be
// called at the end of the request.
func (a *Account) Admit(now time.Duration) (Reservation, *Denial) {
	var v Reservation
	shared, limit, d := a.admit(&v.own, now)
	switch {
	case d == Dropped:
		return Reservation{}, d // no limit was reached, so it is not counted
	case d != nil:
		return Reservation{}, a.deny(limit, d)
	case shared == nil:
		return v, nil
	}
	v.shared = &claim{}
	if _, limit, d = shared.admit(v.shared, now); d != nil {
		v.own.cancel(now)
		return Reservation{}, a.deny(limit, d)
	}
	return v, nil
}

// admit is Admit for one account, whose part is c; it also returns the account of the tenant.
func (a *Account) admit(c *claim, now time.Duration) (shared *Account, limit string, d *Denial) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dropped {
		return nil, "", Dropped
	}
	if a.label == "" && a.holder != holderTenant {
		a.label = a.ledger.label(a.name)
	}
	if limit, d := a.overQuota(0, 0, 0); d != nil {
		return nil, limit, d
	}
	if allowed := a.limits.Concurrent; allowed > 0 && a.inFlight >= allowed {
		return nil, deniedConcurrent, OverRate("requests", time.Second, "this %s has %s in flight, the limit is %d", a.holder, printable.Count(a.inFlight, "request"), allowed)
	}
	if wait, _, ok := a.requests.take(1, now); !ok {
		return nil, deniedRequests, OverRate("requests", wait, "the limit of this %s is %s per minute", a.holder, printable.Count(a.requests.limit, "request"))
	}
	a.inFlight++
	c.account, c.budget = a, a.budgets != (budgets{})
	return a.shared, "", nil
}

// cancel undoes admit.
func (c *claim) cancel(now time.Duration) {
	c.release(now)
	a := c.account
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests.giveBack(1, now)
}

// SetPrice sets the price of the requested model. It returns false if the price is unknown and the key
// or its tenant has a budget: then the request must be rejected.
func (v *Reservation) SetPrice(p *service.TokenPrice) (ok bool) {
	v.price = p
	return p != nil || !v.own.budget && (v.shared == nil || !v.shared.budget)
}

// Reserve reserves the expected tokens of a request: its prompt, and as many tokens as bound for
// each of its answers. If bound is 0, the expected length of each is the mean of the key's recent answers.
func (v *Reservation) Reserve(prompt, bound, answers int, now time.Duration) *Denial {
	a := v.own.account
	if a == nil {
		return nil
	}
	each := float64(bound)
	if bound <= 0 {
		each = math.Ceil(a.expectedAnswer())
	}
	want := claim{prompt: int64(prompt), answers: answers}
	want.reserved = want.prompt + int64(min(each*float64(answers), float64(maxChange)))
	want.cost = v.price.Cost(want.prompt, 0, want.reserved-want.prompt)
	if limit, d := v.own.reserve(want, now); d != nil {
		return a.deny(limit, d)
	}
	limit, d := v.shared.reserve(want, now)
	return a.deny(limit, d)
}

// expectedAnswer returns the mean tokens of the account's recent answers.
func (a *Account) expectedAnswer() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.meanAnswer
}

// reserve is Reserve for one account, if there is one.
func (c *claim) reserve(want claim, now time.Duration) (limit string, d *Denial) {
	if c == nil {
		return "", nil
	}
	a := c.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit, d := a.overQuota(1, want.reserved, want.cost); d != nil {
		return limit, d
	}
	wait, never, ok := a.tokens.take(want.reserved, now)
	switch {
	case never:
		return deniedTokens, OverRate("tokens", 0, "the request is too large: it may use %d tokens, and the limit of this %s is %d per minute; shorten it or set a lower max_tokens", want.reserved, a.holder, a.tokens.limit)
	case !ok:
		return deniedTokens, OverRate("tokens", wait, "the request may use %d tokens, and the limit of this %s is %d per minute", want.reserved, a.holder, a.tokens.limit)
	}
	c.prompt, c.answers, c.reserved, c.cost = want.prompt, want.answers, want.reserved, want.cost
	a.reserved += c.reserved
	a.reservedCost += c.cost
	return "", nil
}

// Grow increases the reservation when the answers have more tokens than reserved. The increase
// reduces the limit for the key's other requests.
func (v *Reservation) Grow(generated int, now time.Duration) {
	v.own.grow(generated, v.price, now)
	v.shared.grow(generated, v.price, now)
}

func (c *claim) grow(generated int, price *service.TokenPrice, now time.Duration) {
	if c == nil || c.account == nil {
		return
	}
	a := c.account
	a.mu.Lock()
	defer a.mu.Unlock()
	more := c.prompt + int64(generated) - c.reserved
	if more <= 0 || c.settled {
		return
	}
	cost := price.Cost(c.prompt, 0, int64(generated))
	a.reserved += more
	a.reservedCost += cost - c.cost
	c.reserved, c.cost = c.reserved+more, cost
	a.tokens.giveBack(-more, now)
}

// Settle replaces the reserved tokens and their cost by the actual usage.
func (v *Reservation) Settle(model string, used telemetry.Usage, now time.Duration) {
	v.own.settle(model, used, now)
	v.shared.settle(model, used, now)
}

func (c *claim) settle(model string, used telemetry.Usage, now time.Duration) {
	if c == nil || c.account == nil {
		return
	}
	a := c.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.settled {
		return
	}
	c.settled = true
	a.settled++
	a.tokens.giveBack(c.reserved-used.Tokens(), now)
	a.reserved -= c.reserved
	a.reservedCost -= c.cost
	if used.OutputTokens > 0 {
		a.meanAnswer += answerWeight * (float64(used.OutputTokens)/float64(max(1, c.answers)) - a.meanAnswer)
	}
	a.total = a.total.Plus(used)
	if a.holder == holderTenant {
		return // its keys and users have the usage by model
	}
	u := a.used[model]
	if u == nil {
		u = &telemetry.Usage{}
		a.used[model] = u
	}
	*u = u.Plus(used)
}

// Release ends a reservation; without Settle nothing was used. It may be called again.
func (v *Reservation) Release(now time.Duration) {
	v.own.release(now)
	v.shared.release(now)
}

func (c *claim) release(now time.Duration) {
	if c == nil || c.account == nil {
		return
	}
	a := c.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.released {
		return
	}
	a.inFlight--
	if c.settled {
		a.settled--
	} else {
		a.tokens.giveBack(c.reserved, now)
		a.reserved -= c.reserved
		a.reservedCost -= c.cost
	}
	c.settled, c.released = true, true // the account stays set: after a panic the request may still be listed as in flight, and Grow may be called
}
