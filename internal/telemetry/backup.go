package telemetry

import (
	"errors"
	"fmt"
	"time"
)

// Backup describes a backup of the store of a service.
type Backup struct {
	// Format is the version of the format.
	Format int `json:"format"`
	// Service is the name of the service.
	Service string `json:"service"`
	// Version is the version of the program that made the backup.
	Version string `json:"version"`
	// At is when the backup was begun. Each stream has its state at a time after that.
	At time.Time `json:"at"`
	// Streams are the names of the streams, sorted.
	Streams []string `json:"streams"`
	// Messages and Bytes are the number of messages and their size on disk.
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// BackupError is a backup that cannot be restored.
type BackupError struct{ Problem string }

// Error returns the problem.
func (e *BackupError) Error() string { return e.Problem }

// ErrRestoreRunning means that another restore into the same store has not ended. Nothing was changed.
var ErrRestoreRunning = errors.New("another restore into this store is running")

// NewerStoreError means that a store is probably the one that was backed up, because it was written before the backup was
// made. So it has newer data than the backup, and a restore would discard them.
type NewerStoreError struct {
	// Backup is when the backup was made, Newest when the store was last written.
	Backup, Newest time.Time
}

// Error returns both times.
func (e *NewerStoreError) Error() string {
	const layout = "2006-01-02 15:04:05 UTC"
	return fmt.Sprintf("the store of the running service existed before the backup of %s and was last written at %s: a restore discards everything stored since the backup", e.Backup.UTC().Format(layout), e.Newest.UTC().Format(layout))
}
