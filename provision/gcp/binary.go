package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"

	"skyserve/internal/service"
	"skyserve/provision"
)

// A service has one bucket in Google Cloud, in the first region of the file at its creation. Machines read the
// binary once per launch, so reading from another region costs less than a cent per machine, and a bucket per
// region would multiply the objects to create, to list and to delete.

var (
	_ provision.BinaryStore   = (*Provider)(nil)
	_ provision.BinaryChecker = (*Provider)(nil)
)

// newStorage returns a client of Cloud Storage for calls within ctx.
func newStorage(ctx context.Context, p *Provider) (*storage.Service, *session, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, nil, err
	}
	client, err := storage.NewService(ctx, option.WithEndpoint(s.storage+storagePath), option.WithHTTPClient(s.client(ctx)))
	return client, s, err
}

// LocateBinary returns the location of a binary of a service.
func (p *Provider) LocateBinary(ctx context.Context, service, owner, sha256 string) (provision.BinaryLocation, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return provision.BinaryLocation{}, wrapError(err, "finding the bucket of service %s", service)
	}
	name := provision.BinaryBucket(service, owner, s.project)
	return provision.BinaryLocation{Bucket: name, URL: s.storage + storagePath + "b/" + name + "/o/" + provision.BinaryKey(sha256) + "?alt=media"}, nil
}

// launchBinary creates or repairs the bucket of a service, lets machines read it and uploads a binary, unless
// the bucket contains it. Every step is idempotent.
func (p *Provider) launchBinary(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if w.Binary == nil {
		return provision.Object{}, fmt.Errorf("reading the desired object %s: it has no binary", w.ID)
	}
	if err := p.checkReaders(ctx, w.Service); err != nil {
		return provision.Object{}, err
	}
	for _, step := range []func(context.Context, provision.Desired) error{p.ensureBucket, p.ensureReaders, p.uploadBinary} {
		if err := step(ctx, w); err != nil {
			return provision.Object{}, wrapBinaryError(err, "storing the skyserve binary in bucket "+w.Binary.Bucket)
		}
	}
	o := noteOf(w, nil).Object
	o.Handle = w.Binary.Bucket + "/" + provision.BinaryKey(w.Binary.SHA256)
	return o, nil
}

// wrapBinaryError adds the attempted action to an error of Cloud Storage, unless the error names it.
func wrapBinaryError(err error, doing string) error {
	var taken *provision.BucketTakenError
	var missing *provision.BinaryMissingError
	var owned *provision.OwnedError
	if errors.As(err, &taken) || errors.As(err, &missing) || errors.As(err, &owned) {
		return err
	}
	return wrapError(err, "%s", doing)
}

// findBucket finds a bucket of the project; nil if the project has none of this name, although another project
// may have one. Lists of buckets are strongly consistent.
func (p *Provider) findBucket(ctx context.Context, name string) (*storage.Bucket, error) {
	all, err := p.listBuckets(ctx, name)
	if i := slices.IndexFunc(all, func(b *storage.Bucket) bool { return b.Name == name }); i >= 0 {
		return all[i], err
	}
	return nil, err
}

// listBuckets lists the buckets of the project whose names have a prefix.
func (p *Provider) listBuckets(ctx context.Context, prefix string) ([]*storage.Bucket, error) {
	client, s, err := newStorage(ctx, p)
	if err != nil {
		return nil, err
	}
	var all []*storage.Bucket
	err = client.Buckets.List(s.project).Prefix(prefix).Pages(ctx, func(page *storage.Buckets) error {
		all = append(all, page.Items...)
		return nil
	})
	return all, err
}

// ensureBucket creates a bucket or repairs its settings. A bucket of another project or owner is an error.
func (p *Provider) ensureBucket(ctx context.Context, w provision.Desired) error {
	b, err := p.findBucket(ctx, w.Binary.Bucket)
	if err == nil && b == nil {
		b, err = p.createBucket(ctx, w)
	}
	if err != nil {
		return err
	}
	if err := checkBucketOwner(b, w.Service, w.Owner); err != nil || isPrivate(b) {
		return err
	}
	client, _, err := newStorage(ctx, p)
	if err != nil {
		return err
	}
	_, err = client.Buckets.Patch(b.Name, &storage.Bucket{IamConfiguration: privateAccess()}).Context(ctx).Do()
	return err
}

