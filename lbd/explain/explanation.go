package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// queryTimeout is the timeout of the queries. Balancers respond from memory.
const queryTimeout = 3 * time.Second

// Source is the admin API of one balancer; *telemetry.Client is one.
type Source interface {
	// Base returns its URL, for messages.
	Base() string
	// Decision returns telemetry.ErrNotFound if there is no record of the request.
	Decision(ctx context.Context, requestID string) (json.RawMessage, error)
	Decisions(ctx context.Context) (telemetry.DecisionMemory, error)
}

// Explanation contains the records of one request id at all balancers of a service.
type Explanation struct {
	Request string `json:"request"`
	Service string `json:"service"` // empty if only addresses were given
	// Parts has one element per balancer that handled the request, in order: each forwarded part is
	// followed by the part of the peer that received it. If clients used an id several times, each
	// part without From starts a new request.
	Parts []record.RequestRecord `json:"parts"`
	// Balancers describes every queried balancer, in the order of the queries.
	Balancers []BalancerRecords `json:"balancers"`
}

// BalancerRecords describes the records of one balancer.
type BalancerRecords struct {
	Admin    string         `json:"admin"`
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"`
	// Recorded is the number of recorded requests, Since the arrival time of the oldest of them.
	// Since is nil if there is none; both are nil if the balancer did not respond.
	Recorded *int       `json:"recorded"`
	Since    *time.Time `json:"since"`
	Found    bool       `json:"found"`
	// Error is the error of a query without a response; empty if it responded.
	Error string `json:"error"`
}

// MarshalJSON adds the former key of Recorded.
func (b BalancerRecords) MarshalJSON() ([]byte, error) {
	type plain BalancerRecords
	return json.Marshal(struct {
		plain
		OldRecorded *int `json:"remembered"`
	}{plain(b), b.Recorded})
}

// Found reports whether any balancer has a record of the request.
func (s *Explanation) Found() bool { return len(s.Parts) > 0 }

// Missing describes the records of each balancer, for an explanation without parts, with times in zone.
func (s *Explanation) Missing(zone *time.Location) string {
	words := []string{fmt.Sprintf("request %q not found on any reachable balancer", s.Request)}
	for _, b := range s.Balancers {
		switch {
		case b.Error != "":
			words = append(words, b.Error)
		case b.Since == nil:
			words = append(words, fmt.Sprintf("%s in %s: none recorded yet", b.Balancer, b.Region))
		default:
			words = append(words, fmt.Sprintf("%s in %s: %d recorded since %s", b.Balancer, b.Region, *b.Recorded, b.Since.In(zone).Format("2006-01-02 15:04:05 MST")))
		}
	}
	return strings.Join(words, "\n  ")
}

// Gather queries all sources concurrently. A balancer that does not respond within three seconds is
// included with an error.
func Gather(ctx context.Context, serviceName, request string, sources []Source) *Explanation {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	s := &Explanation{Request: request, Service: serviceName, Balancers: make([]BalancerRecords, len(sources))}
	parts := make([]*record.RequestRecord, len(sources))
	var queries sync.WaitGroup
	for i, source := range sources {
		queries.Go(func() { s.Balancers[i], parts[i] = queryBalancer(ctx, source, request) })
	}
	queries.Wait()
	s.Parts = orderParts(slices.DeleteFunc(parts, func(d *record.RequestRecord) bool { return d == nil }))
	return s
}

// queryBalancer queries one balancer; the record is nil if it has none.
func queryBalancer(ctx context.Context, source Source, request string) (BalancerRecords, *record.RequestRecord) {
	b := BalancerRecords{Admin: source.Base()}
	text, err := source.Decision(ctx, request)
	if err != nil && !errors.Is(err, telemetry.ErrNotFound) {
		b.Error = err.Error()
		return b, nil
	}
	if err == nil {
		d := new(record.RequestRecord)
		if err := json.Unmarshal(text, d); err != nil {
			b.Error = fmt.Sprintf("decoding the decision of %s for request %s: %v", b.Admin, request, err)
			return b, nil
		}
		b.Found, b.Balancer, b.Region = true, d.Balancer, d.Region
		b.addMemory(ctx, source)
		return b, d
	}
	b.addMemory(ctx, source)
	return b, nil
}

// addMemory sets the number of requests that the balancer has recorded. An error is ignored if the
// request was found, because the number is then not important.
func (b *BalancerRecords) addMemory(ctx context.Context, source Source) {
	m, err := source.Decisions(ctx)
	switch {
	case err == nil:
		b.Balancer, b.Region = m.Balancer, m.Region
		b.Recorded, b.Since = &m.Recorded, m.Since
	case !b.Found:
		b.Error = err.Error()
	}
}

// orderParts orders the parts: those of client requests by arrival, each followed by those of the
// peers that it was forwarded to.
func orderParts(parts []*record.RequestRecord) []record.RequestRecord {
	slices.SortFunc(parts, func(a, b *record.RequestRecord) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Balancer, b.Balancer))
	})
	ordered := make([]record.RequestRecord, 0, len(parts))
	taken := make([]bool, len(parts))
	var appendPart func(i int)
	appendPart = func(i int) {
		taken[i] = true
		ordered = append(ordered, *parts[i])
		for _, try := range parts[i].Attempts {
			for j, p := range parts {
				if !taken[j] && follows(p, parts[i], &try) {
					appendPart(j)
				}
			}
		}
	}
	for _, root := range []bool{true, false} {
		for i, p := range parts {
			if !taken[i] && (p.From == "") == root {
				appendPart(i)
			}
		}
	}
	return ordered
}

// follows reports whether part p is the result of an attempt of part from. A peer from a command
// line has the name of its region.
func follows(p, from *record.RequestRecord, try *record.Attempt) bool {
	return try.Kind == core.ActionForward && p.From == from.Balancer && (p.Balancer == try.Target || string(p.Region) == try.Target)
}
