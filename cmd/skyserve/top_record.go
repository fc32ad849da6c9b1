package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"skyserve/internal/telemetry"
)

// snapshotRecord is a file with one snapshot per line, in the format of top -o json. It is safe for
// concurrent use: several fetches may be in flight.
type snapshotRecord struct {
	mu     sync.Mutex
	file   *os.File
	packed *gzip.Writer // nil unless the file's name ends in .gz
}

// createRecord creates or truncates a record with permissions for its owner only.
func createRecord(name string) (*snapshotRecord, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, usage(fmt.Errorf("writing --record: %w", err), "")
	}
	r := &snapshotRecord{file: f}
	if strings.HasSuffix(name, ".gz") {
		r.packed = gzip.NewWriter(f)
	}
	return r, nil
}

// addSnapshot writes and flushes a snapshot, so that a killed process leaves complete lines.
func (r *snapshotRecord) addSnapshot(s *telemetry.Snapshot) error {
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("writing --record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := io.Writer(r.file)
	if r.packed != nil {
		out = r.packed
	}
	_, err = out.Write(append(line, '\n'))
	if err == nil && r.packed != nil {
		err = r.packed.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing --record: %w", err)
	}
	return nil
}

// Close flushes and closes the record.
func (r *snapshotRecord) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.packed != nil {
		err = r.packed.Close()
	}
	if err = errors.Join(err, r.file.Close()); err != nil {
		return fmt.Errorf("closing --record: %w", err)
	}
	return nil
}
