package dns

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"skyserve/internal/service"
)

// RecordState is a record of a name server as the server finds it.
type RecordState struct {
	ID      string
	Region  service.Region
	Address string // with its port
	Healthy bool
	Reason  string // what its last check had against it; empty when nothing
}

// Ask asks an embedded name server how the records of its name do. listen is where
// it listens.
func Ask(ctx context.Context, listen, name string) ([]RecordState, error) {
	q := new(dns.Msg).SetQuestion(dns.CanonicalName(underName+name), dns.TypeTXT)
	answer, _, err := (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, q, listen) // as long as it needs to be
	if err != nil {
		return nil, fmt.Errorf("asking the name server at %s: %w", listen, err)
	}
	var states []RecordState
	found := false
	for _, rr := range answer.Answer {
		txt, ok := rr.(*dns.TXT)
		if !ok || len(txt.Txt) == 0 {
			continue
		}
		found = found || strings.HasPrefix(txt.Txt[0], noteMark+" ")
		words := wordsOf(txt.Txt[0])
		if words["record"] == "" {
			continue
		}
		s := RecordState{ID: words["record"], Region: service.Region(words["region"]), Address: words["address"], Healthy: words["state"] == stateHealthy}
		if len(txt.Txt) > 1 {
			s.Reason = txt.Txt[1]
		}
		states = append(states, s)
	}
	if !found {
		return nil, fmt.Errorf("asking the name server at %s: %w", listen, errors.New("it does not serve "+name))
	}
	return states, nil
}
