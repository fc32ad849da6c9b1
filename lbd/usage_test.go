package lbd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// errAway is the error of an unavailable store.
var errAway = errors.New("away")

// fakeUsageStore is an in-memory store of usage that can be unavailable, and that can apply writes
// without confirming them.
type fakeUsageStore struct {
	mu       sync.Mutex
	fail     func() (before, after error) // of a write; nil = never
	away     error
	parts    map[store.UsagePart]kept
	ahead    time.Duration // of its clock
	revision uint64
	watchers []chan store.UsageChange
	// late is a write that timed out and is still in progress: it completes before the next one. If
	// delay is set, the next write is delayed like this.
	delay bool
	late  func()
}

type kept struct {
	rows     []telemetry.UsageRow
	revision uint64
}

func newFakeUsageStore() *fakeUsageStore { return &fakeUsageStore{parts: map[store.UsagePart]kept{}} }

func (c *fakeUsageStore) set(change func(*fakeUsageStore)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

func (c *fakeUsageStore) ReadUsage(_ context.Context, part store.UsagePart) ([]telemetry.UsageRow, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.parts[part]
	return slices.Clone(k.rows), k.revision, c.away
}

func (c *fakeUsageStore) WriteUsage(_ context.Context, part store.UsagePart, rows []telemetry.UsageRow, revision uint64) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, after := c.away, error(nil)
	if c.fail != nil && before == nil {
		before, after = c.fail()
	}
	if late := c.late; late != nil {
		c.late = nil
		late()
	}
	switch {
	case before != nil:
		return 0, before
	case c.delay:
		c.delay, c.late = false, func() { _, _ = c.put(part, rows, revision) }
		return 0, errAway
	}
	next, err := c.put(part, rows, revision)
	return next, cmp.Or(err, after)
}

// put applies a write.
func (c *fakeUsageStore) put(part store.UsagePart, rows []telemetry.UsageRow, revision uint64) (uint64, error) {
	if c.parts[part].revision != revision {
		return 0, store.ErrConflict
	}
	c.revision++
	c.parts[part] = kept{slices.Clone(rows), c.revision}
	for _, w := range c.watchers {
		w <- store.UsageChange{Part: part, Rows: slices.Clone(rows)}
	}
	return c.revision, nil
}

// WatchUsage returns a channel with capacity for all changes.
func (c *fakeUsageStore) WatchUsage(ctx context.Context) <-chan store.UsageChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := make(chan store.UsageChange, 10_000)
	for part, k := range c.parts {
		w <- store.UsageChange{Part: part, Rows: k.rows}
	}
	c.watchers = append(c.watchers, w)
	return w
}

func (c *fakeUsageStore) UsageParts(context.Context) ([]store.UsagePart, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.parts)), c.away
}

func (c *fakeUsageStore) DropUsage(_ context.Context, part store.UsagePart) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.parts, part)
	return c.away
}

func (c *fakeUsageStore) Time(context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead), c.away
}

// months returns the months with usage.
func (c *fakeUsageStore) months() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var months []string
	for part := range c.parts {
		months = append(months, part.Month)
	}
	slices.Sort(months)
	return strings.Join(slices.Compact(months), " ")
}

// tokens returns the usage of a key in a month, summed over all parts.
func (c *fakeUsageStore) tokens(month, key string) (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for part, k := range c.parts {
		for _, r := range k.rows {
			if part.Month == month && r.Key == key {
				n += r.Month.Tokens()
			}
		}
	}
	return n
}

// fakeAccounts counts the usage of keys.
type fakeAccounts struct {
	mu     sync.Mutex
	used   map[string]int64 // prompt tokens by key
	quotas map[string]telemetry.KeyQuota
	serial int64 // of all accounts
	open   bool  // no keys are required
}

func (s *fakeAccounts) RequiresKeys() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.open
}

func newFakeAccounts() *fakeAccounts {
	return &fakeAccounts{used: map[string]int64{}, quotas: map[string]telemetry.KeyQuota{}}
}

func (s *fakeAccounts) use(key string, tokens int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[key] += tokens
}

func (s *fakeAccounts) KeyUsage() []telemetry.KeyUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []telemetry.KeyUsage
	for _, key := range slices.Sorted(maps.Keys(s.used)) {
		list = append(list, telemetry.KeyUsage{Key: key, Model: "m", Account: s.serial, Usage: telemetry.Usage{PromptTokens: s.used[key]}})
	}
	return list
}

