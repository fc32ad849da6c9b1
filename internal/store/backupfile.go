package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"skyserve/internal/atomicfile"
	"skyserve/internal/telemetry"
)

// WriteBackupFile writes the backup that write produces to a file (mode 0600), and returns its description. An existing
// file is replaced once the backup is complete and checked. What killed processes left of a backup to this file is removed then.
func WriteBackupFile(file string, write func(io.Writer) error) (b telemetry.Backup, err error) {
	err = atomicfile.Write(file, 0o600, func(w io.Writer) error {
		b, err = writeChecked(w, write)
		return err
	})
	if err == nil {
		removeTemporary(file)
	}
	return b, err
}

// abandonedAfter is the time without a write after which the temporary file of a backup belongs to no process: a backup
// that waits for its source that long has failed.
const abandonedAfter = time.Hour

// removeTemporary removes the temporary files that killed processes left beside a backup. It ignores errors: the backup is
// complete.
func removeTemporary(file string) {
	dir := filepath.Dir(file)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		random, named := strings.CutPrefix(e.Name(), "."+filepath.Base(file)+".") // as atomicfile.Write names it
		if !named || random == "" || strings.Trim(random, "0123456789") != "" {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > abandonedAfter {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// writeChecked writes a backup to w and checks what it writes.
func writeChecked(w io.Writer, write func(io.Writer) error) (b telemetry.Backup, err error) {
	check, feed := io.Pipe()
	checked := make(chan error, 1)
	go func() {
		var err error
		b, err = CheckBackup(check)
		_, drainErr := io.Copy(io.Discard, check)
		checked <- errors.Join(err, drainErr)
	}()
	err = write(io.MultiWriter(w, feed))
	feed.CloseWithError(err)
	if damage := <-checked; err == nil {
		err = damage
	}
	return b, err
}

// WriteBackupParts writes the backup that write produces to a bucket, and returns its description and its size in bytes.
// The first part has the given name. It is written last, once the backup is complete and checked: until then an earlier
// backup of this name remains valid. A backup of more than 8 MiB has further parts, with the names of backupPartName.
// Joined in order, the parts are the file that WriteBackupFile writes. After a *LeftoverPartsError the backup is complete.
func WriteBackupParts(ctx context.Context, to CloudBucket, name string, write func(io.Writer) error) (b telemetry.Backup, size int64, err error) {
	w := &partsWriter{ctx: ctx, to: to, name: name, part: make([]byte, 0, cloudPartSize)}
	b, err = writeChecked(w, write)
	if err == nil {
		err = w.flush()
	}
	switch {
	case err != nil && w.number > 1: // parts after the first may have been written
		remove := removeParts(context.WithoutCancel(ctx), to, name, func(id string) bool { return id == w.id })
		return b, w.size, errors.Join(err, remove)
	case err != nil:
		return b, w.size, err
	}
	// After a failure the first part may have been written: the other parts stay, until the next backup of this name.
	if err := w.put(w.name, w.first); err != nil {
		return b, w.size, err
	}
	if err := removeParts(ctx, to, name, func(id string) bool { return id != w.id }); err != nil {
		return b, w.size, &LeftoverPartsError{err}
	}
	return b, w.size, nil
}

// LeftoverPartsError means that a backup is complete, but that parts of earlier ones of its name may remain in the bucket.
type LeftoverPartsError struct{ Err error }

// Error says what is complete and what is not.
func (e *LeftoverPartsError) Error() string {
	return fmt.Sprintf("the backup is complete, but parts of earlier ones of this name may remain: %v", e.Err)
}

// Unwrap returns why the parts were not removed.
func (e *LeftoverPartsError) Unwrap() error { return e.Err }

// partsWriter divides what is written to it into parts.
type partsWriter struct {
	ctx    context.Context //nolint:containedctx // io.Writer has no context
	to     CloudBucket
	name   string
	id     string // of the parts after the first
	first  []byte // kept until the others are written
	part   []byte // the current part
	number int    // its number, from 0
	size   int64  // of all parts
}

// Write implements io.Writer.
func (w *partsWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if len(w.part) == cap(w.part) {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
		k := min(len(p), cap(w.part)-len(w.part))
		w.part = append(w.part, p[:k]...)
		p, n, w.size = p[k:], n+k, w.size+int64(k)
	}
	return n, nil
}

// flush writes the current part, unless it is the first one.
func (w *partsWriter) flush() error {
	defer func() { w.number++ }()
	if w.number == 0 {
		w.first, w.part, w.id = w.part, make([]byte, 0, cloudPartSize), partsID(w.part)
		return nil
	}
	err := w.put(backupPartName(w.name, w.id, w.number), w.part)
	w.part = w.part[:0]
	return err
}

func (w *partsWriter) put(name string, part []byte) error {
	ctx, cancel := context.WithTimeout(w.ctx, partTimeout)
	defer cancel()
	return w.to.PutPart(ctx, name, part)
}

// partsID returns the id in the names of the parts of a backup, given its first one. It differs between backups of one
// name, because the first part contains the time: replacing that part replaces the backup.
func partsID(first []byte) string {
	sum := sha256.Sum256(first)
	return hex.EncodeToString(sum[:8])
}

// backupPartName returns the name of a part of a backup after the first: chat.backup.0123456789abcdef.1.
func backupPartName(name, id string, part int) string { return fmt.Sprintf("%s.%s.%d", name, id, part) }

// partNameRE matches the names of backupPartName.
var partNameRE = regexp.MustCompile(`^(.+)\.([0-9a-f]{16})\.[1-9][0-9]*$`)

// BackupOfPart parses the name of an object in a cloud's bucket, and returns the name of the backup that it is a part of.
// ok is false for the first part, which has the name of the backup itself, and for objects that belong to no backup.
func BackupOfPart(part string) (name string, ok bool) {
	if m := partNameRE.FindStringSubmatch(part); m != nil {
		return m[1], true
	}
	return "", false
}

// RemoveBackupParts removes a backup from a cloud's bucket, complete or not. Removing a missing one is not an error.
func RemoveBackupParts(ctx context.Context, from CloudBucket, name string) error {
	octx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	if err := from.DeletePart(octx, name); err != nil { // without the first part it does not exist
		return err
	}
	return removeParts(ctx, from, name, func(string) bool { return true })
}

// removeParts removes all parts except the first of the backups called name. It removes only parts with an id (see
// partsID) for which matches returns true.
func removeParts(ctx context.Context, from CloudBucket, name string, matches func(id string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	names, err := from.PartNames(ctx, name+".")
	for _, part := range names {
		if m := partNameRE.FindStringSubmatch(part); m != nil && m[1] == name && matches(m[2]) {
			err = errors.Join(err, from.DeletePart(ctx, part))
		}
	}
	return err
}

// ReadBackupParts returns a reader of a backup in a cloud's bucket. Read fails with fs.ErrNotExist if the bucket has no
// such backup.
func ReadBackupParts(ctx context.Context, from CloudBucket, name string) io.Reader {
	return &partsReader{ctx: ctx, from: from, name: name}
}

// partsReader reads the parts of a backup one after the other, with one in memory.
type partsReader struct {
	ctx  context.Context //nolint:containedctx // io.Reader has no context
	from CloudBucket
	name string
	id   string // of the parts after the first
	next int    // the number of the next part to fetch
	part []byte // the unread rest of the current part
}

// Read implements io.Reader.
func (r *partsReader) Read(p []byte) (int, error) {
	for len(r.part) == 0 {
		ctx, cancel := context.WithTimeout(r.ctx, partTimeout)
		name := r.name
		if r.next > 0 {
			name = backupPartName(r.name, r.id, r.next)
		}
		part, err := r.from.GetPart(ctx, name)
		cancel()
		if r.next > 0 && errors.Is(err, fs.ErrNotExist) {
			return 0, io.EOF // a backup without its last parts is truncated, which CheckBackup detects
		}
		if err != nil {
			return 0, err
		}
		if r.next == 0 {
			r.id = partsID(part)
		}
		r.part, r.next = part, r.next+1
	}
	n := copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}
