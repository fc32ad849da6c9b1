package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// usagePrefix is the prefix of the store keys with the usage of API keys. Usage is not part of
// the history: points by minute and API key would be many times as large, and a quota would
// have to add up a month of them.
const usagePrefix = "usage."

// UsagePart identifies the rows of one month that one balancer writes, for the API keys of one
// shard. Shards keep each part below the maximum size of a message, and only a part that has
// changed is written.
type UsagePart struct {
	Month    string // 2026-11
	Balancer string
	Shard    int
}

var monthRE = regexp.MustCompile(`^[0-9]{4}-(0[1-9]|1[0-2])$`)

func (p UsagePart) key() string {
	id := base64.RawURLEncoding.EncodeToString([]byte(p.Balancer)) // an id may contain characters that a key may not
	return usagePrefix + p.Month + "." + id + "." + strconv.Itoa(p.Shard)
}

// parseUsageKey parses a key of usage.
func parseUsageKey(key string) (p UsagePart, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, usagePrefix), ".")
	if len(parts) != 3 || !monthRE.MatchString(parts[0]) {
		return p, false
	}
	id, err := base64.RawURLEncoding.DecodeString(parts[1])
	shard, err2 := strconv.Atoi(parts[2])
	return UsagePart{Month: parts[0], Balancer: string(id), Shard: shard}, err == nil && err2 == nil
}

