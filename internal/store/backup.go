package store

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/telemetry"
)

const (
	// backupFormat is the newest format of backups that this version reads, and the one that it writes.
	backupFormat = 1
	// maxBackupLine is the maximum length of a line of a backup in bytes: configurations of streams are
	// shorter.
	maxBackupLine = 1 << 20
	// restoreTries is the number of attempts to replace a stream: clients of a running service may create the
	// stream between its removal and its restore.
	restoreTries = 5
)

// A backup is a gzip file. It consists of lines of JSON, and of the chunks of snapshots:
//   - a line with a telemetry.Backup
//   - for each stream: a line with a streamConfig; for each chunk of its snapshot a line with a backupChunk and the
//     chunk; a line with a backupStreamEnd
//   - a line with a backupEnd, which a truncated file lacks
type (
	backupChunk struct {
		Chunk int `json:"chunk"`
	}
	backupStreamEnd struct {
		Stream string `json:"stream"`
		SHA256 string `json:"sha256"` // of its snapshot
	}
	backupEnd struct {
		End bool `json:"end"`
	}
	// backupLine is any line after the first.
	backupLine struct {
		streamConfig
		backupChunk
		backupStreamEnd
		backupEnd
	}
)

// isNamespaceStream reports whether a stream belongs to a namespace.
func isNamespaceStream(name, namespace string) bool {
	for _, prefix := range []string{"KV_", "OBJ_"} {
		name = strings.TrimPrefix(name, prefix)
	}
	return strings.HasPrefix(name, namespace+"_")
}

// WriteBackup writes a backup of the streams of the client's service (ForService) and returns its description. service is
// the name of that service, version the version of this program; the description contains both. The service may run
// meanwhile. If the store has no data of the service, WriteBackup writes nothing and returns an error.
func (s *Store) WriteBackup(ctx context.Context, w io.Writer, service, version string) (telemetry.Backup, error) {
	nc, err := s.awaitConn(ctx)
	if err != nil {
		return telemetry.Backup{}, wrap(ctx, err, "backing up the store")
	}
	b, err := writeBackup(ctx, nc, w, telemetry.Backup{Service: service, Version: version}, s.namespace)
	return b, wrap(ctx, err, "backing up the store")
}

