package lbd

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// Limits of the usage of API keys, each with its reason.
const (
	usageInterval = 2 * time.Second        // maximum age of other balancers' usage, and the maximum loss at a crash
	usageDebounce = 100 * time.Millisecond // parts of other balancers that arrive together are summed once
	usageShards   = 32                     // 100,000 keys of two models: 6,000 rows of 100 bytes, below a message's 1 MB
	usageMonths   = telemetry.UsageMonths
	// maxStoredMonths months with usage are kept, regardless of the time of the clocks: the current
	// one, those before it, and one that a wrong clock created.
	maxStoredMonths   = usageMonths + 2
	maxFinalPushes    = 3                      // two may conflict: with an own write that timed out and completed late, and with one of another process
	finalPushInterval = 200 * time.Millisecond // between the last pushes to an unavailable store
)

// UsageStore stores the usage of all balancers' API keys; internal/store implements it.
type UsageStore interface {
	// ReadUsage reads a part and its revision, 0 if nothing was written yet.
	ReadUsage(ctx context.Context, part store.UsagePart) (rows []telemetry.UsageRow, revision uint64, err error)
	// WriteUsage replaces a part of that revision; store.ErrConflict if it has another. After any
	// other error it may have been written.
	WriteUsage(ctx context.Context, part store.UsagePart, rows []telemetry.UsageRow, revision uint64) (next uint64, err error)
	// WatchUsage sends every part, then every change, until ctx ends.
	WatchUsage(ctx context.Context) <-chan store.UsageChange
	UsageParts(ctx context.Context) ([]store.UsagePart, error)
	// Time returns the time of the store's own clock.
	Time(ctx context.Context) (time.Time, error)
	DropUsage(ctx context.Context, part store.UsagePart) error
}

// keyAccounts counts the usage of API keys and enforces their quotas; proxy.Runtime implements it.
type keyAccounts interface {
	// RequiresKeys reports whether clients must present a key. While keys are not required, the
	// store is not used.
	RequiresKeys() bool
	KeyUsage() []telemetry.KeyUsage
	SetKeyQuotaUsage(name string, q telemetry.KeyQuota)
	// TenantUsage and SetTenantQuotaUsage are the same for the tenants that have limits.
	TenantUsage() map[string]telemetry.Usage
	SetTenantQuotaUsage(name string, q telemetry.KeyQuota)
	// TenantOf returns the tenant of a key or user; empty if it is unknown.
	TenantOf(key string) string
}

// usage stores the usage of API keys at this balancer, reads the usage at the other balancers, and
// passes the sum to the proxy, which enforces the quotas.
type usage struct {
	balancer    string
	region      service.Region
	keys        keyAccounts
	store       UsageStore // nil = none
	log         *slog.Logger
	unavailable bool   // the last request to the store failed; used only by runUsage
	pruned      string // the newest month that was stored when old ones were removed; used only by runUsage

	mu        sync.Mutex
	counted   map[series]telemetry.KeyUsage // the balancer's own counts that are already in ownParts
	countedAt time.Time                     // when they were counted
	tenants   map[string]telemetry.Usage    // those of tenants with limits
	ownParts  map[store.UsagePart]*ownPart
	stored    map[store.UsagePart][]telemetry.UsageRow // as reported by the store
	reported  map[string]bool                          // keys whose usage was passed to the proxy
}

// series identifies a row.
type series struct {
	key, model string
	region     service.Region
}

func seriesOf(r telemetry.UsageRow) series { return series{r.Key, r.Model, r.Region} }

// table contains rows by series.
type table map[series]telemetry.UsageRow

// addRows adds rows with their values on a day.
func (t table) addRows(day int64, rows ...telemetry.UsageRow) {
	for _, r := range rows {
		r = r.NotAfter(day)
		if old, ok := t[seriesOf(r)]; ok {
			r = old.Plus(r)
		}
		t[seriesOf(r)] = r
	}
}