// ReadUsage returns a part and its revision, 0 if it does not exist. It fails with
// ErrUnavailable, or if the rows cannot be decoded.
func (s *Store) ReadUsage(ctx context.Context, part UsagePart) ([]telemetry.UsageRow, uint64, error) {
	value, revision, err := s.Get(ctx, part.key())
	if errors.Is(err, ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	rows, err := decodeUsage(value)
	if err != nil {
		return nil, 0, fmt.Errorf("reading usage of %s at balancer %s: %w", part.Month, part.Balancer, err)
	}
	return rows, revision, nil
}

// WriteUsage replaces a part if its revision is the given one, 0 if it does not exist,
// and returns the new revision. It fails with ErrConflict if the revision differs, and with
// ErrUnavailable, after which it may have been written: read it before retrying.
func (s *Store) WriteUsage(ctx context.Context, part UsagePart, rows []telemetry.UsageRow, revision uint64) (next uint64, err error) {
	if revision == 0 {
		return s.Create(ctx, part.key(), encodeUsage(rows))
	}
	return s.CompareAndSwap(ctx, part.key(), encodeUsage(rows), revision)
}

// UsageChange is the new content of a part; it has no rows if the part was removed.
type UsageChange struct {
	Part UsagePart
	Rows []telemetry.UsageRow
}

// WatchUsage sends all parts of all months, and then every part that changes. It closes the
// channel when ctx ends, and continues after outages. Parts that cannot be decoded are logged
// and skipped.
func (s *Store) WatchUsage(ctx context.Context) <-chan UsageChange {
	out := make(chan UsageChange)
	go func() {
		defer close(out)
		for c := range s.Watch(ctx, usagePrefix) {
			part, ok := parseUsageKey(c.Key)
			rows, err := decodeUsage(c.Value)
			if !ok || err != nil {
				s.log.Warn("decoding stored usage of API keys failed; this part of it is skipped", "key", c.Key, "err", err)
				continue
			}
			select {
			case out <- UsageChange{part, rows}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// UsageParts lists the stored parts, sorted by month.
func (s *Store) UsageParts(ctx context.Context) ([]UsagePart, error) {
	keys, err := s.Keys(ctx, usagePrefix)
	if err != nil {
		return nil, err
	}
	var parts []UsagePart
	for _, key := range keys {
		if p, ok := parseUsageKey(key); ok {
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// DropUsage removes a part. Removing a missing part is not an error.
func (s *Store) DropUsage(ctx context.Context, part UsagePart) error {
	return s.Delete(ctx, part.key())
}

// usageFields is the number of fields of a stored row, and pricedFields that of a row with costs or a
// tenant.
const (
	usageFields  = 12
	pricedFields = 17
)

// pricedCounts returns the counts that only rows with pricedFields have.
func pricedCounts(r *telemetry.UsageRow) [4]*int64 {
	return [...]*int64{&r.Month.PricedRequests, (*int64)(&r.Month.Cost), &r.Today.PricedRequests, (*int64)(&r.Today.Cost)}
}

// encodeUsage encodes rows as CSV, for the same reason as encodePoints.
func encodeUsage(rows []telemetry.UsageRow) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	for _, r := range rows {
		fields := []string{r.Key, r.Model, string(r.Region)}
		for _, n := range []int64{
			r.Month.Requests, r.Month.PromptTokens, r.Month.CachedTokens, r.Month.OutputTokens,
			r.Day, r.Today.Requests, r.Today.PromptTokens, r.Today.CachedTokens, r.Today.OutputTokens,
		} {
			fields = append(fields, strconv.FormatInt(n, 10))
		}
		fields = append(fields, pricedPart(&r)...)
		_ = w.Write(fields) // as in encodePoints
	}
	w.Flush()
	return b.Bytes()
}

// pricedPart returns the additional fields of a row with costs or a tenant. Other rows have none, so that
// older balancers can read them.
func pricedPart(r *telemetry.UsageRow) (fields []string) {
	set := r.Tenant != ""
	for _, n := range pricedCounts(r) {
		set = set || *n != 0
		fields = append(fields, strconv.FormatInt(*n, 10))
	}
	if !set {
		return nil
	}
	return append(fields, r.Tenant)
}

// decodeUsage decodes the output of encodeUsage.
func decodeUsage(data []byte) ([]telemetry.UsageRow, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("decoding stored usage: %w", err)
	}
	rows := make([]telemetry.UsageRow, len(lines))
	for i, line := range lines {
		if len(line) != usageFields && len(line) != pricedFields {
			return nil, fmt.Errorf("decoding stored usage: row %d has %d fields", i, len(line))
		}
		row := &rows[i]
		row.Key, row.Model, row.Region = line[0], line[1], service.Region(line[2])
		for c, to := range []*int64{
			&row.Month.Requests, &row.Month.PromptTokens, &row.Month.CachedTokens, &row.Month.OutputTokens,
			&row.Day, &row.Today.Requests, &row.Today.PromptTokens, &row.Today.CachedTokens, &row.Today.OutputTokens,
		} {
			if *to, err = strconv.ParseInt(line[3+c], 10, 64); err != nil {
				return nil, fmt.Errorf("decoding stored usage: row %d: %w", i, err)
			}
		}
		if len(line) == usageFields {
			continue
		}
		row.Tenant = line[pricedFields-1]
		for c, to := range pricedCounts(row) {
			if *to, err = strconv.ParseInt(line[usageFields+c], 10, 64); err != nil {
				return nil, fmt.Errorf("decoding stored usage: row %d: %w", i, err)
			}
		}
	}
	return rows, nil
}

// Time returns the time of the store server's clock. It fails with ErrUnavailable.
func (s *Store) Time(ctx context.Context) (at time.Time, err error) {
	info, err := s.stateInfo(ctx)
	if err != nil {
		return at, wrap(ctx, err, "reading the store's time")
	}
	if info.TimeStamp.IsZero() {
		return at, fmt.Errorf("reading the store's time: %w: the server does not report it", ErrUnavailable)
	}
	return info.TimeStamp, nil
}

// Outdated returns the stored periods (months, days) that may be removed: those before limit,
// except the newest. limit depends on a clock that may be years ahead, so the given number of
// newest periods is always kept.
func Outdated[T cmp.Ordered](stored []T, newest int, limit T) []T {
	periods := slices.Compact(slices.Sorted(slices.Values(stored)))
	periods = periods[:max(0, len(periods)-newest)]
	return slices.DeleteFunc(periods, func(p T) bool { return p >= limit })
}