// writeBackup writes a backup of the streams of a namespace.
func writeBackup(ctx context.Context, nc *nats.Conn, w io.Writer, b telemetry.Backup, namespace string) (telemetry.Backup, error) {
	infos, err := namespaceStreams(ctx, nc, namespace)
	if err != nil {
		return b, err
	}
	if len(infos) == 0 {
		return b, fmt.Errorf("the store has no data of the service %s; if its cluster has just started, try again in a few seconds", b.Service)
	}
	b.Format, b.At, b.Streams = backupFormat, time.Now().UTC().Round(0), []string{}
	for _, info := range infos {
		b.Streams = append(b.Streams, info.Config.Name)
		b.Messages, b.Bytes = b.Messages+info.State.Msgs, b.Bytes+info.State.Bytes
	}
	z := gzip.NewWriter(w)
	out := json.NewEncoder(z)
	if err := out.Encode(b); err != nil {
		return b, err
	}
	for _, name := range b.Streams {
		err := readSnapshot(ctx, nc, name, func(c streamConfig, copyTo func(io.Writer) error) error {
			if err := out.Encode(c); err != nil {
				return err
			}
			chunks := &chunkWriter{w: z, sum: sha256.New()}
			if err := copyTo(chunks); err != nil {
				return err
			}
			return out.Encode(backupStreamEnd{Stream: name, SHA256: hex.EncodeToString(chunks.sum.Sum(nil))})
		})
		if err != nil {
			return b, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return b, errors.Join(out.Encode(backupEnd{End: true}), z.Close())
}

// namespaceStreams returns the streams of a namespace, sorted by name. It fails with ErrUnavailable if the leader of one does
// not respond, for example during an election: a backup without this stream would look complete.
func namespaceStreams(ctx context.Context, nc *nats.Conn, namespace string) ([]*jetstream.StreamInfo, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	infos, err := listStreams(octx, js)
	if err != nil {
		return nil, err
	}
	infos = slices.DeleteFunc(infos, func(i *jetstream.StreamInfo) bool { return !isNamespaceStream(i.Config.Name, namespace) })
	nctx, cancelNames := context.WithTimeout(ctx, opTimeout)
	defer cancelNames()
	list := js.StreamNames(nctx)
	for name := range list.Name() {
		if !isNamespaceStream(name, namespace) || slices.ContainsFunc(infos, func(i *jetstream.StreamInfo) bool { return i.Config.Name == name }) {
			continue
		}
		// It was created after the list, or its leader did not respond.
		switch stream, err := js.Stream(nctx, name); {
		case err == nil:
			infos = append(infos, stream.CachedInfo())
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, fmt.Errorf("%w: the leader of stream %s does not respond: %w", ErrUnavailable, name, err)
		}
	}
	slices.SortFunc(infos, func(x, y *jetstream.StreamInfo) int { return strings.Compare(x.Config.Name, y.Config.Name) })
	return infos, list.Err()
}

// chunkWriter writes each chunk after a line with its length.
type chunkWriter struct {
	w   io.Writer
	sum hash.Hash
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := json.NewEncoder(c.w).Encode(backupChunk{Chunk: len(p)}); err != nil {
		return 0, err
	}
	c.sum.Write(p)
	return c.w.Write(p)
}

// CheckBackup reads a whole backup and returns its description. It fails with a *telemetry.BackupError if the backup is
// damaged, truncated or of a later format, and with a *ReadError if r fails.
func CheckBackup(r io.Reader) (telemetry.Backup, error) {
	d, err := openBackup(r)
	if err != nil {
		return telemetry.Backup{}, err
	}
	return d.Backup, d.forEach(func(_ streamConfig, snapshot io.Reader) error {
		_, err := io.Copy(io.Discard, snapshot)
		return err
	})
}

// backupReader reads a backup.
type backupReader struct {
	telemetry.Backup
	in *bufio.Reader
}

// backupSource reads the file of a backup. Its errors other than the end of the file are *ReadErrors.
type backupSource struct{ r io.Reader }

// Read implements io.Reader.
func (s backupSource) Read(p []byte) (n int, err error) {
	switch n, err = s.r.Read(p); {
	case err == nil, err == io.EOF: //nolint:errorlint // an error that wraps io.EOF is not the end of the file
		return n, err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New(err.Error()) // callers would take it for the end of the file
	}
	return n, &ReadError{err}
}

// openBackup reads the description of a backup.
func openBackup(r io.Reader) (*backupReader, error) {
	z, err := gzip.NewReader(backupSource{r})
	if err != nil {
		return nil, damagedBackup(notBackup, err)
	}
	d := &backupReader{in: bufio.NewReaderSize(z, 64<<10)}
	line, err := d.readLine()
	if err == nil && json.Unmarshal(line, &d.Backup) != nil {
		err = errors.New("its first line is invalid")
	}
	switch {
	case err != nil:
		return nil, damagedBackup(notBackup, err)
	case d.Format > backupFormat:
		return nil, &telemetry.BackupError{Problem: fmt.Sprintf("skyserve %s made it in format %d; this version reads formats up to %d: upgrade skyserve", d.Version, d.Format, backupFormat)}
	case d.Format < 1 || d.Service == "":
		return nil, &telemetry.BackupError{Problem: "it is not a backup: its first line has no format or service"}
	}
	return d, nil
}

// notBackup is the problem of a file that does not begin as a backup does.
const notBackup = "it is not a backup"

// damagedBackup returns the *telemetry.BackupError for an error of decoding a backup: err if it already is one. If the
// file could not be read, it returns the *ReadError.
func damagedBackup(what string, err error) error {
	switch {
	case errors.As(err, new(*telemetry.BackupError)):
		return err
	case errors.As(err, new(*ReadError)):
		return fmt.Errorf("reading the backup: %w", err)
	case what == notBackup && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return &telemetry.BackupError{Problem: "it is empty, truncated, or not a backup"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &telemetry.BackupError{Problem: what + ": it is empty or truncated"}
	}
	return &telemetry.BackupError{Problem: fmt.Sprintf("%s: %v", what, err)}
}

// readLine reads a line of at most maxBackupLine.
func (d *backupReader) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := d.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxBackupLine:
			return nil, errors.New("a line is too long")
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return line, err
		}
	}
}

