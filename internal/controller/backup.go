package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

const (
	// backupInterval is the interval at which the leader checks whether a backup is due, and retries after a failure.
	backupInterval = time.Minute
	// backupLate is how many intervals (store.backup.every) may pass without a backup before an alert is raised.
	backupLate = 2
	// backupTime is the format of the time in the names of backups: sorted by name, backups are sorted by time.
	backupTime = "20060102T150405Z"
	// backupSuffix is the end of the names of backups.
	backupSuffix = ".backup"
)

// backupSource is the part of the store that makes backups.
type backupSource interface {
	WriteBackup(ctx context.Context, w io.Writer, service, version string) (telemetry.Backup, error)
}

// WithVersion sets the version of skyserve that backups contain.
func WithVersion(version string) Option { return func(o *options) { o.version = version } }

// backupState is the state of the scheduled backups in a term of leadership. Its zero value is that before the
// first check.
type backupState struct {
	since  time.Time // when this controller began to check
	folder string    // store.backup.to of the last check
	newest time.Time // of the backups in folder when it could last be read; zero = none, or it could never be read
	err    error     // of the last check
}

// runBackups makes the backups of store.backup while this controller leads, until ctx ends.
func (c *Controller) runBackups(ctx context.Context, l lease) {
	for {
		c.mu.Lock()
		spec := c.backupSpec
		c.mu.Unlock()
		if spec != nil {
			c.backUpIfDue(ctx, l, *spec, time.Now())
		}
		timer := time.NewTimer(backupInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			c.mu.Lock()
			c.backups = backupState{}
			c.mu.Unlock()
			return
		case <-timer.C:
		}
	}
}

// backUpIfDue makes a backup if one is due, and removes old ones.
func (c *Controller) backUpIfDue(ctx context.Context, l lease, spec service.StoreBackup, now time.Time) {
	failure := "the scheduled backup of the store failed; retrying"
	folder, err := c.openBackupFolder(ctx, spec.To)
	var newest time.Time
	if err == nil {
		newest, err = newestBackup(ctx, folder, c.immutable.Service)
	}
	known := err == nil
	if err == nil && now.Sub(newest) >= spec.Every {
		if err = leadershipCheck(ctx, l)(); err == nil {
			err = c.writeBackup(ctx, folder, now)
		}
		if err == nil {
			newest, failure = now, "removing old backups of the store failed; the next backup retries it"
			err = removeBackups(ctx, folder, c.immutable.Service, spec.Keep)
		}
	}
	if ctx.Err() != nil {
		return // another controller continues
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.backups.since.IsZero() {
		c.backups.since = now
	}
	if err != nil && (c.backups.err == nil || c.backups.err.Error() != err.Error()) {
		c.log.Error(failure, "folder", spec.To, "err", err)
	}
	if !known && c.backups.folder == spec.To {
		newest = c.backups.newest
	}
	c.backups.folder, c.backups.newest, c.backups.err = spec.To, newest, err
}

// writeBackup writes a backup: complete and checked, or not at all.
func (c *Controller) writeBackup(ctx context.Context, folder backupFolder, now time.Time) error {
	name := backupName(c.immutable.Service, now)
	b, err := folder.writeBackup(ctx, name, func(w io.Writer) error {
		_, err := c.backupSource.WriteBackup(ctx, w, c.immutable.Service, c.options.version)
		return err
	})
	if err != nil {
		return err
	}
	c.log.Info("the store was backed up", "file", name, "messages", b.Messages, "bytes", b.Bytes)
	return nil
}

// backupName returns the name of a backup's file.
func backupName(service string, at time.Time) string {
	return service + "-" + at.UTC().Format(backupTime) + backupSuffix
}

// backupsIn returns the names of a service's scheduled backups in a folder, the oldest first. Other files are ignored.
func backupsIn(ctx context.Context, folder backupFolder, service string) ([]string, error) {
	all, err := folder.files(ctx, service+"-")
	if err != nil {
		return nil, fmt.Errorf("store.backup.to: %w", err)
	}
	var names []string
	for _, name := range all {
		if _, ok := timeOfBackup(name, service); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// timeOfBackup returns the time in the name of a service's backup; false for another file.
func timeOfBackup(name, service string) (time.Time, bool) {
	text, hasPrefix := strings.CutPrefix(name, service+"-")
	text, hasSuffix := strings.CutSuffix(text, backupSuffix)
	at, err := time.Parse(backupTime, text)
	return at, hasPrefix && hasSuffix && err == nil
}

// newestBackup returns the time of the newest backup in a folder; zero without one.
func newestBackup(ctx context.Context, folder backupFolder, service string) (time.Time, error) {
	names, err := backupsIn(ctx, folder, service)
	if err != nil || len(names) == 0 {
		return time.Time{}, err
	}
	at, _ := timeOfBackup(names[len(names)-1], service)
	return at, nil
}

// removeBackups removes all but the newest keep backups of a service, and the parts of backups that were never completed.
func removeBackups(ctx context.Context, folder backupFolder, service string, keep int) error {
	names, err := backupsIn(ctx, folder, service)
	for _, name := range names[:max(0, len(names)-keep)] {
		err = errors.Join(err, folder.removeBackup(ctx, name))
	}
	if len(names) > 0 {
		newest, _ := timeOfBackup(names[len(names)-1], service)
		err = errors.Join(err, folder.removeIncomplete(ctx, service, newest))
	}
	return err
}

// backupAlerts returns an alert while the newest scheduled backup is too old.
func (c *Controller) backupAlerts(now time.Time) []telemetry.Alert {
	c.mu.Lock()
	spec, b, leading := c.backupSpec, c.backups, c.view.Leading
	c.mu.Unlock()
	if spec == nil || !leading || b.since.IsZero() {
		return nil
	}
	s, last := *spec, b.newest
	if last.IsZero() {
		last = b.since
	}
	if now.Sub(last) < backupLate*s.Every {
		return nil
	}
	message := fmt.Sprintf("the newest backup in %s is %s old; one is due every %s", s.To, now.Sub(b.newest).Round(time.Minute), s.Every)
	if b.newest.IsZero() {
		message = fmt.Sprintf("there is no backup in %s; one is due every %s", s.To, s.Every)
	}
	if b.err != nil {
		message += ": " + b.err.Error()
	}
	repair := fmt.Sprintf("create %s, make it writable and free space", s.To)
	if service.IsBucket(s.To) {
		repair = fmt.Sprintf("create the bucket of %s and let the machines with controllers list, read, write and delete objects in it", s.To)
	}
	return []telemetry.Alert{{
		Severity: telemetry.SeverityWarning, Kind: telemetry.AlertStore, Object: "backup", Message: message,
		NextStep: fmt.Sprintf("%s; or run 'skyserve backup FILE --service %s'", repair, c.immutable.Service),
	}}
}
