package store

import (
	"context"
	"maps"
	"slices"
)

// Parts is a bucket of a cloud (such as S3) that stores the parts of objects outside of the store. It is safe for concurrent
// use.
type Parts interface {
	// PutPart stores a part durably, in place of one of the same name.
	PutPart(ctx context.Context, name string, part []byte) error
	// GetPart returns a part; fs.ErrNotExist if there is none.
	GetPart(ctx context.Context, name string) ([]byte, error)
	// DeletePart removes a part; a missing one is not an error.
	DeletePart(ctx context.Context, name string) error
	// PartNames returns the names of the parts that start with a prefix.
	PartNames(ctx context.Context, prefix string) ([]string, error)
}

// externalPart is the size of the parts of an object in Parts. A file of 1 GiB has 128 of them; a writer and a
// reader hold one in memory.
const externalPart = 8 << 20

// FilesIn stores objects in a bucket of a cloud, as parts; nil = in the store.
func FilesIn(parts Parts) Option { return func(c *config) { c.files = parts } }

// partBytes returns the size of all parts of an object except the last.
func (s *Store) partBytes() int64 {
	if s.files != nil {
		return externalPart
	}
	return objectPart
}

// deleteParts removes the parts of an object.
func (s *Store) deleteParts(ctx context.Context, name string) error {
	octx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	parts, err := s.files.PartNames(octx, name+".")
	for _, part := range parts {
		if err == nil && objectOf(part) == name {
			err = s.files.DeletePart(octx, part)
		}
	}
	return wrap(ctx, err, "deleting object %s", name)
}

// sweepParts is SweepObjects for parts: they are complete.
func (s *Store) sweepParts(ctx context.Context, orphans func(names []string) ([]string, error)) error {
	octx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	parts, err := s.files.PartNames(octx, "")
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
		if err := s.files.DeletePart(octx, part); err != nil {
			return wrap(ctx, err, "deleting object %s", part)
		}
	}
	return nil
}
