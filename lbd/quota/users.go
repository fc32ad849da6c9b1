package quota

import (
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Bounds of the accounts of users with identity tokens, with the reason of each bound. The account of a user who used
// anything in the current month is never dropped: a new account would start without usage.
const (
	// maxUsers keeps the accounts within 50 MB. The usage of so many users takes half a megabyte in each
	// store.UsagePart, which has to fit into a message of 1 MB.
	maxUsers = 50_000
	// maxTenantUsers is a quarter: three tenants at their limit do not block others.
	maxTenantUsers = maxUsers / 4
	// dropInterval is the minimum time between two searches for accounts to drop, which take milliseconds.
	dropInterval = time.Minute
)

// OpenUser returns the account of a user with an identity token, created if needed, with the limits and
// rights of k. It fails if there are too many users, in total or in the tenant. A name is always of the same tenant.
func (l *Ledger) OpenUser(k service.APIKey, now time.Duration) (*Account, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[k.Name]
	if a == nil {
		return l.addUser(k, time.Now(), now)
	}
	// The grant is recorded first. If UserOfBatch sets limits between the two calls, configure replaces them.
	a.grant(time.Now())
	a.configure(k, l.tenants[k.Tenant], now)
	return a, nil
}

// UserOfBatch returns the account of the user who created a batch. A batch runs later than it was created, without an
// identity token. limits are those of the token with which it was created; nil = unknown: then a new account has no
// limits. They do not replace limits that were granted later, by a token or with another batch. Tenant and tiers of an
// account that exists are not changed.
func (l *Ledger) UserOfBatch(name, tenant string, limits *service.KeyLimits, created time.Time, now time.Duration) (*Account, error) {
	k := service.APIKey{Name: name, Tenant: tenant, Tier: service.TierDeferred}
	if limits == nil {
		return l.findUser(k, time.Time{}, now)
	}
	k.Limits = *limits
	a, err := l.findUser(k, created, now)
	if err == nil {
		a.renewLimits(k.Limits, created, now)
	}
	return a, err
}

// renewLimits sets limits that were granted later than those of the account.
func (a *Account) renewLimits(limits service.KeyLimits, granted time.Time, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if granted.After(a.granted) {
		a.granted = granted
		a.setLimits(limits, now)
	}
}

// grant records when the account's limits were granted.
func (a *Account) grant(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.granted = at
}

// Reopen returns the account that replaces a dropped one. If there is none yet, it has the limits and rights of the
// dropped one. Reopen fails as OpenUser does.
func (l *Ledger) Reopen(dropped *Account, now time.Duration) (*Account, error) {
	k, granted := dropped.key()
	return l.findUser(k, granted, now)
}

// findUser returns the account of a user as it is, created if needed with the limits and rights of k.
func (l *Ledger) findUser(k service.APIKey, granted time.Time, now time.Duration) (*Account, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[k.Name]; a != nil {
		return a, nil
	}
	return l.addUser(k, granted, now)
}

// key returns the account's name, limits and rights, and when the limits were granted.
func (a *Account) key() (k service.APIKey, granted time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return service.APIKey{Name: a.name, Tenant: a.tenant, Tier: a.tier, MaxTier: a.maxTier, Limits: a.limits}, a.granted
}

// addUser adds the account of a user; the lock must be held.
func (l *Ledger) addUser(k service.APIKey, granted time.Time, now time.Duration) (*Account, error) {
	if err := l.makeRoom(k.Tenant, now); err != nil {
		return nil, err
	}
	a := l.newAccount(k.Name, holderUser)
	l.serial++
	a.serial, a.tenant, a.granted = l.serial, k.Tenant, granted
	l.accounts[k.Name] = a
	l.users++
	l.byTenant[k.Tenant]++
	a.configure(k, l.tenants[k.Tenant], now)
	return a, nil
}

// makeRoom makes room for another user of a tenant; the lock must be held.
func (l *Ledger) makeRoom(tenant string, now time.Duration) error {
	if (l.users >= maxUsers || l.byTenant[tenant] >= maxTenantUsers) && now >= l.nextDrop {
		l.nextDrop = now + dropInterval
		l.dropIdleUsers(now)
	}
	switch {
	case l.users >= maxUsers:
		return fmt.Errorf("%d users have accounts, the maximum of a balancer", l.users)
	case l.byTenant[tenant] >= maxTenantUsers:
		return fmt.Errorf("%d users of this tenant have accounts, the maximum of a balancer", l.byTenant[tenant])
	}
	return nil
}

// DropGeneration returns a number that changes whenever accounts are dropped. A caller that has stored an account must
// then look it up again.
func (l *Ledger) DropGeneration() uint64 { return l.dropGeneration.Load() }

// dropIdleUsers drops the accounts of users for which equalsNew is true; the lock must be held. If a request still holds
// such an account, the account denies it with Dropped: the usage would not be counted.
func (l *Ledger) dropIdleUsers(now time.Duration) {
	next := l.dropGeneration.Load() + 1
	for name, a := range l.accounts {
		if a.holder != holderUser || !a.drop(now) {
			continue
		}
		l.past.add(a)
		delete(l.accounts, name)
		l.dropGeneration.Store(next)
		l.users--
		if l.byTenant[a.tenant]--; l.byTenant[a.tenant] == 0 {
			delete(l.byTenant, a.tenant)
		}
	}
}

// drop makes the account deny all requests if equalsNew is true for it, and returns equalsNew.
func (a *Account) drop(now time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropped = a.equalsNew(now)
	return a.dropped
}

// equalsNew reports whether a new account would have the same limits left: nothing is in flight, the limits
// per minute are full, and nothing was used in the current month at any balancer. The lock must be held.
func (a *Account) equalsNew(now time.Duration) bool {
	a.requests.fill(now)
	a.tokens.fill(now)
	_, month := a.quotaUsage.By(time.Now())
	allSummed := a.total == a.quotaUsage.Own // the last sum includes all usage at this balancer
	return a.inFlight == 0 && a.requests.level == a.requests.capacity() && a.tokens.level == a.tokens.capacity() &&
		month == (telemetry.Usage{}) && allSummed
}