// rows returns the rows, sorted.
func (t table) rows() []telemetry.UsageRow {
	return slices.SortedFunc(maps.Values(t), func(a, b telemetry.UsageRow) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region))
	})
}

// ownPart is a part that this balancer writes. An earlier process of this balancer may have written it
// before. A store that did not respond may nevertheless have written the received data. So sent data
// is kept until the store has confirmed it.
type ownPart struct {
	hasBase  bool   // base was read
	fresh    bool   // revision is the revision of base
	revision uint64 // in the store
	base     []telemetry.UsageRow
	sending  table                // sent, but possibly not in base
	sent     []telemetry.UsageRow // base with sending, as last sent
	pending  table                // counted since the last send
}

func newUsage(cfg service.BalancerConfig, keys keyAccounts, s UsageStore, log *slog.Logger) *usage {
	return &usage{
		balancer: cfg.ID, region: cfg.Region, keys: keys, store: s, log: log,
		counted: map[series]telemetry.KeyUsage{}, ownParts: map[store.UsagePart]*ownPart{}, stored: map[store.UsagePart][]telemetry.UsageRow{}, reported: map[string]bool{},
	}
}

// runUsage counts, stores and reports until ctx ends, and then stores once more.
func (u *usage) runUsage(ctx context.Context) {
	changes := u.watchChanges(ctx)
	began := time.Now()
	u.countUsage(began)
	timer := time.NewTimer(untilCount(began))
	defer timer.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			u.finalPush(ctx)
			return
		case c, open := <-changes:
			if !open {
				changes = nil // it ends with ctx
			} else if u.applyChange(c); settled == nil {
				settled = time.After(usageDebounce)
			}
			continue
		case <-settled:
			settled = nil
		case <-timer.C:
			now := time.Now()
			u.countUsage(now)
			timer.Reset(untilCount(now))
			u.pushUsage(ctx)
			if changes == nil {
				changes = u.watchChanges(ctx)
			}
		}
		u.reportQuotas(time.Now())
	}
}

// untilCount returns the time until the next count: usageInterval, or less before midnight (UTC).
func untilCount(now time.Time) time.Duration {
	return min(usageInterval, time.Unix((telemetry.DayOf(now)+1)*24*60*60, 0).Sub(now))
}

// watchChanges returns the changes of other balancers' usage; nil without a store or keys.
func (u *usage) watchChanges(ctx context.Context) <-chan store.UsageChange {
	if u.store == nil || !u.keys.RequiresKeys() || ctx.Err() != nil {
		return nil
	}
	return u.store.WatchUsage(ctx)
}

// finalPush stores what is not stored yet, within finalTimeout. A store that does not respond immediately
// may still be starting, or have a slow disk.
func (u *usage) finalPush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTimeout)
	defer cancel()
	u.countUsage(time.Now())
	for tries := 0; ; {
		u.pushUsage(ctx)
		if u.store == nil || len(u.changedParts()) == 0 {
			return
		}
		if !u.unavailable { // the store responds, but another process wrote the part
			if tries++; tries == maxFinalPushes {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(finalPushInterval):
		}
	}
}

// applyChange applies the stored version of a part.
func (u *usage) applyChange(c store.UsageChange) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(c.Rows) == 0 { // the part was removed
		delete(u.stored, c.Part)
		return
	}
	u.stored[c.Part] = c.Rows // of any month, because this clock may be wrong and corrected later
}

