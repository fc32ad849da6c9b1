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

// answerWithin bounds how long a balancer is waited for: it answers from memory.
const answerWithin = 3 * time.Second

// Source is the admin API of one balancer; *telemetry.Client is one.
type Source interface {
	// Base names it to people.
	Base() string
	// Decision is telemetry.ErrNotFound where the request is not remembered.
	Decision(ctx context.Context, requestID string) (json.RawMessage, error)
	Decisions(ctx context.Context) (telemetry.DecisionMemory, error)
}

// Story is all that the balancers of a service remember of one request id.
type Story struct {
	Request string `json:"request"`
	Service string `json:"service"` // empty where only addresses were given
	// Parts has one element for each balancer that handled it, in the order in
	// which it passed them: each part that was forwarded is followed by the part
	// of the peer that took it. An id that clients used several times begins anew
	// with every part that has no From.
	Parts []record.Request `json:"parts"`
	// Balancers tells of everyone that was asked, in the order of asking.
	Balancers []Balancer `json:"balancers"`
}

// Balancer is what one balancer said of its memory.
type Balancer struct {
	Admin    string         `json:"admin"`
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"`
	// Remembered is how many requests it remembers, Since when the oldest of them
	// arrived; nil where there is none or it did not answer.
	Remembered *int       `json:"remembered"`
	Since      *time.Time `json:"since"`
	Found      bool       `json:"found"`
	// Error says why it did not answer, empty when it did.
	Error string `json:"error"`
}

// Found says whether any balancer remembers the request.
func (s *Story) Found() bool { return len(s.Parts) > 0 }

// Missing says, for a story without parts, what each balancer remembers instead,
// with times of zone.
func (s *Story) Missing(zone *time.Location) string {
	words := []string{fmt.Sprintf("looking for request %q: no balancer that answers remembers it", s.Request)}
	for _, b := range s.Balancers {
		switch {
		case b.Error != "":
			words = append(words, b.Error)
		case b.Since == nil:
			words = append(words, fmt.Sprintf("%s in %s remembers none yet", b.Balancer, b.Region))
		default:
			words = append(words, fmt.Sprintf("%s in %s remembers %d since %s", b.Balancer, b.Region, *b.Remembered, b.Since.In(zone).Format("2006-01-02 15:04:05 MST")))
		}
	}
	return strings.Join(words, "\n  ")
}

// Gather asks all sources at once. A balancer that does not answer within three
// seconds is part of the story as one with an error.
func Gather(ctx context.Context, serviceName, request string, sources []Source) *Story {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	s := &Story{Request: request, Service: serviceName, Balancers: make([]Balancer, len(sources))}
	parts := make([]*record.Request, len(sources))
	var asking sync.WaitGroup
	for i, source := range sources {
		asking.Go(func() { s.Balancers[i], parts[i] = ask(ctx, source, request) })
	}
	asking.Wait()
	s.Parts = inOrder(slices.DeleteFunc(parts, func(d *record.Request) bool { return d == nil }))
	return s
}

// ask asks one balancer; the record is nil where it has none.
func ask(ctx context.Context, source Source, request string) (Balancer, *record.Request) {
	b := Balancer{Admin: source.Base()}
	text, err := source.Decision(ctx, request)
	if err != nil && !errors.Is(err, telemetry.ErrNotFound) {
		b.Error = err.Error()
		return b, nil
	}
	if err == nil {
		d := new(record.Request)
		if err := json.Unmarshal(text, d); err != nil {
			b.Error = fmt.Sprintf("decoding its decision about %s: %v", request, err)
			return b, nil
		}
		b.Found, b.Balancer, b.Region = true, d.Balancer, d.Region
		b.remember(ctx, source)
		return b, d
	}
	b.remember(ctx, source)
	return b, nil
}

// remember notes how much the balancer remembers. Where the request was found
// it matters little: that it cannot be told is no error then.
func (b *Balancer) remember(ctx context.Context, source Source) {
	m, err := source.Decisions(ctx)
	switch {
	case err == nil:
		b.Balancer, b.Region = m.Balancer, m.Region
		b.Remembered, b.Since = &m.Remembered, m.Since
	case !b.Found:
		b.Error = err.Error()
	}
}

// inOrder joins parts: those of a client's request by arrival, each followed by
// those of the peers that it was forwarded to.
func inOrder(parts []*record.Request) []record.Request {
	slices.SortFunc(parts, func(a, b *record.Request) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Balancer, b.Balancer))
	})
	ordered := make([]record.Request, 0, len(parts))
	taken := make([]bool, len(parts))
	var take func(i int)
	take = func(i int) {
		taken[i] = true
		ordered = append(ordered, *parts[i])
		for _, try := range parts[i].Tries {
			for j, p := range parts {
				if !taken[j] && follows(p, parts[i], &try) {
					take(j)
				}
			}
		}
	}
	for _, root := range []bool{true, false} {
		for i, p := range parts {
			if !taken[i] && (p.From == "") == root {
				take(i)
			}
		}
	}
	return ordered
}

// follows says whether part p is what became of a try of part from. A peer that
// was given on a command line is called as its region.
func follows(p, from *record.Request, try *record.Try) bool {
	return try.Kind == core.ActionForward && p.From == from.Balancer && (p.Balancer == try.Target || string(p.Region) == try.Target)
}
