//go:build !unix

package store

import "os"

// lockFile opens the file at path. Where flock does not exist the listening
// port is what keeps two stores of one service apart.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}
