package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// backupFile is where a backup is.
type backupFile interface {
	// write writes a backup, complete and checked or not at all, and returns its size in bytes.
	write(ctx context.Context, write func(io.Writer) error) (telemetry.Backup, int64, error)
	// open returns the backup from its beginning; fs.ErrNotExist if there is none.
	open(ctx context.Context) (io.ReadCloser, error)
}

// openBackupFile returns a file on this computer, or an object of a bucket. It makes no calls.
func openBackupFile(ctx context.Context, name, file string) (backupFile, error) {
	if !service.IsBucket(file) {
		return localBackup(file), nil
	}
	folder, object := path.Split(strings.Replace(file, "://", ":/", 1))
	folder = strings.Replace(strings.TrimSuffix(folder, "/"), ":/", "://", 1)
	if strings.HasSuffix(folder, ":") || object == "" {
		return nil, usage(fmt.Errorf("%s: must name an object in a bucket, such as s3://backups/chat.backup", file), "")
	}
	parts, err := openBucket(ctx, name, folder)
	return bucketBackup{parts, object}, err
}

// localBackup is a file on this computer.
type localBackup string

// checkTarget returns why a backup cannot be written to the file. force replaces an existing one.
func (f localBackup) checkTarget(force bool) error {
	folder := filepath.Dir(string(f))
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return failed(fmt.Errorf("writing %s: the folder %s does not exist", f, folder), "create it, or name another file")
	}
	info, err := os.Lstat(string(f))
	exists := err == nil // other errors are those of writing it
	switch {
	case exists && info.IsDir():
		return usage(fmt.Errorf("writing %s: is a directory", f), "name a file in it, such as "+filepath.Join(string(f), "chat.backup"))
	case exists && !force:
		return usage(fmt.Errorf("writing %s: the file exists", f), "nothing was written; name another file, or replace this one with --force")
	}
	return nil
}

func (f localBackup) write(_ context.Context, write func(io.Writer) error) (b telemetry.Backup, size int64, err error) {
	if b, err = store.WriteBackupFile(string(f), write); err != nil {
		return b, 0, err
	}
	info, err := os.Stat(string(f))
	if err != nil {
		return b, 0, err
	}
	return b, info.Size(), nil
}

func (f localBackup) open(context.Context) (io.ReadCloser, error) {
	file, err := os.Open(string(f))
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err == nil && info.IsDir() {
		_ = file.Close() // nothing was written
		return nil, usage(fmt.Errorf("reading the backup: %s is a directory", f), "name a file in it")
	}
	return file, nil
}

// bucketBackup is an object of a bucket.
type bucketBackup struct {
	parts store.CloudBucket
	name  string
}

func (f bucketBackup) write(ctx context.Context, write func(io.Writer) error) (telemetry.Backup, int64, error) {
	return store.WriteBackupParts(ctx, f.parts, f.name, write)
}

func (f bucketBackup) open(ctx context.Context) (io.ReadCloser, error) {
	r := bufio.NewReader(store.ReadBackupParts(ctx, f.parts, f.name))
	if _, err := r.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return io.NopCloser(r), nil
}
