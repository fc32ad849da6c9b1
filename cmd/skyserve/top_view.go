package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/provision/local"
	"skyserve/tui"
)

// topView is the source of top's snapshots. It keeps the latest one, and records all of them if
// --record is set.
type topView struct {
	tui.Fetcher
	operator tui.Operator // nil with --replay and --ssh
	record   *snapshotRecord
	latest   atomic.Pointer[telemetry.Snapshot]
	closers  []io.Closer
}

// view opens the source and the record that the flags name.
func (o *topOptions) view(ctx context.Context) (*topView, error) {
	v := &topView{}
	if err := o.openView(ctx, v); err != nil {
		return nil, err
	}
	if o.record == "" {
		return v, nil
	}
	record, err := createRecord(o.record)
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	v.record, v.closers = record, append(v.closers, record)
	return v, nil
}

// openView sets the view's fetcher and operator.
func (o *topOptions) openView(ctx context.Context, v *topView) error {
	switch {
	case o.replay != "":
		replay, err := tui.OpenReplay(o.replay, o.speed, time.Now)
		if err != nil {
			return usage(err, "'skyserve top --record FILE' writes a recording")
		}
		v.Fetcher, v.closers = replay, append(v.closers, replay)
		return nil
	case o.ssh != "":
		remote := newSSHSource(ctx, o.ssh, o.remoteCommand(), o.interval)
		v.Fetcher, v.closers = remote, append(v.closers, remote)
		return nil
	}
	service, admins, err := findAdmins(ctx, o.name, o.admins)
	if err != nil {
		return err
	}
	v.Fetcher = tui.NewSource(service, admins...)
	v.operator = newTopOperator(service, len(o.admins) > 0, admins, v.latest.Load)
	return nil
}

// Fetch fetches, keeps and records a snapshot. It fails if the snapshot cannot be recorded, so that
// the user notices at once.
func (v *topView) Fetch(ctx context.Context) (*telemetry.Snapshot, string, error) {
	s, source, err := v.Fetcher.Fetch(ctx)
	if err != nil {
		return nil, "", err
	}
	if v.record != nil {
		if err := v.record.addSnapshot(s); err != nil {
			return nil, "", tui.FileError{Err: err}
		}
	}
	v.latest.Store(s)
	return s, source, nil
}

// ended reports whether a replay has reached its end.
func (v *topView) ended() bool {
	replay, ends := v.Fetcher.(interface{ Ended() bool })
	return ends && replay.Ended()
}

// Close closes the source and the record.
func (v *topView) Close() error {
	var errs []error
	for _, c := range v.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// hint returns the hint for an error fetching the first snapshot.
func (o *topOptions) hint(err error) string {
	if hint := adminHint(o.admins, err); hint != "" {
		return hint
	}
	var rejected *telemetry.StatusError
	if errors.As(err, &rejected) && rejected.Status == http.StatusUnauthorized {
		return "set " + local.EnvAdminToken + " to the token with which the balancer was started"
	}
	if o.ssh != "" {
		return "'ssh " + o.ssh + " skyserve top --once' checks that it works on that host"
	}
	return hintStatus + "; --admin URL selects another balancer"
}

// checkView rejects invalid flags and invalid combinations of them.
func (o *topOptions) checkView() error {
	switch {
	case o.countSet && o.count < 1:
		return usage(fmt.Errorf("-n: must be at least 1, got %d", o.count), "")
	case o.countSet && o.once:
		return usage(errors.New("--once and -n cannot be combined"), "")
	case o.replay != "" && (o.name != "" || len(o.admins) > 0 || o.ssh != "" || o.record != ""):
		return usage(errors.New("--replay: cannot be combined with a name, --admin, --ssh or --record"), "")
	case o.speedSet && o.replay == "":
		return usage(errors.New("--speed: requires --replay FILE"), "")
	case o.replay != "" && (!(o.speed > 0) || math.IsInf(o.speed, 0)):
		return usage(fmt.Errorf("--speed: must be greater than 0, got %g", o.speed), "")
	case o.sshSet && !isSSHHost(o.ssh):
		return usage(fmt.Errorf("--ssh: must be [USER@]HOST or ssh://[USER@]HOST[:PORT], got %q", o.ssh), "")
	}
	for _, a := range o.admins {
		if strings.TrimSpace(a) == "" {
			return usage(fmt.Errorf("--admin: must be a URL, got %q", a), "")
		}
	}
	return nil
}
