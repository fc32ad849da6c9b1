package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"skyserve/internal/atomicfile"
	"skyserve/internal/telemetry"
)

// BackupDir writes a backup of a service from the directory of a store that is not running. The directory may belong to a member of a cluster whose other members are lost with their disks. The
// backup then contains the writes that this member had applied; the last acknowledged writes may be missing. BackupDir
// needs as much free space in dir as the data occupies. It fails while a store runs there, and if a later version wrote
// the directory. service and version are as in WriteBackup.
func BackupDir(ctx context.Context, dir string, w io.Writer, service, version string) (err error) {
	if _, err := os.Stat(filepath.Join(dir, server.JetStreamStoreDir)); err != nil {
		return fmt.Errorf("%s is not the directory of a store: %w", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := readFormat(dir); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(dir, "backup.*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	if err := copyStreams(dir, temporary); err != nil {
		return fmt.Errorf("copying the streams of %s: %w", dir, err)
	}
	return serveOffline(ctx, Options{Dir: temporary}, func(nc *nats.Conn) error {
		_, err := writeBackup(ctx, nc, w, telemetry.Backup{Service: service, Version: version}, "skyserve_"+service)
		if err != nil {
			err = fmt.Errorf("reading %s: %w", dir, err)
		}
		return err
	})
}

// copyStreams copies the streams of a store, and sets their number of replicas to 1.
func copyStreams(from, to string) error {
	streams := filepath.Join(server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT, "streams")
	for _, name := range streamsOnDisk(from) {
		if err := copyStream(filepath.Join(from, streams, name), filepath.Join(to, streams, name), name); err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return nil
}

// copyStream copies the configuration and messages of a stream, without its consumers.
func copyStream(from, to, name string) error {
	if err := os.MkdirAll(filepath.Join(to, "msgs"), 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(to, "msgs"), os.DirFS(filepath.Join(from, "msgs"))); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(from, server.JetStreamMetaFile))
	if err != nil {
		return err
	}
	var config server.FileStreamInfo
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("decoding %s: %w", server.JetStreamMetaFile, err)
	}
	config.Replicas, config.Placement = 1, nil
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	key := sha256.Sum256([]byte(name)) // NATS verifies the file with this key
	sum, err := highwayhash.New64(key[:])
	if err != nil {
		return err
	}
	sum.Write(text)
	for file, content := range map[string][]byte{server.JetStreamMetaFile: text, server.JetStreamMetaFileSum: []byte(hex.EncodeToString(sum.Sum(nil)))} {
		if err := atomicfile.WriteFile(filepath.Join(to, file), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
