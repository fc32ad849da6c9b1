package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// backupFolder is where scheduled backups are.
type backupFolder interface {
	// files returns the names of files that start with a prefix.
	files(ctx context.Context, prefix string) ([]string, error)
	// writeBackup writes a backup: complete and checked, or not at all.
	writeBackup(ctx context.Context, name string, write func(io.Writer) error) (telemetry.Backup, error)
	removeBackup(ctx context.Context, name string) error
	// removeIncomplete removes what interrupted writes of a service's backups before a time left.
	removeIncomplete(ctx context.Context, service string, before time.Time) error
}

// WithBuckets lets store.backup.to be a folder of a bucket, which open opens. It makes no calls.
func WithBuckets(open func(ctx context.Context, url string) (store.Parts, error)) Option {
	return func(o *options) { o.openBucket = open }
}

// openBackups returns the folder of store.backup.to.
func (c *Controller) openBackups(ctx context.Context, to string) (backupFolder, error) {
	if !service.IsBucket(to) {
		return directory(to), nil
	}
	if c.options.openBucket == nil {
		return nil, fmt.Errorf("store.backup.to: this process cannot open the bucket %s", to)
	}
	parts, err := c.options.openBucket(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("store.backup.to: %w", err)
	}
	return bucketFolder{parts}, nil
}

// directory is a directory with backups.
type directory string

func (d directory) files(_ context.Context, prefix string) (names []string, err error) {
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (d directory) writeBackup(_ context.Context, name string, write func(io.Writer) error) (telemetry.Backup, error) {
	return store.WriteBackupFile(filepath.Join(string(d), name), write)
}

func (d directory) removeBackup(_ context.Context, name string) error {
	return os.Remove(filepath.Join(string(d), name))
}

// removeIncomplete does nothing: the temporary file of an interrupted write has another name, and is replaced.
func (directory) removeIncomplete(context.Context, string, time.Time) error { return nil }

// bucketFolder is a folder of a bucket with backups.
type bucketFolder struct{ parts store.Parts }

func (b bucketFolder) files(ctx context.Context, prefix string) ([]string, error) {
	return b.parts.PartNames(ctx, prefix)
}

func (b bucketFolder) writeBackup(ctx context.Context, name string, write func(io.Writer) error) (telemetry.Backup, error) {
	backup, _, err := store.WriteBackupParts(ctx, b.parts, name, write)
	return backup, err
}

func (b bucketFolder) removeBackup(ctx context.Context, name string) error {
	return store.RemoveBackupParts(ctx, b.parts, name)
}

func (b bucketFolder) removeIncomplete(ctx context.Context, service string, before time.Time) error {
	names, err := b.parts.PartNames(ctx, service+"-")
	for _, part := range names {
		name, _ := store.BackupOfPart(part)
		if at, is := timeOfBackup(name, service); is && at.Before(before) && !slices.Contains(names, name) {
			err = errors.Join(err, b.parts.DeletePart(ctx, part))
		}
	}
	return err
}
