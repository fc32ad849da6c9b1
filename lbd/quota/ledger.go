package quota

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Ledger contains an account for each name of an API key, for each user with identity tokens, and for
// each tenant with limits of its own; a ledger of external providers has one for each provider instead. An account
// survives changes of the keys: they set its limits, and do not reset its usage.
type Ledger struct {
	mu             sync.Mutex
	accounts       map[string]*Account
	tenants        map[string]*Account // those with limits
	users          int                 // number of accounts of users
	byTenant       map[string]int      // the same by tenant
	nextDrop       time.Duration       // when accounts may be dropped again
	dropGeneration atomic.Uint64       // changes whenever accounts are dropped
	serial         int64               // of the newest account of a user
	past           keySums             // of accounts that were dropped

	labelMu  sync.Mutex
	labelled map[string]bool // names with a metric label of their own
}

// NewLedger returns a ledger without accounts.
func NewLedger() *Ledger {
	return &Ledger{accounts: map[string]*Account{}, tenants: map[string]*Account{}, byTenant: map[string]int{}, past: keySums{}, labelled: map[string]bool{}}
}

// Open returns the account of a key, created if needed, with the key's limits.
func (l *Ledger) Open(k service.APIKey, now time.Duration) *Account {
	return l.open(k, holderKey, now)
}

// OpenProvider is Open for a provider of external models. A ledger has either keys or providers.
func (l *Ledger) OpenProvider(name string, limits service.KeyLimits, now time.Duration) *Account {
	return l.open(service.APIKey{Name: name, Limits: limits}, holderProvider, now)
}

func (l *Ledger) open(k service.APIKey, h holder, now time.Duration) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[k.Name]
	if a == nil {
		a = l.newAccount(k.Name, h)
		l.accounts[k.Name] = a
	}
	a.configure(k, l.tenants[k.Tenant], now)
	return a
}

// newAccount creates an account; the lock must be held.
func (l *Ledger) newAccount(name string, h holder) *Account {
	return &Account{ledger: l, name: name, holder: h, used: map[string]*telemetry.Usage{}, denied: map[string]int64{}}
}

// list returns the accounts of keys and users, sorted by name.
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
// used, so that a series never changes its meaning. The name of a dropped account keeps its label.
func (l *Ledger) label(name string) string {
	l.labelMu.Lock()
	defer l.labelMu.Unlock()
	if !l.labelled[name] && len(l.labelled) >= MaxLabelled {
		return labelOther
	}
	l.labelled[name] = true
	return name
}

// Account contains the limits and the usage of one API key, of one user with identity tokens, of a tenant
// with limits of its own, or of an external provider, at this balancer.
type Account struct {
	ledger *Ledger
	name   string
	holder holder
	serial int64 // distinguishes accounts of a user that was dropped and opened again; 0 for keys

	mu           sync.Mutex
	dropped      bool     // it is no longer in the ledger, and admits nothing
	shared       *Account // of the tenant, if it has limits of its own
	tenant       string
	tier         service.Tier
	maxTier      service.Tier // empty = any
	limits       service.KeyLimits
	granted      time.Time // of a user: when the limits were granted, by an identity token or with a batch; zero = unknown
	budgets      budgets
	requests     bucket
	tokens       bucket
	inFlight     int
	settled      int             // requests in flight that are settled: total already includes their usage
	reserved     int64           // tokens of prompts and expected answers in flight; falls only when a request is settled or released
	reservedCost service.NanoUSD // of these tokens
	meanAnswer   float64         // mean tokens per answer of recent requests
	label        string          // in metrics; empty until the account is used
	used         map[string]*telemetry.Usage
	total        telemetry.Usage // of all models
	denied       map[string]int64
	quotaUsage   telemetry.KeyQuota // the usage at all balancers, as last summed; its Own is the part of this balancer
}

// holder is who an account belongs to, as denials name it.
type holder string

const (
	holderKey      holder = "key"
	holderUser     holder = "user"
	holderTenant   holder = "tenant"
	holderProvider holder = "provider"
)

// budgets are the limits in money; 0 = none.
type budgets struct{ day, month service.NanoUSD }