// countUsage adds the usage since the last call to the parts of the day of that call: runUsage calls it at each
// midnight.
func (u *usage) countUsage(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	since := u.countedAt
	if u.countedAt = now.Round(0); since.IsZero() || since.After(now) { // the wall clock was corrected
		since = now
	}
	month, day := telemetry.MonthOf(since), telemetry.DayOf(since)
	u.tenants = u.keys.TenantUsage()           // before that of the keys: usage in between counts twice until the next count, which is better than not at all
	counted := map[series]telemetry.KeyUsage{} // without the quota accounts that were dropped from memory: a new account of the same user counts from 0
	for _, k := range u.keys.KeyUsage() {
		id := series{k.Key, k.Model, u.region}
		counted[id] = k
		used := k.Usage
		if before := u.counted[id]; before.Account == k.Account {
			used = used.Minus(before.Usage)
		}
		if used == (telemetry.Usage{}) {
			continue
		}
		part := store.UsagePart{Month: month, Balancer: u.balancer, Shard: shardOf(k.Key)}
		if u.ownParts[part] == nil {
			u.ownParts[part] = &ownPart{sending: table{}, pending: table{}}
		}
		u.ownParts[part].pending.addRows(day, telemetry.UsageRow{Key: k.Key, Model: k.Model, Region: u.region, Tenant: k.Tenant, Month: used, Day: day, Today: used})
	}
	u.counted = counted
}

func shardOf(key string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, key) // a hash accepts everything
	return int(h.Sum32() % usageShards)
}

// pushUsage stores every part that changed. With the first part of a month, it removes old parts.
func (u *usage) pushUsage(ctx context.Context) {
	if u.store == nil {
		u.dropOldMonths(time.Now())
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	var err error
	saved := ""
	for _, part := range u.changedParts() {
		e := u.save(ctx, part)
		if e == nil {
			saved = max(saved, part.Month)
		} else if !errors.Is(e, store.ErrConflict) {
			err = e
			break // the other parts would fail too
		}
	}
	if err == nil && saved > u.pruned {
		if err = u.prune(ctx, time.Now()); err == nil {
			u.pruned = saved
		}
	}
	if failed := err != nil; failed != u.unavailable {
		u.unavailable = failed
		if failed {
			u.log.Warn("storing usage of API keys failed, retrying", "err", err)
		} else {
			u.log.Info("storing usage of API keys succeeded again")
		}
	}
}

// dropOldMonths drops old months from memory if there is no store.
func (u *usage) dropOldMonths(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var months []string
	for part := range u.ownParts {
		months = append(months, part.Month)
	}
	old := store.Outdated(months, maxStoredMonths, oldestMonth(now))
	maps.DeleteFunc(u.ownParts, func(part store.UsagePart, _ *ownPart) bool { return slices.Contains(old, part.Month) })
}

// oldestMonth returns the first month that is kept.
func oldestMonth(now time.Time) string {
	y, m, _ := now.UTC().Date()
	return telemetry.MonthOf(time.Date(y, m-usageMonths, 1, 0, 0, 0, 0, time.UTC))
}

// changedParts returns the parts with data that the store does not have, and removes those of earlier
// months without such data.
func (u *usage) changedParts() []store.UsagePart {
	u.mu.Lock()
	defer u.mu.Unlock()
	var parts []store.UsagePart
	month := telemetry.MonthOf(time.Now())
	for part, p := range u.ownParts {
		if len(p.pending)+len(p.sending) > 0 {
			parts = append(parts, part)
		} else if part.Month != month {
			delete(u.ownParts, part)
		}
	}
	slices.SortFunc(parts, func(a, b store.UsagePart) int {
		return cmp.Or(cmp.Compare(a.Month, b.Month), cmp.Compare(a.Shard, b.Shard))
	})
	return parts
}

// save stores one part. Data that could not be stored before is sent alone and unchanged; newer
// counts follow later.
func (u *usage) save(ctx context.Context, part store.UsagePart) error {
	u.mu.Lock()
	p := u.ownParts[part]
	again := len(p.sending) > 0
	u.mu.Unlock()
	err := u.saveOnce(ctx, part, p)
	if again && err == nil {
		err = u.saveOnce(ctx, part, p)
	}
	return err
}

func (u *usage) saveOnce(ctx context.Context, part store.UsagePart, p *ownPart) error {
	u.mu.Lock()
	fresh := p.fresh
	u.mu.Unlock()
	if !fresh {
		rows, revision, err := u.store.ReadUsage(ctx, part)
		if err != nil {
			return err
		}
		u.setBase(p, rows, revision)
	}
	rows, revision := u.nextContent(p, time.Now())
	next, err := u.store.WriteUsage(ctx, part, rows, revision)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		p.fresh = false
		return err
	}
	p.base, p.revision = rows, next
	clear(p.sending)
	return nil
}

