package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Limits of the history, each with its reason.
const (
	// pointsDays is five weeks: four weeks to forecast from, and one week to compare the forecasts with in a
	// backtest. Points of the newest 35 days are not removed for their age, even if clocks are wrong.
	pointsDays = 35
	// pointsMaxBytes is the size of 35 days of about sixty series (balancer, model and tier). Each
	// minute is stored up to six times, because balancers append the counts of the current minute
	// every 10 s. The oldest points are dropped first. Points, events
	// and state are 2 GiB per service, so an embedded store has capacity for two services.
	pointsMaxBytes = 1728 << 20
	// pointsPerMessage keeps messages far below the server's limit of 1 MB.
	pointsPerMessage = 500
	minutesPerDay    = 1440
)

// AppendPoints stores points durably. For readers a point replaces the stored point with the same
// minute, balancer, model and tier, so a repeated append changes nothing. If it fails with
// ErrUnavailable, some of the points may have been stored: append all of them again.
func (s *Store) AppendPoints(ctx context.Context, points []telemetry.Point) error {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	stream, js, err := s.pointStream(octx)
	if err == nil {
		err = s.publishPoints(octx, js, points)
	}
	s.recordResult(&s.writeOutage, err)
	if err == nil {
		s.dropOldPoints(octx, stream, newestDay(points))
	}
	return wrap(ctx, err, "appending %d points", len(points))
}

// publishPoints sends the points by day, pointsPerMessage at a time. The subject contains the day,
// so that readers can select days.
func (s *Store) publishPoints(ctx context.Context, js jetstream.JetStream, points []telemetry.Point) error {
	byDay := map[int64][]telemetry.Point{}
	var days []int64
	for _, p := range points {
		day := p.Minute / minutesPerDay
		if byDay[day] == nil {
			days = append(days, day)
		}
		byDay[day] = append(byDay[day], p)
	}
	slices.Sort(days)
	for _, day := range days {
		for chunk := range slices.Chunk(byDay[day], pointsPerMessage) {
			if _, err := js.Publish(ctx, s.pointSubject(day), encodePoints(chunk)); err != nil {
				return err
			}
		}
	}
	return nil
}

// newestDay returns the last day of the points.
func newestDay(points []telemetry.Point) (day int64) {
	for _, p := range points {
		day = max(day, p.Minute/minutesPerDay)
	}
	return day
}

// dropOldPoints removes expired days. It runs when this client stores points of another day
// than before; a failure is retried at the next such day. The server cannot do it safely: its
// own clock may be years ahead for a short time, as at boot.
func (s *Store) dropOldPoints(ctx context.Context, stream jetstream.Stream, day int64) {
	s.mu.Lock()
	due := day != s.pointsCleanupDay
	s.pointsCleanupDay = day
	s.mu.Unlock()
	if due {
		s.dropOldDays(ctx, stream, s.pointSubject)
	}
}

// dropOldDays removes the expired days of a stream whose subjects contain days.
func (s *Store) dropOldDays(ctx context.Context, stream jetstream.Stream, subject func(day int64) string) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		s.log.Debug("listing the days of the history or the events failed", "err", err)
		return
	}
	var days []int64
	for _, d := range daysOf(info) {
		days = append(days, d.number)
	}
	limit := min(s.now().Unix(), info.TimeStamp.Unix())/(60*minutesPerDay) - pointsDays
	for _, old := range Outdated(days, pointsDays+1, limit) {
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject(old))); err != nil {
			s.log.Debug("removing an expired day of the history or the events failed", "day", old, "stream", info.Config.Name, "err", err)
		}
	}
}

func (s *Store) pointSubject(day int64) string {
	return s.namespace + "_points." + strconv.FormatInt(day, 10)
}