// The expected length of an answer without a bound is the moving average of the key's recent
// answers. The newest answer has a weight of one tenth. The first expectation is a paragraph or
// two. It reserves tokens and money for a key, whatever its model; it is not lbd/core's expected answer of a
// model, which estimates work and learns from the answers of all keys.
const (
	firstAnswer  = 256
	answerWeight = 0.1
)

// configure sets the limits and rights of a key; shared is the account of its tenant, or nil.
func (a *Account) configure(k service.APIKey, shared *Account, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tenant, a.tier, a.maxTier, a.shared = k.Tenant, k.Tier, k.MaxTier, shared
	a.setLimits(k.Limits, now)
	if a.meanAnswer == 0 {
		a.meanAnswer = firstAnswer
	}
}

// setLimits sets the limits; the lock must be held.
func (a *Account) setLimits(limits service.KeyLimits, now time.Duration) {
	a.limits = limits
	a.budgets = budgets{service.NanoUSDOf(limits.USDPerDay), service.NanoUSDOf(limits.USDPerMonth)}
	a.requests.set(int64(limits.RequestsPerMinute), now)
	a.tokens.set(int64(limits.TokensPerMinute), now)
}

// The limits by which denials are counted, values of the label limit in metrics. admit, reserve and
// overQuota return one of them with a Denial other than Dropped.
const (
	deniedRequests   = "requests"
	deniedTokens     = "tokens"
	deniedConcurrent = "concurrent"
	deniedQuota      = "quota"
	deniedBudget     = "budget"
)

// deny counts a denial; it returns nil if d is nil.
func (a *Account) deny(limit string, d *Denial) *Denial {
	if d != nil && !a.countDenial(limit) {
		a.ledger.countPastDenial(a, limit)
	}
	return d
}

// countDenial counts a denial in the account. If the account was dropped since the denial, it returns false.
func (a *Account) countDenial(limit string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.dropped {
		a.denied[limit]++
	}
	return !a.dropped
}

// countPastDenial counts a denial by an account that was dropped since. dropIdleUsers holds the lock until it has added
// the account to past, under its label: an account that denied a request has one.
func (l *Ledger) countPastDenial(a *Account, limit string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.past[a.label].Denied[limit]++
}

// overQuota returns a denial if one request with a number of tokens and their cost would exceed a
// quota, else nil. With 0 tokens, it returns a denial if none remain. ownInFlight is the part of this request in
// inFlight: 1 if it is included already, else 0. The lock must be held.
func (a *Account) overQuota(ownInFlight, tokens int64, cost service.NanoUSD) (limit string, d *Denial) {
	l := a.limits
	if l.RequestsPerDay|l.TokensPerDay|l.RequestsPerMonth|l.TokensPerMonth == 0 && a.budgets == (budgets{}) {
		return "", nil
	}
	if limit, d := a.neverFits(tokens, cost); d != nil {
		return limit, d
	}
	own := a.total.Minus(a.quotaUsage.Own) // usage that a.quotaUsage does not include yet
	now := time.Now()
	day, month := a.quotaUsage.By(now)
	day, month = day.Plus(own), month.Plus(own)
	others := int64(a.inFlight-a.settled) - ownInFlight // requests in flight that day and month do not include
	for _, q := range []struct {
		unit   string
		limit  int
		used   int64
		period period
	}{
		{"request", l.RequestsPerDay, day.Requests + others + 1, oneDay},
		{"request", l.RequestsPerMonth, month.Requests + others + 1, oneMonth},
		{"token", l.TokensPerDay, day.Tokens() + a.reserved + max(tokens, 1), oneDay},
		{"token", l.TokensPerMonth, month.Tokens() + a.reserved + max(tokens, 1), oneMonth},
	} {
		if q.limit > 0 && q.used > int64(q.limit) {
			return deniedQuota, a.quotaReached(q.unit, q.limit, q.period, now)
		}
	}
	further := a.reservedCost + max(cost, 1)
	switch {
	case a.budgets.day > 0 && day.Cost+further > a.budgets.day:
		return deniedBudget, a.budgetReached(l.USDPerDay, oneDay, now)
	case a.budgets.month > 0 && month.Cost+further > a.budgets.month:
		return deniedBudget, a.budgetReached(l.USDPerMonth, oneMonth, now)
	}
	return "", nil
}

