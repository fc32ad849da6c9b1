//go:build compare && linux

package controller_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/atomicfile"
	"skyserve/internal/testkit"
)

// regionNetwork is the network between the machines of a local service. Every address to which one machine connects at
// another one is that of a proxy: members of the store, balancers, their admin APIs and agents, replicas. Controllers connect
// to the agents of replicas directly.
type regionNetwork struct {
	*testkit.Network
	live *testkit.LiveService

	mu       sync.Mutex
	machines map[string][]int // processes, by machine
	listed   time.Time        // when they were listed
}

// openNetwork makes the machines of a service that is not started yet connect to each other through proxies. rtt is the
// flag -control.rtt.
func (w *controlWorld) openNetwork(rtt string) {
	w.t.Helper()
	between, err := parseRTT(rtt)
	if err != nil {
		w.t.Fatal(err)
	}
	w.network = &regionNetwork{live: w.LiveService, Network: &testkit.Network{Delay: func(from, to string) time.Duration {
		return between(regionOf(from), regionOf(to))
	}}}
	advertised := testkit.LocalPort()
	dir := filepath.Dir(w.MachineDir(""))
	slots, err := json.Marshal(map[string]any{"port": w.Port, "advertised_port": advertised})
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteFile(filepath.Join(dir, "slots.json"), slots, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	regions := []string{"us", "eu", "asia"}
	for _, kind := range []int{0, 100, 300, 305, 500, 700} { // provision/local numbers the ports
		for n, region := range regions {
			addr := func(base int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(base+kind+n)) }
			machine := "lb-" + region + "-0"
			if kind == 700 {
				machine = region + "-0"
			}
			testkit.NewProxy(w.t, addr(advertised), addr(w.Port), machine, w.network.machineAt, w.network.Network)
		}
	}
}

// regionOf returns the region of a machine; empty for what is not one, as an operator or a client.
func regionOf(machine string) string {
	region, _, _ := strings.Cut(strings.TrimPrefix(machine, "lb-"), "-")
	return region
}

// parseRTT parses the flag -control.rtt: one time, or one for each pair of regions.
func parseRTT(text string) (between func(a, b string) time.Duration, err error) {
	all, err := time.ParseDuration(text)
	if err == nil {
		return func(a, b string) time.Duration {
			if a == b || a == "" || b == "" {
				return 0
			}
			return all
		}, nil
	}
	pairs := map[string]time.Duration{}
	for _, part := range strings.Split(text, ",") {
		pair, value, _ := strings.Cut(part, "=")
		a, b, isPair := strings.Cut(pair, "-")
		rtt, err := time.ParseDuration(value)
		if err != nil || !isPair {
			return nil, fmt.Errorf("-control.rtt: want 150ms or us-eu=90ms,us-asia=150ms,eu-asia=230ms, got %q", text)
		}
		pairs[a+"-"+b], pairs[b+"-"+a] = rtt, rtt
	}
	return func(a, b string) time.Duration { return pairs[a+"-"+b] }, nil
}

// cut holds everything back between a machine and others.
func (n *regionNetwork) cut(t *testing.T, machine string, others []string) (repair func()) {
	repair = n.Cut(func(from, to string) bool {
		return from == machine && slices.Contains(others, to) || to == machine && slices.Contains(others, from)
	})
	t.Cleanup(repair) // proxies wait for it
	return repair
}

// machineAt returns the machine whose process has a socket with a local address; empty for another process.
func (n *regionNetwork) machineAt(client, proxy net.Addr) string {
	inode, err := inodeOf(client.(*net.TCPAddr), proxy.(*net.TCPAddr))
	if err != nil {
		return "" // the client has closed it
	}
	n.mu.Lock()
	if time.Since(n.listed) > time.Second {
		n.machines, n.listed = n.live.Processes(), time.Now()
	}
	machines := n.machines
	n.mu.Unlock()
	socket := fmt.Sprintf("socket:[%d]", inode)
	for machine, pids := range machines {
		for _, pid := range pids {
			dir := fmt.Sprintf("/proc/%d/fd/", pid)
			files, _ := os.ReadDir(dir) // it may have ended
			for _, f := range slices.Backward(files) {
				if to, _ := os.Readlink(dir + f.Name()); to == socket {
					return machine
				}
			}
		}
	}
	return ""
}

// inodeOf returns the inode of a socket, as `ss` finds it.
func inodeOf(local, remote *net.TCPAddr) (inode uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	const header, request, inodeAt = 16, 56, 68
	q := make([]byte, header+request)
	native, network := binary.NativeEndian, binary.BigEndian
	native.PutUint32(q, uint32(len(q)))
	native.PutUint16(q[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(q[6:], unix.NLM_F_REQUEST)
	d := q[header:]
	d[0], d[1] = unix.AF_INET, unix.IPPROTO_TCP
	native.PutUint32(d[4:], ^uint32(0)) // in any state
	network.PutUint16(d[8:], uint16(local.Port))
	network.PutUint16(d[10:], uint16(remote.Port))
	copy(d[12:], local.IP.To4())
	copy(d[28:], remote.IP.To4())
	native.PutUint64(d[48:], ^uint64(0)) // no cookie
	if err := unix.Sendto(fd, q, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	reply := make([]byte, 4096)
	size, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil {
		return 0, err
	}
	if size < header+inodeAt+4 || native.Uint16(reply[4:]) != unix.SOCK_DIAG_BY_FAMILY {
		return 0, fmt.Errorf("no socket from %s to %s", local, remote)
	}
	return native.Uint32(reply[header+inodeAt:]), nil
}

// faultLasts returns how long a fault lasts before it is repaired.
func (w *controlWorld) faultLasts() time.Duration {
	if w.network != nil {
		return faultLastsAcross
	}
	return faultLasts
}