// ReadPoints calls yield with every stored point whose minute is sinceMinute or later, in
// order of minute, region, balancer, model and tier. sinceMinute is in minutes since the Unix epoch. ReadPoints ends at
// the first error of yield and returns that error. It fails with ErrUnavailable, and for a point that cannot be decoded.
// It loads one day at a time into memory.
func (s *Store) ReadPoints(ctx context.Context, sinceMinute int64, yield func(telemetry.Point) error) error {
	days, stream, err := s.pointDays(ctx, sinceMinute/minutesPerDay)
	s.recordResult(&s.readOutage, err)
	if err != nil {
		return wrap(ctx, err, "reading points since %s", time.Unix(60*sinceMinute, 0).UTC().Format(time.RFC3339))
	}
	for _, day := range days {
		points, err := readDay(ctx, stream, s.pointSubject(day.number), day.messages)
		if err != nil {
			s.dropHandles(err)
			return wrap(ctx, err, "reading points of %s", time.Unix(60*minutesPerDay*day.number, 0).UTC().Format(time.DateOnly))
		}
		for _, p := range points {
			if p.Minute < sinceMinute {
				continue
			}
			if err := yield(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// storedDay is a day with stored points or events.
type storedDay struct {
	number   int64 // in days since the Unix epoch
	messages uint64
}

// pointDays returns the stored days from day first on, in order.
func (s *Store) pointDays(ctx context.Context, first int64) ([]storedDay, jetstream.Stream, error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	stream, _, err := s.pointStream(octx)
	if err != nil {
		return nil, nil, err
	}
	info, err := stream.Info(octx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, nil, err
	}
	days := slices.DeleteFunc(daysOf(info), func(d storedDay) bool { return d.number < first })
	return days, stream, nil
}

// daysOf returns the days for which a stream of points or events has messages, in order.
func daysOf(info *jetstream.StreamInfo) (days []storedDay) {
	for subject, n := range info.State.Subjects {
		_, number, _ := strings.Cut(subject, ".")
		if day, err := strconv.ParseInt(number, 10, 64); err == nil {
			days = append(days, storedDay{number: day, messages: n})
		}
	}
	slices.SortFunc(days, func(a, b storedDay) int { return cmp.Compare(a.number, b.number) })
	return days
}

// readDay reads one day's messages in the order of storage and returns its points,
// deduplicated and sorted.
func readDay(ctx context.Context, stream jetstream.Stream, subject string, messages uint64) ([]telemetry.Point, error) {
	octx, cancel := context.WithTimeout(ctx, 4*opTimeout)
	defer cancel()
	merged := map[pointKey]telemetry.Point{}
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}}
	err := readMessages(octx, stream, config, messages, func(data []byte) error { return mergePoints(merged, data) })
	if err != nil {
		return nil, err
	}
	return sortedPoints(merged), nil
}

type pointKey struct {
	minute                int64
	balancer, model, tier string
}

// pointFields is the number of fields of a stored point.
const pointFields = 9

// encodePoints encodes points as CSV rows, which have a third of the size of JSON.
func encodePoints(points []telemetry.Point) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	for _, p := range points {
		// Writing to a buffer cannot fail, and csv quotes where necessary.
		_ = w.Write([]string{
			strconv.FormatInt(p.Minute, 10), p.Balancer, string(p.Region), p.Model, string(p.Tier),
			strconv.FormatInt(p.Requests, 10), strconv.FormatInt(p.PromptTokens, 10),
			strconv.FormatInt(p.CachedTokens, 10), strconv.FormatInt(p.OutputTokens, 10),
		})
	}
	w.Flush()
	return b.Bytes()
}

// decodePoints decodes the output of encodePoints.
func decodePoints(data []byte) ([]telemetry.Point, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = pointFields
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("decoding stored points: %w", err)
	}
	out := make([]telemetry.Point, len(rows))
	for i, row := range rows {
		p := &out[i]
		p.Balancer, p.Region, p.Model, p.Tier = row[1], service.Region(row[2]), row[3], service.Tier(row[4])
		counts := []string{row[0], row[5], row[6], row[7], row[8]}
		for c, to := range []*int64{&p.Minute, &p.Requests, &p.PromptTokens, &p.CachedTokens, &p.OutputTokens} {
			if *to, err = strconv.ParseInt(counts[c], 10, 64); err != nil {
				return nil, fmt.Errorf("decoding stored points: row %d: %w", i, err)
			}
		}
	}
	return out, nil
}

func mergePoints(into map[pointKey]telemetry.Point, data []byte) error {
	points, err := decodePoints(data)
	for _, p := range points {
		into[pointKey{p.Minute, p.Balancer, p.Model, string(p.Tier)}] = p
	}
	return err
}

func sortedPoints(m map[pointKey]telemetry.Point) []telemetry.Point {
	out := make([]telemetry.Point, 0, len(m))
	for _, p := range m {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b telemetry.Point) int {
		return cmp.Or(cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.Region, b.Region),
			cmp.Compare(a.Balancer, b.Balancer), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tier, b.Tier))
	})
	return out
}

// pointStream opens the stream of points and creates it on first use.
func (s *Store) pointStream(ctx context.Context) (jetstream.Stream, jetstream.JetStream, error) {
	return s.openStream(ctx, &s.points, jetstream.StreamConfig{
		Name: s.namespace + "_points", Description: "skyserve: traffic by minute",
		Subjects: []string{s.namespace + "_points.*"}, Storage: jetstream.FileStorage,
		MaxBytes: pointsMaxBytes, Discard: jetstream.DiscardOld, // by size; dropOldPoints removes points by age
	})
}

// openStream returns an opened stream; it creates or updates the stream on the first use of a connection.
// opened is a field that mu guards.
func (s *Store) openStream(ctx context.Context, opened *jetstream.Stream, config jetstream.StreamConfig) (jetstream.Stream, jetstream.JetStream, error) {
	nc, err := s.conn()
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	stream := *opened
	s.mu.Unlock()
	if stream != nil {
		return stream, js, nil
	}
	if err := s.creation.recentFailure(s.now()); err != nil {
		return nil, nil, err
	}
	stream, err = ensureStream(ctx, nc, js, config, nil)
	s.creation.recordResult(s.now(), creationFailure(nc, err))
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	*opened = stream
	s.mu.Unlock()
	return stream, js, nil
}