func (s *fakeAccounts) SetKeyQuotaUsage(name string, q telemetry.KeyQuota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas[name] = q
}

func (s *fakeAccounts) TenantUsage() map[string]telemetry.Usage { return nil }

func (s *fakeAccounts) SetTenantQuotaUsage(string, telemetry.KeyQuota) {}

func (s *fakeAccounts) TenantOf(string) string { return "" }

func (s *fakeAccounts) quota(name string) telemetry.KeyQuota {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quotas[name]
}

// keep runs the usage of a balancer until stop is called.
func keep(id string, keys keyAccounts, s UsageStore) (u *usage, stop func()) {
	u = newUsage(service.BalancerConfig{ID: id, Region: service.Region("local/" + id)}, keys, s, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { u.runUsage(ctx) })
	return u, func() {
		cancel()
		running.Wait()
	}
}

const january = "2000-01" // when synctest's clock starts

func TestQuotaCoversAllBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, us, eu := newFakeUsageStore(), newFakeAccounts(), newFakeAccounts()
		keptUS, stopUS := keep("us", us, c)
		_, stopEU := keep("eu", eu, c)
		defer stopUS()
		defer stopEU()
		us.use("acme", 10)
		eu.use("acme", 5)
		time.Sleep(usageInterval + 2*usageDebounce) // the documented maximum age
		for name, s := range map[string]*fakeAccounts{"us": us, "eu": eu} {
			if q := s.quota("acme"); q.Day.PromptTokens != 15 || q.Month.PromptTokens != 15 {
				t.Errorf("%s knows of %+v, want 15", name, q)
			}
		}
		if q := us.quota("acme"); q.Own.PromptTokens != 10 {
			t.Errorf("own part %+v, want 10", q.Own)
		}
		us.use("acme", 1)
		rows, complete := keptUS.Usage(t.Context(), january)
		if len(rows) != 2 || rows[0].Region != "local/eu" || rows[1].Month.PromptTokens != 11 || !complete {
			t.Errorf("usage %+v, %v; want both regions, and what was used just now", rows, complete)
		}
		c.set(func(c *fakeUsageStore) { c.away = errAway })
		if rows, complete := keptUS.Usage(t.Context(), january); len(rows) != 2 || complete {
			t.Errorf("usage without the store: %+v, %v; want the local usage", rows, complete)
		}
		c.set(func(c *fakeUsageStore) { c.away = nil })
	})
}

func TestUsageSurvivesRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeUsageStore()
		for i := range 3 {
			keys := newFakeAccounts()
			_, stop := keep("us", keys, c)
			if i > 0 {
				time.Sleep(usageInterval)
				if q := keys.quota("acme"); q.Month.PromptTokens != int64(10*i) || q.Own.PromptTokens != 0 {
					t.Errorf("run %d begins with %+v, want %d", i, q, 10*i)
				}
			}
			keys.use("acme", 10)
			stop()
			if n := c.tokens(january, "acme"); n != int64(10*(i+1)) {
				t.Errorf("run %d leaves %d tokens, want %d", i, n, 10*(i+1))
			}
		}
	})
}

func TestKilledBalancerLosesLastSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, keys := newFakeUsageStore(), newFakeAccounts()
		_, stop := keep("us", keys, c)
		for range 10 {
			keys.use("acme", 1)
			time.Sleep(time.Second)
		}
		c.set(func(c *fakeUsageStore) { c.away = errAway }) // writes at its shutdown fail
		stop()
		if n := c.tokens(january, "acme"); n < 10-int64(usageInterval/time.Second) {
			t.Errorf("%d of 10 tokens are stored", n)
		}
	})
}

