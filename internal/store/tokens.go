package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// A fencing token is the revision of a lease's key at its acquisition plus the token base of the state bucket's stream. A
// restore of an older backup lowers revisions. The restored stream therefore has a higher token base, so that tokens keep
// increasing. A stream that a client creates while a restore runs has a higher base, too.
const (
	// tokenBaseKey is the key of the token base in the metadata of a stream; missing = 0.
	tokenBaseKey = "skyserve.token-base"
	// tokenFloorKey is the key of the token floor in its bucket: the base of a new stream, above all earlier tokens. A
	// restore raises it before it deletes anything, and ignores the floor in the backup.
	tokenFloorKey = "floor"
	// tokenFloorMaxBytes limits the bucket of the token floor, which has one key.
	tokenFloorMaxBytes = 1 << 20
	// maxWritesDuringRestore is the maximum number of writes to the state bucket between the start of a restore and the
	// deletion of the bucket's stream: four per second for an hour. In this time the restore replaces other streams,
	// which have gigabytes.
	maxWritesDuringRestore = 1 << 14
)

// stateBucketName returns the name of the bucket with the keys of Store.
func (s *Store) stateBucketName() string { return s.namespace + "_state" }

// tokenFloorBucket returns the bucket with the token floor, and with the lock of restores.
func (s *Store) tokenFloorBucket() *Bucket {
	return s.newBucket("tokens", "floor of fencing tokens", tokenFloorMaxBytes)
}

// tokenBase returns the token base now.
func (s *Store) tokenBase(ctx context.Context) (uint64, error) {
	info, err := s.stateInfo(ctx)
	if err != nil {
		return 0, wrap(ctx, err, "reading the base of fencing tokens")
	}
	base, err := parseToken(info.Config.Metadata[tokenBaseKey])
	return base, wrap(ctx, err, "reading the base of fencing tokens")
}

// stateInfo returns the server's information about the stream of the state bucket.
func (s *Store) stateInfo(ctx context.Context) (*jetstream.StreamInfo, error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	kv, err := s.openStateBucket(octx)
	var status jetstream.KeyValueStatus
	if err == nil {
		status, err = kv.Status(octx)
	}
	if nc := s.newestConn(); err != nil || nc == nil || nc.ConnectedClusterName() == "" { // in a cluster, an answer may be that of a partitioned member
		s.recordResult(&s.readOutage, err)
	}
	if err != nil {
		return nil, err
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return nil, fmt.Errorf("%w: the server does not describe its stream", ErrUnavailable)
	}
	return bucket.StreamInfo(), nil
}

// parseToken parses a token base or floor; 0 if it is missing. Another text is an error: with 0, tokens would decrease.
func parseToken(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("fencing tokens: must be a number, got %q", text)
	}
	return n, nil
}

// setTokenBase sets the token base in the metadata of a stream, and returns the metadata. nil = no metadata yet.
func setTokenBase(metadata map[string]string, base uint64) map[string]string {
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadata[tokenBaseKey] = strconv.FormatUint(base, 10)
	return metadata
}

// startAtTokenFloor sets the token base of the state bucket's stream before its creation: a restore may have deleted
// an earlier stream.
func (s *Store) startAtTokenFloor(ctx context.Context, js jetstream.JetStream, config *jetstream.StreamConfig) error {
	kv, err := js.KeyValue(ctx, s.tokenFloorBucket().name)
	var floor jetstream.KeyValueEntry
	if err == nil {
		floor, err = kv.Get(ctx, tokenFloorKey)
	}
	switch {
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrKeyNotFound): // nothing was restored
		return nil
	case err != nil:
		return fmt.Errorf("reading the floor of fencing tokens: %w", err)
	}
	base, err := parseToken(string(floor.Value()))
	if err != nil {
		return err
	}
	config.Metadata = setTokenBase(config.Metadata, base)
	return nil
}

// raiseTokenFloor raises the token floor above all tokens of the streams that a restore deletes, and returns it. It fails
// with ErrConflict if another restore raises it at the same time.
func (s *Store) raiseTokenFloor(ctx context.Context, streams []*jetstream.StreamInfo) (uint64, error) {
	floors := s.tokenFloorBucket()
	stored, revision, err := floors.Get(ctx, tokenFloorKey)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	missing := err != nil
	floor, err := parseToken(string(stored))
	if err != nil {
		return 0, err
	}
	for _, i := range streams {
		if i.Config.Name != "KV_"+s.stateBucketName() {
			continue
		}
		base, err := parseToken(i.Config.Metadata[tokenBaseKey])
		if err != nil {
			return 0, err
		}
		floor = max(floor, base+i.State.LastSeq+maxWritesDuringRestore)
	}
	next := []byte(strconv.FormatUint(floor, 10))
	if missing {
		_, err = floors.Create(ctx, tokenFloorKey, next)
	} else {
		_, err = floors.CompareAndSwap(ctx, tokenFloorKey, next, revision)
	}
	return floor, err
}

// raiseTokenBase raises the token base of the state bucket in a backup, so that its tokens are above lowest.
func (c *streamConfig) raiseTokenBase(lowest uint64) error {
	base, err := parseToken(c.Config.Metadata[tokenBaseKey])
	if err == nil && lowest > base+c.State.LastSeq {
		c.Config.Metadata = setTokenBase(c.Config.Metadata, lowest-c.State.LastSeq)
	}
	return err
}
