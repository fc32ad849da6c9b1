package store

import (
	"context"
	"maps"
	"slices"
)

// CloudBucket is a bucket of a cloud (such as S3), or a folder of one. It stores the parts of objects and backups, each
// as an object of the cloud. It is safe for concurrent use.
type CloudBucket interface {
	// PutPart stores a part durably, in place of one of the same name.
	PutPart(ctx context.Context, name string, part []byte) error
	// GetPart returns a part; fs.ErrNotExist if there is none.
	GetPart(ctx context.Context, name string) ([]byte, error)
	// DeletePart removes a part; a missing one is not an error.
	DeletePart(ctx context.Context, name string) error
	// PartNames returns the names of the parts that start with a prefix.
	PartNames(ctx context.Context, prefix string) ([]string, error)
}

// cloudPartSize is the size of the parts of objects and backups in a CloudBucket, in bytes. A file of 1 GiB has 128
// parts. A writer or a reader holds one part in memory; the writer of a backup also holds the first part.
const cloudPartSize = 8 << 20

// FilesIn stores objects (WriteObject), such as the files of batches, in a bucket of a cloud; nil = in NATS.
func FilesIn(parts CloudBucket) Option { return func(c *config) { c.filesBucket = parts } }

// partBytes returns the size of each part of an object. Only the last part may be smaller.
func (s *Store) partBytes() int64 {
	if s.filesBucket != nil {
		return cloudPartSize
	}
	return objectPartSize
}

// deleteCloudParts removes the parts of an object from the bucket of a cloud.
func (s *Store) deleteCloudParts(ctx context.Context, name string) error {
	octx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	parts, err := s.filesBucket.PartNames(octx, name+".")
	for _, part := range parts {
		if err == nil && objectOf(part) == name {
			err = s.filesBucket.DeletePart(octx, part)
		}
	}
	return wrap(ctx, err, "deleting object %s", name)
}

// sweepCloudParts is SweepObjects for a bucket of a cloud, where a part is either complete or missing.
func (s *Store) sweepCloudParts(ctx context.Context, orphans func(names []string) ([]string, error)) error {
	octx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	parts, err := s.filesBucket.PartNames(octx, "")
	if err != nil {
		return wrap(ctx, err, "listing objects")
	}
	names := map[string]bool{}
	for _, part := range parts {
		names[objectOf(part)] = true
	}
	remove, err := orphans(slices.Sorted(maps.Keys(names)))
	if err != nil {
		return err
	}
	for _, part := range parts {
		if !slices.Contains(remove, objectOf(part)) {
			continue
		}
		if err := s.filesBucket.DeletePart(octx, part); err != nil {
			return wrap(ctx, err, "deleting object %s", part)
		}
	}
	return nil
}
