package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Events returns the selected events of the service. The report is incomplete if the store did not respond
// to the balancer. ErrNotFound means that the balancer has no store or is of an earlier version.
func (c *Client) Events(ctx context.Context, q EventQuery) (*EventReport, error) {
	values := url.Values{}
	if !q.Since.IsZero() {
		values.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Region != "" {
		values.Set("region", q.Region)
	}
	for _, kind := range q.Kinds {
		values.Add("kind", string(kind))
	}
	report := new(EventReport)
	if err := c.getJSON(ctx, "/v1/service/events?"+values.Encode(), report); err != nil {
		return nil, err
	}
	return report, nil
}

// RecordEvents records events of this operator. The balancer replaces their actor with the name in the
// client's certificate, and responds once they are stored, at most 2 s later.
func (c *Client) RecordEvents(ctx context.Context, events []Event) error {
	body, err := json.Marshal(map[string]any{"events": events})
	if err != nil {
		return fmt.Errorf("encoding events: %w", err)
	}
	_, _, err = c.do(ctx, http.MethodPost, "/v1/service/events", body)
	return err
}

// ReportPendingEvents reports events that wait for the store in this process. The balancer shows them for PendingTTL.
func (c *Client) ReportPendingEvents(ctx context.Context, p PendingEvents) error {
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encoding pending events: %w", err)
	}
	_, _, err = c.do(ctx, http.MethodPut, "/v1/service/events/pending", body)
	return err
}
