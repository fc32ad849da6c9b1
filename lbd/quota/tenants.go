package quota

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// SetTenants sets the limits that apply to all keys and users of a tenant together. A tenant that remains
// keeps its usage.
func (l *Ledger) SetTenants(limits map[string]service.KeyLimits, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.tenants, func(name string, _ *Account) bool {
		_, kept := limits[name]
		return !kept
	})
	for name, limits := range limits {
		if l.tenants[name] == nil {
			l.tenants[name] = l.newAccount(name, holderTenant)
		}
		l.tenants[name].configure(service.APIKey{Tenant: name, Limits: limits}, nil, now)
	}
	for _, a := range l.accounts {
		a.mu.Lock()
		a.shared = l.tenants[a.tenant]
		a.mu.Unlock()
	}
}

// TenantUsage returns the usage at this balancer of each tenant with limits, from the time when it got limits.
func (l *Ledger) TenantUsage() map[string]telemetry.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := make(map[string]telemetry.Usage, len(l.tenants))
	for name, a := range l.tenants {
		a.mu.Lock()
		used[name] = a.total
		a.mu.Unlock()
	}
	return used
}

// SetTenantQuotaUsage sets the usage of a tenant, summed over all balancers. A tenant without limits is ignored.
func (l *Ledger) SetTenantQuotaUsage(name string, q telemetry.KeyQuota) {
	l.mu.Lock()
	a := l.tenants[name]
	l.mu.Unlock()
	a.setQuotaUsage(q)
}

// TenantOf returns the tenant of a key or user; empty if it is unknown.
func (l *Ledger) TenantOf(name string) string {
	l.mu.Lock()
	a := l.accounts[name]
	l.mu.Unlock()
	if a == nil {
		return ""
	}
	tenant, _, _ := a.Rights()
	return tenant
}

// Limited returns the users and the tenants that have quotas or budgets, with their limits, sorted.
func (l *Ledger) Limited() []telemetry.LimitedName {
	var list []telemetry.LimitedName
	add := func(key string, a *Account) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.limits.HasQuota() {
			list = append(list, telemetry.LimitedName{Key: key, Tenant: a.tenant, Limits: a.limits})
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.tenants {
		add("", a)
	}
	for name, a := range l.accounts {
		if a.holder == holderUser {
			add(name, a)
		}
	}
	slices.SortFunc(list, func(a, b telemetry.LimitedName) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Tenant, b.Tenant))
	})
	return list
}
