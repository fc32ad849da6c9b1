package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Binary is the skyserve binary that the machines of one cloud download from the service's own bucket.
type Binary struct {
	// SHA256 is the hash of the binary, in hexadecimal.
	SHA256 string
	// Bucket is the name of the bucket, which only the service uses.
	Bucket string
	// File is the path of the binary on this computer; empty = the bucket must already contain it.
	File string
}

// BinaryLocation is the place in a cloud from which machines download the binary.
type BinaryLocation struct {
	Bucket string `json:"bucket"`
	// Region is the region of the bucket in the cloud's notation; empty where requests do not name it.
	Region string `json:"region,omitempty"`
	// URL is the address of the binary. Only the identities of the service's machines may read it.
	URL string `json:"url"`
}

// BinaryStore is a Provider that stores the binary of its machines in a bucket.
type BinaryStore interface {
	// LocateBinary returns the location of a binary of a service, by its SHA-256. It creates nothing; the
	// bucket and the binary need not exist. Errors include *CredentialsError.
	LocateBinary(ctx context.Context, service, owner, sha256 string) (BinaryLocation, error)
}

// BinaryChecker is a BinaryStore that checks before a launch whether a binary can be stored.
type BinaryChecker interface {
	// CheckBinary checks whether the binary of w can be stored, and creates nothing.
	CheckBinary(ctx context.Context, w Desired) LaunchCheck
}

// BinaryBucketPrefix is the prefix of the names of all buckets of skyserve.
const BinaryBucketPrefix = "skyserve-program-"

// binaryKeyPrefix is the prefix of the names of all objects that skyserve stores in its buckets.
const binaryKeyPrefix = "skyserve-"

// BinaryBucket returns the name of a service's bucket in an AWS account or Google Cloud project. Names of
// buckets are shared by all users of a cloud: the hash makes a collision improbable, and nobody who does
// not know the owner can predict it. There is no state file, so the name is always derived.
func BinaryBucket(service, owner, account string) string {
	const digits = 32
	h := sha256.New()
	for _, word := range []string{service, owner, account} {
		fmt.Fprintf(h, "%d:%s,", len(word), word)
	}
	return BinaryBucketPrefix + hex.EncodeToString(h.Sum(nil))[:digits]
}

// BinaryKey returns the name of the object with a binary, by its SHA-256.
func BinaryKey(sha256 string) string { return binaryKeyPrefix + sha256 }

// BinaryHash returns the SHA-256 in a name of BinaryKey; false for any other name.
func BinaryHash(key string) (hash string, ok bool) {
	hash, ok = strings.CutPrefix(key, binaryKeyPrefix)
	decoded, err := hex.DecodeString(hash)
	return hash, ok && err == nil && len(decoded) == sha256.Size
}

// BinaryID returns the id of a stored binary in a cloud.
func BinaryID(cloud, sha256 string) string { return "program-" + cloud + "-" + sha256[:12] }

// BinarySpecHash returns the SpecHash of a stored binary.
func BinarySpecHash(sha256 string) string { return sha256[:24] }

// binaryGrantPrefix is the prefix of the grants of GrantBinary.
const binaryGrantPrefix = "program:"

// GrantBinary lets a VM download the skyserve binaries in the service's bucket, and nothing else.
func GrantBinary(bucket string) Grant { return Grant(binaryGrantPrefix + bucket) }

// BinaryObjects returns the bucket and the pattern of names of a grant of GrantBinary; false for any other
// grant.
func (g Grant) BinaryObjects() (bucket, pattern string, ok bool) {
	bucket, ok = strings.CutPrefix(string(g), binaryGrantPrefix)
	return bucket, binaryKeyPrefix + "*", ok
}

// BinaryMissingError reports a binary that machines run and that is neither in its bucket nor on this computer.
type BinaryMissingError struct{ Bucket, SHA256 string }

// Error names the bucket, the binary and the next step.
func (e *BinaryMissingError) Error() string {
	return fmt.Sprintf("uploading skyserve to bucket %s: the binary with SHA-256 %s is neither there nor on this computer: pass --program FILE", e.Bucket, e.SHA256)
}

// BucketTakenError reports that the bucket's name belongs to somebody else.
type BucketTakenError struct {
	Bucket string
	Cloud  string // aws, gcp
	Err    error
}

// Error names the bucket and the next step.
func (e *BucketTakenError) Error() string {
	return fmt.Sprintf("creating bucket %s in %s for the skyserve binary: the name is taken by another account: rename the service, or pass --program URL: %v", e.Bucket, e.Cloud, e.Err)
}

// Unwrap returns the cloud's error.
func (e *BucketTakenError) Unwrap() error { return e.Err }