func TestUsageOfEarlierDaysAndMonths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, us, eu := newFakeUsageStore(), newFakeAccounts(), newFakeAccounts()
		for _, month := range []string{"1999-09", "1999-10", "1999-11", "1999-12"} {
			part := store.UsagePart{Month: month, Balancer: "old"}
			if _, err := c.WriteUsage(t.Context(), part, []telemetry.UsageRow{{Key: "acme", Month: telemetry.Usage{PromptTokens: 7}}}, 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30*24*time.Hour - time.Minute) // a minute before the 31st
		_, stopUS := keep("us", us, c)
		u, stopEU := keep("eu", eu, c)
		us.use("acme", 3)
		time.Sleep(time.Minute / 2)
		if got := c.months(); got != "1999-10 1999-11 1999-12 2000-01" {
			t.Errorf("%s are kept, want the current month and three before it", got)
		}
		if q := eu.quota("acme"); q.Day.PromptTokens != 3 || q.Month.PromptTokens != 3 {
			t.Errorf("on the 30th: %+v", q)
		}
		time.Sleep(time.Minute)
		if q := eu.quota("acme"); q.Day.PromptTokens != 0 || q.Month.PromptTokens != 3 {
			t.Errorf("on the 31st: %+v, want a new day", q)
		}
		eu.use("acme", 2)
		time.Sleep(10 * time.Second)
		if q := us.quota("acme"); q.Day.PromptTokens != 2 || q.Month.PromptTokens != 5 {
			t.Errorf("on the 31st: %+v, want 2 and 5", q)
		}
		stopUS()
		time.Sleep(24*time.Hour - time.Minute)
		eu.use("acme", 4)
		time.Sleep(time.Minute)
		if q := eu.quota("acme"); q.Day.PromptTokens != 0 || q.Month.PromptTokens != 0 {
			t.Errorf("on the 1st: %+v, want a new month", q)
		}
		rows, complete := u.Usage(t.Context(), january)
		if len(rows) != 2 || rows[0].Month.PromptTokens != 6 || rows[0].Today.PromptTokens != 6 || !complete {
			t.Errorf("January: %+v, %v", rows, complete)
		}
		eu.use("acme", 1)
		time.Sleep(time.Minute)
		if got := c.months(); got != "1999-11 1999-12 2000-01 2000-02" {
			t.Errorf("in a new month %s are kept", got)
		}
		stopEU()
	})
}

// What is used right before midnight counts for the day and the month that end, also if it is counted later.
func TestUsageBeforeMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, keys := newFakeUsageStore(), newFakeAccounts()
		time.Sleep(31*24*time.Hour - usageInterval/2) // before February
		u, stop := keep("us", keys, c)
		defer stop()
		time.Sleep(usageInterval/2 - time.Nanosecond)
		keys.use("acme", 3)
		time.Sleep(time.Nanosecond)
		if rows, _ := u.Usage(t.Context(), january); len(rows) != 1 || rows[0].Month.PromptTokens != 3 {
			t.Errorf("January: %+v", rows)
		}
		keys.use("acme", 4)
		time.Sleep(2 * usageInterval)
		if q := keys.quota("acme"); q.Day.PromptTokens != 4 || q.Month.PromptTokens != 4 || q.Own.PromptTokens != 7 {
			t.Errorf("in February: %+v", q)
		}
		if january, february := c.tokens(january, "acme"), c.tokens("2000-02", "acme"); january != 3 || february != 4 {
			t.Errorf("%d tokens are stored for January, %d for February", january, february)
		}
	})
}

// For any failures, and any number of conflicting processes of a balancer, usage is stored once.
func TestUsageIsStoredOnce(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rng, faults := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2)) // the store uses its own generator, under its lock
			c := newFakeUsageStore()
			c.fail = func() (before, after error) {
				switch faults.IntN(4) {
				case 0:
					return errAway, nil
				case 1:
					return nil, errAway
				}
				return nil, nil
			}
			want := map[string]int64{}
			var stops []func()
			var balancers []*fakeAccounts
			for i := range 3 {
				keys := newFakeAccounts()
				_, stop := keep(fmt.Sprint("lb-", i), keys, c)
				balancers, stops = append(balancers, keys), append(stops, stop)
			}
			for range 60 {
				key := fmt.Sprint("key-", rng.IntN(5))
				n := int64(rng.IntN(100))
				want[key] += n
				balancers[rng.IntN(len(balancers))].use(key, n)
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
			c.set(func(c *fakeUsageStore) { c.fail = nil })
			time.Sleep(3 * usageInterval)
			for _, key := range slices.Sorted(maps.Keys(want)) {
				if got := c.tokens(january, key); got != want[key] {
					t.Errorf("seed %d: %s: %d tokens are stored, %d were used", seed, key, got, want[key])
				}
				for i, b := range balancers {
					if q := b.quota(key); q.Month.PromptTokens != want[key] {
						t.Errorf("seed %d: balancer %d knows of %d tokens of %s, want %d", seed, i, q.Month.PromptTokens, key, want[key])
					}
				}
			}
			for _, stop := range stops {
				stop()
			}
		})
	}
}

