package store

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// sweepTimeout is the timeout of SweepObjects, and of deleting all parts of an object or a backup in a CloudBucket.
const sweepTimeout = 5 * time.Minute

// SweepObjects removes objects and chunks that nothing refers to after a crash. It passes the sorted names of all
// objects, complete or not, to orphans, which returns the names of those to remove. It also removes the metadata
// of deleted objects, and chunks of at least minAge whose writer crashed before their part was complete. In a CloudBucket
// there are no such chunks.
func (s *Store) SweepObjects(ctx context.Context, minAge time.Duration, orphans func(names []string) ([]string, error)) error {
	if s.filesBucket != nil {
		return s.sweepCloudParts(ctx, orphans)
	}
	octx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	o, err := s.objects(octx)
	var parts []*jetstream.ObjectInfo
	if err == nil {
		parts, err = o.List(octx, jetstream.ListObjectsShowDeleted())
	}
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		err = nil
	}
	if err != nil {
		return wrap(ctx, err, "listing objects")
	}
	live := map[string]bool{}
	for _, p := range parts {
		if !p.Deleted {
			live[objectOf(p.Name)] = true
		}
	}
	remove, err := orphans(slices.Sorted(maps.Keys(live)))
	if err != nil {
		return err
	}
	for _, name := range remove {
		live[name] = false
	}
	for _, p := range parts {
		if !p.Deleted && !live[objectOf(p.Name)] {
			if err := o.Delete(octx, p.Name); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
				return wrap(ctx, err, "deleting object %s", p.Name)
			}
		}
	}
	return wrap(ctx, s.sweepChunks(octx, minAge, parts, live), "removing incomplete objects")
}

// objectOf returns the name of the object that a part belongs to.
func objectOf(part string) string {
	if i := strings.LastIndexByte(part, '.'); i >= 0 {
		return part[:i]
	}
	return part
}

// sweepChunks removes the chunks that no part refers to, and the metadata of the parts of objects that are not
// live. Metadata of deleted parts of live objects remains: it does no harm, because DeleteObject skips it.
func (s *Store) sweepChunks(ctx context.Context, minAge time.Duration, parts []*jetstream.ObjectInfo, live map[string]bool) error {
	nc, err := s.conn()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	bucket := s.namespace + "_files"
	stream, err := js.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return err
	}
	complete := map[string]bool{}
	for _, p := range parts {
		complete[p.NUID] = true
		if !live[objectOf(p.Name)] {
			entry := "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(p.Name))
			if err := stream.Purge(ctx, jetstream.WithPurgeSubject(entry)); err != nil {
				return err
			}
		}
	}
	chunks := chunkSubject(bucket)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(chunks+">"))
	if err != nil {
		return err
	}
	for _, subject := range slices.Sorted(maps.Keys(info.State.Subjects)) {
		if complete[strings.TrimPrefix(subject, chunks)] {
			continue
		}
		// A writer may still be writing the part, or have completed it after the parts were listed.
		last, err := stream.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err == nil && time.Since(last.Time) >= minAge {
			err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
