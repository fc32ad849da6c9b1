package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"skyserve/internal/atomicfile"
	"skyserve/internal/telemetry"
)

// WriteBackupFile writes a backup to a file (mode 0600), which it replaces once the backup is complete and checked.
func WriteBackupFile(file string, write func(io.Writer) error) (b telemetry.Backup, err error) {
	err = atomicfile.Write(file, 0o600, func(w io.Writer) error {
		b, err = writeChecked(w, write)
		return err
	})
	return b, err
}

// writeChecked writes a backup to w and checks what it writes.
func writeChecked(w io.Writer, write func(io.Writer) error) (b telemetry.Backup, err error) {
	check, feed := io.Pipe()
	checked := make(chan error, 1)
	go func() {
		var err error
		b, err = CheckBackup(check)
		_, rest := io.Copy(io.Discard, check)
		checked <- errors.Join(err, rest)
	}()
	err = write(io.MultiWriter(w, feed))
	feed.CloseWithError(err)
	if damage := <-checked; err == nil {
		err = damage
	}
	return b, err
}

// WriteBackupParts writes a backup to a bucket and returns its size. Its first part has the given name and is written last:
// the backup is complete and checked, or does not exist. Further parts, of a backup beyond 8 MiB, have the names NAME.1,
// NAME.2 and so on: joined in this order they are the file that WriteBackupFile writes. An earlier backup of this name is
// kept if the new one fails before its first 16 MiB are read; after that it is removed.
func WriteBackupParts(ctx context.Context, to Parts, name string, write func(io.Writer) error) (b telemetry.Backup, size int64, err error) {
	w := &partsWriter{ctx: ctx, to: to, name: name, part: make([]byte, 0, externalPart)}
	b, err = writeChecked(w, write)
	if err == nil {
		err = w.finish()
	}
	if err != nil && w.changed { // an earlier backup of this name stays until a part of the new one is written
		err = errors.Join(err, RemoveBackupParts(context.WithoutCancel(ctx), to, name))
	}
	return b, w.size, err
}

// partsWriter divides what is written to it into parts.
type partsWriter struct {
	ctx   context.Context //nolint:containedctx // io.Writer has no context
	to    Parts
	name  string
	first []byte // kept until the others are written
	part  []byte
	next  int
	size  int64
	// changed: parts were written or removed, so the bucket may have parts of two backups.
	changed bool
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
	defer func() { w.next++ }()
	if w.next == 0 {
		w.first, w.part = w.part, make([]byte, 0, externalPart)
		return nil
	}
	err := w.put(backupPartName(w.name, w.next), w.part)
	w.part = w.part[:0]
	return err
}

// finish writes the last part, then the first one.
func (w *partsWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	// Parts of an earlier backup of this name would follow its last one.
	w.changed = true
	if err := removeParts(w.ctx, w.to, w.name, w.next); err != nil {
		return err
	}
	return w.put(w.name, w.first)
}

func (w *partsWriter) put(name string, part []byte) error {
	ctx, cancel := context.WithTimeout(w.ctx, partTimeout)
	defer cancel()
	w.changed = true
	return w.to.PutPart(ctx, name, part)
}

// backupPartName returns the name of a part of a backup.
func backupPartName(name string, part int) string {
	if part == 0 {
		return name
	}
	return fmt.Sprintf("%s.%d", name, part)
}

// RemoveBackupParts removes a backup from a bucket, complete or not. Removing a missing one is not an error.
func RemoveBackupParts(ctx context.Context, from Parts, name string) error {
	return removeParts(ctx, from, name, 0)
}

// removeParts removes the parts of a backup from first on, in this order: without the first one it does not exist.
func removeParts(ctx context.Context, from Parts, name string, first int) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	names, err := from.PartNames(ctx, name)
	if err != nil {
		return err
	}
	if first == 0 {
		err = from.DeletePart(ctx, name)
	}
	for _, part := range names {
		n, malformed := strconv.Atoi(strings.TrimPrefix(part, name+"."))
		if malformed == nil && part == backupPartName(name, n) && n >= max(1, first) {
			err = errors.Join(err, from.DeletePart(ctx, part))
		}
	}
	return err
}

// ReadBackupParts returns a reader of a backup in a bucket. Its error is fs.ErrNotExist if there is none.
func ReadBackupParts(ctx context.Context, from Parts, name string) io.Reader {
	return &partsReader{ctx: ctx, from: from, name: name}
}

// partsReader reads the parts of a backup one after the other, with one in memory.
type partsReader struct {
	ctx  context.Context //nolint:containedctx // io.Reader has no context
	from Parts
	name string
	next int
	part []byte
}

// Read implements io.Reader.
func (r *partsReader) Read(p []byte) (int, error) {
	for len(r.part) == 0 {
		ctx, cancel := context.WithTimeout(r.ctx, partTimeout)
		part, err := r.from.GetPart(ctx, backupPartName(r.name, r.next))
		cancel()
		if r.next > 0 && errors.Is(err, fs.ErrNotExist) {
			return 0, io.EOF // a backup without its last parts is truncated, which CheckBackup detects
		}
		if err != nil {
			return 0, err
		}
		r.part, r.next = part, r.next+1
	}
	n := copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}
