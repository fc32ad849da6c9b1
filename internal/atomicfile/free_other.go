//go:build !linux && !darwin

package atomicfile

import "errors"

// FreeBytes is not supported on this operating system.
func FreeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }
