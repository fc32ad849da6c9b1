package dns

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"skyserve/internal/service"
)

// RecordState is the state of a DNS record as reported by its name server.
type RecordState struct {
	ID      string
	Region  service.Region
	Address string // with its port
	Healthy bool
	Reason  string // why its last check failed; empty when it succeeded
}

// QueryRecords requests the state of the records from the embedded name server at the address listen.
func QueryRecords(ctx context.Context, listen, name string) ([]RecordState, error) {
	q := new(dns.Msg).SetQuestion(dns.CanonicalName(noteLabel+name), dns.TypeTXT)
	response, _, err := (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, q, listen) // TCP has no length limit
	if err != nil {
		return nil, fmt.Errorf("querying the name server at %s: %w", listen, err)
	}
	var states []RecordState
	found := false
	for _, rr := range response.Answer {
		txt, ok := rr.(*dns.TXT)
		if !ok || len(txt.Txt) == 0 {
			continue
		}
		found = found || strings.HasPrefix(txt.Txt[0], notePrefix+" ")
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
		return nil, fmt.Errorf("querying the name server at %s: %w", listen, errors.New("no records for "+name))
	}
	return states, nil
}
