package gcp

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/storage/v1"

	"skyserve/provision"
)

// chunkSize is the size of one request of an upload. One attempt of a request has callTimeout, so an upload
// succeeds at 0.3 Mbit/s or more. The upload resumes with the chunk that failed.
const chunkSize = 2 << 20

// uploadBinary uploads a binary, unless the bucket contains it. A partial upload is not visible, and Cloud
// Storage rejects one whose checksum differs.
func (p *Provider) uploadBinary(ctx context.Context, w provision.Desired) error {
	if exists, err := p.hasObject(ctx, *w.Binary); err != nil || exists {
		return err
	}
	if w.Binary.File == "" {
		return missingBinary(*w.Binary)
	}
	f, err := os.Open(w.Binary.File)
	if err != nil {
		return err
	}
	defer f.Close()
	checksum, err := checkFile(f, w.Binary.SHA256)
	if err != nil {
		return err
	}
	client, _, err := newStorage(ctx, p)
	if err != nil {
		return err
	}
	object := &storage.Object{Name: provision.BinaryKey(w.Binary.SHA256), ContentType: contentType, Crc32c: checksum}
	call := client.Objects.Insert(w.Binary.Bucket, object).IfGenerationMatch(0) // an object of the name has the same content
	call.WithRetry(nil, func(error) bool { return false })                      // retryTransport retries
	_, err = call.Media(f, googleapi.ChunkSize(chunkSize), googleapi.ContentType(contentType)).Context(ctx).Do()
	if r, ok := refusalOf(err); ok && r.status == http.StatusPreconditionFailed {
		return nil // another process has uploaded it
	}
	return err
}

// missingBinary reports a binary that is neither in its bucket nor on this computer.
func missingBinary(binary provision.Binary) error {
	return &provision.BinaryMissingError{Bucket: binary.Bucket, SHA256: binary.SHA256}
}

// hasObject reports whether a bucket contains a binary.
func (p *Provider) hasObject(ctx context.Context, binary provision.Binary) (bool, error) {
	client, _, err := newStorage(ctx, p)
	if err != nil {
		return false, err
	}
	_, err = client.Objects.Get(binary.Bucket, provision.BinaryKey(binary.SHA256)).Context(ctx).Do()
	if isMissing(err) {
		return false, nil
	}
	return err == nil, err
}

// checkFile checks the SHA-256 of a file and returns its checksum in Cloud Storage's format. The file is then at
// its start.
func checkFile(f *os.File, want string) (checksum string, err error) {
	sum, crc := sha256.New(), crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.Copy(io.MultiWriter(sum, crc), f); err != nil {
		return "", fmt.Errorf("reading %s: %w", f.Name(), err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return "", fmt.Errorf("reading %s: its SHA-256 must be %s, got %s: the file has changed; retry", f.Name(), want, got)
	}
	_, err = f.Seek(0, io.SeekStart)
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc.Sum32())), err
}
