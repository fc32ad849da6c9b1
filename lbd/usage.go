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

// Bounds of the usage of API keys, each with its reason.
const (
	usageEvery  = 2 * time.Second        // how old others' usage may be, and what a crash loses
	usageSettle = 100 * time.Millisecond // others' parts that come together are added up once
	usageShards = 32                     // 100,000 keys of two models: 6,000 rows of 100 bytes, below a message's 1 MB
	usageMonths = telemetry.UsageMonths
	// usageNewest months with usage stay whatever clocks say: the running one, those before
	// it, and one that a wrong clock made.
	usageNewest = usageMonths + 2
	lastPushes  = 3                      // a write that was given up may get in beside the last one, once
	lastPause   = 200 * time.Millisecond // between the last pushes to a store that is away
)

// UsageStore keeps what all balancers' API keys used; internal/store has it.
type UsageStore interface {
	// ReadUsage reads a part and its revision, 0 where nothing was written yet.
	ReadUsage(ctx context.Context, part store.UsagePart) (rows []telemetry.UsageRow, revision uint64, err error)
	// WriteUsage replaces a part of that revision; store.ErrConflict when it has
	// another. After any other error it may have been written.
	WriteUsage(ctx context.Context, part store.UsagePart, rows []telemetry.UsageRow, revision uint64) (next uint64, err error)
	// WatchUsage sends every part, then every change, until ctx ends.
	WatchUsage(ctx context.Context) <-chan store.UsageChange
	UsageParts(ctx context.Context) ([]store.UsagePart, error)
	// Time is the time by the clock of the store itself.
	Time(ctx context.Context) (time.Time, error)
	DropUsage(ctx context.Context, part store.UsagePart) error
}

// keyUser counts what API keys use, and holds their quotas against what it is
// told; proxy.Runtime does.
type keyUser interface {
	// AsksForKeys says whether clients must present one; while nobody must, the
	// store is left alone.
	AsksForKeys() bool
	KeyUsage() []telemetry.KeyUsage
	SetKeyQuota(name string, q telemetry.KeyQuota)
}

// usage brings what this balancer's API keys used into the store, learns what
// the other balancers' did, and tells the balancer the sum.
type usage struct {
	balancer string
	region   service.Region
	keys     keyUser
	store    UsageStore // nil = none
	log      *slog.Logger
	away     bool   // the store did not answer the last time; of run alone
	pruned   string // the newest month that was stored when old ones were removed; of run alone

	mu      sync.Mutex
	counted map[series]telemetry.Usage // of the balancer's own counts, what is in mine
	mine    map[store.UsagePart]*ownPart
	stored  map[store.UsagePart][]telemetry.UsageRow // as the store told
	told    map[string]bool                          // keys whose quota the balancer was told of
}

// series is what one row counts.
type series struct {
	key, model string
	region     service.Region
}

func seriesOf(r telemetry.UsageRow) series { return series{r.Key, r.Model, r.Region} }

// table is rows by what they count.
type table map[series]telemetry.UsageRow

// add adds rows as they are on a day.
func (t table) add(day int64, rows ...telemetry.UsageRow) {
	for _, r := range rows {
		r = r.NotAfter(day)
		if old, ok := t[seriesOf(r)]; ok {
			r = old.Plus(r)
		}
		t[seriesOf(r)] = r
	}
}

// rows is the table, sorted.
func (t table) rows() []telemetry.UsageRow {
	return slices.SortedFunc(maps.Values(t), func(a, b telemetry.UsageRow) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region))
	})
}

// ownPart is a part that this balancer writes. An earlier process of it may have
// written it before, and a store that did not answer may have written what it was
// sent all the same: so what is sent is kept until the store is known to have it.
type ownPart struct {
	opened   bool   // base was read
	fresh    bool   // revision is base's
	revision uint64 // of the store
	base     []telemetry.UsageRow
	sending  table                // not known to be in base
	sent     []telemetry.UsageRow // base with sending, as it was sent last
	pending  table                // counted since
}

// namedKeys is the API keys that are good now, without their secrets.
func (b *balancer) namedKeys() []service.APIKey {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	keys := slices.Clone(b.keys)
	for i := range keys {
		keys[i].Secret = ""
	}
	return keys
}

