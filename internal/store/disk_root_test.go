//go:build linux && disktest

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/testkit"
)

// These tests require root, to mount a file system: run make disk.

// smallDisk mounts a file system of 32 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill uses all free space, and returns a function that frees it.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, "fill")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	f.Close()
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// openFiles counts the open files of this process whose name contains a text.
func openFiles(t *testing.T, text string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(name, text) {
			n++
		}
	}
	return n
}

func TestStoreRecoversOnRealDisk(t *testing.T) {
	for name, fresh := range map[string]bool{"full": false, "full from the start": true} { // fresh: nothing was stored before
		t.Run(name, func(t *testing.T) {
			dir := smallDisk(t)
			health := make(chan *Outage, 16)
			srv, err := Serve(t.Context(), Options{Dir: filepath.Join(dir, "store"), Listen: "127.0.0.1:0", checkEvery: 20 * time.Millisecond, OnOutage: func(p *Outage) { health <- p }})
			if err != nil {
				t.Fatal(err)
			}
			defer srv.Close()
			st, err := Connect(t.Context(), srv.URL(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			put := func(i int) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := st.Put(ctx, fmt.Sprintf("k.%d", i), make([]byte, 10<<10))
				return err
			}
			if !fresh {
				if err := put(0); err != nil {
					t.Fatal(err)
				}
			}
			empty := fill(t, dir)
			for range 20 {
				if err := put(1); err == nil {
					t.Fatal("the write succeeded on a full disk")
				}
			}
			if p := <-health; p == nil || !errors.Is(p, unix.ENOSPC) && !strings.Contains(p.Error(), "no space left on device") {
				t.Fatalf("got %v, want the error of a full disk", p)
			}
			if deleted := openFiles(t, "(deleted)"); deleted > 3 {
				t.Errorf("%d descriptors of deleted files are open", deleted)
			}
			empty()
			if p := <-health; p != nil {
				t.Fatal(p)
			}
			if !fresh {
				if _, _, err := get(t.Context(), st, "k.0"); err != nil {
					t.Error(err)
				}
			}
			for put(2) != nil && t.Context().Err() == nil {
			}
			if _, _, err := get(t.Context(), st, "k.1"); !errors.Is(err, ErrNotFound) {
				t.Errorf("the rejected value is stored: %v", err)
			}
			st.Close()
			srv.Close()
			again, err := Serve(t.Context(), Options{Dir: filepath.Join(dir, "store"), Listen: "127.0.0.1:0"})
			if err != nil {
				t.Fatal(err)
			}
			again.Close()
		})
	}
}

// The disk of one member of three is full, that of the leader or of another: the others continue, the member
// says why it stepped aside, and it is current again once its disk has space.
func TestClusterContinuesWithFullDisk(t *testing.T) {
	for _, leader := range []bool{true, false} {
		t.Run(fmt.Sprintf("leader %v", leader), func(t *testing.T) {
			c := newTestCluster(t, "a", "b", "c")
			disks := map[string]string{}
			for _, n := range c.nodes {
				disks[n] = smallDisk(t)
				if err := os.Symlink(disks[n], filepath.Join(c.dir, n)); err != nil {
					t.Fatal(err)
				}
			}
			c.start(c.nodes...)
			c.waitReplicated()
			full := c.leader()
			if !leader {
				full = map[string]string{"a": "b", "b": "c", "c": "a"}[full]
			}
			st := c.client(full)
			value := strings.Repeat("x", 10<<10)
			put(t, st, "k.before", value)
			empty := fill(t, disks[full])
			for i := range 50 {
				put(t, st, fmt.Sprintf("k.%d", i), value)
			}
			testkit.Eventually(t, "the member reports its disk", func() bool {
				p := c.servers[full].Outage()
				return p != nil && errors.Is(p, unix.ENOSPC)
			})
			for _, n := range c.nodes {
				if p := c.servers[n].Outage(); n != full && p != nil {
					t.Errorf("%s reports %v", n, p)
				}
			}
			for _, n := range c.nodes {
				testkit.Eventually(t, n+" says whose disk is full", func() bool {
					s := c.servers[n].Cluster()
					return s.Leader != "" && s.Leader != full && strings.Contains(s.NotReplicatedReason(), full+" cannot write: ") && strings.Contains(s.NotReplicatedReason(), "no space left on device")
				})
			}
			empty()
			testkit.Eventually(t, "the member recovers", func() bool { return c.servers[full].Outage() == nil })
			c.waitReplicated()
			for i := range 50 {
				if v, _, err := read(t, st, fmt.Sprintf("k.%d", i)); err != nil || len(v) != len(value) {
					t.Errorf("k.%d: %d bytes, %v", i, len(v), err)
				}
			}
		})
	}
}
