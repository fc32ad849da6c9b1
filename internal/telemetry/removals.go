package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"time"
)

// Limits of Removals, with their reasons.
const (
	// removalTTL is how long an announced removal counts. A replica drains for minutes; one that still exists after a day was
	// not removed.
	removalTTL = 24 * time.Hour
	// maxRemovals is the maximum number of announced removals: more than a service removes in a day.
	maxRemovals = 10_000
)

// Removals are the replicas that operators' commands are removing from clouds. Balancers store them for the commands, and
// the controller does not replace these replicas.
type Removals struct {
	// Announced is when each removal was announced, by the handle of the machine.
	Announced map[string]time.Time `json:"announced"`
}

// RemovalsRecord is the name of the record that contains Removals.
const RemovalsRecord = "removals"

// RemovalsKey returns the store key of a service's Removals.
func RemovalsKey(service string) string { return RemovalsRecord + "." + service }

// With returns r with more removals, and without outdated ones.
func (r Removals) With(handles []string, now time.Time) (Removals, error) {
	next := Removals{Announced: r.Current(now)}
	for _, handle := range handles {
		next.Announced[handle] = now.UTC()
	}
	if len(next.Announced) > maxRemovals {
		return r, fmt.Errorf("announcing the removal of replicas: at most %d within %s", maxRemovals, removalTTL)
	}
	return next, nil
}

// Current returns the removals that count at a time.
func (r Removals) Current(now time.Time) map[string]time.Time {
	current := map[string]time.Time{}
	maps.Copy(current, r.Announced)
	maps.DeleteFunc(current, func(_ string, at time.Time) bool { return now.Sub(at) > removalTTL })
	return current
}

// AnnounceRemovals stores that this operator removes replicas, given by the handles of their machines. It returns once
// that is stored. ErrNotFound means that the balancer has no store or is of an earlier version.
func (c *Client) AnnounceRemovals(ctx context.Context, handles []string) error {
	body, err := json.Marshal(map[string]any{"machines": handles})
	if err != nil {
		return fmt.Errorf("encoding the removed replicas: %w", err)
	}
	_, _, err = c.do(ctx, http.MethodPost, "/v1/service/removals", body)
	return err
}
