//go:build !unix

package store

import "os"

// lockFile opens the file at path. This operating system has no flock: only the listening
// port prevents a second store of the service.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}
