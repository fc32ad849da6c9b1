package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// topView is where top gets its snapshots. It keeps the last one, and a record of all of
// them where one is asked for.
type topView struct {
	tui.Fetcher
	operator tui.Operator // nil where there is nobody to ask
	record   *snapshotRecord
	latest   atomic.Pointer[telemetry.Snapshot]
	closers  []io.Closer
}

// view opens what the flags name.
func (o *topOptions) view(ctx context.Context) (*topView, error) {
	v := &topView{}
	if err := o.open(ctx, v); err != nil {
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

// open finds the view's fetcher.
func (o *topOptions) open(ctx context.Context, v *topView) error {
	switch {
	case o.replay != "":
		replay, err := tui.OpenReplay(o.replay, o.speed, time.Now)
		if err != nil {
			return usage(err, "")
		}
		v.Fetcher, v.closers = replay, append(v.closers, replay)
		return nil
	case o.ssh != "":
		remote := newSSHSource(ctx, o.ssh, o.remoteCommand(), o.interval)
		v.Fetcher, v.closers = remote, append(v.closers, remote)
		return nil
	}
	service, admins, err := findAdmins(o.name, o.admins)
	if err != nil {
		return err
	}
	v.Fetcher = tui.NewSource(service, admins...)
	v.operator = newTopOperator(service, len(o.admins) > 0, admins, v.latest.Load)
	return nil
}

// Fetch fetches, keeps and records a snapshot. One that cannot be recorded counts as
// none: whoever asked for a record shall not find out later.
func (v *topView) Fetch(ctx context.Context) (*telemetry.Snapshot, string, error) {
	s, source, err := v.Fetcher.Fetch(ctx)
	if err == nil && v.record != nil {
		err = v.record.add(s)
	}
	if err != nil {
		return nil, "", err
	}
	v.latest.Store(s)
	return s, source, nil
}

// ended says whether there is nothing more to come: a record was played to its end.
func (v *topView) ended() bool {
	replay, ends := v.Fetcher.(interface{ Ended() bool })
	return ends && replay.Ended()
}

// Close closes what was opened.
func (v *topView) Close() error {
	var errs []error
	for _, c := range v.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// hint advises whoever got no first snapshot.
func (o *topOptions) hint() string {
	if o.ssh != "" {
		return "'ssh " + o.ssh + " skyserve top --once' shows whether it works there"
	}
	return "'skyserve status' says whether the service is up; --admin URL names another balancer"
}

// checkView refuses flags that do not go together, or that nothing can be done with.
func (o *topOptions) checkView() error {
	switch {
	case o.counted && o.count < 1:
		return usage(fmt.Errorf("reading -n: must be at least 1, got %d", o.count), "")
	case o.counted && o.once:
		return usage(errors.New("--once and -n: want one of them"), "")
	case o.replay != "" && (o.name != "" || len(o.admins) > 0 || o.ssh != "" || o.record != ""):
		return usage(errors.New("--replay: a record is shown as it is, without a name, --admin, --ssh or --record"), "")
	case o.speedAsked && o.replay == "":
		return usage(errors.New("--speed: want --replay FILE with it"), "")
	case o.replay != "" && (!(o.speed > 0) || math.IsInf(o.speed, 0)):
		return usage(fmt.Errorf("reading --speed: must be above 0, got %g", o.speed), "")
	case o.sshAsked && !isSSHHost(o.ssh):
		return usage(fmt.Errorf("reading --ssh: want [USER@]HOST or ssh://[USER@]HOST[:PORT], got %q", o.ssh), "")
	}
	for _, a := range o.admins {
		if strings.TrimSpace(a) == "" {
			return usage(fmt.Errorf("reading --admin: want a URL, got %q", a), "")
		}
	}
	return nil
}
