package lbd

import (
	"cmp"
	"time"

	"skyserve/internal/telemetry"
)

// limited returns the current API keys, without their secrets, and the users and tenants with quotas.
func (b *balancer) limited() []telemetry.LimitedName {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	return append(telemetry.LimitedKeys(b.keys), b.runtime.Limited()...)
}

// reportQuotas passes the usage of each key, and of each tenant with limits, to the proxy.
func (u *usage) reportQuotas(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	quotas, tenants := map[string]telemetry.KeyQuota{}, map[string]telemetry.KeyQuota{}
	for name := range u.reported {
		quotas[name] = telemetry.KeyQuota{} // a new month may start without usage
	}
	for name, used := range u.tenants {
		tenants[name] = telemetry.KeyQuota{At: now, Own: used}
	}
	day := telemetry.DayOf(now)
	for id, r := range u.overlay(telemetry.MonthOf(now), day, u.stored) {
		quotas[id.key] = addRow(quotas[id.key], r, day)
		if len(tenants) == 0 {
			continue
		}
		tenant := cmp.Or(r.Tenant, u.keys.TenantOf(id.key))
		if q, limited := tenants[tenant]; limited {
			tenants[tenant] = addRow(q, r, day)
		}
	}
	for id, used := range u.counted {
		q := quotas[id.key]
		q.Own, q.Account = q.Own.Plus(used.Usage), used.Account
		quotas[id.key] = q
	}
	for name, q := range quotas {
		q.At = now
		u.keys.SetKeyQuotaUsage(name, q)
		u.reported[name] = true
	}
	for name, q := range tenants {
		u.keys.SetTenantQuotaUsage(name, q)
	}
}

// addRow adds a row to the usage at all balancers.
func addRow(q telemetry.KeyQuota, r telemetry.UsageRow, day int64) telemetry.KeyQuota {
	q.Month, q.Day = q.Month.Plus(r.Month), q.Day.Plus(r.On(day))
	return q
}
