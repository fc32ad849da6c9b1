package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Limits of objects, each with its reason.
const (
	// objectsMaxBytes limits all objects: the files of two tenants, of which each may store 4 GiB (TenantBytes in
	// package lbd/batch/job).
	objectsMaxBytes = 8 << 30
	// objectPartSize is the size of the parts of an object. Each part is written and acknowledged before the
	// next one is read, so a writer and a reader hold one part in memory, and a reader can start at any part.
	objectPartSize = 1 << 20
	// partTimeout is the timeout of reading, writing or removing one part. It allows for a slow connection.
	partTimeout = 30 * time.Second
	// maxChunkBackoff is the longest of the waits for a chunk that a member does not have yet. The waits take about a
	// second in total.
	maxChunkBackoff = 512 * time.Millisecond
)

// objects opens the store of objects and creates it on first use.
func (s *Store) objects(ctx context.Context) (jetstream.ObjectStore, error) {
	nc, err := s.conn()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	name := s.namespace + "_files"
	o, err := js.ObjectStore(ctx, name)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return o, err
	}
	err = withReplicas(nc, func(replicas int) error {
		o, err = js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket: name, Description: "skyserve: files of batches", MaxBytes: objectsMaxBytes, Storage: jetstream.FileStorage, Replicas: replicas,
		})
		return err
	})
	return o, err
}

func partName(name string, part int64) string { return fmt.Sprintf("%s.%d", name, part) }

// ReadError is a failure of the reader that an object or a backup was read from, not of the store.
type ReadError struct{ Err error }

// Error returns the cause.
func (e *ReadError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// WriteObject stores everything that r returns as the object called name, and returns its size. The object is stored
// durably when WriteObject returns. It overwrites an earlier object of this name, but further parts of a longer one
// remain: readers must not read beyond the new size. After an error WriteObject removes the object, also an earlier one
// of this name; if the store is unavailable, parts of it may remain. A failure of r is a *ReadError.
func (s *Store) WriteObject(ctx context.Context, name string, r io.Reader) (size int64, err error) {
	in, buf := bufio.NewReaderSize(r, 64<<10), []byte(nil)
	for part := int64(0); ; part++ {
		if _, err := in.Peek(1); errors.Is(err, io.EOF) {
			return size, nil
		} else if err != nil {
			return 0, errors.Join(&ReadError{err}, s.DeleteObject(context.WithoutCancel(ctx), name))
		}
		if buf == nil {
			buf = make([]byte, s.partBytes())
		}
		n, err := s.writePart(ctx, partName(name, part), in, buf)
		if size += n; err != nil {
			return 0, errors.Join(err, s.DeleteObject(context.WithoutCancel(ctx), name))
		}
	}
}

// writePart reads the next part from in into buf, and stores it. partTimeout does not include the time of reading,
// because clients may be slow. A part that is being stored is completed even if ctx ends: otherwise the client of NATS
// would leave its chunks behind.
func (s *Store) writePart(ctx context.Context, name string, in io.Reader, buf []byte) (int64, error) {
	n := 0
	for n < len(buf) {
		m, err := in.Read(buf[n:])
		if n += m; errors.Is(err, io.EOF) {
			break
		}
		if err != nil { // io.ErrUnexpectedEOF of an incomplete upload, too
			return 0, &ReadError{err}
		}
	}
	part := buf[:n]
	octx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partTimeout)
	defer cancel()
	return int64(len(part)), wrap(ctx, s.putPart(octx, name, part), "writing object %s", name)
}

// putPart stores a part.
func (s *Store) putPart(ctx context.Context, name string, part []byte) error {
	if s.filesBucket != nil {
		return s.filesBucket.PutPart(ctx, name, part)
	}
	o, err := s.objects(ctx)
	if err == nil {
		_, err = o.Put(ctx, jetstream.ObjectMeta{Name: name}, bytes.NewReader(part))
	}
	return err
}

// DeleteObject removes an object, complete or not. Removing a missing object is not an error.
func (s *Store) DeleteObject(ctx context.Context, name string) error {
	if s.filesBucket != nil {
		return s.deleteCloudParts(ctx, name)
	}
	for part := int64(0); ; part++ {
		octx, cancel := context.WithTimeout(ctx, opTimeout)
		o, err := s.objects(octx)
		if err == nil {
			err = o.Delete(octx, partName(name, part)) // no error for a part that was deleted before
		}
		cancel()
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil
		}
		if err != nil {
			return wrap(ctx, err, "deleting object %s", name)
		}
	}
}

