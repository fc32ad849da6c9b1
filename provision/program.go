package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Program is the skyserve binary that the machines of one cloud download from the service's own bucket.
type Program struct {
	// SHA256 is the hash of the binary, in hexadecimal.
	SHA256 string
	// Bucket is the name of the bucket, which only the service uses.
	Bucket string
	// File is the path of the binary on this computer; empty = the bucket must already contain it.
	File string
}

// ProgramLocation is the place in a cloud from which machines download the binary.
type ProgramLocation struct {
	Bucket string `json:"bucket"`
	// Region is the region of the bucket in the cloud's notation; empty where requests do not name it.
	Region string `json:"region,omitempty"`
	// URL is the address of the binary. Only the identities of the service's machines may read it.
	URL string `json:"url"`
}

// ProgramStore is a Provider that stores the binary of its machines in a bucket.
type ProgramStore interface {
	// LocateProgram returns the location of a binary of a service, by its SHA-256. It creates nothing; the
	// bucket and the binary need not exist. Errors include *CredentialsError.
	LocateProgram(ctx context.Context, service, owner, sha256 string) (ProgramLocation, error)
}

// ProgramChecker is a ProgramStore that checks before a launch whether a binary can be stored.
type ProgramChecker interface {
	// CheckProgram checks whether the binary of w can be stored, and creates nothing.
	CheckProgram(ctx context.Context, w Desired) LaunchCheck
}

// ProgramBucketPrefix is the prefix of the names of all buckets of skyserve.
const ProgramBucketPrefix = "skyserve-program-"

// programKeyPrefix is the prefix of the names of all objects that skyserve stores in its buckets.
const programKeyPrefix = "skyserve-"

// ProgramBucket returns the name of a service's bucket in an AWS account or Google Cloud project. Names of
// buckets are shared by all users of a cloud: the hash makes a collision improbable, and nobody who does
// not know the owner can predict it. There is no state file, so the name is always derived.
func ProgramBucket(service, owner, account string) string {
	const digits = 32
	h := sha256.New()
	for _, word := range []string{service, owner, account} {
		fmt.Fprintf(h, "%d:%s,", len(word), word)
	}
	return ProgramBucketPrefix + hex.EncodeToString(h.Sum(nil))[:digits]
}

// ProgramKey returns the name of the object with a binary, by its SHA-256.
func ProgramKey(sha256 string) string { return programKeyPrefix + sha256 }

// ProgramHash returns the SHA-256 in a name of ProgramKey; false for any other name.
func ProgramHash(key string) (hash string, ok bool) {
	hash, ok = strings.CutPrefix(key, programKeyPrefix)
	decoded, err := hex.DecodeString(hash)
	return hash, ok && err == nil && len(decoded) == sha256.Size
}

// ProgramID returns the id of a stored binary in a cloud.
func ProgramID(cloud, sha256 string) string { return "program-" + cloud + "-" + sha256[:12] }

// ProgramSpec returns the SpecHash of a stored binary.
func ProgramSpec(sha256 string) string { return sha256[:24] }

// programGrantPrefix is the prefix of the grants of GrantProgram.
const programGrantPrefix = "program:"

// GrantProgram lets a VM download the skyserve binaries in the service's bucket, and nothing else.
func GrantProgram(bucket string) Grant { return Grant(programGrantPrefix + bucket) }

// ProgramObjects returns the bucket and the pattern of names of a grant of GrantProgram; false for any other
// grant.
func (g Grant) ProgramObjects() (bucket, pattern string, ok bool) {
	bucket, ok = strings.CutPrefix(string(g), programGrantPrefix)
	return bucket, programKeyPrefix + "*", ok
}

// ProgramMissingError reports a binary that machines run and that is neither in its bucket nor on this computer.
type ProgramMissingError struct{ Bucket, SHA256 string }

// Error names the bucket, the binary and the next step.
func (e *ProgramMissingError) Error() string {
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
