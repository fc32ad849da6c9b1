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
	// removeIncomplete removes the parts of a service's backups that began before a time and were never completed.
	removeIncomplete(ctx context.Context, service string, before time.Time) error
}

// WithBuckets allows store.backup.to to be a folder in a bucket of a cloud. open returns the folder for its URL
// and makes no calls to the cloud.
func WithBuckets(open func(ctx context.Context, url string) (store.CloudBucket, error)) Option {
	return func(o *options) { o.openBucket = open }
}

// openBackupFolder returns the folder named by store.backup.to.
func (c *Controller) openBackupFolder(ctx context.Context, to string) (backupFolder, error) {
	if !service.IsBucket(to) {
		return directory(to), nil
	}
	if c.options.openBucket == nil {
		return nil, fmt.Errorf("store.backup.to: this process cannot open the bucket %s", to)
	}
	bucket, err := c.options.openBucket(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("store.backup.to: %w", err)
	}
	return bucketFolder{bucket}, nil
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

// removeIncomplete implements backupFolder. A crash during a write leaves a temporary file: the backup's name between a
// dot and a random suffix (atomicfile.Write).
func (d directory) removeIncomplete(ctx context.Context, service string, before time.Time) error {
	names, err := d.files(ctx, "."+service+"-")
	for _, temporary := range names {
		name := strings.TrimSuffix(temporary[1:], filepath.Ext(temporary))
		if at, ok := timeOfBackup(name, service); ok && at.Before(before) {
			err = errors.Join(err, d.removeBackup(ctx, temporary))
		}
	}
	return err
}

// bucketFolder is a folder of a bucket with backups.
type bucketFolder struct{ bucket store.CloudBucket }

func (b bucketFolder) files(ctx context.Context, prefix string) ([]string, error) {
	return b.bucket.PartNames(ctx, prefix)
}

func (b bucketFolder) writeBackup(ctx context.Context, name string, write func(io.Writer) error) (telemetry.Backup, error) {
	backup, _, err := store.WriteBackupParts(ctx, b.bucket, name, write)
	return backup, err
}

func (b bucketFolder) removeBackup(ctx context.Context, name string) error {
	return store.RemoveBackupParts(ctx, b.bucket, name)
}

// removeIncomplete implements backupFolder. The first part of a backup has the backup's name and is written last, so a
// backup without it is incomplete.
func (b bucketFolder) removeIncomplete(ctx context.Context, service string, before time.Time) error {
	names, err := b.bucket.PartNames(ctx, service+"-")
	for _, part := range names {
		name, _ := store.BackupOfPart(part)
		if at, ok := timeOfBackup(name, service); ok && at.Before(before) && !slices.Contains(names, name) {
			err = errors.Join(err, b.bucket.DeletePart(ctx, part))
		}
	}
	return err
}
