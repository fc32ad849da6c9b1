package quota

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Ledger contains an account for each name of an API key. An account survives changes of the keys,
// so that they do not reset its limits.
type Ledger struct {
	mu       sync.Mutex
	accounts map[string]*Account
	labels   atomic.Int64 // number of accounts that requested a metric label
}

// NewLedger returns a ledger without accounts.
func NewLedger() *Ledger { return &Ledger{accounts: map[string]*Account{}} }

// Open returns the account of a key, created if needed, with the key's limits.
func (l *Ledger) Open(k service.APIKey, now time.Duration) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[k.Name]
	if a == nil {
		a = &Account{ledger: l, name: k.Name, used: map[string]*telemetry.Usage{}, denied: map[string]int64{}}
		l.accounts[k.Name] = a
	}
	a.configure(k, now)
	return a
}

// list returns all accounts, sorted by name.
func (l *Ledger) list() []*Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*Account, 0, len(l.accounts))
	for _, a := range l.accounts {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *Account) int { return cmp.Compare(a.name, b.name) })
	return list
}

// label returns the metric label of an account: its own name for the first MaxLabelled that are
// used, so that a series never changes its meaning.
func (l *Ledger) label(name string) string {
	if l.labels.Add(1) > MaxLabelled {
		return labelOther
	}
	return name
}

// Account contains the limits and the usage of one API key at this balancer.
type Account struct {
	ledger *Ledger
	name   string

	mu         sync.Mutex
	tenant     string
	tier       service.Tier
	maxTier    service.Tier // empty = any
	limits     service.KeyLimits
	requests   bucket
	tokens     bucket
	inFlight   int
	reserved   int64   // tokens that requests in flight may still use
	meanAnswer float64 // mean tokens per answer of recent requests
	label      string  // in metrics; empty until the account is used
	used       map[string]*telemetry.Usage
	total      telemetry.Usage // of all models
	denied     map[string]int64
	quota      telemetry.KeyQuota
}

// The expected length of an answer without a bound is the moving average of the key's recent
// answers. The newest answer has a weight of one tenth. The first expectation is a paragraph or
// two.
const (
	firstAnswer  = 256
	answerWeight = 0.1
)

func (a *Account) configure(k service.APIKey, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tenant, a.tier, a.maxTier, a.limits = k.Tenant, k.Tier, k.MaxTier, k.Limits
	a.requests.set(int64(k.Limits.RequestsPerMinute), now)
	a.tokens.set(int64(k.Limits.TokensPerMinute), now)
	if a.meanAnswer == 0 {
		a.meanAnswer = firstAnswer
	}
}

// Reservation is one request of an account, from its arrival to its end. The zero value belongs to
// no account and reserves nothing.
type Reservation struct {
	account  *Account
	prompt   int64 // tokens of its prompt, as reserved
	answers  int   // requested answers
	reserved int64 // prompt and expected tokens of the answers, or the actual tokens if there are more
	settled  bool
	released bool
}

// Active reports whether the reservation belongs to an account.
func (v *Reservation) Active() bool { return v.account != nil }

// Admit admits a request, or returns a Denial. Release must be called at the end of the request.
func (a *Account) Admit(now time.Duration) (Reservation, *Denial) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.label == "" {
		a.label = a.ledger.label(a.name)
	}
	if e := a.overQuota(0, 0); e != nil {
		return Reservation{}, e
	}
	if limit := a.limits.Concurrent; limit > 0 && a.inFlight >= limit {
		return Reservation{}, a.deny(deniedConcurrent, OverRate("requests", time.Second, "%d requests of this key are in flight, the limit is %d", a.inFlight, limit))
	}
	if wait, _, ok := a.requests.take(1, now); !ok {
		return Reservation{}, a.deny(deniedRequests, OverRate("requests", wait, "the limit of this key is %d requests per minute", a.requests.limit))
	}
	a.inFlight++
	return Reservation{account: a}, nil
}

// Reserve reserves the expected tokens of a request: its prompt, and bound tokens for each of its
// answers. If bound is 0, the expected length of each is the mean of the key's recent answers.
func (v *Reservation) Reserve(prompt, bound, answers int, now time.Duration) *Denial {
	a := v.account
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	each := float64(bound)
	if bound <= 0 {
		each = math.Ceil(a.meanAnswer)
	}
	expected := each * float64(answers)
	n := int64(prompt) + int64(min(expected, float64(maxChange)))
	if e := a.overQuota(1, n); e != nil {
		return e
	}
	wait, never, ok := a.tokens.take(n, now)
	switch {
	case never:
		return a.deny(deniedTokens, OverRate("tokens", 0, "the request is too large: it may use %d tokens, and the limit of this key is %d per minute; shorten it or set a lower max_tokens", n, a.tokens.limit))
	case !ok:
		return a.deny(deniedTokens, OverRate("tokens", wait, "the request may use %d tokens, and the limit of this key is %d per minute", n, a.tokens.limit))
	}
	v.prompt, v.answers, v.reserved = int64(prompt), answers, n
	a.reserved += n
	return nil
}

// Grow increases the reservation when the answers have more tokens than reserved. The increase
// reduces the limit for the key's other requests.
func (v *Reservation) Grow(generated int, now time.Duration) {
	a := v.account
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	more := v.prompt + int64(generated) - v.reserved
	if more <= 0 || v.settled {
		return
	}
	v.reserved += more
	a.reserved += more
	a.tokens.giveBack(-more, now)
}

