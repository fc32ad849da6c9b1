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
	// maintenanceNotice is how long before maintenance a machine reports it. Google announces
	// maintenance that terminates machines with GPUs an hour before, AWS weeks before.
	maintenanceNotice = time.Hour
	// maxSpotNotice is the maximum time between AWS's notice and the interruption.
	maxSpotNotice = 2 * time.Minute
)

// PollMaintenanceGCP polls for host maintenance at Google that terminates the machine: machines with
// GPUs cannot be migrated. Google announces no time: the maintenance begins at most an
// hour after the announcement. base is only set in tests.
func PollMaintenanceGCP(base string) InterruptionPoller {
	base = baseURLOr(base, gcpMetadata)
	return func(ctx context.Context) (at time.Time, announced bool, err error) {
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

// maintenanceEvent is a scheduled event of an AWS instance: a reboot, a stop, its retirement, or
// work on its host's network or power.
type maintenanceEvent struct {
	NotBefore imdsTime
	NotAfter  imdsTime
	State     string
}

// imdsTime is a time in the format of the list of events: 21 Jan 2019 09:00:43 GMT.
type imdsTime struct{ time.Time }

// UnmarshalJSON parses the time; an empty text is the zero time.
func (t *imdsTime) UnmarshalJSON(text []byte) error {
	var written string
	err := json.Unmarshal(text, &written)
	if err == nil && written != "" {
		t.Time, err = time.Parse("2 Jan 2006 15:04:05 MST", written)
	}
	return err
}

// PollMaintenanceAWS polls for the scheduled events of an AWS instance, with IMDSv2. It reports the
// first one that has begun or begins within an hour, and has not ended; base is only set in tests.
func PollMaintenanceAWS(base string) InterruptionPoller {
	base = baseURLOr(base, awsMetadata)
	return func(ctx context.Context) (at time.Time, announced bool, err error) {
		text, found, err := readIMDS(ctx, base, "/latest/meta-data/events/maintenance/scheduled")
		if err != nil || !found {
			return at, false, err
		}
		var events []maintenanceEvent
		if err := json.Unmarshal([]byte(text), &events); err != nil {
			return at, false, fmt.Errorf("parsing the scheduled events of this machine: %w", err)
		}
		for _, e := range events {
			if e.State == "active" && e.isCurrent(time.Now()) && (!announced || e.NotBefore.Before(at)) {
				at, announced = e.NotBefore.Time, true
			}
		}
		return at, announced, nil
	}
}

// isCurrent reports whether an event has begun or begins within maintenanceNotice, and has not ended.
func (e maintenanceEvent) isCurrent(now time.Time) bool {
	end := e.NotAfter.Time
	if end.IsZero() {
		end = e.NotBefore.Add(maintenanceNotice)
	}
	return now.After(e.NotBefore.Add(-maintenanceNotice)) && now.Before(end)
}

// readIMDS reads a path of AWS's metadata server with a new token; found is false if the path
// does not exist.
func readIMDS(ctx context.Context, base, path string) (text string, found bool, err error) {
	read, err := newIMDSSession(ctx, base)
	if err != nil {
		return "", false, err
	}
	text, err = read(ctx, path)
	if isNotFound(err) {
		return "", false, nil
	}
	return text, err == nil, err
}

// isNotFound reports whether a metadata server returned 404.
func isNotFound(err error) bool {
	var me *httpStatusError
	return errors.As(err, &me) && me.status == http.StatusNotFound
}

// earliestOf returns a poller that polls all given ones and reports the earliest interruption. It
// returns their errors only if none of them reports an interruption.
func earliestOf(all ...InterruptionPoller) InterruptionPoller {
	return func(ctx context.Context) (at time.Time, announced bool, err error) {
		for _, poll := range all {
			t, found, e := poll(ctx)
			err = errors.Join(err, e)
			if found && (!announced || t.Before(at)) {
				at, announced = t, true
			}
		}
		if announced {
			err = nil
		}
		return at, announced, err
	}
}

// capNotice limits the announced time to at most limit from now. Otherwise a machine whose clock is
// behind would drain too late.
func capNotice(limit time.Duration, poll InterruptionPoller) InterruptionPoller {
	return func(ctx context.Context) (at time.Time, announced bool, err error) {
		at, announced, err = poll(ctx)
		if latest := time.Now().Add(limit); announced && at.After(latest) {
			at = latest
		}
		return at, announced, err
	}
}
