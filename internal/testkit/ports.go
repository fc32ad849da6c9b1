package testkit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Local services number their ports from local.port: a hundred of each kind. Tests use the first
// few of each kind, so services whose first ports are portStep apart do not collide.
const (
	portFirst  = 10001 // ephemeral ports begin above 32,767
	portStep   = 20
	portKinds  = 10 // kinds of ports of a service, a hundred ports each
	portBlocks = 20 // of portKinds hundreds each
	portBases  = portBlocks * 100 / portStep
)

// ports are the blocks of ports of this process. A block of an ended service is used again only after all others,
// and by no other process: between two services of one test its ports are free.
var ports struct {
	sync.Mutex
	last  int        // number of the last block assigned
	mine  []int      // numbers of the blocks that this process holds, in the order in which they were assigned
	locks []*os.File // never closed: a lock ends with the process
}

func init() { ports.last = os.Getpid() } // test binaries start far apart

// LocalPort returns a local.port for the service of a test. No other test uses it, unless this process calls it more
// than portBases/2 times, and the first ports of each kind are free. It allows up to 20 machines of a kind.
func LocalPort() int {
	ports.Lock()
	defer ports.Unlock()
	for range portBases {
		if len(ports.mine) == portBases/2 {
			break // the others are for other processes
		}
		ports.last = (ports.last + 1) % portBases
		if slices.Contains(ports.mine, ports.last) || !portsFree(portBase(ports.last)) {
			continue
		}
		lock, err := lockPorts(ports.last)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("testkit: locking ports: %v", err))
		}
		ports.mine, ports.locks = append(ports.mine, ports.last), append(ports.locks, lock)
		return portBase(ports.last)
	}
	for i, n := range ports.mine {
		if portsFree(portBase(n)) {
			ports.mine = append(slices.Delete(ports.mine, i, i+1), n)
			return portBase(n)
		}
	}
	panic("testkit: all ports for local services are in use; stop the processes of earlier tests")
}

// portBase returns the first port of a block.
func portBase(n int) int {
	return portFirst + n/(100/portStep)*portKinds*100 + n%(100/portStep)*portStep
}

// lockPorts locks a block of ports until the process ends. It fails with EWOULDBLOCK if another process has locked it.
func lockPorts(n int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("skyserve-test-ports-%d", n)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// portsFree reports whether the ports of each kind that tests use most are free: the first two, and the last
// one, which is that of name servers.
func portsFree(base int) bool {
	for kind := range portKinds {
		for _, n := range []int{0, 1, portStep - 1} {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+100*kind+n)))
			if err != nil {
				return false
			}
			l.Close()
		}
	}
	return true
}

// Ports for single listeners lie between those of local services and the ephemeral ones, so that no
// outgoing connection takes one before it is used.
const (
	addrFirst = 30101
	addrCount = 2600
)

var lastAddr atomic.Int64

func init() { lastAddr.Store(int64(os.Getpid()) * 37) } // test binaries start far apart

// FreeAddr returns a free address on loopback, for a listener that must have the same address when it
// starts again. No other test of this process gets it.
func FreeAddr() string {
	for range addrCount {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(addrFirst+int(lastAddr.Add(1)%addrCount)))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	panic("testkit: all ports for listeners are in use; stop the processes of earlier tests")
}
