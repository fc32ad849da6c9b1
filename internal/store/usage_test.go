package store

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

func usageRow(key string, tokens int64) telemetry.UsageRow {
	return telemetry.UsageRow{
		Key: key, Model: "m", Region: "local/us", Month: telemetry.Usage{Requests: 2, PromptTokens: tokens},
		Day: 20000, Today: telemetry.Usage{Requests: 1, OutputTokens: tokens},
	}
}

func TestUsage(t *testing.T) {
	s := serve(t, t.TempDir())
	st := connect(t, s)
	ctx := t.Context()
	part := UsagePart{Month: "2026-11", Balancer: "lb/us.0 ü", Shard: 7}
	if rows, revision, err := st.ReadUsage(ctx, part); err != nil || len(rows) != 0 || revision != 0 {
		t.Fatalf("before the first write: %v at %d, %v", rows, revision, err)
	}
	changes := st.WatchUsage(ctx)
	first := []telemetry.UsageRow{usageRow("acme", 5), usageRow(`with "quotes", and`+"\nlines", 6)}
	revision := must[uint64](t)(st.WriteUsage(ctx, part, first, 0))
	if _, err := st.WriteUsage(ctx, part, nil, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("a second first write returned %v", err)
	}
	if c := <-changes; c.Part != part || !slices.Equal(c.Rows, first) {
		t.Errorf("received %+v", c)
	}
	second := []telemetry.UsageRow{usageRow("acme", 9)}
	next := must[uint64](t)(st.WriteUsage(ctx, part, second, revision))
	if _, err := st.WriteUsage(ctx, part, first, revision); !errors.Is(err, ErrConflict) {
		t.Errorf("a write over a newer revision returned %v", err)
	}
	if rows, revision, err := st.ReadUsage(ctx, part); err != nil || !slices.Equal(rows, second) || revision != next {
		t.Errorf("read %v at %d, %v", rows, revision, err)
	}
	must[uint64](t)(st.Put(ctx, "usages.no-part", nil))
	must[uint64](t)(st.Put(ctx, "usage.neither", nil))
	if parts, err := st.UsageParts(ctx); err != nil || !slices.Equal(parts, []UsagePart{part}) {
		t.Errorf("parts %v, %v", parts, err)
	}
	if err := st.DropUsage(ctx, part); err != nil {
		t.Error(err)
	}
	for c := range changes {
		if c.Part == part && len(c.Rows) == 0 {
			break
		}
	}
	must[uint64](t)(st.Put(ctx, part.key(), []byte("no rows")))
	if _, _, err := st.ReadUsage(ctx, part); err == nil {
		t.Error("invalid rows were decoded")
	}
}

func TestUsageIsDecodedAsEncoded(t *testing.T) {
	usage := rapid.Custom(func(t *rapid.T) telemetry.Usage {
		n := rapid.Int64()
		u := telemetry.Usage{Requests: n.Draw(t, "r"), PromptTokens: n.Draw(t, "p"), CachedTokens: n.Draw(t, "c"), OutputTokens: n.Draw(t, "o")}
		if rapid.Bool().Draw(t, "priced") {
			u.PricedRequests, u.Cost = n.Draw(t, "priced requests"), service.NanoUSD(n.Draw(t, "cost"))
		}
		return u
	})
	text := rapid.StringMatching(`[ -~\n]{1,20}`)
	rapid.Check(t, func(t *rapid.T) {
		rows := make([]telemetry.UsageRow, rapid.IntRange(0, 5).Draw(t, "rows"))
		for i := range rows {
			rows[i] = telemetry.UsageRow{
				Key: text.Draw(t, "key"), Model: text.Draw(t, "model"), Region: service.Region(text.Draw(t, "region")),
				Month: usage.Draw(t, "month"), Day: rapid.Int64().Draw(t, "day"), Today: usage.Draw(t, "today"),
			}
			if rapid.Bool().Draw(t, "has tenant") {
				rows[i].Tenant = text.Draw(t, "tenant")
			}
		}
		if got, err := decodeUsage(encodeUsage(rows)); err != nil || !slices.Equal(got, rows) {
			t.Fatalf("%v, %v; want %v", got, err, rows)
		}
		part := UsagePart{Month: "2026-11", Balancer: text.Draw(t, "balancer"), Shard: rapid.IntRange(0, 99).Draw(t, "shard")}
		if got, ok := parseUsageKey(part.key()); !ok || got != part || !keyRE.MatchString(part.key()) {
			t.Fatalf("%q is parsed as %+v", part.key(), got)
		}
	})
}

func TestStoreTime(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	srv := serve(t, t.TempDir())
	st := connect(t, srv)
	before := time.Now()
	at := must[time.Time](t)(st.Time(t.Context()))
	if at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("got %s, want %s", at, before)
	}
	srv.Close()
	if _, err := st.Time(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

// A day is removed if it is expired by all clocks and there are enough newer days.
func TestOldPointsAreRemoved(t *testing.T) {
	today := time.Now().Unix() / 60 / minutesPerDay
	for name, c := range map[string]struct {
		first, days int64         // of the stored points
		ahead       time.Duration // of the client's clock
		kept        int
	}{
		"five weeks and some":       {today - 39, 40, 0, 36},
		"a clock that is ahead":     {today - 9, 10, 50 * 365 * 24 * time.Hour, 10},
		"one that was, for an hour": {today + 10_000, 1, 0, 1},
		"a service that was off":    {today - 400, 10, 0, 10},
	} {
		st := connect(t, serve(t, t.TempDir()))
		st.now = func() time.Time { return time.Now().Add(c.ahead) }
		for day := range c.days {
			if err := st.AppendPoints(t.Context(), []telemetry.Point{point((c.first+day)*minutesPerDay, "lb", 1)}); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[int64]bool{}
		err := st.ReadPoints(t.Context(), 0, func(p telemetry.Point) error {
			seen[p.Minute/minutesPerDay] = true
			return nil
		})
		if err != nil || len(seen) != c.kept || !seen[c.first+c.days-1] {
			t.Errorf("%s: %d days remain, want %d, %v", name, len(seen), c.kept, err)
		}
	}
}

// The newest periods remain regardless of the limit.
func TestOutdated(t *testing.T) {
	for _, c := range []struct {
		stored string
		newest int
		limit  string
		want   string
	}{
		{"", 2, "z", ""}, {"a b", 2, "z", ""}, {"c a b b", 2, "z", "a"}, {"a b c d", 2, "b", "a"}, {"a b c d", 0, "c", "a b"}, {"a b", 2, "", ""},
	} {
		if got := strings.Join(Outdated(strings.Fields(c.stored), c.newest, c.limit), " "); got != c.want {
			t.Errorf("of %q: %q, want %q", c.stored, got, c.want)
		}
	}
}

// Older balancers read the rows of services without prices; they have no key for prices themselves.
func TestUnpricedRowsKeepFormerFields(t *testing.T) {
	row := telemetry.UsageRow{Key: "acme", Model: "m", Region: "local/us", Month: telemetry.Usage{Requests: 1, PromptTokens: 2, CachedTokens: 3, OutputTokens: 4}, Day: 5}
	if got, want := string(encodeUsage([]telemetry.UsageRow{row})), "acme,m,local/us,1,2,3,4,5,0,0,0,0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, text := range []string{"a,m,r,1\n", "a,m,r,1,2,3,4,5,0,0,0,0,1\n", "a,m,r,1,2,3,4,5,0,0,0,0,1,x,0,0,t\n"} {
		if rows, err := decodeUsage([]byte(text)); err == nil {
			t.Errorf("%q is decoded as %+v", text, rows)
		}
	}
}
