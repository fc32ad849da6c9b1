//go:build !linux && !darwin

package store

import "errors"

// freeBytes is not supported on this operating system.
func freeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }
