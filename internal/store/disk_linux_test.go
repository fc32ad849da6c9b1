package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/testkit"
)

// envDisk is the environment variable with the directory of a store whose disk becomes full. If it
// is set, the test binary runs fillDisk instead of tests: the limit of file sizes applies to the
// whole process.
const envDisk = "SKYSERVE_TEST_DISK"

func init() {
	dir := os.Getenv(envDisk)
	if dir == "" {
		return
	}
	if err := fillDisk(context.Background(), dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// limitFiles limits the size of files of this process. A write beyond the limit writes a part of
// its data and fails, as on a full disk.
func limitFiles(bytes uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = min(bytes, limit.Max)
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &limit)
}

// fillDisk runs a store whose disk is full for a limited time.
func fillDisk(ctx context.Context, dir string) error {
	signal.Ignore(unix.SIGXFSZ) // the write fails with EFBIG instead
	health := make(chan error, 16)
	var logged logged
	srv, err := Serve(ctx, Options{
		Dir: dir, Listen: "127.0.0.1:0", checkEvery: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		OnOutage: func(p *Outage) {
			if p == nil {
				health <- nil
				return
			}
			health <- p
		},
	})
	if err != nil {
		return err
	}
	defer srv.Close()
	st, err := Connect(ctx, srv.URL(), "")
	if err != nil {
		return err
	}
	defer st.Close()
	lease, err := st.Acquire(ctx, "controller.chat", "one", time.Second)
	if err != nil {
		return err
	}
	if err := limitFiles(1 << 20); err != nil {
		return err
	}
	kept := 0
	value := bytes.Repeat([]byte("x"), 64<<10)
	put := func(name string) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return st.Put(ctx, name, value)
	}
	var last uint64
	for err = nil; err == nil; kept++ {
		if kept > 64 {
			return errors.New("4 MiB were stored in files of 1 MiB")
		}
		var revision uint64
		if revision, err = put(fmt.Sprintf("k.%d", kept)); err == nil {
			last = revision
		}
	}
	kept-- // the last one was rejected
	if err := <-health; err == nil || !strings.Contains(err.Error(), "file too large") {
		return fmt.Errorf("a write to a full disk returned %v, want the cause", err)
	}
	if srv.Outage() == nil {
		return errors.New("Health returned nil on a full disk")
	}
	for i := range 20 { // each write fails
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		_, _ = st.Put(short, fmt.Sprintf("more.%d", i), value)
		cancel()
	}
	if n := logged.lines(); n < 1 || n > 5 {
		return fmt.Errorf("%d lines are logged: %s", n, logged.text.String())
	}
	if _, _, err := st.Get(ctx, "k.0"); err != nil {
		return fmt.Errorf("read while the disk is full: %w", err)
	}
	if err := limitFiles(unix.RLIM_INFINITY); err != nil {
		return err
	}
	if err := <-health; err != nil {
		return fmt.Errorf("after space was freed: got %w", err)
	}
	if p := srv.Outage(); p != nil {
		return fmt.Errorf("after space was freed: got %w", p)
	}
	for i := range kept {
		if _, _, err := get(ctx, st, fmt.Sprintf("k.%d", i)); err != nil {
			return fmt.Errorf("read an acknowledged value: %w", err)
		}
	}
	revision, err := put("after")
	if err != nil || revision <= last || revision <= lease.Token() {
		return fmt.Errorf("write after space was freed: got revision %d after %d, %w", revision, last, err)
	}
	return nil
}

// get reads a key. If the connection has just been lost, it retries with the next one.
func get(ctx context.Context, st *Store, key string) ([]byte, uint64, error) {
	for {
		_, _, next := st.connectionState()
		value, revision, err := st.Get(ctx, key)
		if !errors.Is(err, ErrUnavailable) {
			return value, revision, err
		}
		<-next
	}
}

// After a full disk the NATS server rejects all writes until it is restarted: the store reports it,
// and restarts the server once there is free space. No acknowledged write is lost.
func TestStoreRecoversWhenDiskHasSpace(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), envDisk+"="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
