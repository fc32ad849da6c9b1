package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/atomicfile"
)

// Limits of snapshots, each with its reason.
const (
	// snapshotChunk is the size of a message with a chunk of a snapshot.
	snapshotChunk = 128 << 10
	// snapshotChunkTimeout is the timeout of sending or receiving a chunk. The server syncs the stream before the
	// first one.
	snapshotChunkTimeout = 15 * time.Second
	// restoreRetry is the interval of attempts to send a chunk while the connection's server does not know the member
	// that receives it.
	restoreRetry = 20 * time.Millisecond
	// snapshotExtension and configExtension are the extensions of the two files with a stream's snapshot and its
	// streamConfig.
	snapshotExtension, configExtension = ".snapshot", ".json"
)

// streamConfig is the configuration and state of a stream, as the server sent them with its snapshot.
type streamConfig struct {
	Config server.StreamConfig `json:"config"`
	State  server.StreamState  `json:"state"`
}

// writeSnapshots writes all streams of a server to a directory: their messages with their sequence
// numbers, so that revisions and fencing tokens keep increasing after a restore.
func writeSnapshots(ctx context.Context, nc *nats.Conn, dir string) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		if err := writeSnapshot(ctx, nc, name, dir); err != nil {
			return fmt.Errorf("writing a snapshot of stream %s to %s: %w", name, dir, err)
		}
	}
	if err := names.Err(); err != nil {
		return fmt.Errorf("listing streams: %w", err)
	}
	return nil
}

// writeSnapshot writes the snapshot and the streamConfig of a stream to two files.
func writeSnapshot(ctx context.Context, nc *nats.Conn, name, dir string) error {
	return readSnapshot(ctx, nc, name, func(c streamConfig, copyTo func(io.Writer) error) error {
		if err := atomicfile.Write(filepath.Join(dir, name+snapshotExtension), 0o600, copyTo); err != nil {
			return err
		}
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		return atomicfile.WriteFile(filepath.Join(dir, name+configExtension), data, 0o600)
	})
}

// readSnapshot calls use with the configuration of a stream and a function that copies its snapshot.
func readSnapshot(ctx context.Context, nc *nats.Conn, name string, use func(c streamConfig, copyTo func(io.Writer) error) error) error {
	sub, err := nc.SubscribeSync(nats.NewInbox())
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	var response server.JSApiStreamSnapshotResponse
	request := server.JSApiStreamSnapshotRequest{DeliverSubject: sub.Subject, NoConsumers: true, ChunkSize: snapshotChunk, CheckMsgs: true}
	if err := call(ctx, nc, fmt.Sprintf(server.JSApiStreamSnapshotT, name), request, &response); err != nil {
		return err
	}
	if response.Config == nil || response.State == nil {
		return errors.New("the response has no configuration")
	}
	return use(streamConfig{Config: *response.Config, State: *response.State}, func(w io.Writer) error { return receiveSnapshot(ctx, sub, w) })
}

// receiveSnapshot writes the chunks of a snapshot to w until the empty chunk that ends it.
func receiveSnapshot(ctx context.Context, sub *nats.Subscription, w io.Writer) error {
	for {
		octx, cancel := context.WithTimeout(ctx, snapshotChunkTimeout)
		msg, err := sub.NextMsgWithContext(octx)
		cancel()
		if err != nil {
			return err
		}
		if len(msg.Data) == 0 {
			if status := msg.Header.Get("Status"); status != "" && status != "204" {
				return fmt.Errorf("status %s %s", status, msg.Header.Get("Description"))
			}
			return nil
		}
		if _, err := w.Write(msg.Data); err != nil {
			return err
		}
		if msg.Reply != "" {
			if err := msg.Respond(nil); err != nil {
				return err
			}
		}
	}
}

// snapshotStreams lists the streams whose snapshots a directory contains, sorted.
func snapshotStreams(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name, found := strings.CutSuffix(e.Name(), configExtension); found {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// restoreSnapshot creates a stream from its two files with the given number of replicas. The stream must
// not exist.
func restoreSnapshot(ctx context.Context, nc *nats.Conn, name, dir string, replicas int) error {
	data, err := os.ReadFile(filepath.Join(dir, name+configExtension))
	if err != nil {
		return err
	}
	var c streamConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("decoding %s%s: %w", name, configExtension, err)
	}
	f, err := os.Open(filepath.Join(dir, name+snapshotExtension))
	if err != nil {
		return err
	}
	defer f.Close()
	return sendSnapshot(ctx, nc, c, f, replicas)
}

// sendSnapshot creates a stream with the given number of replicas from its configuration and snapshot.
func sendSnapshot(ctx context.Context, nc *nats.Conn, c streamConfig, r io.Reader, replicas int) error {
	subject, err := beginRestore(ctx, nc, c, replicas)
	if err != nil {
		return err
	}
	return sendChunks(ctx, nc, subject, r)
}

// beginRestore requests the creation of a stream from a snapshot, and returns the subject to which the snapshot is to be
// sent.
func beginRestore(ctx context.Context, nc *nats.Conn, c streamConfig, replicas int) (subject string, err error) {
	c.Config.Replicas, c.Config.Placement = replicas, nil
	var begun server.JSApiStreamRestoreResponse
	err = call(ctx, nc, fmt.Sprintf(server.JSApiStreamRestoreT, c.Config.Name), server.JSApiStreamRestoreRequest{Config: c.Config, State: c.State}, &begun)
	return begun.DeliverSubject, err
}

// sendChunks sends a snapshot in chunks.
func sendChunks(ctx context.Context, nc *nats.Conn, subject string, r io.Reader) error {
	chunk := make([]byte, snapshotChunk)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			if err := sendChunk(ctx, nc, subject, chunk[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return sendChunk(ctx, nc, subject, nil)
		}
		if err != nil {
			return err
		}
	}
}

// sendChunk sends a chunk of a snapshot; an empty one ends it.
func sendChunk(ctx context.Context, nc *nats.Conn, subject string, chunk []byte) error {
	octx, cancel := context.WithTimeout(ctx, snapshotChunkTimeout)
	defer cancel()
	for {
		msg, err := nc.RequestWithContext(octx, subject, chunk)
		if errors.Is(err, nats.ErrNoResponders) && sleep(octx, restoreRetry) {
			continue // this server does not know yet which member receives the snapshot
		}
		if err != nil {
			return err
		}
		return apiError(msg.Data)
	}
}

// call sends a request of the JetStream API with opTimeout.
func call(ctx context.Context, nc *nats.Conn, subject string, request, response any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	msg, err := nc.RequestWithContext(octx, subject, data)
	if err != nil {
		return err
	}
	if err := apiError(msg.Data); err != nil {
		return err
	}
	return json.Unmarshal(msg.Data, response)
}

// apiError returns the error in a response of the JetStream API.
func apiError(data []byte) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	var r server.ApiResponse
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("decoding a response of the store: %w", err)
	}
	if r.Error != nil {
		return r.Error
	}
	return nil
}