func newUsage(cfg service.BalancerConfig, keys keyUser, s UsageStore, log *slog.Logger) *usage {
	return &usage{
		balancer: cfg.ID, region: cfg.Region, keys: keys, store: s, log: log,
		counted: map[series]telemetry.Usage{}, mine: map[store.UsagePart]*ownPart{}, stored: map[store.UsagePart][]telemetry.UsageRow{}, told: map[string]bool{},
	}
}

// run counts, stores and tells until ctx ends, and then stores once more.
func (u *usage) run(ctx context.Context) {
	changes := u.watch(ctx)
	ticker := time.NewTicker(usageEvery)
	defer ticker.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			u.last(ctx)
			return
		case c, open := <-changes:
			if !open {
				changes = nil // it ends with ctx
			} else if u.heard(c); settled == nil {
				settled = time.After(usageSettle)
			}
			continue
		case <-settled:
			settled = nil
		case <-ticker.C:
			u.count(time.Now())
			u.push(ctx)
			if changes == nil {
				changes = u.watch(ctx)
			}
		}
		u.tell(time.Now())
	}
}

// watch hears of others' usage from now on; nil where there is none to hear of.
func (u *usage) watch(ctx context.Context) <-chan store.UsageChange {
	if u.store == nil || !u.keys.AsksForKeys() || ctx.Err() != nil {
		return nil
	}
	return u.store.WatchUsage(ctx)
}

// last stores what is not stored yet, if that is done in finalTimeout: a store that
// does not answer at once may be starting too, or its disk be slow.
func (u *usage) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTimeout)
	defer cancel()
	u.count(time.Now())
	for tries := 0; ; {
		u.push(ctx)
		if u.store == nil || len(u.changed()) == 0 {
			return
		}
		if !u.away { // the store answers, and holds what somebody else wrote
			if tries++; tries == lastPushes {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lastPause):
		}
	}
}

// heard notes a part as it is stored now.
func (u *usage) heard(c store.UsageChange) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(c.Rows) == 0 { // it was removed
		delete(u.stored, c.Part)
		return
	}
	u.stored[c.Part] = c.Rows // of any month: this clock may be wrong and be set right
}

// count adds what was used since the last time to the parts of the present day.
func (u *usage) count(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	month, day := telemetry.MonthOf(now), telemetry.DayOf(now)
	for _, k := range u.keys.KeyUsage() {
		id := series{k.Key, k.Model, u.region}
		used := k.Usage.Minus(u.counted[id])
		if used == (telemetry.Usage{}) {
			continue
		}
		u.counted[id] = k.Usage
		part := store.UsagePart{Month: month, Balancer: u.balancer, Shard: shardOf(k.Key)}
		if u.mine[part] == nil {
			u.mine[part] = &ownPart{sending: table{}, pending: table{}}
		}
		u.mine[part].pending.add(day, telemetry.UsageRow{Key: k.Key, Model: k.Model, Region: u.region, Month: used, Day: day, Today: used})
	}
}

func shardOf(key string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, key) // a hash takes everything
	return int(h.Sum32() % usageShards)
}