// ReadObject returns a reader of length bytes of an object from offset. The range must be inside the object. It reads
// one part at a time; a missing or damaged part is ErrNotFound.
func (s *Store) ReadObject(ctx context.Context, name string, offset, length int64) io.Reader {
	return &objectReader{ctx: ctx, s: s, name: name, next: offset, end: offset + length}
}

// objectReader reads a range of an object.
type objectReader struct {
	ctx       context.Context //nolint:containedctx // io.Reader has no context
	s         *Store
	name      string
	next, end int64
	part      []byte       // the unread rest of the current part
	buf       bytes.Buffer // the memory of parts from NATS
}

// Read returns the next bytes.
func (r *objectReader) Read(p []byte) (int, error) {
	if len(r.part) == 0 {
		if r.next >= r.end {
			return 0, io.EOF
		}
		if err := r.fetchPart(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}

// fetchPart reads the part with the next byte.
func (r *objectReader) fetchPart() error {
	size := r.s.partBytes()
	number := r.next / size
	octx, cancel := context.WithTimeout(r.ctx, partTimeout)
	defer cancel()
	part, err := r.readPart(octx, partName(r.name, number))
	if errors.Is(err, jetstream.ErrObjectNotFound) || errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return wrap(r.ctx, err, "reading object %s", r.name)
	}
	from, to := r.next-number*size, min(r.end-number*size, size)
	if int64(len(part)) < to {
		return damagedError{fmt.Errorf("reading object %s: part %d has %d bytes, want at least %d", r.name, number, len(part), to)}
	}
	r.part, r.next = part[from:to], number*size+to
	return nil
}

// readPart returns a part, which is valid until the next call.
func (r *objectReader) readPart(ctx context.Context, name string) ([]byte, error) {
	if r.s.filesBucket != nil {
		return r.s.filesBucket.GetPart(ctx, name)
	}
	o, err := r.s.objects(ctx)
	r.buf.Reset()
	if err == nil {
		err = r.s.getPartFromNATS(ctx, o, name, &r.buf)
	}
	return r.buf.Bytes(), err
}

// getPartFromNATS appends a part to buf. It does not use jetstream.ObjectStore.Get, which leaves a goroutine behind
// when ctx ends or the connection is lost at the wrong moment. Chunks are read one by one: a consumer for each part
// would cost a cluster two writes to the disks of its members.
func (s *Store) getPartFromNATS(ctx context.Context, o jetstream.ObjectStore, name string, buf *bytes.Buffer) error {
	part, err := o.GetInfo(ctx, name)
	if err != nil || part.Size == 0 {
		return err
	}
	nc, err := s.conn()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, "OBJ_"+part.Bucket)
	if err != nil {
		return err
	}
	buf.Grow(int(part.Size))
	subject := chunkSubject(part.Bucket) + part.NUID
	for next, n := uint64(1), uint32(0); n < part.Chunks; n++ {
		m, err := nextChunk(ctx, stream, next, subject)
		if err != nil {
			return err
		}
		buf.Write(m.Data)
		next = m.Sequence + 1
	}
	digest := sha256.Sum256(buf.Bytes())
	if got := "SHA-256=" + base64.URLEncoding.EncodeToString(digest[:]); got != part.Digest {
		return damagedError{fmt.Errorf("part %s is damaged: its digest is %s, want %s", name, got, part.Digest)}
	}
	return nil
}

// nextChunk returns the first message of a subject from a sequence number on. The member that answers may not have it
// yet.
func nextChunk(ctx context.Context, stream jetstream.Stream, from uint64, subject string) (*jetstream.RawStreamMsg, error) {
	for backoff := time.Millisecond; ; backoff *= 2 {
		m, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		if !errors.Is(err, jetstream.ErrMsgNotFound) || backoff > maxChunkBackoff {
			return m, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(backoff):
		}
	}
}

// chunkSubject returns the beginning of the subjects of chunks in a bucket of objects, as NATS defines it
// (ADR-20).
func chunkSubject(bucket string) string { return "$O." + bucket + ".C." }
