package gcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/storage/v1"
)

// Files stores parts of files in a bucket. It implements store.CloudBucket and is safe for concurrent use.
type Files struct {
	p              *Provider
	bucket, folder string // folder ends with a slash, or is empty
}

// Files returns the files in a folder of a bucket, which must exist. The credentials need the role
// roles/storage.objectUser in it.
func (p *Provider) Files(bucket, folder string) *Files {
	if folder = strings.Trim(folder, "/"); folder != "" {
		folder += "/"
	}
	return &Files{p: p, bucket: bucket, folder: folder}
}

// PutPart stores a part, with one request. Cloud Storage rejects one whose checksum differs.
func (f *Files) PutPart(ctx context.Context, name string, part []byte) error {
	client, _, err := newStorage(ctx, f.p)
	if err == nil {
		sum := crc32.Checksum(part, crc32.MakeTable(crc32.Castagnoli))
		object := &storage.Object{Name: f.folder + name, ContentType: contentType, Crc32c: base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))}
		call := client.Objects.Insert(f.bucket, object)
		call.WithRetry(nil, func(error) bool { return false }) // retryTransport retries
		_, err = call.Media(bytes.NewReader(part), googleapi.ChunkSize(len(part)+1), googleapi.ContentType(contentType)).Context(ctx).Do()
	}
	return f.wrap(err, "writing", name)
}

// GetPart returns a part; fs.ErrNotExist if there is none.
func (f *Files) GetPart(ctx context.Context, name string) ([]byte, error) {
	client, _, err := newStorage(ctx, f.p)
	if err != nil {
		return nil, f.wrap(err, "reading", name)
	}
	response, err := client.Objects.Get(f.bucket, f.folder+name).Context(ctx).Download()
	if isMissing(err) {
		return nil, errors.Join(fs.ErrNotExist, err)
	}
	if err != nil {
		return nil, f.wrap(err, "reading", name)
	}
	defer response.Body.Close()
	var part bytes.Buffer
	if response.ContentLength > 0 {
		part.Grow(int(response.ContentLength) + bytes.MinRead) // else the buffer grows by doubling
	}
	_, err = io.Copy(&part, response.Body)
	return part.Bytes(), f.wrap(err, "reading", name)
}

// DeletePart removes a part; a missing one is not an error.
func (f *Files) DeletePart(ctx context.Context, name string) error {
	client, _, err := newStorage(ctx, f.p)
	if err == nil {
		err = client.Objects.Delete(f.bucket, f.folder+name).Context(ctx).Do()
	}
	if isMissing(err) {
		return nil
	}
	return f.wrap(err, "deleting", name)
}

// PartNames returns the names of the parts that start with a prefix.
func (f *Files) PartNames(ctx context.Context, prefix string) (names []string, err error) {
	client, _, err := newStorage(ctx, f.p)
	if err == nil {
		err = client.Objects.List(f.bucket).Prefix(f.folder+prefix).Pages(ctx, func(page *storage.Objects) error {
			for _, o := range page.Items {
				names = append(names, strings.TrimPrefix(o.Name, f.folder))
			}
			return nil
		})
	}
	return names, f.wrap(err, "listing", prefix)
}

func (f *Files) wrap(err error, doing, name string) error {
	if err == nil {
		return nil
	}
	return wrapError(err, "%s gs://%s/%s%s", doing, f.bucket, f.folder, name)
}