// nextLine reads and decodes the next line after the first.
func (d *backupReader) nextLine() (l backupLine, err error) {
	text, err := d.readLine()
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	return l, err
}

// forEach calls f with each stream. f must read the snapshot to its end. forEach returns a *telemetry.BackupError for a
// damaged or truncated backup, a *ReadError if the file cannot be read, otherwise the error of f.
func (d *backupReader) forEach(f func(c streamConfig, snapshot io.Reader) error) error {
	const what = "the backup is damaged"
	for _, name := range d.Streams {
		l, err := d.nextLine()
		if err == nil && l.Config.Name != name {
			err = fmt.Errorf("stream %s is missing", name)
		}
		if err != nil {
			return damagedBackup(what, err)
		}
		p := &snapshotReader{backupReader: d, name: name, sum: sha256.New()}
		if err := f(l.streamConfig, p); err != nil {
			if p.err != nil {
				return p.err
			}
			return err
		}
		if !p.ended {
			return &telemetry.BackupError{Problem: what + ": stream " + name + " does not end"}
		}
	}
	l, err := d.nextLine()
	if err == nil && !l.End {
		err = errors.New("its end is missing")
	}
	if err == nil {
		if _, err = d.in.ReadByte(); errors.Is(err, io.EOF) { // the checksum of gzip is checked here
			return nil
		} else if err == nil {
			err = errors.New("something follows its end")
		}
	}
	return damagedBackup(what, err)
}

// snapshotReader reads the snapshot of one stream in a backup.
type snapshotReader struct {
	*backupReader
	name      string
	sum       hash.Hash
	remaining int // of this chunk
	ended     bool
	err       error
}

func (r *snapshotReader) Read(b []byte) (n int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err = r.read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = damagedBackup("the backup is damaged", err)
		err = r.err
	}
	return n, err
}

func (r *snapshotReader) read(b []byte) (int, error) {
	if r.remaining == 0 && !r.ended {
		l, err := r.nextLine()
		switch {
		case err != nil:
			return 0, noEOF(err)
		case l.Chunk > 0:
			r.remaining = l.Chunk
		case l.Stream != r.name || l.SHA256 != hex.EncodeToString(r.sum.Sum(nil)):
			return 0, fmt.Errorf("the checksum of stream %s does not match", r.name)
		default:
			r.ended = true
		}
	}
	if r.ended {
		return 0, io.EOF
	}
	n, err := r.in.Read(b[:min(len(b), r.remaining)])
	r.sum.Write(b[:n])
	r.remaining -= n
	return n, noEOF(err)
}

// noEOF turns the end of a file into an error: the backup should continue.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// RestoreBackup replaces the service's streams with those of a backup, which CheckBackup should have accepted
// before. It returns a *telemetry.BackupError for a backup whose first line is damaged, or for that of another service. Without force,
// it returns a *telemetry.NewerStoreError if the store existed before the backup, as messages from before it show: it is then
// probably the store that was backed up, and the restore would discard what it has stored since. While another restore runs, it
// returns telemetry.ErrRestoreRunning.
//
// The store is unchanged after a BackupError, after a NewerStoreError and after ErrRestoreRunning. After any other error it may be incomplete: repeat the restore. If it then fails with a
// NewerStoreError, part of the store was replaced before, or the store has newer data: repeat it with force if that data
// may be discarded.
//
// Revisions of keys continue from those of the backup and may be lower than before; fencing tokens of this store
// never decrease. A holder that has renewed its lease since the backup loses it, and must acquire it again. A store that
// replaces a lost one does not know the tokens that were issued after the backup, and may issue them again.
func (s *Store) RestoreBackup(ctx context.Context, r io.Reader, service string, force bool) (telemetry.Backup, error) {
	d, err := openBackup(r)
	if err != nil {
		return telemetry.Backup{}, err
	}
	if d.Service != service {
		return d.Backup, &telemetry.BackupError{Problem: fmt.Sprintf("it is a backup of the service %s, not of %s", d.Service, service)}
	}
	for _, name := range d.Streams {
		if !isNamespaceStream(name, s.namespace) {
			return d.Backup, &telemetry.BackupError{Problem: fmt.Sprintf("its stream %q does not belong to the service %s", name, service)}
		}
	}
	nc, err := s.awaitConn(ctx)
	if err != nil {
		return d.Backup, wrap(ctx, err, "restoring the store")
	}
	if _, err := s.replaceableStreams(ctx, nc, d.Backup, force); err != nil {
		return d.Backup, err
	}
	locked, unlock, err := s.lockRestore(ctx, restoreLockTTL)
	if err != nil {
		return d.Backup, wrap(ctx, err, "restoring the store")
	}
	defer unlock()
	err = s.restoreStreams(locked, nc, d, force)
	if errors.As(err, new(*telemetry.BackupError)) { // streams may have been replaced: it is no rejection
		err = fmt.Errorf("restoring the store: %v", err) //nolint:errorlint // see above
	}
	if lost := context.Cause(locked); err != nil && errors.Is(lost, errRestoreLockLost) {
		err = fmt.Errorf("restoring the store: %w", lost)
	}
	return d.Backup, err
}

