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
	id := base64.RawURLEncoding.EncodeToString([]byte(p.Balancer)) // an id may hold what a key may not
	return usagePrefix + p.Month + "." + id + "." + strconv.Itoa(p.Shard)
}

// parseUsageKey is the part that a key names.
func parseUsageKey(key string) (p UsagePart, ok bool) {
	words := strings.Split(strings.TrimPrefix(key, usagePrefix), ".")
	if len(words) != 3 || !monthRE.MatchString(words[0]) {
		return p, false
	}
	id, err := base64.RawURLEncoding.DecodeString(words[1])
	shard, err2 := strconv.Atoi(words[2])
	return UsagePart{Month: words[0], Balancer: string(id), Shard: shard}, err == nil && err2 == nil
}

// ReadUsage reads a part and its revision, 0 where nothing was written yet. Fails
// with ErrUnavailable, or for rows that cannot be read.
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

// WriteUsage replaces a part whose revision is the given one, 0 where nothing
// was written yet, and returns the next. Fails with ErrConflict when it has
// another, and with ErrUnavailable, after which it may have been written: read
// it before deciding again.
func (s *Store) WriteUsage(ctx context.Context, part UsagePart, rows []telemetry.UsageRow, revision uint64) (next uint64, err error) {
	if revision == 0 {
		return s.Create(ctx, part.key(), encodeUsage(rows))
	}
	return s.CompareAndSwap(ctx, part.key(), encodeUsage(rows), revision)
}

// UsageChange is a part as it is stored now; no rows when it was removed.
type UsageChange struct {
	Part UsagePart
	Rows []telemetry.UsageRow
}

// WatchUsage sends every part of all months, then every part that changes, until
// ctx ends, when the channel closes. It outlives outages. A part that cannot be
// read is passed over and logged.
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

// UsageParts lists the parts that are stored, sorted by month.
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

// DropUsage removes a part; removing what is not there is no error.
func (s *Store) DropUsage(ctx context.Context, part UsagePart) error {
	return s.Delete(ctx, part.key())
}

// usageFields is how many fields a stored row of usage has.
const usageFields = 12

// encodeUsage writes rows as CSV, as points are and for the same reason.
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

// decodeUsage reads what encodeUsage wrote.
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

// Time is the time by the clock of the server that keeps the store. Fails with
// ErrUnavailable.
func (s *Store) Time(ctx context.Context) (at time.Time, err error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	kv, err := s.bucket(octx)
	var status jetstream.KeyValueStatus
	if err == nil {
		status, err = kv.Status(octx)
	}
	s.note(&s.read, err)
	if err != nil {
		return at, wrap(ctx, err, "asking the store for its time")
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok || bucket.StreamInfo().TimeStamp.IsZero() {
		return at, fmt.Errorf("asking the store for its time: %w: the server does not tell it", ErrUnavailable)
	}
	return bucket.StreamInfo().TimeStamp, nil
}

// Outdated are the periods (months, days) among those that something is stored of that may
// be removed: they are before a limit, and none of the newest so many. What the limit is
// made from is a clock, and a clock may be years ahead: then the newest stay all the same.
func Outdated[T cmp.Ordered](stored []T, newest int, limit T) []T {
	periods := slices.Compact(slices.Sorted(slices.Values(stored)))
	periods = periods[:max(0, len(periods)-newest)]
	return slices.DeleteFunc(periods, func(p T) bool { return p >= limit })
}
