package store

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
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
		t.Fatalf("nothing was written: %v at %d, %v", rows, revision, err)
	}
	changes := st.WatchUsage(ctx)
	first := []telemetry.UsageRow{usageRow("acme", 5), usageRow(`with "quotes", and`+"\nlines", 6)}
	revision := must[uint64](t)(st.WriteUsage(ctx, part, first, 0))
	if _, err := st.WriteUsage(ctx, part, nil, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("writing for the first time twice: %v", err)
	}
	if c := <-changes; c.Part != part || !slices.Equal(c.Rows, first) {
		t.Errorf("heard %+v", c)
	}
	second := []telemetry.UsageRow{usageRow("acme", 9)}
	next := must[uint64](t)(st.WriteUsage(ctx, part, second, revision))
	if _, err := st.WriteUsage(ctx, part, first, revision); !errors.Is(err, ErrConflict) {
		t.Errorf("writing over a newer revision: %v", err)
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
		t.Error("rows that are none are read")
	}
}

func TestUsageRowsSurviveTheirCode(t *testing.T) {
	usage := rapid.Custom(func(t *rapid.T) telemetry.Usage {
		n := rapid.Int64()
		return telemetry.Usage{Requests: n.Draw(t, "r"), PromptTokens: n.Draw(t, "p"), CachedTokens: n.Draw(t, "c"), OutputTokens: n.Draw(t, "o")}
	})
	text := rapid.StringMatching(`[ -~\n]{1,20}`)
	rapid.Check(t, func(t *rapid.T) {
		rows := make([]telemetry.UsageRow, rapid.IntRange(0, 5).Draw(t, "rows"))
		for i := range rows {
			rows[i] = telemetry.UsageRow{
				Key: text.Draw(t, "key"), Model: text.Draw(t, "model"), Region: service.Region(text.Draw(t, "region")),
				Month: usage.Draw(t, "month"), Day: rapid.Int64().Draw(t, "day"), Today: usage.Draw(t, "today"),
			}
		}
		if got, err := decodeUsage(encodeUsage(rows)); err != nil || !slices.Equal(got, rows) {
			t.Fatalf("%v, %v; want %v", got, err, rows)
		}
		part := UsagePart{Month: "2026-11", Balancer: text.Draw(t, "balancer"), Shard: rapid.IntRange(0, 99).Draw(t, "shard")}
		if got, ok := parseUsageKey(part.key()); !ok || got != part || !keyRE.MatchString(part.key()) {
			t.Fatalf("%q is read as %+v", part.key(), got)
		}
	})
}