// neverFits returns a denial if one request alone exceeds a quota or budget, else nil. The lock must be held.
func (a *Account) neverFits(tokens int64, cost service.NanoUSD) (limit string, d *Denial) {
	for _, q := range []struct {
		tokens int
		usd    float64
		budget service.NanoUSD
		period period
	}{
		{a.limits.TokensPerDay, a.limits.USDPerDay, a.budgets.day, oneDay},
		{a.limits.TokensPerMonth, a.limits.USDPerMonth, a.budgets.month, oneMonth},
	} {
		switch {
		case q.tokens > 0 && tokens > int64(q.tokens):
			return deniedQuota, largerThanQuota(a.holder, tokens, q.tokens, q.period)
		case q.budget > 0 && cost > q.budget:
			return deniedBudget, largerThanBudget(a.holder, cost, q.usd, q.period)
		}
	}
	return "", nil
}

// Usage returns the usage of each key, user and model, sorted by name and model. Requests count at
// the balancer that their client is connected to. Requests that no engine or provider served do not.
func (l *Ledger) Usage() []telemetry.KeyUsage {
	var list []telemetry.KeyUsage
	for _, a := range l.list() {
		a.mu.Lock()
		tenant := ""
		if a.holder == holderUser || a.shared != nil {
			tenant = a.tenant
		}
		for model, u := range a.used {
			list = append(list, telemetry.KeyUsage{Key: a.name, Tenant: tenant, Model: model, Account: a.serial, Usage: *u})
		}
		a.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b telemetry.KeyUsage) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// SetQuotaUsage sets the usage of a key, summed over all balancers. An unknown name is ignored.
func (l *Ledger) SetQuotaUsage(name string, q telemetry.KeyQuota) {
	l.mu.Lock()
	a := l.accounts[name]
	l.mu.Unlock()
	a.setQuotaUsage(q)
}

// setQuotaUsage sets the sum of the usage over all balancers; a may be nil.
func (a *Account) setQuotaUsage(q telemetry.KeyQuota) {
	if a != nil {
		a.mu.Lock()
		if q.Account != a.serial { // this account has counted from 0 since the sum was made
			q.Own = telemetry.Usage{}
		}
		a.quotaUsage = q
		a.mu.Unlock()
	}
}

// Name returns the name of an account's key or user, and whether it is a user.
func (a *Account) Name() (name string, user bool) { return a.name, a.holder == holderUser }

// Rights returns an account's tenant, the default tier of its requests, and the most urgent tier
// that they may request; empty = any.
func (a *Account) Rights() (tenant string, tier, maxTier service.Tier) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tenant, a.tier, a.maxTier
}

// Limits returns an account's limits.
func (a *Account) Limits() service.KeyLimits {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limits
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

// MaxLabelled is how many API keys and users have series of their own; with 10 models and 5
// series for each model, that is 10,000, and a few more for each key. The others are summed as labelOther.
const (
	MaxLabelled = 200
	labelOther  = "other"
)

// KeyTotals contains the sums of one label of the metrics.
type KeyTotals struct {
	Used               map[string]telemetry.Usage // by model
	Denied             map[string]int64
	InFlight, Reserved int64
	ReservedCost       service.NanoUSD
}

// Totals returns the sums of the used accounts by label, including dropped ones: a counter never falls.
func (l *Ledger) Totals() map[string]*KeyTotals {
	l.mu.Lock() // meanwhile no account is dropped, which would count twice or not at all
	defer l.mu.Unlock()
	sums := make(keySums, len(l.past))
	for label, t := range l.past {
		sums[label] = &KeyTotals{Used: maps.Clone(t.Used), Denied: maps.Clone(t.Denied)} // nothing of them is in flight
	}
	for _, a := range l.accounts {
		sums.add(a)
	}
	return sums
}

// keySums are the sums of accounts by label.
type keySums map[string]*KeyTotals

// add adds an account, if it was used.
func (s keySums) add(a *Account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.label == "" {
		return
	}
	if s[a.label] == nil {
		s[a.label] = &KeyTotals{Used: map[string]telemetry.Usage{}, Denied: map[string]int64{}}
	}
	s[a.label].add(a)
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
	l.ReservedCost += a.reservedCost
}