// Settle replaces the reserved tokens by the actual usage.
func (v *Reservation) Settle(model string, used telemetry.Usage, now time.Duration) {
	a := v.account
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if v.settled {
		return
	}
	v.settled = true
	a.tokens.giveBack(v.reserved-used.Tokens(), now)
	a.reserved -= v.reserved
	if used.OutputTokens > 0 {
		a.meanAnswer += answerWeight * (float64(used.OutputTokens)/float64(max(1, v.answers)) - a.meanAnswer)
	}
	u := a.used[model]
	if u == nil {
		u = &telemetry.Usage{}
		a.used[model] = u
	}
	*u = u.Plus(used)
	a.total = a.total.Plus(used)
}

// Release ends a reservation; without Settle nothing was used. It may be called again.
func (v *Reservation) Release(now time.Duration) {
	a := v.account
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if v.released {
		return
	}
	a.inFlight--
	if !v.settled {
		a.tokens.giveBack(v.reserved, now)
		a.reserved -= v.reserved
	}
	v.settled, v.released = true, true // the account stays set: after a panic the request may still be listed as in flight, and Grow may be called
}

// Reasons of denials, label values of metrics.
const (
	deniedRequests   = "requests"
	deniedTokens     = "tokens"
	deniedConcurrent = "concurrent"
	deniedQuota      = "quota"
)

// deny counts a denial.
func (a *Account) deny(kind string, d *Denial) *Denial {
	a.denied[kind]++
	return d
}

// overQuota returns a denial if a number of further requests and tokens would exceed a quota, else
// nil. With 0 tokens, it returns a denial if none remain.
func (a *Account) overQuota(requests, tokens int64) *Denial {
	l := a.limits
	if l.RequestsPerDay|l.TokensPerDay|l.RequestsPerMonth|l.TokensPerMonth == 0 {
		return nil
	}
	own := a.total.Minus(a.quota.Own) // usage that other balancers do not have yet
	now := time.Now()
	day, month := a.quota.By(now)
	day, month = day.Plus(own), month.Plus(own)
	others := int64(a.inFlight) - requests // the current request is already in flight
	for _, q := range []struct {
		unit   string
		limit  int
		used   int64
		period period
	}{
		{"requests", l.RequestsPerDay, day.Requests + others + 1, oneDay},
		{"requests", l.RequestsPerMonth, month.Requests + others + 1, oneMonth},
		{"tokens", l.TokensPerDay, day.Tokens() + a.reserved + max(tokens, 1), oneDay},
		{"tokens", l.TokensPerMonth, month.Tokens() + a.reserved + max(tokens, 1), oneMonth},
	} {
		if q.limit > 0 && q.used > int64(q.limit) {
			return a.deny(deniedQuota, quotaReached(q.unit, q.limit, q.period, now))
		}
	}
	return nil
}

// Usage returns the usage of each account and model, sorted by name and model. Requests count at
// the balancer that their client is connected to, and only if admitted.
func (l *Ledger) Usage() []telemetry.KeyUsage {
	var list []telemetry.KeyUsage
	for _, a := range l.list() {
		a.mu.Lock()
		for model, u := range a.used {
			list = append(list, telemetry.KeyUsage{Key: a.name, Model: model, Usage: *u})
		}
		a.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b telemetry.KeyUsage) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// SetQuota sets the usage of a key at all balancers together. An unknown name is ignored.
func (l *Ledger) SetQuota(name string, q telemetry.KeyQuota) {
	l.mu.Lock()
	a := l.accounts[name]
	l.mu.Unlock()
	if a != nil {
		a.mu.Lock()
		a.quota = q
		a.mu.Unlock()
	}
}

// Rights returns an account's tenant, the default tier of its requests, and the most urgent tier
// that they may request; empty = any.
func (a *Account) Rights() (tenant string, tier, maxTier service.Tier) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tenant, a.tier, a.maxTier
}

// The names of OpenAI's headers: limit, remaining and reset, of requests and of tokens.
var rateHeaders = [6]string{
	"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests",
	"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens",
}

// WriteHeaders writes the remaining limits per minute of a key as OpenAI does.
func (a *Account) WriteHeaders(h http.Header, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.requests.limit == 0 && a.tokens.limit == 0 {
		return
	}
	values := &[len(rateHeaders)]string{} // one allocation for all of them
	for b, bucket := range [...]*bucket{&a.requests, &a.tokens} {
		if bucket.limit == 0 {
			continue
		}
		remaining, full := bucket.remaining(now)
		reset := (full + time.Millisecond - 1).Truncate(time.Millisecond)
		at := 3 * b
		values[at], values[at+1], values[at+2] = bucket.text, strconv.FormatInt(remaining, 10), reset.String()
		for i := at; i < at+3; i++ {
			h[rateHeaders[i]] = values[i : i+1 : i+1]
		}
	}
}

// MaxLabelled is how many API keys have series of their own; with 10 models and 4 series each that
// is 8,000. The others are summed as labelOther.
const (
	MaxLabelled = 200
	labelOther  = "other"
)

// KeyTotals contains the sums of one label of the metrics.
type KeyTotals struct {
	Used               map[string]telemetry.Usage // by model
	Denied             map[string]int64
	InFlight, Reserved int64
}

// Totals returns the sums of the used accounts by label.
func (l *Ledger) Totals() map[string]*KeyTotals {
	sums := map[string]*KeyTotals{}
	for _, a := range l.list() {
		a.mu.Lock()
		if a.label != "" {
			if sums[a.label] == nil {
				sums[a.label] = &KeyTotals{Used: map[string]telemetry.Usage{}, Denied: map[string]int64{}}
			}
			sums[a.label].add(a)
		}
		a.mu.Unlock()
	}
	return sums
}

// add adds an account, whose lock is held.
func (l *KeyTotals) add(a *Account) {
	for model, u := range a.used {
		l.Used[model] = l.Used[model].Plus(*u)
	}
	for limit, n := range a.denied {
		l.Denied[limit] += n
	}
	l.InFlight += int64(a.inFlight)
	l.Reserved += a.reserved
}