// setBase records the contents of an own part in the store.
func (u *usage) setBase(p *ownPart, rows []telemetry.UsageRow, revision uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p.sent != nil && slices.Equal(rows, p.sent) {
		clear(p.sending) // the store has the data, although it did not confirm the write
	}
	p.hasBase, p.fresh, p.base, p.revision = true, true, rows, revision
}

// nextContent returns the new content of an own part in the store, and the revision to replace. While it is
// unknown whether the store has the sent data, no newer counts are added to it: a write that timed out may
// still complete, and is recognized by its rows.
func (u *usage) nextContent(p *ownPart, now time.Time) (rows []telemetry.UsageRow, revision uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	day := telemetry.DayOf(now)
	if len(p.sending) == 0 {
		p.sending.addRows(day, p.pending.rows()...)
		clear(p.pending)
	}
	t := table{}
	t.addRows(day, p.base...)
	t.addRows(day, p.sending.rows()...)
	p.sent = t.rows()
	return p.sent, p.revision
}

// prune removes the months that are no longer kept, by this clock and by the store's. All balancers do
// this; only the first one has an effect.
func (u *usage) prune(ctx context.Context, now time.Time) error {
	parts, err := u.store.UsageParts(ctx)
	if err != nil {
		return err
	}
	there, err := u.store.Time(ctx)
	if err != nil {
		return err
	}
	var months []string
	for _, part := range parts {
		months = append(months, part.Month)
	}
	old := store.Outdated(months, maxStoredMonths, min(oldestMonth(now), oldestMonth(there)))
	for _, part := range parts {
		if slices.Contains(old, part.Month) {
			if err := u.store.DropUsage(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// overlay merges the stored parts of a month with this balancer's own parts, including data that is
// not stored yet. The lock must be held.
func (u *usage) overlay(month string, day int64, stored map[store.UsagePart][]telemetry.UsageRow) table {
	sum := table{}
	for part, rows := range stored {
		if p := u.ownParts[part]; part.Month == month && (p == nil || !p.hasBase) {
			sum.addRows(day, rows...)
		}
	}
	for part, p := range u.ownParts {
		if part.Month != month {
			continue
		}
		sum.addRows(day, p.base...)
		sum.addRows(day, p.sending.rows()...)
		sum.addRows(day, p.pending.rows()...)
	}
	return sum
}

// Usage returns the usage of all API keys at all balancers in a month (2026-11), sorted by key, model
// and region; the balancers of a region are summed. complete is false if the store is unavailable or
// there is none: then that of other balancers is as last received.
func (u *usage) Usage(ctx context.Context, month string) (rows []telemetry.UsageRow, complete bool) {
	now := time.Now()
	u.countUsage(now)
	stored, err := u.readMonth(ctx, month)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		stored = u.stored
	}
	return u.overlay(month, telemetry.DayOf(now), stored).rows(), err == nil
}

// readMonth reads the parts of a month.
func (u *usage) readMonth(ctx context.Context, month string) (map[store.UsagePart][]telemetry.UsageRow, error) {
	if u.store == nil {
		return nil, errNoStore
	}
	parts, err := u.store.UsageParts(ctx)
	if err != nil {
		return nil, err
	}
	stored := map[store.UsagePart][]telemetry.UsageRow{}
	for _, part := range parts {
		if part.Month != month {
			continue
		}
		if stored[part], _, err = u.store.ReadUsage(ctx, part); err != nil {
			return nil, err
		}
	}
	return stored, nil
}
