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

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// usagePrefix begins the keys of what API keys have used. The rows are no points
// of the history: a minute of every key would be many times as much, and a quota
// would have to add up a month of them.
const usagePrefix = "usage."

// UsagePart names the rows that one balancer alone writes: of one month, and of
// those API keys that fall into the shard. What changes is written alone, and no
// part grows beyond what a message can hold.
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
	words := strings.Split(strings.TrimPrefix(key, usagePrefix), ".")
	if len(words) != 3 || !monthRE.MatchString(words[0]) {
		return p, false
	}
	id, err := base64.RawURLEncoding.DecodeString(words[1])
	shard, err2 := strconv.Atoi(words[2])
	return UsagePart{Month: words[0], Balancer: string(id), Shard: shard}, err == nil && err2 == nil
}

// ReadUsage returns a part and its revision, 0 if it was never written. It fails with
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
		return nil, 0, fmt.Errorf("reading usage of %s by %s: %w", part.Month, part.Balancer, err)
	}
	return rows, revision, nil
}

// WriteUsage replaces a part if its revision is the given one, 0 if it was never written,
// and returns the new revision. It fails with ErrConflict if the revision differs, and with
// ErrUnavailable, after which it may have been written: read it before retrying.
func (s *Store) WriteUsage(ctx context.Context, part UsagePart, rows []telemetry.UsageRow, revision uint64) (next uint64, err error) {
	if revision == 0 {
		return s.Create(ctx, part.key(), encodeUsage(rows))
	}
	return s.CompareAndSwap(ctx, part.key(), encodeUsage(rows), revision)
}

// UsageChange is the new content of a part; no rows if it was removed.
type UsageChange struct {
	Part UsagePart
	Rows []telemetry.UsageRow
}

// WatchUsage sends all parts of all months, then every part that changes, until ctx ends,
// and then closes the channel. It continues after outages. Parts that cannot be decoded are
// logged and skipped.
func (s *Store) WatchUsage(ctx context.Context) <-chan UsageChange {
	out := make(chan UsageChange)
	go func() {
		defer close(out)
		for c := range s.Watch(ctx, usagePrefix) {
			part, ok := parseUsageKey(c.Key)
			rows, err := decodeUsage(c.Value)
			if !ok || err != nil {
				s.log.Warn("stored usage cannot be read", "key", c.Key, "err", err)
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

// usageFields is the number of fields of a stored row.
const usageFields = 12

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
		_ = w.Write(fields) // as in encodePoints
	}
	w.Flush()
	return b.Bytes()
}

// decodeUsage decodes the output of encodeUsage.
func decodeUsage(data []byte) ([]telemetry.UsageRow, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = usageFields
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("decoding stored usage: %w", err)
	}
	rows := make([]telemetry.UsageRow, len(lines))
	for i, line := range lines {
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
	}
	return rows, nil
}

// Time returns the time of the store server's clock. It fails with ErrUnavailable.
func (s *Store) Time(ctx context.Context) (at time.Time, err error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	kv, err := s.bucket(octx)
	var status jetstream.KeyValueStatus
	if err == nil {
		status, err = kv.Status(octx)
	}
	s.recordResult(&s.read, err)
	if err != nil {
		return at, wrap(ctx, err, "reading the store's time")
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok || bucket.StreamInfo().TimeStamp.IsZero() {
		return at, fmt.Errorf("reading the store's time: %w: the server does not report it", ErrUnavailable)
	}
	return bucket.StreamInfo().TimeStamp, nil
}

// Outdated returns the stored periods (months, days) that may be removed: those before limit,
// except the newest ones. The limit depends on a clock that may be years ahead, so that many
// of the newest periods are always kept.
func Outdated[T cmp.Ordered](stored []T, newest int, limit T) []T {
	periods := slices.Compact(slices.Sorted(slices.Values(stored)))
	periods = periods[:max(0, len(periods)-newest)]
	return slices.DeleteFunc(periods, func(p T) bool { return p >= limit })
}
