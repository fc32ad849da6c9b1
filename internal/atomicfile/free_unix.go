//go:build linux || darwin

package atomicfile

import "golang.org/x/sys/unix"

// FreeBytes returns the bytes available to users on the file system of a directory.
func FreeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}
