package aws

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"skyserve/internal/service"
	"skyserve/provision"
)

// A service has one bucket in AWS. Its region is the first AWS region that service.yaml had when the bucket was created.
// Machines read 75 MB once per launch, so reading from another region costs less than a cent per machine, and a bucket
// per region would multiply the objects to create, to list and to delete.

// uploadTimeout is the maximum duration of the upload of a binary: 75 MB at 0.4 Mbit/s.
const uploadTimeout = 30 * time.Minute

var _ provision.BinaryStore = (*Provider)(nil)

// bucket is a bucket of this AWS account.
type bucket struct {
	name    string
	region  string
	account string // its owner: every call states it, so that another account's bucket is never used
}

// inRegion directs a call to the region of the bucket.
func (b bucket) inRegion(o *s3.Options) { o.Region = b.region }

// accountID returns the number of the AWS account.
func (p *Provider) accountID(ctx context.Context) (string, error) {
	p.accountMu.Lock()
	defer p.accountMu.Unlock()
	if p.account == "" {
		who, err := p.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
		if err != nil {
			return "", err
		}
		p.account = aws.ToString(who.Account)
	}
	return p.account, nil
}

// LocateBinary returns the location of a binary of a service.
func (p *Provider) LocateBinary(ctx context.Context, service, owner, sha256 string) (provision.BinaryLocation, error) {
	doing := "finding the bucket of service " + service
	account, err := p.accountID(ctx)
	if err != nil {
		return provision.BinaryLocation{}, wrapError(doing, err)
	}
	b, _, err := p.findBucket(ctx, provision.BinaryBucket(service, owner, account))
	if err != nil {
		return provision.BinaryLocation{}, wrapError(doing, err)
	}
	return provision.BinaryLocation{Bucket: b.name, Region: b.region, URL: p.objectURL(b, provision.BinaryKey(sha256))}, nil
}

// objectURL returns the address of an object, which machines use.
func (p *Provider) objectURL(b bucket, key string) string {
	if p.endpoint != "" {
		return strings.TrimRight(p.endpoint, "/") + "/" + b.name + "/" + key
	}
	domain := domainAWS
	if partitionOf(b.region) == partitionChina {
		domain = domainChina
	}
	return fmt.Sprintf(objectAddress, b.name, b.region, domain, key)
}

// findBucket finds a bucket of this AWS account. A bucket that does not exist, or is not listed yet, has the
// region in which it would be created.
func (p *Provider) findBucket(ctx context.Context, name string) (b bucket, found bool, err error) {
	all, err := p.listBuckets(ctx, name)
	if err != nil {
		return bucket{}, false, err
	}
	if i := slices.IndexFunc(all, func(b bucket) bool { return b.name == name }); i >= 0 {
		return all[i], true, nil
	}
	account, err := p.accountID(ctx)
	return bucket{name, p.cfg.Regions[0], account}, false, err
}

