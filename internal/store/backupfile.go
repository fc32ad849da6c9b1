package store

import (
	"errors"
	"io"

	"skyserve/internal/atomicfile"
	"skyserve/internal/telemetry"
)

// WriteBackupFile writes a backup to a file (mode 0600), which it replaces once the backup is complete and checked.
func WriteBackupFile(file string, write func(io.Writer) error) (b telemetry.Backup, err error) {
	err = atomicfile.Write(file, 0o600, func(w io.Writer) error {
		check, feed := io.Pipe()
		checked := make(chan error, 1)
		go func() {
			var err error
			b, err = CheckBackup(check)
			_, rest := io.Copy(io.Discard, check)
			checked <- errors.Join(err, rest)
		}()
		err := write(io.MultiWriter(w, feed))
		feed.CloseWithError(err)
		if damage := <-checked; err == nil {
			err = damage
		}
		return err
	})
	return b, err
}