// createBucket creates a bucket with its labels in one call, so that a crash leaves no bucket without labels.
// It returns the existing bucket of the project if another process has created it.
func (p *Provider) createBucket(ctx context.Context, w provision.Desired) (*storage.Bucket, error) {
	client, s, err := newStorage(ctx, p)
	if err != nil {
		return nil, err
	}
	b, err := client.Buckets.Insert(s.project, bucketFor(w, p.programPlace())).Context(ctx).Do()
	if r, ok := refusalOf(err); !ok || r.status != http.StatusConflict {
		return b, err
	}
	found, listErr := p.findBucket(ctx, w.Binary.Bucket)
	if listErr == nil && found == nil {
		listErr = &provision.BucketTakenError{Bucket: w.Binary.Bucket, Cloud: service.CloudGCP, Err: err}
	}
	return found, listErr
}

// programPlace returns the location of a new bucket: the first region of the service.
func (p *Provider) programPlace() string {
	if len(p.cfg.Regions) == 0 {
		return defaultLocation
	}
	return p.cfg.Regions[0]
}

// bucketFor returns the private bucket for a desired binary. Deleted binaries are not retained.
func bucketFor(w provision.Desired, location string) *storage.Bucket {
	return &storage.Bucket{
		Name: w.Binary.Bucket, Location: location, StorageClass: storageClass, IamConfiguration: privateAccess(),
		Labels: map[string]string{
			serviceLabel: encodeLabel(w.Service), labelOwner: encodeLabel(w.Owner), labelID: encodeLabel(w.ID), labelKind: string(provision.KindBinary),
		},
		SoftDeletePolicy: &storage.BucketSoftDeletePolicy{ForceSendFields: []string{"RetentionDurationSeconds"}},
	}
}

// privateAccess returns the settings by which only the IAM policy gives access, and never to the public.
func privateAccess() *storage.BucketIamConfiguration {
	return &storage.BucketIamConfiguration{
		UniformBucketLevelAccess: &storage.BucketIamConfigurationUniformBucketLevelAccess{Enabled: true}, PublicAccessPrevention: publicAccessEnforced,
	}
}

// isPrivate reports whether a bucket has the settings of privateAccess.
func isPrivate(b *storage.Bucket) bool {
	c := b.IamConfiguration
	return c != nil && c.UniformBucketLevelAccess != nil && c.UniformBucketLevelAccess.Enabled && c.PublicAccessPrevention == publicAccessEnforced
}

// objectOfBucket returns the object that the labels of a bucket describe; false if skyserve did not create it.
func objectOfBucket(b *storage.Bucket) (provision.Object, bool) {
	o := provision.Object{
		ID: decodeLabel(b.Labels[labelID]), Kind: provision.KindBinary, Service: decodeLabel(b.Labels[serviceLabel]), Owner: decodeLabel(b.Labels[labelOwner]),
		Region: regionID(prerequisiteZone), SpecHash: "empty", Handle: b.Name,
	}
	return o, o.ID != "" && o.Service != "" && b.Labels[labelKind] == string(provision.KindBinary)
}

// checkBucketOwner returns an error if a bucket is not the bucket of a service and its owner.
func checkBucketOwner(b *storage.Bucket, service, owner string) error {
	if o, ours := objectOfBucket(b); !ours || o.Service != service || o.Owner != owner {
		return &provision.OwnedError{Resource: "bucket " + b.Name, Where: strings.ToLower(b.Location), Owner: o.Owner}
	}
	return nil
}

// listBinaries lists the binaries in the bucket of a service, or of all services. A bucket without a binary
// is listed with the id of the binary for which it was created.
func (p *Provider) listBinaries(ctx context.Context, name string) ([]provision.Object, error) {
	buckets, err := p.listBuckets(ctx, provision.BinaryBucketPrefix)
	if err != nil {
		return nil, wrapError(err, "listing the buckets with the skyserve binary")
	}
	var all []provision.Object
	for _, b := range buckets {
		made, ours := objectOfBucket(b)
		if !ours || name != "" && made.Service != name {
			continue
		}
		found, err := p.readBucket(ctx, b, made)
		if err != nil {
			return nil, wrapError(err, "reading bucket %s", b.Name)
		}
		all = append(all, found...)
	}
	return all, nil
}