// A write that timed out may complete even after the part was read again.
func TestLateUsageIsStoredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, keys := newFakeUsageStore(), newFakeAccounts()
		_, stop := keep("us", keys, c)
		keys.use("acme", 10)
		time.Sleep(2 * usageInterval)
		c.set(func(c *fakeUsageStore) { c.delay = true })
		keys.use("acme", 100)
		time.Sleep(usageInterval)
		keys.use("acme", 1000)
		time.Sleep(3 * usageInterval)
		if n := c.tokens(january, "acme"); n != 1110 {
			t.Errorf("%d tokens are stored, want 1110", n)
		}
		c.set(func(c *fakeUsageStore) { c.delay = true })
		keys.use("acme", 1)
		time.Sleep(usageInterval)
		keys.use("acme", 1)
		stop() // its final push contains everything too
		if n := c.tokens(january, "acme"); n != 1112 {
			t.Errorf("%d tokens are stored at the end, want 1112", n)
		}
	})
}

// A balancer that ends while its store is just starting waits for it, up to the maximum time of a
// shutdown.
func TestFinalUsageWaitsForStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, keys := newFakeUsageStore(), newFakeAccounts()
		_, stop := keep("us", keys, c)
		keys.use("acme", 4)
		c.set(func(c *fakeUsageStore) { c.away = store.ErrUnavailable })
		go func() {
			time.Sleep(finalTimeout / 2)
			c.set(func(c *fakeUsageStore) { c.away = nil })
		}()
		stop()
		if n := c.tokens(january, "acme"); n != 4 {
			t.Errorf("%d tokens are stored, want 4", n)
		}
		_, stop = keep("us", keys, c)
		keys.use("acme", 5)
		c.set(func(c *fakeUsageStore) { c.away = store.ErrUnavailable })
		began := time.Now()
		stop() // but no longer
		if took := time.Since(began); took > finalTimeout+finalPushInterval {
			t.Errorf("ending took %s", took)
		}
	})
}

// Another balancer's clock may be ahead: its usage of the next month is kept when that month starts
// here.
func TestUsageOfMonthStartedByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, us := newFakeUsageStore(), newFakeAccounts()
		time.Sleep(31*24*time.Hour - 5*time.Second)
		_, stop := keep("us", us, c)
		defer stop()
		time.Sleep(time.Second)
		ahead := []telemetry.UsageRow{{Key: "acme", Model: "m", Region: "local/eu", Month: telemetry.Usage{PromptTokens: 7}, Day: telemetry.DayOf(time.Now()) + 1, Today: telemetry.Usage{PromptTokens: 7}}}
		if _, err := c.WriteUsage(t.Context(), store.UsagePart{Month: "2000-02", Balancer: "eu"}, ahead, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if q := us.quota("acme"); q.Month.PromptTokens != 0 {
			t.Errorf("in January: %+v", q)
		}
		time.Sleep(10 * time.Second)
		if q := us.quota("acme"); q.Month.PromptTokens != 7 || q.Day.PromptTokens != 7 {
			t.Errorf("in February: %+v, want what the other used in its first second", q)
		}
	})
}

// A clock that was ahead and is corrected leaves usage of future days, which must not hide today's
// usage.
func TestUsageOfFutureDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tomorrow := telemetry.DayOf(time.Now()) + 1
		c, us := newFakeUsageStore(), newFakeAccounts()
		for _, balancer := range []string{"us", "us-2"} { // an earlier process of it, and another of its region
			part := store.UsagePart{Month: january, Balancer: balancer, Shard: shardOf("acme")}
			row := telemetry.UsageRow{Key: "acme", Model: "m", Region: "local/us", Month: telemetry.Usage{PromptTokens: 10}, Day: tomorrow, Today: telemetry.Usage{PromptTokens: 10}}
			if _, err := c.WriteUsage(t.Context(), part, []telemetry.UsageRow{row}, 0); err != nil {
				t.Fatal(err)
			}
		}
		u, stop := keep("us", us, c)
		us.use("acme", 1)
		time.Sleep(2 * usageInterval)
		us.use("acme", 2)
		time.Sleep(2 * usageInterval)
		if q := us.quota("acme"); q.Day.PromptTokens != 3 || q.Month.PromptTokens != 23 {
			t.Errorf("%+v, want 3 today and 23 in the month", q)
		}
		rows, _ := u.Usage(t.Context(), january)
		if len(rows) != 1 || rows[0].On(tomorrow-1).PromptTokens != 3 || rows[0].Month.PromptTokens != 23 {
			t.Errorf("usage %+v, want 3 today and 23 in the month", rows)
		}
		stop()
		_, again := keep("us", newFakeAccounts(), c)
		again()
	})
}

