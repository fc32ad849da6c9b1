package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// maintenanceNotice is how long before it a maintenance counts: Google tells of one that
	// ends machines with GPUs an hour ahead, AWS weeks.
	maintenanceNotice = time.Hour
	// maxSpotNotice is the most that AWS tells of an interruption ahead.
	maxSpotNotice = 2 * time.Minute
)

// MaintenanceGCP asks whether Google is to end the machine for maintenance of its host,
// which machines with GPUs cannot be moved for. It does not say when: an hour after it
// began to tell at the latest. base is empty but in tests.
func MaintenanceGCP(base string) Notice {
	base = orBase(base, gcpMetadata)
	return func(ctx context.Context) (at time.Time, coming bool, err error) {
		text, err := requestMetadata(ctx, http.MethodGet, base+"/computeMetadata/v1/instance/maintenance-event", gcpHeader, "")
		if isNotFound(err) {
			return at, false, nil
		}
		if err != nil || strings.TrimSpace(text) != "TERMINATE_ON_HOST_MAINTENANCE" {
			return at, false, err
		}
		return time.Now().Add(maintenanceNotice), true, nil
	}
}

// maintenanceEvent is what AWS has scheduled for an instance: a reboot, a stop, its retirement, or
// work on its host's network or power.
type maintenanceEvent struct {
	NotBefore imdsTime
	NotAfter  imdsTime
	State     string
}

// imdsTime is a time as the list of events writes it: 21 Jan 2019 09:00:43 GMT.
type imdsTime struct{ time.Time }

// UnmarshalJSON reads it; an empty one is the zero time.
func (t *imdsTime) UnmarshalJSON(text []byte) error {
	var written string
	err := json.Unmarshal(text, &written)
	if err == nil && written != "" {
		t.Time, err = time.Parse("2 Jan 2006 15:04:05 MST", written)
	}
	return err
}

// MaintenanceAWS asks for the events that AWS has scheduled for an instance, by IMDSv2, and
// tells of the first one that begins within the hour or is not over; base is empty but in
// tests.
func MaintenanceAWS(base string) Notice {
	base = orBase(base, awsMetadata)
	return func(ctx context.Context) (at time.Time, coming bool, err error) {
		text, found, err := readIMDS(ctx, base, "/latest/meta-data/events/maintenance/scheduled")
		if err != nil || !found {
			return at, false, err
		}
		var events []maintenanceEvent
		if err := json.Unmarshal([]byte(text), &events); err != nil {
			return at, false, fmt.Errorf("reading the events scheduled for this machine: %w", err)
		}
		for _, e := range events {
			if e.State == "active" && e.isCurrent(time.Now()) && (!coming || e.NotBefore.Before(at)) {
				at, coming = e.NotBefore.Time, true
			}
		}
		return at, coming, nil
	}
}

// isCurrent says whether an event is near, and not over.
func (e maintenanceEvent) isCurrent(now time.Time) bool {
	over := e.NotAfter.Time
	if over.IsZero() {
		over = e.NotBefore.Add(maintenanceNotice)
	}
	return now.After(e.NotBefore.Add(-maintenanceNotice)) && now.Before(over)
}

// readIMDS asks AWS's metadata server with a token of its own; found is false where there is
// nothing at the path.
func readIMDS(ctx context.Context, base, path string) (text string, found bool, err error) {
	ask, err := newIMDSSession(ctx, base)
	if err != nil {
		return "", false, err
	}
	text, err = ask(ctx, path)
	if isNotFound(err) {
		return "", false, nil
	}
	return text, err == nil, err
}

// isNotFound says whether a metadata server has nothing to tell.
func isNotFound(err error) bool {
	var me *metadataError
	return errors.As(err, &me) && me.status == http.StatusNotFound
}

// earliestOf asks all, and tells of what comes first. What one of them cannot tell is an
// error only while no other one has anything to tell.
func earliestOf(all ...Notice) Notice {
	return func(ctx context.Context) (at time.Time, coming bool, err error) {
		for _, ask := range all {
			t, is, e := ask(ctx)
			err = errors.Join(err, e)
			if is && (!coming || t.Before(at)) {
				at, coming = t, true
			}
		}
		if coming {
			err = nil
		}
		return at, coming, err
	}
}

// capNotice is a notice of what comes in so much time at most: a machine whose clock runs
// late would take it for later than it is.
func capNotice(most time.Duration, ask Notice) Notice {
	return func(ctx context.Context) (at time.Time, coming bool, err error) {
		at, coming, err = ask(ctx)
		if latest := time.Now().Add(most); coming && at.After(latest) {
			at = latest
		}
		return at, coming, err
	}
}