// changedSuffix is appended to the SpecHash of an object that somebody else has changed, so that it is repaired.
const changedSuffix = " changed"

// readBucket returns the binaries in a bucket; none if the bucket does not exist any more. made is the object
// that its labels describe.
func (p *Provider) readBucket(ctx context.Context, b *storage.Bucket, made provision.Object) ([]provision.Object, error) {
	keys, exists, err := p.listKeys(ctx, b.Name)
	if err != nil || !exists {
		return nil, err
	}
	intact := isPrivate(b)
	if intact && p.cfg.Downloads {
		if intact, err = p.hasReaders(ctx, b.Name, made.Service); err != nil {
			return nil, err
		}
	}
	all := []provision.Object{}
	for _, key := range keys {
		if hash, ours := provision.BinaryHash(key); ours {
			o := made
			o.ID, o.SpecHash, o.Handle = provision.BinaryID(service.CloudGCP, hash), provision.BinarySpecHash(hash), b.Name+"/"+key
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		all = append(all, made)
	}
	for i := range all {
		if !intact {
			all[i].SpecHash += changedSuffix
		}
	}
	return all, nil
}

// listKeys returns the names of the objects in a bucket, and whether the bucket exists.
func (p *Provider) listKeys(ctx context.Context, bucket string) (keys []string, exists bool, err error) {
	client, _, err := newStorage(ctx, p)
	if err != nil {
		return nil, false, err
	}
	err = client.Objects.List(bucket).Pages(ctx, func(page *storage.Objects) error {
		for _, o := range page.Items {
			keys = append(keys, o.Name)
		}
		return nil
	})
	if isMissing(err) {
		return nil, false, nil
	}
	return keys, err == nil, err
}

// hasBinary reports whether a bucket contains a binary.
func (p *Provider) hasBinary(ctx context.Context, bucket string) (bool, error) {
	keys, _, err := p.listKeys(ctx, bucket)
	return slices.ContainsFunc(keys, func(key string) bool { _, ours := provision.BinaryHash(key); return ours }), err
}

// removeBinary deletes a binary, and the bucket once it contains no other, and returns when both are gone.
func (p *Provider) removeBinary(ctx context.Context, o provision.Object) error {
	name, key, _ := strings.Cut(o.Handle, "/")
	if !strings.HasPrefix(name, provision.BinaryBucketPrefix) {
		return fmt.Errorf("terminating %s: handle must start with %s, got %q", o.ID, provision.BinaryBucketPrefix, o.Handle)
	}
	doing := "deleting the skyserve binary in bucket " + name
	b, err := p.findBucket(ctx, name)
	if err != nil || b == nil {
		return wrapIf(err, doing)
	}
	if err := checkBucketOwner(b, o.Service, o.Owner); err != nil {
		return err
	}
	client, _, err := newStorage(ctx, p)
	if err == nil && key != "" {
		err = client.Objects.Delete(name, key).Context(ctx).Do()
	}
	if err != nil && !isMissing(err) {
		return wrapIf(err, doing)
	}
	if inUse, err := p.hasBinary(ctx, name); err != nil || inUse {
		return wrapIf(err, doing)
	}
	return wrapIf(p.deleteBucket(ctx, client, name), "deleting bucket "+name)
}

// wrapIf is wrapError for an error that may be nil.
func wrapIf(err error, doing string) error {
	if err == nil {
		return nil
	}
	return wrapError(err, "%s", doing)
}

// deleteBucket deletes a bucket without binaries and waits until the project does not have it any more.
func (p *Provider) deleteBucket(ctx context.Context, client *storage.Service, name string) error {
	err := client.Buckets.Delete(name).Context(ctx).Do()
	if r, ok := refusalOf(err); ok && r.status == http.StatusConflict {
		if inUse, listErr := p.hasBinary(ctx, name); listErr == nil && inUse {
			return nil // another process has uploaded a binary
		}
		return fmt.Errorf("it contains objects that skyserve did not store there, or versions of deleted ones: delete them, then retry: %w", err)
	}
	if err != nil && !isMissing(err) {
		return err
	}
	return p.pollUntil(ctx, "deletion of bucket "+name, func() (bool, error) {
		b, err := p.findBucket(ctx, name)
		return b == nil, err
	})
}
