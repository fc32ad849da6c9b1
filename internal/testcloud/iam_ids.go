package testcloud

import (
	"crypto/sha256"
	"encoding/base32"
)

// iamID returns the unique id of an IAM object, in IAM's form: a prefix for its type and 17 capitals and digits
// (IAM User Guide, "IAM identifiers", unique identifiers, read 2026-11-24). IAM's model allows word characters only.
func iamID(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:17]
}