// push stores every part that changed, and removes old ones with the first of a month.
func (u *usage) push(ctx context.Context) {
	if u.store == nil {
		u.forget(time.Now())
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	var err error
	saved := ""
	for _, part := range u.changed() {
		e := u.save(ctx, part)
		if e == nil {
			saved = max(saved, part.Month)
		} else if !errors.Is(e, store.ErrConflict) {
			err = e
			break // the others would fare no better
		}
	}
	if err == nil && saved > u.pruned {
		if err = u.prune(ctx, time.Now()); err == nil {
			u.pruned = saved
		}
	}
	if away := err != nil; away != u.away {
		u.away = away
		if away {
			u.log.Warn("usage of API keys cannot be stored, trying on", "err", err)
		} else {
			u.log.Info("usage of API keys is stored again")
		}
	}
}

// forget drops old months where there is no store to keep them.
func (u *usage) forget(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var months []string
	for part := range u.mine {
		months = append(months, part.Month)
	}
	old := store.Outdated(months, usageNewest, oldestMonth(now))
	maps.DeleteFunc(u.mine, func(part store.UsagePart, _ *ownPart) bool { return slices.Contains(old, part.Month) })
}

// oldestMonth is the first month that is kept.
func oldestMonth(now time.Time) string {
	y, m, _ := now.UTC().Date()
	return telemetry.MonthOf(time.Date(y, m-usageMonths, 1, 0, 0, 0, 0, time.UTC))
}

// changed lists the parts that hold what the store does not have, and forgets
// those of earlier months that hold nothing of the kind.
func (u *usage) changed() []store.UsagePart {
	u.mu.Lock()
	defer u.mu.Unlock()
	var parts []store.UsagePart
	month := telemetry.MonthOf(time.Now())
	for part, p := range u.mine {
		if len(p.pending)+len(p.sending) > 0 {
			parts = append(parts, part)
		} else if part.Month != month {
			delete(u.mine, part)
		}
	}
	slices.SortFunc(parts, func(a, b store.UsagePart) int {
		return cmp.Or(cmp.Compare(a.Month, b.Month), cmp.Compare(a.Shard, b.Shard))
	})
	return parts
}

// save stores one part. What could not be stored before goes alone, as it was sent
// then; what was counted since follows.
func (u *usage) save(ctx context.Context, part store.UsagePart) error {
	u.mu.Lock()
	p := u.mine[part]
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
		u.opened(p, rows, revision)
	}
	rows, revision := u.send(p, time.Now())
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

// opened notes what the store holds of an own part.
func (u *usage) opened(p *ownPart, rows []telemetry.UsageRow, revision uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p.sent != nil && slices.Equal(rows, p.sent) {
		clear(p.sending) // the store has it, although it did not say so
	}
	p.opened, p.fresh, p.base, p.revision = true, true, rows, revision
}

// send is what the store shall hold in the place of a revision of an own part.
// While it is not known whether the store has what was sent, nothing is added to
// that: a write that was given up may still get in, and is known by its rows.
func (u *usage) send(p *ownPart, now time.Time) (rows []telemetry.UsageRow, revision uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	day := telemetry.DayOf(now)
	if len(p.sending) == 0 {
		p.sending.add(day, p.pending.rows()...)
		clear(p.pending)
	}
	t := table{}
	t.add(day, p.base...)
	t.add(day, p.sending.rows()...)
	p.sent = t.rows()
	return p.sent, p.revision
}

// prune removes the months that are no longer kept, by this clock and by the store's. All
// balancers do; the first is right.
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
	old := store.Outdated(months, usageNewest, min(oldestMonth(now), oldestMonth(there)))
	for _, part := range parts {
		if slices.Contains(old, part.Month) {
			if err := u.store.DropUsage(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// overlay is the parts of a month with what this balancer knows better: its own,
// with what is not stored yet. The lock is held.
func (u *usage) overlay(month string, day int64, stored map[store.UsagePart][]telemetry.UsageRow) table {
	sum := table{}
	for part, rows := range stored {
		if p := u.mine[part]; part.Month == month && (p == nil || !p.opened) {
			sum.add(day, rows...)
		}
	}
	for part, p := range u.mine {
		if part.Month != month {
			continue
		}
		sum.add(day, p.base...)
		sum.add(day, p.sending.rows()...)
		sum.add(day, p.pending.rows()...)
	}
	return sum
}

// tell tells the balancer what each key has used.
func (u *usage) tell(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	quotas := map[string]telemetry.KeyQuota{}
	for name := range u.told {
		quotas[name] = telemetry.KeyQuota{} // of which nothing may be left in a new month
	}
	day := telemetry.DayOf(now)
	for id, r := range u.overlay(telemetry.MonthOf(now), day, u.stored) {
		q := quotas[id.key]
		q.Month, q.Day = q.Month.Plus(r.Month), q.Day.Plus(r.On(day))
		quotas[id.key] = q
	}
	for id, used := range u.counted {
		q := quotas[id.key]
		q.Own = q.Own.Plus(used)
		quotas[id.key] = q
	}
	for name, q := range quotas {
		q.At = now
		u.keys.SetKeyQuota(name, q)
		u.told[name] = true
	}
}

// Usage is what all balancers' API keys used in a month (2026-11), sorted by key,
// model and region; a region's balancers are added up. complete is false when the
// store is away or there is none: then it is what this balancer knows.
func (u *usage) Usage(ctx context.Context, month string) (rows []telemetry.UsageRow, complete bool) {
	now := time.Now()
	u.count(now)
	stored, err := u.read(ctx, month)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		stored = u.stored
	}
	return u.overlay(month, telemetry.DayOf(now), stored).rows(), err == nil
}

// read reads the parts of a month.
func (u *usage) read(ctx context.Context, month string) (map[store.UsagePart][]telemetry.UsageRow, error) {
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