// Two processes of one balancer, the old one draining: each adds to the usage that the other
// stored.
func TestProcessesOfOneBalancerAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, old, young := newFakeUsageStore(), newFakeAccounts(), newFakeAccounts()
		_, stopOld := keep("us", old, c)
		_, stopYoung := keep("us", young, c)
		for range 5 {
			old.use("acme", 1)
			young.use("acme", 10)
			time.Sleep(3 * time.Second)
		}
		time.Sleep(3 * usageInterval)
		stopOld()
		stopYoung()
		if n := c.tokens(january, "acme"); n != 55 {
			t.Errorf("%d tokens are stored, want 55", n)
		}
	})
}

// The store is not used for a service without keys, until keys are added.
func TestUsageWithoutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, keys := newFakeUsageStore(), newFakeAccounts()
		keys.open = true
		_, stop := keep("us", keys, c)
		time.Sleep(10 * usageInterval)
		c.set(func(c *fakeUsageStore) {
			if len(c.watchers) != 0 {
				t.Error("an open service watches")
			}
		})
		keys.mu.Lock()
		keys.open = false
		keys.mu.Unlock()
		keys.use("acme", 3)
		time.Sleep(2 * usageInterval)
		c.set(func(c *fakeUsageStore) {
			if len(c.watchers) != 1 {
				t.Errorf("a service with keys watches %d times, want once", len(c.watchers))
			}
		})
		if n := c.tokens(january, "acme"); n != 3 {
			t.Errorf("%d tokens are stored, want 3", n)
		}
		stop()
	})
}

func TestUsageWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := newFakeAccounts()
		u, stop := keep("us", keys, nil)
		keys.use("acme", 4)
		time.Sleep(usageInterval + usageDebounce)
		if q := keys.quota("acme"); q.Month.PromptTokens != 4 || q.Own.PromptTokens != 4 {
			t.Errorf("knows of %+v", q)
		}
		if rows, complete := u.Usage(t.Context(), january); len(rows) != 1 || complete {
			t.Errorf("usage %+v, %v", rows, complete)
		}
		stop()
		u.dropOldMonths(time.Now().AddDate(30, 0, 0)) // with a clock that may be wrong
		if len(u.ownParts) != 1 {
			t.Error("the only usage there is was forgotten")
		}
		for i := range 100 {
			u.ownParts[store.UsagePart{Month: fmt.Sprintf("19%02d-05", i)}] = &ownPart{}
		}
		u.dropOldMonths(time.Now())
		if len(u.ownParts) != 4 {
			t.Errorf("%d months stay in memory, want 4", len(u.ownParts))
		}
	})
}

