package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"skyserve/internal/atomicfile"
)

// format is the format of a store's directory. It is incremented with every change that earlier versions would
// misread; a version opens its own format and all before it. A directory without the file FORMAT has
// format 1: earlier versions did not write this file.
const format = 1

const formatFile = "FORMAT"

// readFormat returns the format that a store's directory records; 0 if it records none. It fails if this version does not
// know the format.
func readFormat(dir string) (found int, err error) {
	path := filepath.Join(dir, formatFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading the format of %s: %w", dir, err)
	}
	found, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || found < 1 {
		return 0, fmt.Errorf("%s: must be a format number of 1 or more, got %.20q; write the format of the skyserve version that used the directory last into this file (this version has format %d)", path, text, format)
	}
	if found > format {
		return 0, fmt.Errorf("%s has format %d, this version knows formats up to %d: a later version of skyserve wrote it; install that version again, or move the directory away and restore the backup that was made before the upgrade", dir, found, format)
	}
	return found, nil
}

// openFormat checks that this version knows the format of a store's directory, and records this version's. The
// directory must be locked.
func openFormat(dir string) error {
	found, err := readFormat(dir)
	if err != nil {
		return fmt.Errorf("starting store: %w", err)
	}
	if found == format {
		return nil
	}
	if err := atomicfile.WriteFile(filepath.Join(dir, formatFile), []byte(strconv.Itoa(format)+"\n"), 0o600); err != nil {
		return fmt.Errorf("starting store: recording the format: %w", err)
	}
	return nil
}