// listBuckets lists the buckets of this AWS account whose names have a prefix.
func (p *Provider) listBuckets(ctx context.Context, prefix string) ([]bucket, error) {
	var all []bucket
	pages := s3.NewListBucketsPaginator(p.s3, &s3.ListBucketsInput{Prefix: aws.String(prefix)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, b := range page.Buckets {
			all = append(all, bucket{name: aws.ToString(b.Name), region: aws.ToString(b.BucketRegion)})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	account, err := p.accountID(ctx)
	for i := range all {
		all[i].account = account
	}
	return all, err
}

// launchBinary creates or repairs the bucket of a service and uploads a binary, unless the bucket contains
// it. Every step is idempotent.
func (p *Provider) launchBinary(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if w.Binary == nil {
		return provision.Object{}, fmt.Errorf("reading the desired object %s: it has no binary", w.ID)
	}
	b, listed, err := p.findBucket(ctx, w.Binary.Bucket)
	if err != nil {
		return provision.Object{}, err
	}
	tags := tagsOf(w)
	if err := p.ensureBucket(ctx, w, b, listed, tags); err != nil {
		return provision.Object{}, err
	}
	if err := p.uploadBinary(ctx, b, *w.Binary); err != nil {
		return provision.Object{}, err
	}
	return objectOfDesired(w, b.name+"/"+provision.BinaryKey(w.Binary.SHA256)), nil
}

// ensureBucket creates a bucket, or repairs its tags, and blocks public access. S3 itself encrypts every
// object and ignores the access lists of objects.
func (p *Provider) ensureBucket(ctx context.Context, w provision.Desired, b bucket, listed bool, tags map[string]string) error {
	have, exists := map[string]string(nil), false
	var err error
	if listed {
		have, exists, err = p.bucketTags(ctx, b)
	}
	if err == nil && !exists {
		if err = p.createBucket(ctx, b, tags); err == nil {
			have, _, err = p.bucketTags(ctx, b)
		}
	}
	if err != nil {
		return err
	}
	if len(have) > 0 {
		if err := ownedError(w, have); err != nil {
			return err
		}
	} else if err := p.setBucketTags(ctx, b, tags); err != nil {
		return err
	}
	_, err = p.s3.PutPublicAccessBlock(ctx, &s3.PutPublicAccessBlockInput{
		Bucket: aws.String(b.name), ExpectedBucketOwner: aws.String(b.account),
		PublicAccessBlockConfiguration: &s3types.PublicAccessBlockConfiguration{
			BlockPublicAcls: aws.Bool(true), BlockPublicPolicy: aws.Bool(true), IgnorePublicAcls: aws.Bool(true), RestrictPublicBuckets: aws.Bool(true),
		},
	}, b.inRegion)
	return err
}

// createBucket creates a bucket with its tags in one call, so that a crash leaves no bucket without tags.
// An existing bucket of this AWS account is not an error.
func (p *Provider) createBucket(ctx context.Context, b bucket, tags map[string]string) error {
	configuration := &s3types.CreateBucketConfiguration{Tags: s3Tags(tags)}
	if b.region != "us-east-1" { // S3's default, which it rejects as a value
		configuration.LocationConstraint = s3types.BucketLocationConstraint(b.region)
	}
	_, err := p.s3.CreateBucket(ctx, &s3.CreateBucketInput{
		Bucket: aws.String(b.name), ObjectOwnership: s3types.ObjectOwnershipBucketOwnerEnforced, CreateBucketConfiguration: configuration,
	}, b.inRegion)
	if codeOf(err) == codeBucketTaken {
		return &provision.BucketTakenError{Bucket: b.name, Cloud: service.CloudAWS, Err: plainError(err)}
	}
	return ignoreCode(codeBucketOwned, err)
}

// bucketTags returns the tags of a bucket; false if it does not exist.
func (p *Provider) bucketTags(ctx context.Context, b bucket) (tags map[string]string, exists bool, err error) {
	out, err := p.s3.GetBucketTagging(ctx, &s3.GetBucketTaggingInput{Bucket: aws.String(b.name), ExpectedBucketOwner: aws.String(b.account)}, b.inRegion)
	switch codeOf(err) {
	case codeNoBucket:
		return nil, false, nil
	case codeNoTags:
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	tags = map[string]string{}
	for _, t := range out.TagSet {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return tags, true, nil
}

func (p *Provider) setBucketTags(ctx context.Context, b bucket, tags map[string]string) error {
	_, err := p.s3.PutBucketTagging(ctx, &s3.PutBucketTaggingInput{
		Bucket: aws.String(b.name), ExpectedBucketOwner: aws.String(b.account), Tagging: &s3types.Tagging{TagSet: s3Tags(tags)},
	}, b.inRegion)
	return err
}

// s3Tags converts tags to S3's API type, sorted.
func s3Tags(tags map[string]string) []s3types.Tag {
	var all []s3types.Tag
	for _, t := range iamTags(tags) {
		all = append(all, s3types.Tag{Key: t.Key, Value: t.Value})
	}
	return all
}

// uploadBinary uploads a binary, unless the bucket contains it. The upload is one call, which S3 executes
// completely or not at all, and S3 verifies the hash.
func (p *Provider) uploadBinary(ctx context.Context, b bucket, binary provision.Binary) error {
	name, key, owner := aws.String(b.name), aws.String(provision.BinaryKey(binary.SHA256)), aws.String(b.account)
	_, err := p.s3.HeadObject(ctx, &s3.HeadObjectInput{Bucket: name, Key: key, ExpectedBucketOwner: owner}, b.inRegion)
	if err == nil || codeOf(err) != codeNoObject {
		return err
	}
	if binary.File == "" {
		return &provision.BinaryMissingError{Bucket: b.name, SHA256: binary.SHA256}
	}
	sum, err := hex.DecodeString(binary.SHA256)
	if err != nil {
		return fmt.Errorf("reading the SHA-256 of %s: %w", binary.File, err)
	}
	f, err := os.Open(binary.File)
	if err != nil {
		return fmt.Errorf("uploading skyserve to bucket %s: %w", b.name, err)
	}
	defer f.Close()
	_, err = p.s3.PutObject(ctx, &s3.PutObjectInput{
		Bucket: name, Key: key, ExpectedBucketOwner: owner, Body: f, ContentType: aws.String("application/octet-stream"),
		ServerSideEncryption: s3types.ServerSideEncryptionAes256, ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum)),
	}, b.inRegion, func(o *s3.Options) { o.HTTPClient = p.uploads })
	return err
}

// listBinaries lists the binaries in the bucket of a service, or of all services. A bucket without a binary
// is listed with the id of the binary for which it was created.
func (p *Provider) listBinaries(ctx context.Context, service string) ([]provision.Object, error) {
	buckets, err := p.listBuckets(ctx, provision.BinaryBucketPrefix)
	if err != nil {
		return nil, err
	}
	var objects []provision.Object
	for _, b := range buckets {
		tags, exists, err := p.bucketTags(ctx, b)
		if err != nil {
			return nil, err
		}
		o, owned := objectFromTags(tags, globalRegion, b.name)
		if !exists || !owned || service != "" && o.Service != service {
			continue
		}
		binaries, err := p.readBucket(ctx, b, o)
		if err != nil {
			return nil, err
		}
		objects = append(objects, binaries...)
	}
	return objects, nil
}

// readBucket returns the binaries in a bucket; made is the object that its tags describe. If public access is
// not blocked, driftSuffix is appended to SpecHash.
func (p *Provider) readBucket(ctx context.Context, b bucket, made provision.Object) ([]provision.Object, error) {
	keys, err := p.listKeys(ctx, b)
	if err != nil || keys == nil {
		return nil, err
	}
	blocked, err := p.isPublicBlocked(ctx, b)
	if err != nil {
		return nil, err
	}
	var objects []provision.Object
	for _, key := range keys {
		hash, ours := provision.BinaryHash(key)
		if !ours {
			continue
		}
		o := made
		o.ID, o.SpecHash, o.Handle = provision.BinaryID(service.CloudAWS, hash), provision.BinarySpecHash(hash), b.name+"/"+key
		objects = append(objects, o)
	}
	if len(objects) == 0 {
		made.SpecHash = "empty"
		objects = append(objects, made)
	}
	for i := range objects {
		if !blocked {
			objects[i].SpecHash += driftSuffix
		}
	}
	return objects, nil
}

// isPublicBlocked reports whether public access to a bucket is blocked.
func (p *Provider) isPublicBlocked(ctx context.Context, b bucket) (bool, error) {
	out, err := p.s3.GetPublicAccessBlock(ctx, &s3.GetPublicAccessBlockInput{Bucket: aws.String(b.name), ExpectedBucketOwner: aws.String(b.account)}, b.inRegion)
	if code := codeOf(err); code == codeNoPublicBlock || code == codeNoBucket {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c := out.PublicAccessBlockConfiguration
	return aws.ToBool(c.BlockPublicAcls) && aws.ToBool(c.BlockPublicPolicy) && aws.ToBool(c.IgnorePublicAcls) && aws.ToBool(c.RestrictPublicBuckets), nil
}

// listKeys returns the names of the objects in a bucket; nil if the bucket does not exist.
func (p *Provider) listKeys(ctx context.Context, b bucket) ([]string, error) {
	keys := []string{}
	pages := s3.NewListObjectsV2Paginator(p.s3, &s3.ListObjectsV2Input{Bucket: aws.String(b.name), ExpectedBucketOwner: aws.String(b.account)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx, b.inRegion)
		if codeOf(err) == codeNoBucket {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, o := range page.Contents {
			keys = append(keys, aws.ToString(o.Key))
		}
	}
	return keys, nil
}

// deleteBinary deletes a binary, and the bucket once it contains no other, and returns when both are gone.
func (p *Provider) deleteBinary(ctx context.Context, o provision.Object) error {
	name, key, _ := strings.Cut(o.Handle, "/")
	if !strings.HasPrefix(name, provision.BinaryBucketPrefix) {
		return fmt.Errorf("reading the handle of %s: must start with %s, got %q", o.ID, provision.BinaryBucketPrefix, o.Handle)
	}
	b, listed, err := p.findBucket(ctx, name)
	if err != nil {
		return err
	}
	tags, exists, err := p.bucketTags(ctx, b)
	if err != nil || !exists {
		return cmp.Or(err, p.waitBucketGone(ctx, name, listed))
	}
	if tags[tagService] != o.Service || tags[tagOwner] != o.Owner {
		return &provision.OwnedError{Resource: "bucket " + name, Where: b.region, Owner: tags[tagOwner]}
	}
	if key != "" {
		_, err := p.s3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(name), Key: aws.String(key), ExpectedBucketOwner: aws.String(b.account)}, b.inRegion)
		if err := ignoreCode(codeNoBucket, err); err != nil {
			return err
		}
	}
	keys, err := p.listKeys(ctx, b)
	if err != nil || slices.ContainsFunc(keys, func(key string) bool { _, ours := provision.BinaryHash(key); return ours }) {
		return err
	}
	_, err = p.s3.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(name), ExpectedBucketOwner: aws.String(b.account)}, b.inRegion)
	switch codeOf(err) {
	case codeBucketFull:
		if remaining, _ := p.listKeys(ctx, b); slices.ContainsFunc(remaining, func(key string) bool { _, ours := provision.BinaryHash(key); return ours }) {
			return nil // another process has uploaded a binary
		}
		return fmt.Errorf("deleting bucket %s in %s: it contains objects that skyserve did not store there, or versions of deleted ones: delete them, then retry: %w", name, b.region, plainError(err))
	case codeNoBucket:
	default:
		if err != nil {
			return err
		}
	}
	return p.waitBucketGone(ctx, name, true)
}

// waitBucketGone waits until a deleted bucket is not listed any more.
func (p *Provider) waitBucketGone(ctx context.Context, name string, listed bool) error {
	if !listed {
		return nil
	}
	gone, err := p.waitVisible(ctx, func() (bool, error) {
		_, listed, err := p.findBucket(ctx, name)
		return !listed, err
	})
	if err == nil && !gone {
		err = fmt.Errorf("waiting for the deletion of bucket %s: still listed", name)
	}
	return err
}

// programStatement permits downloading the binaries in a service's bucket.
func programStatement(bucket, pattern, arn string) statement {
	return statement{"Allow", []string{"s3:GetObject"}, []string{arn + bucket + "/" + pattern}, nil}
}
