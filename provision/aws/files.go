package aws

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"skyserve/provision"
)

// Files stores parts of files in a bucket. It implements store.CloudBucket and is safe for concurrent use.
type Files struct {
	p              *Provider
	bucket, folder string // folder ends with a slash, or is empty

	mu     sync.Mutex
	region string // of the bucket; empty until it is read
}

var _ provision.FilesChecker = (*Provider)(nil)

// CheckFiles checks that the bucket exists in this AWS account. The role of the machines gets its permissions when it
// is created.
func (p *Provider) CheckFiles(ctx context.Context, w provision.Desired) provision.LaunchCheck {
	f := w.StoredFolders()[0]
	c := provision.LaunchCheck{CheckResult: provision.CheckResult{Where: string(w.Region), Message: "storing " + f.Contents() + " in s3://" + f.Bucket + "/" + f.Folder}}
	if err := p.checkFilesBucket(ctx, f); err != nil {
		c.Err = wrapError("checking "+c.Message, err)
		c.Message += ": " + plainError(err).Error()
		c.Hint = hintOf(c.Err)
		return c
	}
	c.OK = true
	c.Message += ": the bucket is in this AWS account"
	return c
}

// checkFilesBucket returns an error if a bucket is not in this AWS account. A new bucket may not be listed yet.
func (p *Provider) checkFilesBucket(ctx context.Context, f provision.BucketFolder) error {
	name := f.Bucket
	b, listed, err := p.findBucket(ctx, name)
	if err != nil || listed {
		return err
	}
	region, err := p.Files(name, "").inBucketRegion(ctx)
	if err == nil {
		_, err = p.s3.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &name, ExpectedBucketOwner: &b.account}, region)
	}
	var refused *smithyhttp.ResponseError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.HTTPStatusCode() {
	case http.StatusNotFound:
		return &provision.SpecError{Err: fmt.Errorf("%s: bucket %s does not exist; create it: aws s3 mb s3://%s", f.Key, name, name)}
	case http.StatusForbidden:
		return &provision.SpecError{Err: fmt.Errorf("%s: bucket %s belongs to another AWS account, and balancers may write only to buckets of their own account, %s; set %s to a bucket of this account", f.Key, name, b.account, f.Key)}
	}
	return err
}

// Files returns the files in a folder of a bucket, which must exist. The credentials need s3:GetObject,
// s3:PutObject, s3:DeleteObject and s3:ListBucket, in this folder.
func (p *Provider) Files(bucket, folder string) *Files {
	if folder = strings.Trim(folder, "/"); folder != "" {
		folder += "/"
	}
	return &Files{p: p, bucket: bucket, folder: folder}
}

// inBucketRegion directs a call to the region of the bucket, which it finds first. The response of HeadBucket names the
// region even if S3 refuses the call. S3 does so if the call went to another region, or if it came from a machine, which may
// list only its folder.
func (f *Files) inBucketRegion(ctx context.Context) (func(*s3.Options), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.region == "" {
		out, err := f.p.s3.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &f.bucket})
		var refused *smithyhttp.ResponseError
		switch {
		case err == nil:
			f.region = aws.ToString(out.BucketRegion)
		case errors.As(err, &refused) && (refused.HTTPStatusCode() == http.StatusMovedPermanently || refused.HTTPStatusCode() == http.StatusForbidden):
			f.region = refused.Response.Header.Get(headerBucketRegion)
		}
		if f.region == "" {
			if err == nil {
				err = errors.New("the response names no region")
			}
			return nil, wrapError("finding the region of the bucket "+f.bucket, err)
		}
	}
	region := f.region
	return func(o *s3.Options) { o.Region = region }, nil
}

// PutPart stores a part. S3 rejects one whose checksum differs.
func (f *Files) PutPart(ctx context.Context, name string, part []byte) error {
	region, err := f.inBucketRegion(ctx)
	if err == nil {
		sum := sha256.Sum256(part)
		_, err = f.p.s3.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &f.bucket, Key: aws.String(f.folder + name), Body: bytes.NewReader(part), ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
		}, region)
	}
	return wrapError("writing "+f.address(name), err)
}

// GetPart returns a part; fs.ErrNotExist if there is none.
func (f *Files) GetPart(ctx context.Context, name string) ([]byte, error) {
	region, err := f.inBucketRegion(ctx)
	if err != nil {
		return nil, err
	}
	out, err := f.p.s3.GetObject(ctx, &s3.GetObjectInput{Bucket: &f.bucket, Key: aws.String(f.folder + name)}, region)
	if codeOf(err) == codeNoKey {
		return nil, errors.Join(fs.ErrNotExist, err)
	}
	if err != nil {
		return nil, wrapError("reading "+f.address(name), err)
	}
	defer out.Body.Close()
	var part bytes.Buffer
	if n := aws.ToInt64(out.ContentLength); n > 0 {
		part.Grow(int(n) + bytes.MinRead) // else the buffer grows by doubling
	}
	_, err = io.Copy(&part, out.Body)
	return part.Bytes(), wrapError("reading "+f.address(name), err)
}

// DeletePart removes a part; S3 accepts a missing one.
func (f *Files) DeletePart(ctx context.Context, name string) error {
	region, err := f.inBucketRegion(ctx)
	if err == nil {
		_, err = f.p.s3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &f.bucket, Key: aws.String(f.folder + name)}, region)
	}
	return wrapError("deleting "+f.address(name), err)
}

// PartNames returns the names of the parts that start with a prefix.
func (f *Files) PartNames(ctx context.Context, prefix string) (names []string, err error) {
	region, err := f.inBucketRegion(ctx)
	if err != nil {
		return nil, err
	}
	pages := s3.NewListObjectsV2Paginator(f.p.s3, &s3.ListObjectsV2Input{Bucket: &f.bucket, Prefix: aws.String(f.folder + prefix)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx, region)
		if err != nil {
			return nil, wrapError("listing "+f.address(prefix), err)
		}
		for _, o := range page.Contents {
			names = append(names, strings.TrimPrefix(aws.ToString(o.Key), f.folder))
		}
	}
	return names, nil
}

func (f *Files) address(name string) string { return "s3://" + f.bucket + "/" + f.folder + name }