// replaceableStreams returns the service's streams; a *telemetry.NewerStoreError if they may not be replaced.
func (s *Store) replaceableStreams(ctx context.Context, nc *nats.Conn, b telemetry.Backup, force bool) ([]*jetstream.StreamInfo, error) {
	infos, err := namespaceStreams(ctx, nc, s.namespace)
	if err != nil {
		return nil, wrap(ctx, err, "restoring the store")
	}
	if newer := newerStore(b, infos); newer != nil && !force {
		return nil, newer
	}
	return infos, nil
}

// restoreStreams replaces the service's streams with those of a backup, under the lock of lockRestore.
func (s *Store) restoreStreams(ctx context.Context, nc *nats.Conn, d *backupReader, force bool) error {
	infos, err := s.replaceableStreams(ctx, nc, d.Backup, force) // another restore may have ended
	if err != nil {
		return err
	}
	floor, err := s.raiseTokenFloor(ctx, infos)
	if err != nil {
		return wrap(ctx, err, "restoring the store")
	}
	return d.forEach(func(c streamConfig, snapshot io.Reader) error {
		switch c.Config.Name {
		case "KV_" + s.tokenFloorBucket().name: // it is not replaced
			_, err := io.Copy(io.Discard, snapshot)
			return err
		case "KV_" + s.stateBucketName():
			if err := c.raiseTokenBase(floor + maxWritesDuringRestore); err != nil { // above the tokens of a stream that a client creates meanwhile
				return wrap(ctx, err, "restoring stream %s", c.Config.Name)
			}
		}
		if err := replaceStream(ctx, nc, c, snapshot); err != nil {
			return wrap(ctx, err, "restoring stream %s", c.Config.Name)
		}
		return nil
	})
}

// newerStore returns a *telemetry.NewerStoreError if the store may be the one that was backed up and has stored newer data
// since. It is recognized by messages from before the backup: a store that replaces a lost one has only later messages.
func newerStore(b telemetry.Backup, infos []*jetstream.StreamInfo) error {
	e := &telemetry.NewerStoreError{Backup: b.At}
	older := false
	for _, i := range infos {
		if i.State.Msgs > 0 {
			older = older || i.State.FirstTime.Before(b.At)
			if i.State.LastTime.After(e.Newest) {
				e.Newest = i.State.LastTime
			}
		}
	}
	if !older {
		return nil
	}
	return e
}

// replaceStream deletes a stream and creates it from a snapshot.
func replaceStream(ctx context.Context, nc *nats.Conn, c streamConfig, snapshot io.Reader) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	replicas := 1
	if nc.ConnectedClusterName() != "" {
		replicas = Replicas
	}
	for tries := 1; ; tries++ {
		octx, cancel := context.WithTimeout(ctx, opTimeout)
		err := js.DeleteStream(octx, c.Config.Name)
		cancel()
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		subject, err := beginRestore(ctx, nc, c, replicas)
		var refused *server.ApiError
		switch {
		case err == nil:
			return sendChunks(ctx, nc, subject, snapshot)
		case !errors.As(err, &refused) || tries == restoreTries:
			return err
		case server.ErrorIdentifier(refused.ErrCode) == server.JSStreamNameExistRestoreFailedErr: // a client was faster
		case replicas > 1: // the cluster has fewer members; it replicates the stream later
			replicas = 1
		default:
			return err
		}
	}
}