// A clock that is years ahead, of a balancer, of the store's machine or of both, causes no loss of
// usage: neither stored usage nor, once the clock is corrected, the usage for quotas.
func TestClockYearsAheadDropsNoUsage(t *testing.T) {
	const years = 31 * 365 * 24 * time.Hour // to December 2030
	for name, c := range map[string]struct {
		local, store time.Duration
		want         string
	}{
		"right":            {0, 0, "1999-10 1999-11 1999-12 2000-01"},
		"the balancer's":   {years, 0, "1999-11 1999-12 2000-01 2030-12"},
		"the store's":      {0, years, "1999-10 1999-11 1999-12 2000-01"},
		"both":             {years, years, "1999-11 1999-12 2000-01 2030-12"},
		"the store's back": {0, -years, "1999-09 1999-10 1999-11 1999-12 2000-01"},
	} {
		synctest.Test(t, func(t *testing.T) {
			kept := newFakeUsageStore()
			for _, month := range []string{"1999-09", "1999-10", "1999-11", "1999-12", january} {
				row := telemetry.UsageRow{Key: "acme", Model: "m", Region: "local/us", Month: telemetry.Usage{PromptTokens: 10}}
				if _, err := kept.WriteUsage(t.Context(), store.UsagePart{Month: month, Balancer: "eu"}, []telemetry.UsageRow{row}, 0); err != nil {
					t.Fatal(err)
				}
			}
			kept.ahead = c.store
			us := newFakeAccounts()
			u := newUsage(service.BalancerConfig{ID: "us", Region: "local/us"}, us, kept, slog.New(slog.DiscardHandler))
			for part, k := range kept.parts {
				u.applyChange(store.UsageChange{Part: part, Rows: k.rows})
			}
			wrong := time.Now().Add(c.local)
			us.use("acme", 1)
			u.countUsage(wrong)
			u.reportQuotas(wrong)
			for part := range u.ownParts {
				if err := u.save(t.Context(), part); err != nil {
					t.Fatal(err)
				}
			}
			if err := u.prune(t.Context(), wrong); err != nil {
				t.Fatal(err)
			}
			if got := kept.months(); got != c.want {
				t.Errorf("%s: usage of %s is kept, want %s", name, got, c.want)
			}
			us.use("acme", 1) // the clock is correct again
			u.countUsage(time.Now())
			u.reportQuotas(time.Now())
			if q := us.quota("acme"); q.Month.PromptTokens < 11 {
				t.Errorf("%s: %+v, want what others used in it", name, q)
			}
		})
	}
}

// End to end: keys with limits from a file, a request, the admin API, and a quota that was
// exhausted at another balancer.
func TestKeyLimitsEndToEnd(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	const model = "llama"
	e := newEngine(t, model, "")
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	keys := keysFile(t, "sk-a name=acme\nsk-b name=small requests_per_day=1")
	node := func(id string, replicas ...service.ReplicaConfig) *node {
		cfg := config(id, "local/us", replicas...)
		cfg.Models = []service.BalancerModel{{Name: model}}
		cfg.Balancer.Auth = &service.Auth{KeysFrom: keys, Limits: service.KeyLimits{RequestsPerMinute: 100_000}}
		cfg.StoreURL, cfg.StoreToken = srv.URL(), "secret"
		return start(t, cfg, Options{})
	}
	one := node("lb-1", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: model})
	two := node("lb-2") // it serves no requests, so it is cheap
	hc := client(t)
	testkit.Eventually(t, "the first request is served", func() bool {
		return ask(t, hc, one.public, model, "Authorization", "Bearer sk-b").status == http.StatusOK
	})
	if got := ask(t, hc, one.public, model, "Authorization", "Bearer sk-a"); got.status != http.StatusOK {
		t.Errorf("a key without a quota: %+v", got)
	}
	testkit.Eventually(t, "the other balancer knows that the one request of the day was made", func() bool {
		got := ask(t, hc, two.public, model, "Authorization", "Bearer sk-b")
		return got.status == http.StatusTooManyRequests && got.header.Get("Retry-After") != "" && got.header.Get("X-Ratelimit-Limit-Requests") == "100000" && strings.Contains(got.body, "insufficient_quota")
	})
	res, err := hc.Get(two.adminURL + "/usage")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body struct {
		Complete bool
		Usage    []struct {
			Key, Region string
			Requests    int64
			Prompt      int64 `json:"prompt_tokens"`
			Today       *telemetry.Usage
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil || !body.Complete || len(body.Usage) == 0 {
		t.Fatalf("usage %+v, %v", body, err)
	}
	if u := body.Usage[len(body.Usage)-1]; u.Key != "small" || u.Requests != 1 || u.Prompt != 7 || u.Today == nil || u.Today.OutputTokens != 3 {
		t.Errorf("usage %+v, want one request of 7 and 3 tokens", u)
	}
}

func TestKeyChangesAreReportedWithoutKeys(t *testing.T) {
	parse := func(text string) []service.APIKey {
		keys, err := service.ParseKeys(text, service.KeyLimits{})
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	was := parse("sk-a\nsk-b name=b\nsk-c")
	for text, want := range map[string]string{
		"":                               "API keys are no longer required",
		"sk-a\nsk-d":                     "2 keys, 1 added, 2 removed",
		"sk-a\nsk-b concurrent=2\nsk-c":  "3 keys, 0 added, 0 removed, 1 with changed limits or attributes",
		"sk-c concurrent=1\nsk-b name=b": "2 keys, 0 added, 1 removed, 1 with changed limits or attributes",
	} {
		if got := describeKeyChange(was, parse(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
